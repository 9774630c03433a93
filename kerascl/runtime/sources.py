"""Digests of kerascl's own sources: what was found out about a driver holds for these only."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

_WORD = re.compile(r"\w+")
_NAME = re.compile(r'"(\w+)(?:\.cl)?"')


@functools.cache
def of_module(module: str) -> str:
    """The digest of a module, of those that it imports from its own room, directly or not, and of
    the OpenCL C that they name.

    Args:
        module: as "kerascl.kernels.wgmma_selftest".
    """
    return _digest(files_of(module))


@functools.cache
def of_rooms(*rooms: str) -> str:
    """The digest of everything in some rooms of the package."""
    return _digest(file for room in rooms for file in (PACKAGE / room).rglob("*.*"))


def files_of(module: str) -> set[Path]:
    """The files whose digest is that of a module."""
    _, room, name = module.split(".")
    folder = PACKAGE / room
    import_ = re.compile(
        rf"^from kerascl\.{room}(?:\.(\w+) import|\s+import\s+([^\n(]+|\([^)]*\)))", re.M
    )
    programs = {file.stem: file for file in folder.glob("cl/*.cl")}
    found, todo = set(), [folder / f"{name}.py"]
    while todo:
        file = todo.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        text = _text(file).decode()
        imported = " ".join(filter(None, sum((m.groups() for m in import_.finditer(text)), ())))
        todo += [folder / f"{name}.py" for name in _WORD.findall(imported)]
        # Some are named as "gemm.cl", some by a stem that ".cl" is put behind.
        found.update(programs[w] for w in _NAME.findall(text) if w in programs)
    return found


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.suffix in (".py", ".cl"):
            data = _text(file)
            digest.update(f"{file.relative_to(PACKAGE)} {len(data)}\0".encode() + data)
    return digest.hexdigest()


def _text(file: Path) -> bytes:
    return file.read_bytes()
