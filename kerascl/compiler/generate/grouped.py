"""What elements of a group share, in the text of an operand that a kernel computes as it reads it.

Weights that are quantised by groups have scales behind a table that names each weight's group:

    table[k] -> scale[table[k], n], zero[table[k], n]

Elements that follow each other are mostly of one group: a kernel may keep what it found there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kerascl.kernels.contract.computed import Grouped, Key, Term

_Load = tuple[str, str, str]  # C type, variable, load
_STATEMENT = re.compile(r"const (\w+(?: \w+)*) (\w+) = (.+)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
# Types of keys, whose bits tell groups apart.
_KEYS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double")
MOST = 24  # values that are kept, in registers


def grouped(
    outer: Sequence[_Load], inner: Sequence[_Load], terms: Sequence[Term], lines: Iterable[str],
    values: Sequence[str], params: Iterable[str],
) -> Grouped | None:  # fmt: skip
    """The part of an operand's text that depends on the elements' groups alone; None where nothing
    is read behind keys, or the text has another form than single statements.

    Args:
        outer: loads that depend on the terms behind the first one alone.
        inner: other loads that stand before the lines.
        terms: of the operand, the first one that of neighbours.
        lines: of the text, in order.
        values: variables that are wanted.
        params: what is read.
    """
    memory = [param.split()[-1] for param in params]
    others = {term.name for term in terms[1:]}
    along = [load for load in inner if not others & _words(load[2])]
    for keys, term_names in ((outer, others), (along, {terms[0].name})):
        tables = [_words(load).intersection(memory) for _, _, load in keys]
        plain = all(kind.rstrip("248") in _KEYS for kind, _, _ in keys)
        if not keys or not plain or any(len(table) != 1 for table in tables):
            continue
        own = {name for _, name, _ in keys}
        differing = {name for _, name, _ in inner} - own | term_names
        divided = _divided(own, differing, set(memory), lines, values)
        if divided is not None:
            known = tuple(Key(*key, *table) for key, table in zip(keys, tables, strict=True))
            return Grouped(known, keys is along, *divided)
    return None


def _divided(
    keys: set[str], differing: set[str], memory: set[str], lines: Iterable[str],
    values: Sequence[str],
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]] | None:  # fmt: skip
    """`lines`, `kept` and `rest` of `Grouped`; `differing` variables are not a group's."""
    statements = [s.strip() for line in lines for s in line.split(";") if s.strip()]
    shared: dict[str, str] = {}  # of the group: variables and their types
    own, rest, reads = [], [], False
    for statement in statements:
        match = _STATEMENT.fullmatch(statement)
        if match is None:
            return None
        kind, name, text = match.groups()
        words = _words(text)
        if words & differing:
            differing = differing | {name}
            rest.append(statement)
            continue
        if words & keys:
            keys = keys | {name}
            reads |= bool(words & memory)
        shared[name] = kind
        own.append(statement)
    # A key that is needed beside what differs is not kept: then the text stays whole.
    wanted = {word for statement in rest for word in _words(statement)} | set(values)
    left = " ".join(rest)
    kept = tuple((_kept(shared[name], name, left), name) for name in shared if name in wanted)
    if not reads or len(kept) > MOST or not wanted.isdisjoint(keys - set(shared)):
        return None
    return _text(own), kept, _text(rest)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text))


def _kept(kind: str, name: str, text: str) -> str:
    """The type to keep a variable in: small integers as C computes them, else their sign is copied
    at each use, except where a text looks at their bits."""
    small = kind in ("char", "uchar", "short", "ushort")
    return "int" if small and not re.search(rf"(&|as_\w+\(){name}\b", text) else kind


def _text(statements: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{statement};" for statement in statements)
