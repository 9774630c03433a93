"""A card that is not there."""

import dataclasses

import pytest

from kerascl.kernels import wgmma_probe
from kerascl.runtime import device


@pytest.fixture
def hopper_info(monkeypatch):
    """Facts of an H200, on which the self-tests pass."""
    real = next(found.info for found in device.find_devices() if found.info)
    monkeypatch.setattr(wgmma_probe, "available", lambda *_: True)
    return dataclasses.replace(
        real, name="NVIDIA H200", kind="gpu", matrix="wgmma90", compute_units=132,
        local_mem_bytes=49152, max_work_group_size=1024,
    )  # fmt: skip
