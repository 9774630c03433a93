"""The tuning records that are shipped, and what cost models say where times were measured."""

import dataclasses
import json

import pytest

from kerascl.kernels.contract.solver import choose, joining
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import ConvProblem
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.tuning import database, machine, shipped
from kerascl.kernels.tuning.trial import plan
from kerascl.runtime.device import DeviceInfo, find_devices

KINDS = {"gemm": (matmul, MatmulProblem), "conv": (conv, ConvProblem)}
FILES = sorted(shipped.RECORDS_FOLDER.glob("*.json"))
# Microseconds on an H200, of which about eight are what any launch takes.
MEASURED = {
    "gemm 64 4096 1000 1x1x1 0x0x0x1000x1 0x0x0x1x1000 bfloat16 bfloat16 float32 0 0 high": {
        "wgmma64x64x6s1": 12.1, "wgmma128x64x4s1": 14.6, "mma32x32s1": 20.4,
    },
    "gemm 802816 32 16 1x1x1 0x0x0x16x1 0x0x0x1x16 float32 float32 float32 0 0 high": {
        "wgmma128x32x4s1": 53.3, "wgmma64x64x6s1": 96.9, "mma128x32s1": 59.4,
    },
    "gemm 3072 768 12544 1x1x1 0x0x0x1x3072 0x0x0x768x1 float32 float32 float32 0 0 high": {
        "wgmma_left128x192x5s4": 203.4, "wgmma_transposed128x192x5s4": 264.2,
    },
    "gemm 50176 512 128 1x1x1 0x0x0x128x1 0x0x0x1x128 bfloat16 bfloat16 float32 0 0 high": {
        "wgmma256x128x4s1": 32.3, "wgmma128x128x6s1": 34.7, "wgmma64x128x4s1": 35.1,
    },
    "conv forward 64x224x224x3 7x7x3x64 64x112x112x64 2x2 3x3x3x3 1x1 1 0 bfloat16 bfloat16 "
    "float32 high": {
        "wgmma_stem256x128x4s1": 265.4, "wgmma_stem128x64x4s1": 310.9,
        "wgmma_stem64x64x6s1": 449.1,
    },
    "conv data_grad 16x14x14x1024 1x1x1024x2048 16x7x7x2048 2x2 0x0x0x0 1x1 1 0 float32 float32 "
    "float32 high": {
        "wgmma128x64x8s1": 23.1, "wgmma128x256x4s1": 48.4,
    },
    "conv filter_grad 64x224x224x3 7x7x3x64 64x112x112x64 2x2 3x3x3x3 1x1 1 0 float32 float32 "
    "float32 high": {
        "mma64x64": 393.0, "mma32x128": 471.4, "mma64x128": 572.4, "mma128x32": 755.0,
        "tiled64x64": 930.6,
    },
}  # fmt: skip
# Microseconds on an H100 of its `RATES`, of problems without matrix units of less precision.
RATES = {
    "clock": 1980, "float32": 32.5e6, "bandwidth": 2.98e6, "local_bandwidth": 60e6, "launch": 6.5,
    "latency": 0.15,
}  # fmt: skip
MEASURED_EXACT = {
    # so short a depth that the tiles' beginning and what is read beside the operands count
    "conv forward 64x224x224x3 3x3x3x64 64x224x224x64 1x1 1x1x1x1 1x1 1 0 float32 float32 float32 "
    "highest": {
        "tiled64x64x8": 906.5, "tiled128x64": 1096.1, "wgmma_stem": 1587.8,
    },
    "gemm 200704 144 24 1x1x1 0x0x0x24x1 0x0x0x1x24 float32 float32 float32 0 0 highest": {
        "tiled128x32": 90.2, "tiled64x64x8": 91.1, "tiled128x64": 95.0, "wgmma": 118.3,
    },
    # a long one
    "conv forward 64x28x28x512 3x3x512x512 64x28x28x512 1x1 1x1x1x1 1x1 1 0 float32 float32 "
    "float32 highest": {
        "wgmma": 1752.1,
    },
    # registers hold a single group of the largest tile at a time
    "gemm 50176 128 512 1x1x1 0x0x0x512x1 0x0x0x1x512 float32 float32 float32 0 0 highest": {
        "tiled64x64x8": 191.9, "tiled128x128": 225.5,
    },
    "gemm 512 128 50176 1x1x1 0x0x0x1x512 0x0x0x128x1 float32 float32 float32 0 0 highest": {
        "tiled128x64": 185.6, "tiled64x128": 188.4, "tiled128x128": 232.9, "wgmma": 265.8,
    },
}  # fmt: skip


