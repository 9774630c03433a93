"""What is shipped of devices that were tuned for: records/*.json, each of one device.

A file says which devices it is of ("device": facts and texts that they contain), which solver was
the fastest for a problem or how long several took ("records"), and the rates that the device
reached ("rates", see `machine.of_card`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kerascl.runtime.device import DeviceInfo

RECORDS_FOLDER = Path(__file__).parent / "records"


@functools.cache
def files() -> tuple[dict[str, Any], ...]:
    """All of them, those that say the least of their devices first."""
    found = [json.loads(file.read_text()) for file in sorted(RECORDS_FOLDER.glob("*.json"))]
    return tuple(sorted(found, key=lambda entry: len(entry["device"])))


def matches(info: DeviceInfo, facts: dict[str, str]) -> bool:
    """Whether each of these facts about a device contains its text."""
    return all(text.lower() in str(getattr(info, f, "")).lower() for f, text in facts.items())


def of_device(info: DeviceInfo) -> Iterator[dict[str, Any]]:
    """The files of a device."""
    return (entry for entry in files() if matches(info, entry["device"]))


def rates(info: DeviceInfo) -> dict[str, float]:
    """The rates shipped for a device, by name; none of most."""
    known: dict[str, float] = {}
    for entry in of_device(info):
        known |= entry.get("rates", {})
    return known
