"""Self-tests of matrix units plan what they say: one that fails for Python's reasons tells of no
device, and would leave its kernels unused in silence."""

import dataclasses
import runpy
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.hopper import probe
from kerascl.kernels.hopper.selftests import basics
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_selftest, known
from kerascl.runtime import selftest_child

MODULES = [probe.self_test(name) for name in probe.SELF_TESTS]


UNITS = "kerascl.kernels.units"


@pytest.mark.parametrize(("module", "matrix"), [
    *((module, "wgmma90") for module in (
        *MODULES, f"{UNITS}.attention_selftest", f"{UNITS}.attention16_selftest",
        f"{UNITS}.attention16_large_selftest",
    )),
    (f"{UNITS}.product_selftest", "mma80"),
    *(
        (f"{UNITS}.{kind}_selftest", matrix)
        for kind in ("product", "attention_fragment")
        for matrix in ("wmma11", "wmma12", "mfma90a", "mfma942", "xmx8", "xmx16")
    ),
])  # fmt: skip
def test_self_tests_reach_their_end(module, matrix, hopper_info, monkeypatch):
    tests, runs, checks = [], [], []
    monkeypatch.setattr(selftest_child, "main", lambda *given: tests.extend(given))
    names = runpy.run_module(module, run_name="__main__")

    def run(plan, inputs, out=None, dev=None, **more):
        runs.append(plan)
        assert plan.launches
        for result in (out, *more.values()):
            if result is not None:
                result.fill(0)

    def check(name, got, want, bound):
        checks.append(name)
        assert got.shape == want.shape and np.isfinite(want).all() and 0 < bound < 0.1

    names["run"], names["check"] = run, check
    for module in (attention_selftest, basics):  # what other self-tests borrow
        for name in ("run", "check"):
            monkeypatch.setattr(module, name, names[name])

    def asked(*_):
        raise AssertionError("a self-test that waits for self-tests never ends")

    monkeypatch.setattr(probe, "available", asked)
    built = []
    for test in tests:
        test.__globals__.update(run=run, check=check)
        programs = SimpleNamespace(build=built.extend)
        test(SimpleNamespace(
            info=dataclasses.replace(hopper_info, matrix=matrix), programs=programs,
        ))  # fmt: skip
    if built:  # at once, what the runs would build in turn
        assert set(built) == {(x.source, x.options) for plan in runs for x in plan.launches}
    assert len(built) == len(set(built))
    assert runs and len(checks) >= len(runs)


def test_those_of_attention_run_at_once(hopper_info, monkeypatch):
    met, together = [], threading.Barrier(4, timeout=60)
    for module, name in (
        (attention16, "available"), (unit_attention, "available"), (known, "available"),
        (probe, "results"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *_: met.append(together.wait()))
    info = dataclasses.replace(hopper_info, driver_version="of this test")
    attention._try_units(info)
    attention._try_units(info)
    assert sorted(met) == [0, 1, 2, 3]
