"""What every Keras layer inherits from this backend."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable

_hides_masked = contextvars.ContextVar("hides_masked", default=False)


class BackendLayer:
    """Lets whole-sequence functions know a setting that Keras does not pass on to them."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        inner_loop = cls.__dict__.get("inner_loop")
        if inner_loop is not None:
            cls.inner_loop = _announcing(inner_loop)


def hides_masked() -> bool:
    """Whether the recurrent layer that is being called has `zero_output_for_mask`."""
    return _hides_masked.get()


def _announcing(inner_loop: Callable) -> Callable:
    @functools.wraps(inner_loop)
    def wrapped(self, *args, **kwargs):
        token = _hides_masked.set(bool(getattr(self, "zero_output_for_mask", False)))
        try:
            return inner_loop(self, *args, **kwargs)
        finally:
            _hides_masked.reset(token)

    return wrapped
