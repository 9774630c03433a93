"""Measured times of the variants of users' kernels (`kerascl.kernel(tune=)`), kept for a device and
its driver as the records of `kerascl tune` are."""

from __future__ import annotations

import json
import math

from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.diskcache import DiskCache


def kept(info: DeviceInfo, text: str) -> dict[str, float]:
    """Microseconds of each variant that was right, for what `text` describes; empty if unknown."""
    cache = DiskCache.open("tuned", info.cache_key)
    found = None if cache is None else cache.load(cache.key("variants", text), _parse)
    return found or {}


def keep(info: DeviceInfo, text: str, times: dict[str, float]) -> None:
    """Keep them, where there is a cache folder."""
    cache = DiskCache.open("tuned", info.cache_key)
    if cache is not None:
        cache.put(cache.key("variants", text), json.dumps(times).encode())


def _parse(data: bytes) -> dict[str, float]:
    times = {str(name): float(time) for name, time in dict(json.loads(data)).items()}
    if not all(0 <= time < math.inf for time in times.values()):
        raise ValueError("no times of variants")
    return times
