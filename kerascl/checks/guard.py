"""What was found out about a driver, and what it means for each program that is built for it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.errors import DeviceError
from kerascl.runtime.programs import kernel_names

PLAIN = "-cl-opt-disable"
# Statuses: right; right with optimisation off; nobody knows.  Any other says what is wrong.
OK, MENDED, UNKNOWN = FINE = "ok", "mended", "unknown"

# Beginnings of the names of the kernels that each kind takes.
_NAMES = {
    "map": r"(multi_)?map_",
    "reduction": r"(multi_)?reduction_",
    "rows": r"(multi_)?reduction_",
    "product": r"gemm_|mma_|wgmma",
    "convolution": r"conv_|depthwise_|winograd_|stem_|gemm_|mma_|wgmma",
    "pooling": r"pool_",
    "scan": r"scan_",
    "sort": r"sort_|search_",
    "scatter": r"scatter_|count_|(multi_)?map_\w*gather|sort_",
    "attention": r"attention_|gemm_pack",
    "recurrent": r"recurrent",
    "loop": r"loop_check",
}
# A kind that no program but its check is of: what it finds is told, and refuses nothing.
LOOP = "loop"
_PATTERNS = {kind: re.compile(names) for kind, names in _NAMES.items()}
_RANDOM = re.compile(r"\bkcl_(threefry|philox)\w*\(")  # in the text of a kernel of any name
KINDS = (*_NAMES, "random")


def kinds_of(source: str) -> set[str]:
    """The kinds that a program's kernels belong to."""
    names = kernel_names(source)
    found = {kind for kind, name in _PATTERNS.items() if any(map(name.match, names))}
    return found | ({"random"} if _RANDOM.search(source) else set())


class Guard:
    """Options for each program by what is known of its kinds: `device.programs.guard`.

    Args:
        statuses: by kind.
    """

    def __init__(self, info: DeviceInfo, statuses: Mapping[str, str]):
        self._info = info
        self.plain = {kind for kind, status in statuses.items() if status == MENDED}
        self.refused = {k: v for k, v in statuses.items() if v not in FINE}

    asking = False  # whether a program may have to wait for what is not known yet

    def __call__(self, source: str) -> tuple[str, ...]:
        """Options that a program needs besides its own.

        Raises:
            DeviceError: the driver does not compute a kind of its kernels rightly.
        """
        if not (self.plain or self.refused):
            return ()
        kinds = kinds_of(source)
        for kind in sorted(kinds.intersection(self.refused)):
            raise DeviceError(
                f"{name_of(self._info)} computes {kind} kernels wrongly ({self.refused[kind]}): "
                "update the driver, choose another device (KERASCL_DEVICE), or set KERASCL_CHECK=0 "
                "to use it all the same; python -m kerascl check tells more"
            )
        return (PLAIN,) if kinds & self.plain else ()


def name_of(info: DeviceInfo) -> str:
    """A device and its driver in words."""
    return f"{info.name} ({info.platform}, driver {info.driver_version})"
