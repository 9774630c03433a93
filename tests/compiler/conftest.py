"""Generated kernels as they are laid out for GPUs, on whatever device there is."""

import dataclasses

import pytest

import kerascl as kc
from kerascl.compiler.generate import maps, reductions


@pytest.fixture
def as_gpu(dev, monkeypatch):
    """as_gpu(compute_units, group) makes the device pass for a GPU with work-groups of so many."""

    def change(compute_units: int, group: int = 64) -> None:
        info = dataclasses.replace(
            dev.info, kind="gpu", max_work_group_size=group, compute_units=compute_units
        )
        monkeypatch.setattr(dev, "info", info)
        # Programs that are kept were laid out for another device.
        monkeypatch.setattr(kc.engine, "programs", {})

    return change


@pytest.fixture
def launches(monkeypatch):
    """Every launch of a map or reduction that is generated: those of maps, those of reductions."""
    made = {"map_kernel": [], "reduction_kernels": []}

    def noted(inner, seen):
        def make(*args):
            kernels = inner(*args)
            seen.extend(kernels.launches)
            return kernels

        return make

    for module, name in ((maps, "map_kernel"), (reductions, "reduction_kernels")):
        monkeypatch.setattr(module, name, noted(getattr(module, name), made[name]))
    return made
