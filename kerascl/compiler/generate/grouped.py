"""What elements of a group share, in the text of an operand that a kernel computes as it reads it.

Weights that are quantised by groups have scales behind a table that names each weight's group:

    table[k] -> scale[table[k], n], zero[table[k], n]

Elements that follow each other are mostly of one group: a kernel may keep what it found there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kerascl.kernels.contract.computed import Grouped

_STATEMENT = re.compile(r"const (\w+(?: \w+)*) (\w+) = (.+)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
# Types that keys may have, whose bits tell groups apart.
_KEYS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double")
MOST = 24  # values that are kept, in registers


def grouped(
    keys: Sequence[tuple[str, str, str]], differing: Iterable[str], memory: Iterable[str],
    lines: Iterable[str], values: Sequence[str],
) -> Grouped | None:  # fmt: skip
    """The part of an operand's text that depends on the elements' group alone; None where nothing
    is read behind keys, or the text has another form than single statements.

    Args:
        keys: loads whose values may name a group: C type, variable, load.
        differing: variables that differ from element to element within a group.
        memory: the names of the parameters that are read.
        lines: of the text, in order, statements that declare constants.
        values: variables that are wanted.
    """
    if not keys or any(kind not in _KEYS for kind, _, _ in keys):
        return None
    statements = [s.strip() for line in lines for s in line.split(";") if s.strip()]
    found = [_STATEMENT.fullmatch(statement) for statement in statements]
    named, outside, pointers = {name for _, name, _ in keys}, set(differing), set(memory)
    shared: dict[str, str] = {}  # of the group: variables and their types
    own, rest, reads = [], [], False
    for statement, match in zip(statements, found, strict=True):
        if match is None:
            return None
        kind, name, text = match.groups()
        words = set(_WORD.findall(text))
        if words & outside:
            outside.add(name)
            rest.append(statement)
            continue
        if words & named:
            named.add(name)
            reads |= bool(words & pointers)
        shared[name] = kind
        own.append(statement)
    wanted = {word for statement in rest for word in _WORD.findall(statement)} | set(values)
    left = " ".join(rest)
    kept = tuple((_kept(shared[name], name, left), name) for name in shared if name in wanted)
    if not reads or len(kept) > MOST:
        return None
    return Grouped(
        tuple((kind, name) for kind, name, _ in keys), _text(own), kept, _text(rest)
    )  # fmt: skip


def _kept(kind: str, name: str, text: str) -> str:
    """The type to keep a variable in: small integers as C computes them, else their sign is copied
    at each use, except where a text looks at their bits."""
    small = kind in ("char", "uchar", "short", "ushort")
    return "int" if small and not re.search(rf"(&|as_\w+\(){name}\b", text) else kind


def _text(statements: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{statement};" for statement in statements)
