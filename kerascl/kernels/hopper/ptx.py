"""NVIDIA's warpgroup matrix instructions (compute capability 9.0) from OpenCL C.

OpenCL C is compiled for sm_90, which has TMA and mbarriers but not wgmma (sm_90a).  So the source
holds wgmma as comments in inline PTX; the rewrite "sm_90a" takes the PTX that the driver gives as
the program's binary, names the other target, switches the comments on, enlarges local memory
beyond 48 KiB, and the driver builds that text.  None of it is documented for OpenCL, hence the
self-test in `probe`.

TMA's descriptors (tensor maps) hold an address, which OpenCL never tells the host: each work-group
writes its own into workspace from words that the host computed and its pointer arguments.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.runtime import programs

REWRITE = "sm_90a"


def sm_90a(binary: bytes) -> bytes:
    """PTX for sm_90 with markers -> PTX for sm_90a.

    `//@ instruction` becomes the instruction; `//#shared n` sets the size of the first array in
    shared memory to n bytes; `//#entry text` adds a directive to the entry.

    Raises:
        ValueError: it is no such PTX.
    """
    text = binary.decode("utf-8", "replace").rstrip("\0")
    text, count = re.subn(r"(?m)^(\s*\.target\s+)sm_90[a-z]?\b", r"\1sm_90a", text)
    size = re.search(r"//#shared (\d+)", text)
    if count != 1 or size is None:
        raise ValueError("the program's binary is no PTX for sm_90 with its markers")
    text, count = re.subn(
        r"(\.shared\s+\.align\s+\d+\s+\.b8\s+[\w$]+)\[\d+\]", rf"\1[{size[1]}]", text, count=1
    )
    if not count:
        raise ValueError("the PTX has no array in shared memory")
    entry = re.search(r"//#entry ([^\n]+)", text)
    if entry:
        text = re.sub(r"(\.reqntid[^\n]*)", rf"\1\n{entry[1]}", text, count=1)
    return text.replace("//@", "").encode()


programs.REWRITES[REWRITE] = sm_90a


@dataclass(frozen=True)
class Kind:
    """How wgmma multiplies one input dtype.

    Attributes:
        dtype: of the inputs.
        name: the type's name in PTX.
        code: TMA's number of the element type, with the bit that rounds float32 to tf32.
        depth: k of one instruction.
        efficiency: share of the matrix units' rate that GEMMs reach at best.
    """

    dtype: DType
    name: str
    code: int
    depth: int
    efficiency: float


TO_TF32 = 1 << 16  # of a code: round
_TF32 = Kind(dtypes.float32, "tf32", 7 << 7 | TO_TF32, 8, 0.789)
KINDS = {
    "float32": _TF32,
    "bfloat16": Kind(dtypes.bfloat16, "bf16", 10 << 7, 16, 0.764),
    "float16": Kind(dtypes.float16, "f16", 6 << 7, 16, 0.764),
}


def instruction(columns: int, kind: Kind, a_mn: bool, b_mn: bool, of: str = "") -> str:
    """The macros WGMMA(d, a, b, add) and WGMMA_KEEP(d) over columns / 2 accumulators; the names end
    with `of`, where a kernel has several."""
    count = columns // 2
    registers = ", ".join(f"%{k}" for k in range(count))
    places = ", ".join(f'"+f"(d[{k}])' for k in range(count))
    transposed = f", {int(a_mn)}, {int(b_mn)}" if kind.depth == 16 else ""
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{kind.depth}.f32.{kind.name}.{kind.name}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0;\\n"
        f"//@ {name} {{{registers}}}, %{count}, %{count + 1}, p, 1, 1{transposed};\\n}}"
    )
    return (
        f'#define WGMMA{of}(d, a, b, add) asm volatile("{text}" : {places} '
        ': "l"(a), "l"(b), "r"(add))\n'
        f'#define WGMMA_KEEP{of}(d) asm volatile("" : {places} :: "memory")\n'
    )


@functools.cache
def register_instruction(columns: int, kind: Kind, b_mn: bool, of: str = "") -> str:
    """The macros WGMMA_A(d, x0, x1, b, add), whose left operand is two pairs of registers, and
    WGMMA_KEEP(d); the names end with `of`, where a kernel has several."""
    count = columns // 2
    registers = ", ".join(f"%{k}" for k in range(count))
    places = ", ".join(f'"+f"(d[{k}])' for k in range(count))
    left = ", ".join(f"%{count + k}" for k in range(4))
    transposed = f", {int(b_mn)}" if kind.depth == 16 else ""
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{kind.depth}.f32.{kind.name}.{kind.name}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{count + 5}, 0;\\n"
        f"//@ {name} {{{registers}}}, {{{left}}}, %{count + 4}, p, 1, 1{transposed};\\n}}"
    )
    return (
        f'#define WGMMA_A{of}(d, x0, x1, b, add) asm volatile("{text}" : {places} '
        ': "r"((x0)[0]), "r"((x0)[1]), "r"((x1)[0]), "r"((x1)[1]), "l"(b), "r"(add))\n'
        f'#define WGMMA_KEEP{of}(d) asm volatile("" : {places} :: "memory")\n'
    )


# Of `philox.SOURCE`: both halves of a product by one instruction.
PRODUCT = (
    '#define KCL_PRODUCT(low, high, x, y) asm("{ .reg .u64 t; mul.wide.u32 t, %2, %3; '
    'mov.b64 {%0, %1}, t; }" : "=r"(low), "=r"(high) : "r"(x), "n"(y));\n'
)

# One instruction for what takes several in portable code.
CONVERSIONS = """\
inline ushort kcl_cvt_bf16(float v) {
  ushort r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}
#define kcl_to_bf16 kcl_cvt_bf16
"""

# WORD_OF(low, high) rounds two floats into one word, from which WORD_LOW and WORD_HIGH take them.
PAIRS = {
    "bfloat16": """\
#define WORD_OF(low, high) as_float(kcl_pair_bf16(low, high))
#define WORD_LOW(w) as_float(as_uint(w) << 16)
#define WORD_HIGH(w) as_float(as_uint(w) & 0xffff0000u)
""",
    "float16": """\
inline uint kcl_pair(float low, float high) {
  uint r;
  vstore_half_rte(low, 0, (half*)&r);
  vstore_half_rte(high, 1, (half*)&r);
  return r;
}
inline float kcl_of_pair(float w, int k) { return vload_half(k, (half*)&w); }
#define WORD_OF(low, high) as_float(kcl_pair(low, high))
#define WORD_LOW(w) kcl_of_pair(w, 0)
#define WORD_HIGH(w) kcl_of_pair(w, 1)
""",
}
# OF_PAIR(word, k) is one of two neighbours in a word.
OF_PAIRS = {
    "bfloat16": "#define OF_PAIR(w, k) as_float((k) ? (w) & 0xffff0000u : (w) << 16)\n",
    "float16": """\
inline float kcl_of_word(uint w, int k) { return vload_half(k, (half*)&w); }
#define OF_PAIR(w, k) kcl_of_word(w, k)
""",
}
# To the nearest tf32, as TMA rounds; products would cut off what is beyond.
ROUND_TF32 = '#define ROUND_TF32(w) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(w) : "f"(as_float(w)))\n'
