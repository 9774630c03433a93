"""Kernels that differ only in what becomes of their results: one text, which asks whose these are.

Products of one input, as queries, keys and values are, end in different ways: some are stored
whole, others at a place of a cache.  What they read and how they multiply is the same.
"""

from __future__ import annotations

import re
from dataclasses import replace

from kerascl.kernels.contract.source import Source

MOST = 4  # that one text has
WHOSE = "epilogue_"  # the variable that says which one is meant
_LINE = re.compile(r"#(define|undef) EPILOGUE")
_PARTS = ("#define EPILOGUE_KEPT ", "#define EPILOGUE_READ(i_) ", "#define EPILOGUE(acc_, i_) ")
_KEPT = re.compile(r"\bkept(\d+)_(?!\w)")


def apart(source: Source) -> tuple[object, ...]:
    """What is equal for kernels that `joined` takes: all but epilogues and what these call."""
    if not source.epilogue:
        return source.params, source.body, source.helpers
    rest = "\n".join(line for line in source.body.splitlines() if not _LINE.match(line))
    params = tuple(param for param in source.params if param not in source.epilogue)
    return params, rest, source.options, source.inner


def joined(sources: list[Source]) -> list[Source]:
    """Of kernels that are equal but for their epilogues: the same with one body, in which WHOSE is
    the number of the kernel that is meant, and parameters of different names."""
    texts: list[dict[str, str]] = []
    params: list[tuple[str, ...]] = []
    for k, source in enumerate(sources):
        own = source.epilogue if k else ()
        names = {name: f"{name}_of{k}" for name in (p.rsplit(" ", 1)[1] for p in own)}
        params.append(tuple(_renamed(p, names) if p in own else p for p in source.params))
        found = {}
        for line in source.body.splitlines():
            part = next((part for part in _PARTS if line.startswith(part)), None)
            if part is not None:
                text = _renamed(line.removeprefix(part), names)
                found[part] = _KEPT.sub(rf"kept\1_of{k}_", text) if k else text
        texts.append(found)
    lines = []
    for part in _PARTS:
        each = [(k, found[part]) for k, found in enumerate(texts) if part in found]
        if not each:
            continue
        if part == _PARTS[0]:
            lines.append(part + " ".join(text for _, text in each))
        else:
            cases = (f"if ({WHOSE} == {k}) {text}" for k, text in each)
            lines.append(part + "{ " + " else ".join(cases) + " }")
    before, after = _around(sources[0].body)
    ends = (f"#undef {line.split()[1].split('(')[0]}" for line in lines)
    body = "".join(f"{line}\n" for line in (*before, *lines, *after, *ends))
    helpers = tuple(dict.fromkeys(h for source in sources for h in source.helpers))
    double = any(source.uses_double for source in sources)
    return [
        replace(source, body=body, params=own, helpers=helpers, uses_double=double)
        for source, own in zip(sources, params, strict=True)
    ]


def _around(body: str) -> tuple[list[str], list[str]]:
    """The lines before the epilogue, and those behind it."""
    lines = body.splitlines()
    first = next((k for k, line in enumerate(lines) if _LINE.match(line)), len(lines))
    behind = [line for line in lines[first:] if not _LINE.match(line)]
    return lines[:first], behind


def _renamed(text: str, names: dict[str, str]) -> str:
    """The text with other names, as whole words."""
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda word: names.get(word[0], word[0]), text)
