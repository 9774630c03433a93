"""What was used last, up to a number; who uses a value keeps it, so letting go of it is safe."""

from __future__ import annotations

import threading
from collections import OrderedDict


class Recent:
    """Values by key; of more than `most`, the one unused for longest makes room."""

    def __init__(self, most: int):
        self.most = most
        self._values: OrderedDict = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key) -> bool:
        return key in self._values

    def get(self, key):
        """The value, which counts as used; or None."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def setdefault(self, key, value):
        """The value there is, else this one from now on."""
        with self._lock:
            value = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self.most:
                self._values.popitem(last=False)
            return value

    def pop(self, key) -> None:
        """Forget a key, if it is there."""
        with self._lock:
            self._values.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()
