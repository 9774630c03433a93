"""The part of rates: the best that the device reaches, and what costs are counted with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from kerascl.commands.reports.parts import Item, Setting, Tell
from kerascl.kernels.tuning import machine
from kerascl.runtime import device as devices
from kerascl.runtime import peaks

_BYTES, _QUICK_BYTES = 1 << 30, 1 << 28  # of the copy that shows the bandwidth of memory
_DTYPES = ("float32", "float16", "float64")


def items(setting: Setting) -> Iterator[Item]:
    """One rate each, as a driver may fail at one; then the Machine."""
    found: dict[str, float] = {}

    def measured(name: str, measure: Callable[..., float], *arguments: str | int) -> Item:
        def run(tell: Tell) -> None:
            found[name] = measure(devices.default(), *arguments)
            if found[name]:
                tell({"name": name, "rate": found[name]})

        return Item(name, run)

    yield measured("float32", peaks.arithmetic, "float32")
    yield measured("bandwidth", peaks.bandwidth, _QUICK_BYTES if setting.quick else _BYTES)
    for name in ("local_bandwidth", "latency"):
        yield measured(name, getattr(peaks, name))
    yield measured("launch", peaks.launch_cost)
    for dtype in _DTYPES[1:]:
        yield measured(dtype, peaks.arithmetic, dtype)

    def copies(tell: Tell) -> None:
        for name, rate in zip(("to_device", "from_device"), peaks.host_copies(devices.default())):
            found[name] = rate
            tell({"name": name, "rate": rate})

    yield Item("copies", copies)

    def counted(tell: Tell) -> None:
        device = devices.default()
        if len(found) == len(_DTYPES) + 6:  # else a process died, and what is missing is measured
            flops = {name: rate for name in _DTYPES if (rate := found.pop(name))}
            peaks.save(device, peaks.Peaks(flops, **found))
        tell({"machine": dataclasses.asdict(machine.of(device.info))})

    yield Item("the rates of costs", counted)
