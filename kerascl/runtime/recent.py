"""What was used last, up to a weight, and whatever of the rest is still in use."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Recent:
    """Values by key; where they weigh more than `most`, those unused for longest make room.

    What made room is found all the same for as long as somebody else holds it. The value used last
    stays, whatever it weighs.

    Args:
        most: what all values may weigh together.
        weigh: gives the weight of a value, always the same one; 1 by default.
    """

    def __init__(self, most: int, weigh: Callable[[Any], int] = lambda value: 1) -> None:
        self.most = most
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        # References without callbacks, in which Ctrl-C would be lost; dead ones are swept out.
        self._others: dict[Hashable, weakref.ref[Any]] = {}
        self._sweep_at = 64
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return self._find(key) is not None

    def alive(self) -> int:
        """How many values there are, those included that only others hold."""
        with self._lock:
            self._sweep()
            return len(self._values) + len(self._others)

    def get(self, key: Hashable) -> Any:
        """The value, which counts as used; or None."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
                return value
            value = self._find(key)
            if value is not None:
                self._use(key, value)
            return value

    def setdefault(self, key: Hashable, value: Any) -> Any:
        """The value there is, else this one from now on."""
        with self._lock:
            found = self._find(key)
            value = value if found is None else found
            self._use(key, value)
            return value

    def pop(self, key: Hashable) -> None:
        """Forget a key, if it is there."""
        with self._lock:
            self._others.pop(key, None)
            if key in self._values:
                self._weight -= self._weigh(self._values.pop(key))

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()
            self._others.clear()
            self._weight = 0

    def let_go(self) -> None:
        """Forget what nobody else holds."""
        with self._lock:
            self._make_room(0)
            self._sweep()

    def _find(self, key: Hashable) -> Any:
        value = self._values.get(key)
        if value is None:
            reference = self._others.get(key)
            value = None if reference is None else reference()
        return value

    def _use(self, key: Hashable, value: Any) -> None:
        if key in self._values:
            self._values.move_to_end(key)
            return
        self._others.pop(key, None)
        self._values[key] = value
        self._weight += self._weigh(value)
        if self._weight > self.most:
            self._make_room(1)

    def _make_room(self, least: int) -> None:
        while len(self._values) > least and (self._weight > self.most or not least):
            key, value = self._values.popitem(last=False)
            self._weight -= self._weigh(value)
            self._others[key] = weakref.ref(value)
        if len(self._others) > self._sweep_at:
            self._sweep()
            self._sweep_at = 64 + 2 * len(self._others)

    def _sweep(self) -> None:
        self._others = {key: ref for key, ref in self._others.items() if ref() is not None}
