"""Devices that need not be there: the facts of each as its driver reports them (`cards.toml`).

`Profile.info` is what programs are lowered for such a device with. `pretend` has a CPU driver pass
for one: schedules, tiles, sizes of work-groups and what is missing are then the card's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from kerascl.runtime import device, quirks
from kerascl.runtime.diskcache import DiskCache
from kerascl.runtime.opencl import cl

FILE = Path(__file__).parent / "cards.toml"


@dataclass(frozen=True)
class Profile:
    """One device.

    Attributes:
        name: what tests call it.
        title: the card, its generation and its driver.
        target: the device as its vendor's offline compiler names it, "" where there is none.
        facts: what the driver reports, by the names of OpenCL's queries.
    """

    name: str
    title: str
    target: str
    facts: dict[str, Any]

    @property
    def info(self) -> device.DeviceInfo:
        """Its DeviceInfo, derived as that of a device that is there."""
        sizes = self.facts.get(_SIZES, ())
        with mock.patch.object(device, "sub_group_sizes", lambda handle: sizes):
            return device._query(_Handle(self.facts))


class _Handle:
    """Answers as a pyopencl.Device would."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = {getattr(cl.device_info, k): v for k, v in facts.items() if k not in _OTHER}
        self.type = getattr(cl.device_type, facts["TYPE"])
        self.platform = types.SimpleNamespace(name=facts["PLATFORM"], version=facts["VERSION"])

    def get_info(self, key: int) -> Any:
        if key not in self._facts:
            raise cl.Error("clGetDeviceInfo", cl.status_code.INVALID_VALUE)
        return self._facts[key]


_SIZES = "SUB_GROUP_SIZES_INTEL"  # pyopencl does not know it
_OTHER = ("TYPE", "PLATFORM", _SIZES)


@cache
def load() -> dict[str, Profile]:
    """All profiles by name."""
    tables = tomllib.loads(FILE.read_text())
    drivers = tables.pop("drivers")
    profiles = {}
    for name, own in tables.items():
        keys = ("title", "target", "like", "MORE_EXTENSIONS")
        title, target, like, more = (own.pop(key, "") for key in keys)
        facts = drivers["any"] | drivers.get(like, {}) | own
        facts["EXTENSIONS"] = f"{facts.get('EXTENSIONS', '')} {more}".strip()
        profiles[name] = Profile(name, title, target, facts)
    return profiles


def disguise(real: device.DeviceInfo, card: device.DeviceInfo) -> device.DeviceInfo:
    """A CPU driver's facts where they must be its own, else the card's; no more than both have."""
    limits = ("max_work_group_size", "local_mem_bytes", "max_alloc_bytes", "max_parameter_bytes")
    lacks = ("fp64", "fp16", "subgroups", "int64_atomics", "float_atomics", "device_atomics")
    both = {name: min(getattr(real, name), getattr(card, name)) for name in limits}
    both |= {name: getattr(real, name) and getattr(card, name) for name in lacks}
    looks = (
        "kind", "compute_units", "clock_mhz", "unified_memory", "staged_copies", "simd_width",
        "preferred_vector_float", "registers",
    )  # fmt: skip
    return dataclasses.replace(
        real,
        **both,
        **{name: getattr(card, name) for name in looks},
        opencl_version=min(real.opencl_version, card.opencl_version),
        c_version=min(real.c_version, card.c_version),
        max_work_item_sizes=tuple(map(min, real.max_work_item_sizes, card.max_work_item_sizes)),
        mem_align_bytes=max(real.mem_align_bytes, card.mem_align_bytes),
        exact_division=real.exact_division and card.exact_division,
        extensions=real.extensions & card.extensions,
        sub_group_sizes=tuple(n for n in card.sub_group_sizes if n in real.sub_group_sizes),
        quirks=real.quirks | (card.quirks & {"lazy_allocation"}),
        # what is tuned for the processor is not for the card
        cache_key=hashlib.sha256(f"{real.cache_key} as {card.name}".encode()).hexdigest(),
    )


def pretend(name: str) -> None:
    """Let every CPU driver of this process pass for a profile's device.

    Their order stays: processes that compile for this one, and do not pretend, count devices in it.

    Raises:
        KeyError: there is no profile of this name.
    """
    card = load()[name].info
    honest = quirks.apply
    opened = DiskCache.open
    drivers: dict[str, str] = {}  # the real device's cache key by the pretended one's
    order = [(f.info.platform, f.info.name) for f in device.find_devices() if f.device and f.info]

    def apply(info: device.DeviceInfo) -> device.DeviceInfo:
        real = honest(info)
        if real.kind != "cpu":
            return real
        disguised = disguise(real, card)
        drivers[disguised.cache_key] = real.cache_key
        return disguised

    # One source with the same options is built once for all profiles: the driver is the same.
    def open_cache(name: str, salt: str) -> DiskCache | None:
        return opened(name, drivers.get(salt, salt) if name == "programs" else salt)

    quirks.apply = apply
    DiskCache.open = open_cache
    device._rank = lambda info: order.index((info.platform, info.name))
    device.find_devices.cache_clear()
    device._default = None
