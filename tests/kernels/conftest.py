"""The devices that kernels run on, a card that is not there, and what emulates it."""

import dataclasses

import pytest

from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.runtime import device
from tests.kernels.harness import devices

# What a GPU can show of emulated kernels it shows without an emulator.
EMULATING = {name: dev for name, dev in devices().items() if dev.info.kind == "cpu"}


@pytest.fixture(params=list(devices().values()), ids=list(devices()), scope="module")
def dev(request):
    """Each device of `harness.devices`."""
    return request.param


@pytest.fixture(params=list(EMULATING.values()), ids=list(EMULATING), scope="module")
def cpu_dev(request):
    """A device that emulates."""
    return request.param


@pytest.fixture(scope="module")
def cpu_info(cpu_dev):
    """Two compute units, so that work-groups have several tiles."""
    return dataclasses.replace(cpu_dev.info, compute_units=2)


@pytest.fixture
def hopper_info(monkeypatch):
    """Facts of an H200, on which the self-tests pass."""
    real = next(found.info for found in device.find_devices() if found.info)
    monkeypatch.setattr(hopper_probe, "available", lambda *_: True)
    return dataclasses.replace(
        real, name="NVIDIA H200", kind="gpu", matrix="wgmma90", compute_units=132,
        local_mem_bytes=49152, max_work_group_size=1024,
    )  # fmt: skip
