"""`keras.utils.clear_session` also drops compiled graphs that nothing in use holds."""

from __future__ import annotations

import weakref

from keras.src.backend.common import global_state

from kerascl.core.scope import engine


def watch() -> None:
    """From now on: Keras gives its global state up with each session, so its end is the sign."""
    weakref.finalize(global_state.GLOBAL_STATE_TRACKER, _ended).atexit = False


def _ended() -> None:
    watch()
    engine().forget()
