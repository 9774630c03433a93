"""Ctrl-C that somebody swallowed is raised again.

Keras has several `except:` without a type around what it tries, and Python drops what is raised in
`__del__`: a KeyboardInterrupt that comes there would be lost.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable

_noted = False


def _note(number, frame) -> None:
    global _noted
    _noted = True
    raise KeyboardInterrupt


def interruptible(function: Callable) -> Callable:
    """A model's method, inside which `check` raises a KeyboardInterrupt that did not arrive.

    That is so in the main thread, unless the program has a handler of its own for SIGINT. At the
    end it is checked, too, unless a callback may have answered by `stop_training`.
    """

    @functools.wraps(function)
    def wrapped(model, *args, **kwargs):
        global _noted
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            return function(model, *args, **kwargs)
        _noted = False
        signal.signal(signal.SIGINT, _note)
        try:
            result = function(model, *args, **kwargs)
            if not getattr(model, "stop_training", False):  # `compile` makes it
                check()
            return result
        finally:
            _noted = False
            if signal.getsignal(signal.SIGINT) is _note:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    return wrapped


def check() -> None:
    """Raise a KeyboardInterrupt that came since `interruptible` began and did not end it.

    Raises:
        KeyboardInterrupt: there was one.
    """
    global _noted
    if _noted:
        _noted = False
        raise KeyboardInterrupt
