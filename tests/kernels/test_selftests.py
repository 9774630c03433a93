"""Self-tests of matrix units plan what they say: one that fails for Python's reasons tells of no
device, and would leave its kernels unused in silence."""

import dataclasses
import importlib
import json
import sys

import numpy as np
import pytest

from kerascl.kernels.hopper import probe
from kerascl.kernels.selftests import asked, child, trial
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.units import selftests
from kerascl.runtime.errors import DeviceError, OutOfDeviceMemory
from kerascl.runtime.selftest import FULL

UNITS = "kerascl.kernels.units"
HOPPER = [test.module for test in probe.SELF_TESTS.values()]


@pytest.mark.parametrize(("module", "matrix"), [
    *((module, "wgmma90") for module in (
        *HOPPER, f"{UNITS}.attention_selftest", f"{UNITS}.attention16_selftest",
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
    def waits(*_):
        raise AssertionError("a self-test that waits for self-tests never ends")

    monkeypatch.setattr(probe, "available", waits)
    monkeypatch.setattr(asked, "results", waits)
    checks = []

    def check(name, got, want, bound):
        checks.append(name)
        assert got.shape == want.shape and np.isfinite(want).all() and 0 < bound < 0.1

    loaded = importlib.import_module(module)
    real = trial.check
    for place in list(sys.modules.values()):  # whoever imported it
        if place.__dict__.get("check") is real:
            monkeypatch.setattr(place, "check", check)
    found = list(loaded.trials(dataclasses.replace(hopper_info, matrix=matrix)))
    assert found
    for one in found:
        assert one.plan.launches and one.times > 0
        before, data = len(checks), one.data()
        assert all(array.size for array in (*data.inputs.values(), *data.outs.values()))
        for array in data.outs.values():
            array.fill(0)
        data.verdict()
        assert len(checks) > before  # each tells something of what it computed
    texts = trial.programs(found)
    assert len(texts) == len(set(texts)) and set(texts) == {
        (x.source, x.options) for one in found for x in one.plan.launches
    }


def test_what_is_asked_for_together(hopper_info):
    names = [
        {test.name for test in needed(hopper_info)}
        for needed in (selftests.products, selftests.convolutions, selftests.attention)
    ]
    assert names[0] == {"wgmma", "wgmma_transposed", "wgmma_pingpong"}
    assert names[1] == set(probe.SELF_TESTS) - {"wgmma_attention"}
    assert names[2] - names[0] == {
        "wgmma_attention", "attention_mma", "attention_mma16", "attention_mma16_large",
    }  # fmt: skip
    plain = dataclasses.replace(hopper_info, matrix="")
    assert not selftests.attention(plain) and not selftests.convolutions(plain)


def test_each_is_asked_for_once(hopper_info, tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    info = dataclasses.replace(hopper_info, driver_version="of this test")
    ran = []

    def run(_, tests):
        ran.append([test.name for test in tests])
        return [("", True) if test.name == "wgmma" else ("it is wrong", False) for test in tests]

    monkeypatch.setattr(asked, "_run", run)
    selftests.ask(info, selftests.products)
    assert not asked.passed(info, probe.SELF_TESTS["wgmma_transposed"])
    assert asked.passed(info, probe.SELF_TESTS["wgmma"])
    assert asked.results(info, selftests.products(info)) == {
        "wgmma": "", "wgmma_transposed": "it is wrong", "wgmma_pingpong": "it is wrong",
    }  # fmt: skip
    selftests.ask(info, selftests.attention)
    assert len(ran) == 2 and not set(ran[0]) & set(ran[1])
    asked.forget()  # as in another process: what is kept is not asked for again
    asked.results(info, selftests.products(info))
    assert ran[2:] == [["wgmma_transposed", "wgmma_pingpong"]]
    asked.forget()


CHILD = """
import os
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.selftests.trial import Data, Trial
from kerascl.runtime.errors import DeviceError, OutOfDeviceMemory

def verdict():
    {}

def trials(info):
    assert info.name
    yield Trial(Plan([]), lambda: Data({{}}, {{}}, verdict))
"""
VERDICTS = {
    "good": "pass",
    "wrong": "raise DeviceError('it is wrong\\nand more')",
    "dead": "os._exit(9)",
    "full": "raise OutOfDeviceMemory('none left')",
    "late": "import time; time.sleep(60)",
}
WRONG, DEAD = ("it is wrong", True), ("the self-test ended with 9", True)
FULL_MEMORY = ("the device's memory was full at the self-test", False)


def outcomes(names, folder, monkeypatch, info):
    for name in names:
        text = CHILD.format(VERDICTS[name]) if name in VERDICTS else "import no_such_package"
        (folder / f"{name}_of_selftests.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return asked._run(info, [SelfTest(name, f"{name}_of_selftests") for name in names])


@pytest.mark.parametrize(("names", "found"), [
    (("good", "wrong", "good2"), [("", True), WRONG, None]),
    (("dead", "good", "wrong"), [DEAD, ("", True), WRONG]),  # those after it in another process
    (("good", "full", "wrong"), [("", True), FULL_MEMORY, FULL_MEMORY]),
])  # fmt: skip
def test_results_of_a_child(names, found, dev, tmp_path, monkeypatch):
    monkeypatch.setitem(VERDICTS, "good2", "pass")
    got = outcomes(names, tmp_path, monkeypatch, dev.info)
    assert got == [("", True) if want is None else want for want in found]


def test_a_child_that_cannot_begin_says_nothing_of_the_device(dev, tmp_path, monkeypatch):
    got = outcomes(("good", "absent"), tmp_path, monkeypatch, dev.info)
    for text, lasting in got:
        assert not lasting and "did not begin" in text and "no_such_package" in text


def test_a_child_that_does_not_end(dev, tmp_path, monkeypatch):
    monkeypatch.setattr(asked, "SECONDS", 15)
    got = outcomes(("good", "late"), tmp_path, monkeypatch, dev.info)
    assert got == [("", True), ("the self-test did not end: TimeoutExpired", False)]


def test_a_child_builds_before_it_runs(dev, tmp_path, monkeypatch, capsys):
    (tmp_path / "built_of_selftests.py").write_text(CHILD.format("raise DeviceError('no')"))
    monkeypatch.syspath_prepend(str(tmp_path))
    order = []
    monkeypatch.setattr(type(dev.programs), "build", lambda *_: order.append("build"))
    monkeypatch.setattr(trial, "run", lambda *_: order.append("run"))
    child.main(str(dev.index), "built_of_selftests")
    assert order == ["build", "run"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [["begun", "built_of_selftests"], ["ended", "built_of_selftests", ""]]

    def full(*_):
        raise OutOfDeviceMemory("none left")

    monkeypatch.setattr(trial, "run", full)
    with pytest.raises(SystemExit) as ended:
        child.main(str(dev.index), "built_of_selftests")
    assert ended.value.code == FULL


def test_an_error_names_what_is_wrong():
    want = np.ones(5)
    trial.check("it", want + 1e-4, want, 1e-3)
    with pytest.raises(DeviceError, match=r"it is wrong: relative error 1\.0"):
        trial.check("it", want * 2, want, 1e-3)
    with pytest.raises(DeviceError, match="nan"):
        trial.check("it", want * np.nan, want, 1e-3)
