"""Memory is brought to the last cache before it is read."""

from __future__ import annotations

from kerascl.runtime.device import DeviceInfo


def statement(address: str, ptx: bool) -> str:
    """C text that asks for what lies at an address (a pointer to global memory).

    Args:
        ptx: whether to say so in PTX, as NVIDIA's compilers leave out OpenCL's function.
    """
    if ptx:
        return f'asm volatile("prefetch.global.L2 [%0];" :: "l"({address}));'
    return f"prefetch({address}, 1);"


def helper(info: DeviceInfo) -> str:
    """Text that defines the statement `KCL_AHEAD(address)`."""
    return f"#define KCL_AHEAD(at) {statement('at', 'inline_ptx' in info.quirks)}\n"
