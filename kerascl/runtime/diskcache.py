"""A folder of checksummed files, written by rename, safe for many processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from pathlib import Path

from kerascl.runtime.icd import cache_root

#: Part of every key: raise it when what is stored changes meaning.
FORMAT = 1

_MAGIC = b"KERASCL1"
_HEADER = len(_MAGIC) + 32


class DiskCache:
    """bytes by key.  Every failure of the file system means "not cached", never an error."""

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
        root = cache_root()
        return None if root is None else cls(root / name, salt)

    @property
    def writable(self) -> bool:
        """Whether files can be left in the folder, as far as its rights tell."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        return os.access(self.folder, os.W_OK)

    def key(self, *texts: str) -> str:
        """A file name for what is made from these texts on this device."""
        digest = hashlib.sha256(f"{FORMAT}\0{self._salt}".encode())
        for text in texts:
            data = text.encode()
            digest.update(b"\0%d\0" % len(data))
            digest.update(data)
        return digest.hexdigest()

    def path(self, key: str) -> Path:
        """Where a key's file is."""
        return self.folder / key[:2] / f"{key[2:]}.bin"

    def get(self, key: str) -> bytes | None:
        """What was put, or None; a damaged file is deleted."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = data[_HEADER:]
        if data[:_HEADER] != _MAGIC + hashlib.sha256(payload).digest():
            self.remove(key)
            return None
        try:
            # The modification time is the time of last use: what the sweep goes by.
            if path.stat().st_mtime < time.time() - 3600:
                os.utime(path)
        except OSError:
            pass
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Keep bytes under a key."""
        path = self.path(key)
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path)
        except OSError:
            if temporary is not None:
                _unlink(temporary)
            return
        with self._lock:
            self._puts += 1
            sweep = self._puts % self._SWEEP_EVERY == 1
        if sweep:
            self.sweep()

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


def _unlink(path: str | Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
