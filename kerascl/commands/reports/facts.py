"""The part of facts: device, driver, software; what else there is."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import kerascl
from kerascl.commands.reports.parts import Item, Setting, Tell
from kerascl.runtime import device as devices
from kerascl.runtime import queries, quirks

_PACKAGES = ("keras", "numpy", "ml_dtypes", "rich")


def items(setting: Setting) -> Iterator[Item]:
    """The software, the other devices, and of the device what kerascl and its driver say."""
    yield Item("software", _software)
    yield Item("all devices", _all)
    if setting.device is not None:
        yield Item("device", _device)
        yield Item("quirks", _quirks)
        yield Item("the driver's answers", _answers)


def _software(tell: Tell) -> None:
    found = {
        "kerascl": kerascl.__version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "pyopencl": queries.pyopencl_version(),
    }
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["system"] = platform.platform()
    found["processor"] = _processor()
    found["cores"] = str(os.cpu_count())
    if hasattr(os, "getloadavg"):
        found["processes that ran or waited"] = f"{os.getloadavg()[0]:.1f} (mean of a minute)"
    ours = {name: value for name, value in os.environ.items() if name.startswith("KERASCL_")}
    ours.pop("KERASCL_CACHE_DIR", None)
    tell(found | dict(sorted(ours.items())))


def _processor() -> str:
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.processor() or platform.machine()


def _all(tell: Tell) -> None:
    for found in devices.find_devices():
        info = found.info
        name = f"{info.name} ({info.kind}), driver {info.driver_version}" if info else ""
        tell({"where": found.where, "device": name, "problem": found.problem})


def _device(tell: Tell) -> None:
    info = devices.default().info
    facts = dataclasses.asdict(info)
    for name in ("cache_key", "extensions", "quirks"):
        facts.pop(name)
    facts["extensions"] = " ".join(sorted(info.extensions))
    tell(facts)


def _quirks(tell: Tell) -> None:
    names = devices.default().info.quirks
    for row in quirks.TABLE:
        if row.name in names:
            tell({"name": row.name, "why": row.why})


def _answers(tell: Tell) -> None:
    tell(dict(queries.everything(devices.default())))
