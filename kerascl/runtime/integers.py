"""Negations of integers before minima and maxima, and comparisons behind those of 16 bits, in a
form that NVIDIA's assembler keeps.

From compute capability 9.0 on there is an instruction for the largest of three integers.  The
assembler of CUDA 13.0 makes it of `max(max(a, -b), -c)`, and loses the first minus: on an H200 the
maximum of -x over an axis of ones is 1.  So it goes with minima, and with 16 bits.  -x is ~x + 1,
which it keeps, at the price of an instruction; only negations that reach a minimum or a maximum
are written so.

Of `max(a, b) == b` with 16 bits it makes the predicate that the packed maximum gives beside its
result, which tells whether a was taken: maximum(x, 1) == 1 of uint16 is x != 0.  Where a function
compares 16-bit integers for equality, its minima and maxima are computed with 32 bits.
"""

from __future__ import annotations

import re

REWRITE = "integers"

_NEGATION = re.compile(rb"neg\.s(16|32)\s+(%\w+),\s*(%\w+);")
# What hands a value on, and the assembler looks through.
_COPY = re.compile(rb"(?:mov|selp|cvt)\.[\w.]+\s+(%\w+),\s*([^;]+);")
_EXTREME = re.compile(rb"(?:min|max)\.s\w+\s+%\w+,\s*([^;]+);")
_REGISTER = re.compile(rb"%\w+")
_NARROW = re.compile(rb"(min|max)\.([su])16\s+(%\w+),\s*([^,;]+),\s*([^;]+);")
_EQUALITY = re.compile(rb"setp\.(?:eq|ne)\.(?:\w+\.)*[sub]16\b")
_FUNCTION = re.compile(rb"^\s*(?:\.visible\s+|\.weak\s+)?\.(?:entry|func)\b", re.MULTILINE)


def plain(binary: bytes) -> bytes:
    """PTX without the instruction `neg` where its result reaches a minimum or maximum, and without
    minima or maxima of 16 bits beside comparisons for equality."""
    starts = [m.start() for m in _FUNCTION.finditer(binary)]
    if not starts:
        return binary
    ends = [*starts[1:], len(binary)]
    return binary[: starts[0]] + b"".join(
        _widened(_function(binary[start:end])) for start, end in zip(starts, ends, strict=True)
    )


def _function(text: bytes) -> bytes:
    """One function: registers have names of their own in it, and mostly one value each."""
    if not _NEGATION.search(text) or not _EXTREME.search(text):
        return text
    copies = [(m[1], set(_REGISTER.findall(m[2]))) for m in _COPY.finditer(text)]
    reach = {name for m in _EXTREME.finditer(text) for name in _REGISTER.findall(m[1])}
    known = -1
    while len(reach) != known:
        known = len(reach)
        for result, sources in copies:
            if result in reach:
                reach |= sources

    def other(m: re.Match[bytes]) -> bytes:
        bits, result, x = m.groups()
        if result not in reach:
            return m[0]
        return b"not.b%b %b, %b;\n\tadd.s%b %b, %b, 1;" % (bits, result, x, bits, result, result)

    return _NEGATION.sub(other, text)


def _widened(text: bytes) -> bytes:
    """One function, whose narrow minima and maxima nothing is folded into."""
    if not _EQUALITY.search(text):
        return text

    def wide(m: re.Match[bytes]) -> bytes:
        name, sign, result, *operands = m.groups()
        lines = [b"{ .reg .b16 %kcl_n; .reg .b32 %kcl_a, %kcl_b;"]
        for register, operand in zip((b"%kcl_a", b"%kcl_b"), operands, strict=True):
            if not operand.startswith(b"%"):
                lines.append(b"mov.b16 %%kcl_n, %b;" % operand)
                operand = b"%kcl_n"
            lines.append(b"cvt.%b32.%b16 %b, %b;" % (sign, sign, register, operand))
        lines.append(b"%b.%b32 %%kcl_a, %%kcl_a, %%kcl_b;" % (name, sign))
        lines.append(b"cvt.u16.u32 %b, %%kcl_a; }" % result)
        return b"\n\t".join(lines)

    return _NARROW.sub(wide, text)
