"""A folder of files that hold their key and a digest, put there by renaming."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kerascl import config
from kerascl.runtime import trust

#: Part of every key: raise it when what is stored changes meaning.
FORMAT = 2

_MAGIC = b"KERASCL2"
_HEADER = len(_MAGIC) + 32 + 32  # then the key and a digest of it with what follows

Value = TypeVar("Value")


class DiskCache:
    """bytes by key.  Every failure of the file system means "not cached", never an error.

    A file that is damaged, of another key or format is deleted; one that another user may have
    written (see trust.py) is left alone and counts as missing.
    """

    LIMIT = 1 << 30
    _SWEEP_EVERY = 100

    def __init__(self, folder: Path, salt: str):
        self.folder = folder
        self._salt = salt
        self._lock = threading.Lock()
        self._puts = 0

    @classmethod
    def open(cls, name: str, salt: str) -> DiskCache | None:
        """The cache `name` under the cache folder, or None when caching is off."""
        folder = trust.subfolder(name)
        return None if folder is None else cls(folder, salt)

    @property
    def writable(self) -> bool:
        """Whether files can be left in the folder, as far as its rights tell."""
        with contextlib.suppress(OSError):
            trust.make(self.folder)
        return os.access(self.folder, os.W_OK)

    def key(self, *texts: str) -> str:
        """A file name for what is made from these texts on this device."""
        digest = hashlib.sha256(f"{FORMAT}\0{self.folder.name}\0{self._salt}".encode())
        for text in texts:
            data = text.encode()
            digest.update(b"\0%d\0" % len(data))
            digest.update(data)
        return digest.hexdigest()

    def path(self, key: str) -> Path:
        """Where a key's file is."""
        return self.folder / key[:2] / f"{key[2:]}.bin"

    def get(self, key: str) -> bytes | None:
        """What was put under a key, or None."""
        path = self.path(key)
        data = trust.read(path) if trust.sound(path.parent) else None
        if data is None:
            return None
        payload = data[_HEADER:]
        if data[:_HEADER] != _header(key, payload):
            self.reject(key, "it is damaged or belongs to another key")
            return None
        try:
            # The modification time is the time of last use: what the sweep goes by.
            if path.stat().st_mtime < time.time() - 3600:
                os.utime(path)
        except OSError:
            pass
        return payload

    def load(self, key: str, parse: Callable[[bytes], Value]) -> Value | None:
        """What `parse` makes of what was put, or None; where it raises, the file is deleted."""
        payload = self.get(key)
        if payload is None:
            return None
        try:
            return parse(payload)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            self.reject(key, f"its content makes no sense ({type(error).__name__})")
            return None

    def put(self, key: str, payload: bytes) -> None:
        """Keep bytes under a key."""
        path = self.path(key)
        try:
            trust.make(path.parent)
            if not trust.sound(path.parent):
                return
            trust.write(path, _header(key, payload) + payload)
        except OSError:
            return
        with self._lock:
            self._puts += 1
            sweep = self._puts % self._SWEEP_EVERY == 1
        if sweep:
            self.sweep()

    def reject(self, key: str, why: str) -> None:
        """Forget a key whose file is no good."""
        if config.debug():
            print(f"kerascl: {self.path(key)} is made anew: {why}", file=sys.stderr)
        self.remove(key)

    def remove(self, key: str) -> None:
        """Forget a key."""
        _unlink(self.path(key))

    def sweep(self) -> None:
        """Delete the least recently used files beyond LIMIT bytes, and dead writers' leftovers."""
        files = []
        now = time.time()
        try:
            for path in self.folder.glob("*/*"):
                try:
                    status = path.stat()
                except OSError:
                    continue
                if path.suffix == ".tmp":
                    if status.st_mtime < now - 3600:
                        _unlink(path)
                else:
                    files.append((status.st_mtime, status.st_size, path))
        except OSError:
            return
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.LIMIT:
                break
            _unlink(path)
            total -= size


def _header(key: str, payload: bytes) -> bytes:
    name = bytes.fromhex(key)
    return _MAGIC + name + hashlib.sha256(name + payload).digest()


def _unlink(path: str | Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
