"""Source macros for kernels that work on several neighbouring elements at once.

`lane_macros` lets one source be written once for a scalar and for OpenCL C
vectors of 2, 4, 8 or 16 lanes; `limit_macros` gives the extreme values of a
compute type.  Also the launch arithmetic that all kernels share.
"""

from __future__ import annotations

from kerascl.dtypes import DType
from kerascl.kernels.contract.sizes import last_power
from kerascl.runtime.device import DeviceInfo

_LIMITS = {
    "char": ("CHAR_MIN", "CHAR_MAX"),
    "short": ("SHRT_MIN", "SHRT_MAX"),
    "int": ("INT_MIN", "INT_MAX"),
    "long": ("LONG_MIN", "LONG_MAX"),
    "uchar": ("0", "UCHAR_MAX"),
    "ushort": ("0", "USHRT_MAX"),
    "uint": ("0", "UINT_MAX"),
    "ulong": ("0", "ULONG_MAX"),
    "float": ("-INFINITY", "INFINITY"),
    "double": ("-INFINITY", "INFINITY"),
}
_COMPUTE_BYTES = {
    "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4,
    "long": 8, "ulong": 8, "double": 8, "float2": 8, "double2": 16,
}  # fmt: skip


def compute_bytes(dtype: DType) -> int:
    """Bytes of one value of `dtype` in its compute type."""
    return _COMPUTE_BYTES[dtype.compute]


def _aligned_load(name: str, dtype: DType, lanes: int) -> str:
    """The function kcl_<name>_vector: `lanes` values at an address aligned to all of them."""
    storage = "ushort" if dtype.name == "float16" else dtype.storage
    words = f"{storage}{lanes} w = *(const __global {storage}{lanes}*)p;"
    body = {
        "float16": f"{words} ushort h[{lanes}]; vstore{lanes}(w, 0, h); return (float{lanes})("
        + ", ".join(f"vload_half({k}, (const half*)h)" for k in range(lanes))
        + ");",
        "bfloat16": f"{words} return as_float{lanes}(convert_uint{lanes}(w) << 16);",
        "bool": f"{words} return (convert_int{lanes}(w) != 0) & 1;",
    }.get(dtype.name, f"{words} return w;")
    if dtype.is_float8:
        each = ", ".join(f"{name}_LOAD(p, {k})" for k in range(lanes))
        body = f"return (float{lanes})({each});"
    kind = f"{dtype.compute}{lanes}"
    return f"inline {kind} kcl_{name}_vector(const __global {dtype.storage}* p) {{ {body} }}"


def vector_macros(lanes: int, aligned: bool = False, **types: DType) -> str:
    """Vector counterparts of `prelude`'s macros.

    `lane_macros(8, A=float16)` defines LANES, A_CV (a compute vector of LANES
    lanes), A_LOADV(p, i) (elements i … i + LANES - 1), A_SPLAT(v), and
    A_SPILL(v, p) (writes the lanes to a private array).  Lanes are 1 for
    complex dtypes.  `aligned` says that A_LOADV's indices are multiples of LANES (2, 4, 8 or 16)
    and its memory is aligned to as many elements: a load is then one instruction on GPUs.
    """
    lines = [f"#define LANES {lanes}"]
    lines.append(f"#define LANES_ANY(m) {'(m)' if lanes == 1 else 'any(m)'}")
    for name, dtype in types.items():
        compute = dtype.compute
        if lanes == 1:
            lines += [
                f"#define {name}_CV {compute}",
                f"#define {name}_LOADV(p, i) {name}_LOAD(p, i)",
                f"#define {name}_SPLAT(v) (({compute})(v))",
                f"#define {name}_SPILL(v, p) *(p) = (v)",
            ]
            continue
        plain = f"vload{lanes}(0, (p) + (i))"
        if aligned:
            lines.append(_aligned_load(name, dtype, lanes))
            load = f"kcl_{name}_vector((p) + (i))"
        elif dtype.name == "float16":
            load = f"vload_half{lanes}(0, (p) + (i))"
        elif dtype.name == "bfloat16":
            load = f"as_float{lanes}(convert_uint{lanes}({plain}) << 16)"
        elif dtype.is_bool:
            load = f"((convert_int{lanes}({plain}) != 0) & 1)"
        elif dtype.is_float8:
            each = ", ".join(f"{name}_LOAD(p, (i) + {k})" for k in range(lanes))
            load = f"((float{lanes})({each}))"
        else:
            load = plain
        lines += [
            f"#define {name}_CV {compute}{lanes}",
            f"#define {name}_LOADV(p, i) {load}",
            f"#define {name}_SPLAT(v) (({compute}{lanes})(({compute})(v)))",
            f"#define {name}_SPILL(v, p) vstore{lanes}((v), 0, (p))",
        ]
    return "\n".join(lines) + "\n"


def limit_macros(dtype: DType) -> str:
    """ACC_LOWEST and ACC_HIGHEST: the identities of max and min in `dtype`'s compute type."""
    low, high = ("0", "1") if dtype.is_bool else _LIMITS[dtype.compute]
    kind = dtype.compute
    return f"#define ACC_LOWEST (({kind}){low})\n#define ACC_HIGHEST (({kind}){high})\n"


def group_size(info: DeviceInfo, wanted: int) -> int:
    """The largest power of two up to `wanted` that the device takes as a work-group."""
    return last_power(min(wanted, info.max_work_group_size))


def vector_width(info: DeviceInfo, extent: int, dtype: DType, most: int = 16) -> int:
    """Lanes a work-item should handle along a contiguous `extent`.

    GPUs coalesce one element a work-item; CPUs want explicit vectors, because
    not every CPU driver vectorises across work-items.
    """
    if info.kind != "cpu" or dtype.is_complex:
        return 1
    lanes = min(most, 64 // compute_bytes(dtype), 16)
    while lanes > 1 and extent % lanes:
        lanes //= 2
    return lanes
