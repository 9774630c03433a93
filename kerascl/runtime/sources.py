"""Digests of kerascl's own sources: what was found out about a driver holds for these only."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

_WORD = re.compile(r"\w+")
_NAME = re.compile(r'"(?:[\w/]+/)?(\w+)(?:\.cl)?"')


@functools.cache
def of_module(module: str) -> str:
    """The digest of a module, of those that it imports from its own room, directly or not, and of
    the OpenCL C that they name.

    Args:
        module: as "kerascl.kernels.hopper.matmul".
    """
    return _digest(files_of(module))


@functools.cache
def of_rooms(*rooms: str) -> str:
    """The digest of everything in some rooms of the package."""
    return _digest(file for room in rooms for file in (PACKAGE / room).rglob("*.*"))


def files_of(module: str) -> set[Path]:
    """The files whose digest is that of a module."""
    _, room, *_ = module.split(".")
    folder = PACKAGE / room
    # The dotted part below the room, and the names imported, which may be modules.
    import_ = re.compile(rf"^from kerascl\.{room}((?:\.\w+)*) import\s+([^\n(]+|\([^)]*\))", re.M)
    programs = {file.stem: file for file in folder.rglob("*.cl")}
    found, todo = set(), [PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")]
    while todo:
        file = todo.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        text = _text(file).decode()
        for below, names in import_.findall(text):
            place = folder.joinpath(*below.split(".")[1:])
            todo.append(place.with_suffix(".py"))
            todo += [place / f"{name}.py" for name in _WORD.findall(names)]
        # Some are named as "matmul/gemm_tile.cl", some by a stem that ".cl" is put behind.
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
