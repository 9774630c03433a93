"""The last work-group to arrive finishes the work of all: reductions in one launch instead of two.

Each group leaves its part in memory and counts itself; the group that counts last sees every part
(a release and an acquire at the scope of the device) and combines them in a fixed order, so the
result does not depend on who was last.  Every counter is zero again when the kernel ends.
"""

from __future__ import annotations

from kerascl.runtime.device import DeviceInfo

_HEAD = """\
// 1 in every work-item of the group that arrives as the last of `count`, 0 in all others.
inline int kcl_last_group(volatile __global uint* counter, uint count, __local int* last) {
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (get_local_id(0) == 0) {
"""
_TAIL = """\
    if (*last) *counter = 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  return *last;
}
"""
_STANDARD = """\
    const uint ticket = atomic_fetch_add_explicit(
        (volatile __global atomic_uint*)counter, 1u, memory_order_acq_rel, memory_scope_device);
    *last = ticket == count - 1;
"""
# NVIDIA's OpenCL 3.0 has none of the optional atomics; the fence exists from Volta on.
_PTX = """\
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    *last = atomic_inc(counter) == count - 1;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
"""


def supported(info: DeviceInfo) -> bool:
    """Whether groups of one launch can hand memory to each other on this device."""
    return info.device_atomics or (info.nvidia_capability or (0, 0)) >= (7, 0)


def options(info: DeviceInfo) -> tuple[str, ...]:
    """Build options that `helper` needs."""
    return ("-cl-std=CL3.0",) if info.device_atomics else ()


def helper(info: DeviceInfo) -> str:
    """The C function kcl_last_group(counter, count, last)."""
    return _HEAD + (_STANDARD if info.device_atomics else _PTX) + _TAIL
