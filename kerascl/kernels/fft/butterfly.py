"""Transforms of a few values in registers, as OpenCL C functions of straight-line code."""

from __future__ import annotations

import cmath
import math

Value = tuple[str, str]  # the names of a real and an imaginary part

_WRITTEN = 13  # longer sums of prime length are loops
_TABLES = """\
__constant R fft_cos_{r}[{r}] = {{{cos}}};
__constant R fft_sin_{r}[{r}] = {{{sin}}};
"""
_LOOP = """\
void fft_butterfly_{r}(V* re, V* im) {{
  V sum_re[{half}], sum_im[{half}], less_re[{half}], less_im[{half}];
  V first_re = re[0], first_im = im[0];
  for (int j = 1; j <= {half}; j++) {{
    sum_re[j - 1] = re[j] + re[{r} - j];
    sum_im[j - 1] = im[j] + im[{r} - j];
    less_re[j - 1] = re[j] - re[{r} - j];
    less_im[j - 1] = im[j] - im[{r} - j];
    first_re += sum_re[j - 1];
    first_im += sum_im[j - 1];
  }}
  for (int k = 1; k <= {half}; k++) {{
    V a_re = re[0], a_im = im[0], b_re = (R)0, b_im = (R)0;
    int turn = 0;
    for (int j = 0; j < {half}; j++) {{
      turn += k;
      if (turn >= {r}) turn -= {r};
      const R c = fft_cos_{r}[turn], s = fft_sin_{r}[turn];
      a_re += c * sum_re[j];
      a_im += c * sum_im[j];
      b_re += s * less_re[j];
      b_im += s * less_im[j];
    }}
    re[k] = a_re - b_im;
    im[k] = a_im + b_re;
    re[{r} - k] = a_re + b_im;
    im[{r} - k] = a_im - b_re;
  }}
  re[0] = first_re;
  im[0] = first_im;
}}
"""


def is_loop(r: int) -> bool:
    """Whether a transform of r values is a sum for each, over tables; else it is written out."""
    return _prime(r) and r > _WRITTEN


def tables(r: int, sign: int, double: bool) -> str:
    """The constants fft_cos_<r> and fft_sin_<r>: of the multiples of exp(sign 2 pi i / r)."""
    writer = _Writer(sign, "" if double else "f")
    turns = [cmath.exp(sign * 2j * math.pi * k / r) for k in range(r)]
    cos = ", ".join(writer.number(turn.real) for turn in turns)
    sin = ", ".join(writer.number(turn.imag) for turn in turns)
    return _TABLES.format(r=r, cos=cos, sin=sin)


def butterfly(r: int, sign: int, double: bool) -> str:
    """The function fft_butterfly_<r>(V* re, V* im): the transform of r values in place.

    V is a float type or a vector of R's.  Loops (`is_loop`) read arrays, which CPUs keep at hand.
    """
    if is_loop(r):
        return tables(r, sign, double) + _LOOP.format(r=r, half=(r - 1) // 2)
    writer = _Writer(sign, "" if double else "f")
    inputs = [(writer.name(f"re[{k}]"), writer.name(f"im[{k}]")) for k in range(r)]
    found = writer.transform(inputs)
    stores = "".join(f"  re[{k}] = {x};\n  im[{k}] = {y};\n" for k, (x, y) in enumerate(found))
    body = "".join(f"  {line}\n" for line in writer.lines)
    return f"void fft_butterfly_{r}(V* re, V* im) {{\n{body}{stores}}}\n"


def _prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, math.isqrt(n) + 1))


class _Writer:
    def __init__(self, sign: int, suffix: str) -> None:
        self.sign = sign
        self.suffix = suffix
        self.lines: list[str] = []

    def number(self, x: float) -> str:
        """A literal."""
        return f"{x!r}{self.suffix}"

    def name(self, expression: str) -> str:
        """A new variable with this value."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"const V {name} = {expression};")
        return name

    def add(self, a: Value, b: Value) -> Value:
        return self.name(f"{a[0]} + {b[0]}"), self.name(f"{a[1]} + {b[1]}")

    def subtract(self, a: Value, b: Value) -> Value:
        return self.name(f"{a[0]} - {b[0]}"), self.name(f"{a[1]} - {b[1]}")

    def turned(self, v: Value, k: int, n: int) -> Value:
        """v exp(sign 2 pi i k / n)."""
        k = self.sign * k % n
        re, im = v
        if k == 0:
            return v
        if 2 * k == n:
            return self.name(f"-{re}"), self.name(f"-{im}")
        if 4 * k == n:
            return self.name(f"-{im}"), re
        if 4 * k == 3 * n:
            return im, self.name(f"-{re}")
        if 8 * k % n == 0:
            half = self.number(math.sqrt(0.5))
            up, down = self.name(f"{half} * ({re} + {im})"), self.name(f"{half} * ({re} - {im})")
            minus_up, minus_down = f"-{up}", f"-{down}"
            x, y = {
                1: (down, up), 3: (minus_up, down), 5: (minus_down, minus_up), 7: (up, minus_down),
            }[8 * k // n]  # fmt: skip
            return self.name(x), self.name(y)
        turn = cmath.exp(2j * math.pi * k / n)
        c, s = self.number(turn.real), self.number(turn.imag)
        return self.name(f"{c} * {re} - {s} * {im}"), self.name(f"{s} * {re} + {c} * {im}")

    def transform(self, x: list[Value]) -> list[Value]:
        """The transform of these values."""
        n = len(x)
        if n == 1:
            return x
        if n == 2:
            return [self.add(*x), self.subtract(*x)]
        if _prime(n):
            return self._sums(x)
        a = next(r for r in (4, 2, 3, 5, 7, 11, 13) if n % r == 0 and n > r)
        b = n // a
        rows = [self.transform(x[j::b]) for j in range(b)]
        y: list[Value] = [("", "")] * n
        for k in range(a):
            column = [self.turned(rows[j][k], j * k, n) for j in range(b)]
            for q, value in enumerate(self.transform(column)):
                y[k + a * q] = value
        return y

    def _sums(self, x: list[Value]) -> list[Value]:
        n, half = len(x), (len(x) - 1) // 2
        sums = [self.add(x[j], x[n - j]) for j in range(1, half + 1)]
        less = [self.subtract(x[j], x[n - j]) for j in range(1, half + 1)]
        first = x[0]
        for v in sums:
            first = self.add(first, v)
        y: list[Value] = [first, *[("", "")] * (n - 1)]
        for k in range(1, half + 1):
            turns = [cmath.exp(self.sign * 2j * math.pi * j * k / n) for j in range(1, half + 1)]
            cos = [self.number(t.real) for t in turns]
            sin = [self.number(t.imag) for t in turns]
            a = [
                self.name(
                    " + ".join(
                        [x[0][p], *(f"{c} * {v[p]}" for c, v in zip(cos, sums, strict=True))]
                    )
                )
                for p in (0, 1)
            ]
            b = [
                self.name(" + ".join(f"{s} * {v[p]}" for s, v in zip(sin, less, strict=True)))
                for p in (0, 1)
            ]
            y[k] = self.name(f"{a[0]} - {b[1]}"), self.name(f"{a[1]} + {b[0]}")
            y[n - k] = self.name(f"{a[0]} + {b[1]}"), self.name(f"{a[1]} - {b[0]}")
        return y
