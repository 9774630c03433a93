"""The tuner: what it keeps, what it refuses, and that its records are used."""

import argparse
import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from kerascl import dtypes
from kerascl.commands import tune
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose, forced
from kerascl.kernels.conv import solvers as conv_solvers
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.portable import DirectMatmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.tuning import database
from kerascl.kernels.tuning import trial as trials
from kerascl.kernels.tuning.trial import Trial, plan
from kerascl.runtime import device

F32 = dtypes.float32
PRODUCT = normalise_matmul(MatmulProblem(40, 24, 56, (), (56, 1), (24, 1), F32, F32, F32))
CONV = ConvProblem(
    FORWARD, (1, 8, 8, 3), (3, 3, 3, 4), (1, 6, 6, 4), (1, 1), ((0, 0), (0, 0)), (1, 1), 1, False,
    F32, F32, F32,
)  # fmt: skip
SCRIPT = """
import numpy as np, keras
inputs = keras.Input((6, 6, 3))
x = keras.layers.Flatten()(keras.layers.Conv2D(4, 3)(inputs))
model = keras.Model(inputs, keras.layers.Dense(5)(x))
model.predict(np.ones((2, 6, 6, 3), "f4"), verbose=0)
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    database.forget()
    yield tmp_path
    database.forget()


def test_a_key_tells_problems_apart():
    others = [
        dataclasses.replace(CONV, strides=(2, 1)),
        dataclasses.replace(CONV, channels_first=True),
        dataclasses.replace(CONV, pads=((0, 1), (0, 0))),
        dataclasses.replace(CONV, b=dtypes.bfloat16),
        dataclasses.replace(CONV, precision="high"),
    ]
    assert len({database.key(p) for p in (CONV, *others)}) == 1 + len(others)


def test_own_rows_win_and_survive(own_cache):
    info = device.default().info
    usual = database.choose("gemm", matmul.SOLVERS, matmul.VARIANTS, PRODUCT, info)
    other = next(s for s in matmul.VARIANTS if s.name != usual.name and s.applies(PRODUCT, info))
    assert database.keep(info, {f"gemm {database.key(PRODUCT)}": other.name})
    assert database.choose("gemm", matmul.SOLVERS, matmul.VARIANTS, PRODUCT, info) is other
    # a row for a solver that is gone, or does not apply, is passed over
    database.keep(info, {f"gemm {database.key(PRODUCT)}": "a solver of another version"})
    assert database.choose("gemm", matmul.SOLVERS, matmul.VARIANTS, PRODUCT, info) is usual


def test_forced_solvers_come_before_records(own_cache, monkeypatch):
    info = device.default().info
    database.keep(info, {f"gemm {database.key(PRODUCT)}": "direct"})
    monkeypatch.setenv("KERASCL_SOLVERS", "no such solver, tiled32")
    assert "tiled32" in database.choose("gemm", matmul.SOLVERS, matmul.VARIANTS, PRODUCT, info).name
    assert "tiled32" in choose(matmul.SOLVERS, PRODUCT, info).name


def test_a_forced_solver_of_just_that_name_comes_first(own_cache, monkeypatch):
    info = device.default().info
    monkeypatch.setenv("KERASCL_SOLVERS", "tiled64x64")
    found = database.choose("gemm", matmul.VARIANTS, matmul.SOLVERS, PRODUCT, info)
    assert found.name == "tiled64x64"  # and no other number of slices
    monkeypatch.setenv("KERASCL_SOLVERS", "iled64x64")
    assert forced(matmul.SOLVERS, PRODUCT, info) is None


def test_avoided_solvers_come_last(own_cache, monkeypatch):
    info = device.default().info
    usual = choose(matmul.SOLVERS, PRODUCT, info)
    database.keep(info, {f"gemm {database.key(PRODUCT)}": usual.name})
    monkeypatch.setenv("KERASCL_SOLVERS", f"-{usual.name}, -")
    for found in (
        choose(matmul.SOLVERS, PRODUCT, info),
        database.choose("gemm", matmul.SOLVERS, matmul.VARIANTS, PRODUCT, info),
    ):
        assert found.name != usual.name
    assert choose([usual], PRODUCT, info) is usual  # there is no other


def test_a_wrong_plan_is_seen():
    dev = device.default()
    trial = Trial(PRODUCT, choose(matmul.REFERENCES, PRODUCT, dev.info), dev)
    right = trial.plan(DirectMatmul())
    assert trial.error(right) <= trial.bound
    # the same product with one depth less, and one that leaves the last row unwritten
    short = dataclasses.replace(PRODUCT, k=PRODUCT.k - 1)
    wrong = DirectMatmul().plan(short, dev.info, store_epilogue(F32))
    assert not trial.error(wrong) <= trial.bound
    unwritten = dataclasses.replace(PRODUCT, m=PRODUCT.m - 1)
    wrong = DirectMatmul().plan(unwritten, dev.info, store_epilogue(F32))
    assert np.isnan(trial.error(wrong))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_a_trial_stores_16_bits_of_16(dtype):
    dev = device.default()
    product = dataclasses.replace(PRODUCT, a=dtype, b=dtype)
    trial = Trial(product, choose(matmul.REFERENCES, product, dev.info), dev)
    assert trial.out is dtype
    a, b, got = (
        dev.queue.read(buffer, np.empty(shape, dtype.numpy)).astype(np.float64)
        for buffer, shape in (
            (trial._slots["a"], (40, 56)), (trial._slots["b"], (56, 24)),
            (trial._wanted, (40, 24)),
        )
    )  # fmt: skip
    assert np.linalg.norm(got - a @ b) < 3e-3 * np.linalg.norm(got)
    dev.queue.write(trial._wanted, (got * 1.25).astype(dtype.numpy))
    assert abs(trial.error(trial.plan(DirectMatmul())) - 0.2) < 0.002


def test_large_inputs_are_drawn_once_and_repeated(monkeypatch):
    monkeypatch.setattr(trials, "_DRAWN", 97)
    dev = device.default()
    trial = Trial(PRODUCT, choose(matmul.REFERENCES, PRODUCT, dev.info), dev)
    a, b = (
        dev.queue.read(trial._slots[name], np.empty(shape, np.float32))
        for name, shape in (("a", (40, 56)), ("b", (56, 24)))
    )
    assert 90 < len(np.unique(a)) <= 97 and len(np.unique(a[0])) == 56
    assert (a.ravel()[97:] == a.ravel()[:-97]).all()
    got = dev.queue.read(trial._wanted, np.empty((40, 24), np.float32))
    assert np.linalg.norm(got - a.astype(np.float64) @ b) < 1e-6 * np.linalg.norm(got)
    # an error of one part in a thousand of one element's share
    dev.queue.write(trial._wanted, got * np.float32(1.001))
    assert abs(trial.error(trial.plan(DirectMatmul())) - 1e-3) < 1e-4


def test_problems_survive_json():
    entries = [("gemm", PRODUCT), ("conv", CONV)]
    classes = {"gemm": MatmulProblem, "conv": ConvProblem}
    text = json.dumps([database.to_json(*entry) for entry in entries])
    assert [database.from_json(entry, classes) for entry in json.loads(text)] == entries
    for wrong in ({"of": "sort"}, {"m": 3}, {"of": "gemm", "m": 3}):
        with pytest.raises(ValueError, match="is no problem"):
            database.from_json(wrong, classes)


def test_candidates_have_a_tile_each():
    info = dataclasses.replace(device.default().info, kind="gpu")
    deep = normalise_matmul(MatmulProblem(40, 24, 20000, (), (20000, 1), (24, 1), F32, F32, F32))
    found = tune._candidates(matmul, deep, info)
    costs = [solver.cost(deep, info) for solver in found]
    assert costs == sorted(costs)
    names = [solver.name for solver in found]
    assert sum(name.startswith("tiled32x32") for name in names) == 1 and len(names) > 3


@pytest.mark.slow
def test_the_command_on_a_list(tmp_path):
    script, problems = tmp_path / "net.py", tmp_path / "problems.json"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "kerascl", "tune"]
    environment = dict(os.environ, COLUMNS="200", KERASCL_CACHE_DIR=str(tmp_path / "cache"))
    options = {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run([*command, "--record", problems, script], **options)
    assert done.returncode == 0 and "problems in" in done.stdout, done.stderr
    assert {entry["of"] for entry in json.loads(problems.read_text())} == {"gemm", "conv"}
    limits = ["--seconds", "20", "--repeats", "1", "--candidates", "2"]
    limits += ["--times", times := tmp_path / "times.json"]
    done = subprocess.run([*command, *limits, "--problems", problems], **options)
    assert done.returncode == 0 and "Tuned on" in done.stdout, done.stderr
    found = json.loads(times.read_text())
    assert {name.split()[0] for name in found} == {"gemm", "conv"}
    assert all(us > 0 for each in found.values() for us in each.values())


@pytest.mark.parametrize("text", [None, "no JSON", '[{"of": "sort"}]', "[1]", "3"])
def test_a_list_that_is_none(tmp_path, text):
    problems = tmp_path / "problems.json"
    if text is not None:
        problems.write_text(text)
    options = argparse.Namespace(script=None, network=None, problems=str(problems))
    console = Console(record=True, width=200)
    assert tune.run(options, console) == 2
    assert "--problems" in console.export_text()


@pytest.mark.slow
def test_the_command(tmp_path):
    script, records = tmp_path / "net.py", tmp_path / "records.json"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "kerascl", "tune", "--seconds", "20", "--repeats", "1"]
    environment = dict(os.environ, COLUMNS="200", KERASCL_CACHE_DIR=str(tmp_path / "cache"))
    done = subprocess.run(
        [*command, "--export", records, script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Tuned on" in done.stdout
    assert all(
        row.split()[0] in ("gemm", "conv") for row in json.loads(records.read_text())["records"]
    )


def test_the_command_without_work():
    done = subprocess.run([sys.executable, "-m", "kerascl", "tune"], capture_output=True, text=True)
    assert done.returncode == 2 and "--network" in done.stdout


def test_a_reference_has_room(dev):
    """Of those that are right beyond doubt the cheapest may want more memory than there is."""
    shape = (8, 14, 14, 32)
    problem = ConvProblem(
        FILTER_GRAD, shape, (3, 3, 1, 32), shape, (1, 1), ((1, 1), (1, 1)), (1, 1), 32, False,
        dtypes.float32, dtypes.float32, dtypes.float32, "high",
    )  # fmt: skip
    small = dataclasses.replace(dev.info, max_alloc_bytes=4096)
    found = tune._reference(conv_solvers, problem, small)
    assert max(plan(found, problem, small).workspace, default=0) <= 4096
    cheapest = choose(conv_solvers.REFERENCES, problem, dev.info)
    assert tune._reference(conv_solvers, problem, dev.info) is cheapest
    assert max(plan(cheapest, problem, dev.info).workspace) > 4096
