"""Generated kernels that differ only in where they begin to read or write become one.

Each layer of a model reads its own part of an array that holds those of all, as a cache of keys and
values. That is a literal in its kernel's text, and a text costs as much to build as any other.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from kerascl.compiler.program.program import Step
from kerascl.kernels.contract.source import Source

# Of an index between brackets, the number that ends it.
_OFFSET = re.compile(r"(?<=\+)\d+(?=\)\])")
_MOST = 2**31


def share(generated: list[tuple[Step, Source]]) -> list[tuple[Step, Source]]:
    """Hand the offsets in which the texts of a captured program differ to their kernels.

    Args:
        generated: steps, each once, with their texts; steps get further arguments.

    Returns:
        The steps, with texts that more of them have in common.
    """
    alike: dict[Source, dict[Source, None]] = {}
    for _, text in generated:
        alike.setdefault(_skeleton(text), {}).setdefault(text)
    instead: dict[Source, tuple[Source, list[np.generic]]] = {}
    for texts in alike.values():
        if len(texts) > 1:
            instead.update(_joined(list(texts)))
    found = []
    for step, text in generated:
        if text in instead:
            text, offsets = instead[text]
            step.args = [*step.args, *offsets]
        found.append((step, text))
    return found


def _skeleton(text: Source) -> Source:
    return replace(text, body=_OFFSET.sub("0", text.body))


def _joined(texts: list[Source]) -> dict[Source, tuple[Source, list[np.generic]]]:
    """Of each text, the one that stands for all, and the arguments that it then takes."""
    numbers = [[int(n) for n in _OFFSET.findall(text.body)] for text in texts]
    columns = list(zip(*numbers, strict=True))
    if max(map(max, columns)) >= _MOST:
        return {}
    # equal columns are one argument
    names: dict[tuple[int, ...], str] = {}
    for column in columns:
        if len(set(column)) > 1:
            names.setdefault(column, f"offset_{len(names)}")
    written = iter(columns)

    def name(number: re.Match[str]) -> str:
        return names.get(next(written), number[0])

    first = texts[0]
    params = (*first.params, *(f"const int {name}" for name in names.values()))
    shared = replace(first, body=_OFFSET.sub(name, first.body), params=params)
    return {
        text: (shared, [np.int32(column[k]) for column in names]) for k, text in enumerate(texts)
    }
