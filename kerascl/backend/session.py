"""What `keras.utils.clear_session` frees; Keras calls it through an arm of `kerascl_hook`."""

from __future__ import annotations

import gc

from kerascl.core.context import current


def clear(free_memory: bool = True) -> None:
    """Free compiled graphs, built programs and memory that nothing in use holds.

    Args:
        free_memory: that of Keras; without it nothing is freed, since it asks to be quick.
    """
    if free_memory:
        gc.collect()  # models hold themselves: their layers know them
        current.engine.let_go()