def problem_of(name: str):
    """(solvers by name, the problem) of a record."""
    kind, key = name.split(" ", 1)
    module, problem = KINDS[kind]
    known = {s.name: s for s in (*module.SOLVERS, *module.VARIANTS)}
    return known, database.from_key(key, problem)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_records_name_solvers_that_apply(file, hopper_info):
    entry = json.loads(file.read_text())
    facts = {field.name for field in dataclasses.fields(DeviceInfo)}
    assert entry["device"] and set(entry["device"]) <= facts
    real = [found.info for found in find_devices() if found.info]
    devices = [i for i in (hopper_info, *real) if shipped.matches(i, entry["device"])]
    for name, record in entry["records"].items():
        known, problem = problem_of(name)
        assert f"{name.split(' ', 1)[0]} {database.key(problem)}" == name
        for solver in database.fastest_first(record):
            assert solver in known
            for info in devices:
                assert known[solver].applies(problem, info)
                assert plan(known[solver], problem, info).launches
    assert devices or file.stem != "h200"


def test_shipped_records_are_taken(hopper_info, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", "")
    records = json.loads((shipped.RECORDS_FOLDER / "h200.json").read_text())["records"]
    other = 0
    for name, record in records.items():
        module, _ = KINDS[name.split(" ", 1)[0]]
        _, problem = problem_of(name)
        args = name.split(" ", 1)[0], module.SOLVERS, module.VARIANTS, problem, hopper_info
        solver = database.fastest_first(record)[0]
        assert database.choose(*args).name == solver
        other += choose(module.SOLVERS, problem, hopper_info).name != solver
    assert other == len(records)


# A word's product is wgmma's by a launch; eight words' is the other's alone, too.
@pytest.mark.parametrize(
    "sizes, alone, stays",
    [("1 8192 2048", "wgmma", "skinny"), ("8 4096 1024", "mma_skinny", "mma_skinny")],
)
def test_launches_that_stay_are_worth_theirs(
    hopper_info, sizes, alone, stays, monkeypatch, tmp_path
):
    """Products of Llama's and GPT-2's perceptrons for a word, or eight."""
    _, n, k = map(int, sizes.split())
    name = f"gemm {sizes} 1x1x1 0x0x0x{k}x1 0x0x0x{n}x1 {'bfloat16 ' * 2}float32 0 0 high"
    problem = problem_of(name)[1]
    args = "gemm", matmul.SOLVERS, matmul.VARIANTS, problem, hopper_info
    launch = machine.of(hopper_info).launch
    with joining():
        joined = database.choose(*args)
    assert database.choose(*args).name == alone and joined.name == stays
    # times that were measured have a launch, too
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    times = {"wgmma": 10.0}
    for factor, found in ((1, stays), (3, "wgmma")):
        times[stays] = 10.0 + launch * factor / 2
        assert database.keep(hopper_info, {name: times})
        database.forget()
        with joining():
            assert database.choose(*args).name == found
        assert database.choose(*args).name == "wgmma"
    database.forget()


@pytest.mark.parametrize("name", MEASURED, ids=lambda name: " ".join(name.split()[:5]))
def test_costs_say_what_was_measured(name, hopper_info):
    known, problem = problem_of(name)
    times = MEASURED[name]
    said = {n: known[n].cost(problem, hopper_info) for n in times}
    for solver, time in times.items():
        assert 0.6 * time < said[solver] < 1.5 * time, (solver, time, said)
    fastest = min(times, key=times.get)
    assert said[fastest] < 1.05 * min(said.values())


@pytest.mark.parametrize("name", MEASURED_EXACT, ids=lambda name: " ".join(name.split()[:5]))
def test_costs_of_exact_products_say_what_was_measured(name, hopper_info, monkeypatch):
    info = dataclasses.replace(hopper_info, name="NVIDIA H100", nvidia_capability=(9, 0))
    card = machine.of_card(info, RATES)
    monkeypatch.setattr(machine, "of", lambda info: card)
    known, problem = problem_of(name)
    times = MEASURED_EXACT[name]
    said = {n: known[n].cost(problem, info) for n in times}
    for solver, time in times.items():
        assert 0.8 * time < said[solver] < 1.25 * time, (solver, time, said)
    assert times[min(said, key=said.get)] <= 1.1 * min(times.values()), said
