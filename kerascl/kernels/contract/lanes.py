"""Values that work-items of a sub-group give each other, without local memory and barriers."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.runtime.device import DeviceInfo

_PTX = """\
inline uint kcl_of_lane(uint x, int distance) {
  uint y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=r"(y) : "r"(x), "r"(distance));
  return y;
}
"""


@dataclass(frozen=True)
class Lanes:
    """How neighbours exchange values of 32 bits.

    All work-items of a group take part: its size is a multiple of `width`.

    Attributes:
        width: work-items of a sub-group, which are neighbours in the group.
        helper: C text that defines `uint kcl_of_lane(uint x, int distance)`, which gives the x of
            the lane whose number is the own one with the bits of `distance` flipped.
    """

    width: int
    helper: str

    def other(self, ctype: str, value: str, distance: int) -> str:
        """C text of the other lane's value."""
        return f"as_{ctype}(kcl_of_lane(as_uint({value}), {distance}))"


def lanes_of(info: DeviceInfo) -> Lanes | None:
    """How lanes of a device exchange values; None where its compiler has no words for it."""
    return Lanes(32, _PTX) if "inline_ptx" in info.quirks else None
