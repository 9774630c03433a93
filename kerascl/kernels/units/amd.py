"""How matrix instructions of AMD's GPUs stand in OpenCL C: builtins of its compiler, on vectors."""

from __future__ import annotations

HALVES = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"


def macro(
    builtin: str, operand: str, words: int, sums: int, more: str = "", name: str = "MMA",
    acc: str = "float", before: str = "",
) -> str:  # fmt: skip
    """OpenCL C that defines MMA(d, a, b) of a Fragment by a builtin on (a, b, d).

    Args:
        operand: the type of a and b, that so many words are.
        more: the builtin's other arguments, each behind a comma.
        name: instead of MMA, where that is made of it.
        acc: the type of a sum.
        before: arguments before a and before b, each with a comma behind it.
    """

    def read(x: str) -> str:
        word = ", ".join(f"({x})[{i}]" for i in range(words))
        return f"as_{operand}((uint{words if words > 1 else ''})({word}))"

    held = [f"(d)[{i}]" for i in range(sums)]
    stores = " ".join(f"{x} = d_.s{i};" for i, x in enumerate(held))
    head = HALVES if operand.startswith("half") else ""
    return (
        f"{head}#define {name}(d, a, b) {{ \\\n"
        f"  const {acc}{sums} d_ = {builtin}( \\\n"
        f"      {before}{read('a')}, \\\n"
        f"      {before}{read('b')}, \\\n"
        f"      ({acc}{sums})({', '.join(held)}){more}); \\\n"
        f"  {stores} }}\n"
    )
