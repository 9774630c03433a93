"""How matrix instructions of AMD's GPUs stand in OpenCL C: builtins of its compiler, on vectors."""

from __future__ import annotations

HALVES = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"


def macro(
    builtin: str, operand: str, words: int, sums: int, more: str = "", name: str = "MMA"
) -> str:
    """OpenCL C that defines MMA(d, a, b) of a Fragment by a builtin on (a, b, d).

    Args:
        operand: the type of a and b, that so many words are.
        more: the builtin's other arguments, each behind a comma.
        name: instead of MMA, where that is made of it.
    """

    def read(x: str) -> str:
        word = ", ".join(f"({x})[{i}]" for i in range(words))
        return f"as_{operand}((uint{words if words > 1 else ''})({word}))"

    held = [f"(d)[{i}]" for i in range(sums)]
    stores = " ".join(f"{x} = d_.s{i};" for i, x in enumerate(held))
    head = HALVES if operand.startswith("half") else ""
    return (
        f"{head}#define {name}(d, a, b) {{ \\\n"
        f"  const float{sums} d_ = {builtin}( \\\n"
        f"      {read('a')}, \\\n"
        f"      {read('b')}, \\\n"
        f"      (float{sums})({', '.join(held)}){more}); \\\n"
        f"  {stores} }}\n"
    )
