"""What is known of a device's rates, and the costs that are counted with them."""

import dataclasses
import importlib
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention.problem import AttentionProblem, Tensor
from kerascl.kernels.attention.tiled import TiledAttention
from kerascl.kernels.conv.depthwise_strips import DepthwiseStrips
from kerascl.kernels.conv.pointwise import PointwiseConv
from kerascl.kernels.conv.problem import FORWARD, ConvProblem
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.hopper.tiles import SHAPES
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.portable import DirectMatmul, TiledMatmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.matmul.skinny import SkinnyMatmul
from kerascl.kernels.matmul.split_k import reduction_time
from kerascl.kernels.matmul.tiles import Loads, Tile
from kerascl.kernels.pool.problem import PoolProblem
from kerascl.kernels.pool.solvers import CellPool, PlacePool
from kerascl.kernels.tuning import database, machine, nearest, shipped
from kerascl.kernels.units.matmul import FragmentMatmul
from kerascl.kernels.units.tile import FragmentTile
from kerascl.runtime import children, peaks
from kerascl.runtime import device as devices

F32, BF16 = dtypes.float32, dtypes.bfloat16
# A device of round rates: 10 units, 1000 multiply-adds a microsecond each, 500 bytes a microsecond.
ROUND = machine.Machine(
    units=10, clock=1000.0, resident=64, registers=2048,
    simt=(("float32", 1e4), ("float64", 5e3)),
    matrix=(("float32", 1e5), ("bfloat16", 2e5), ("float16", 2e5)), bandwidth=500.0,
    local_bandwidth=2000.0, launch=7.0, latency=0.5,
)  # fmt: skip


@pytest.fixture
def info(monkeypatch):
    """Facts of a GPU that is not there, whose rates are ROUND."""
    facts = dataclasses.replace(
        next(found.info for found in devices.find_devices() if found.info), name="a GPU of tests",
        kind="gpu", compute_units=10, matrix="mma80", nvidia_capability=(8, 0), clock_mhz=1000,
        max_work_group_size=1024, local_mem_bytes=49152,
    )  # fmt: skip
    monkeypatch.setattr(machine, "of", lambda info: ROUND)
    return facts


def product(m, n, k, dtype=F32):
    return normalise_matmul(MatmulProblem(m, n, k, (), (k, 1), (n, 1), dtype, dtype, F32))


def test_rates_are_a_dtypes_own(info):
    assert ROUND.rate(F32) == 1e4 and ROUND.rate(dtypes.float64) == 5e3
    assert ROUND.rate(dtypes.int32) == 1e4
    assert ROUND.matrix_rate(BF16) == 2e5
    assert dataclasses.replace(ROUND, matrix=()).matrix_rate(BF16) == 0
    assert ROUND.clocks(2500) == 2.5
    assert ROUND.rounds(640) == 1 and ROUND.rounds(641) == 2


def test_a_roofline_is_what_bounds_and_its_launches():
    assert ROUND.roofline(1e6, 470, F32, launches=0) == pytest.approx(100)
    assert ROUND.roofline(1e6, 470, F32, 0.25, 2) == pytest.approx(400 + 14)
    assert ROUND.roofline(1e6, 470e3, F32) == pytest.approx(470e3 / (500 * 0.94) + 7)


def test_a_tile_takes_whole_rounds(near):
    tile = TiledMatmul(Tile(64, 32, 4, 4), 1)
    # a unit's registers suffice for one group of 128 work-items; in a step it does 64 * 32 products
    # at its rate of 1000, with a read of local memory for every second one, and copies 64 + 32
    # elements, of which those of a, that lie along k, take no time
    step = 64 * 32 * 1.5 / 1000 + 0.055 * 32 / ROUND.clock
    one = step * 96
    waits = 96 / 16 * 4 * ROUND.latency
    # 2 x 3 tiles in one round: of its waits and of memory's time a fifth each is not hidden
    moved = 0.2 * 4 * (128 * 96 + 96 * 96 + 128 * 96) / (1e6 * 0.94)
    begin = 15 * ROUND.latency
    want = 7 + one + 0.2 * waits + moved + 2 * begin
    assert tile.cost(product(128, 96, 96), near) == pytest.approx(want)
    # 4 x 3 tiles are two rounds of ten units
    moved = 0.2 * 4 * (256 * 96 + 96 * 96 + 256 * 96) / (1e6 * 0.94)
    want = 7 + 2 * one + 0.2 * 2 * waits + moved + 3 * begin
    assert tile.cost(product(256, 96, 96), near) == pytest.approx(want)


def test_groups_that_a_unit_holds_hide_each_others_waits(near, monkeypatch):
    shape = Tile(64, 64, 8, 8)
    assert shape.threads == 64 and 152 < shape.registers(F32, Loads(4, 4)) <= 160
    tile = TiledMatmul(shape, 1)

    def work(groups: int, held: int) -> float:
        """Microseconds of so many groups on each unit, which has registers for some."""
        roomy = dataclasses.replace(
            ROUND, resident=1024, registers=held * 64 * 160, latency=0.0, bandwidth=1e9
        )
        monkeypatch.setattr(machine, "of", lambda info: roomy)
        return tile.cost(product(64 * 10 * groups, 64, 4096), near) - 7

    one = (64 * 64 * 1.25 / 1000 + 0.055 * 64 / ROUND.clock) * 4096
    # a quarter of 1024 work-items hides all: four groups of 64 take no longer than their products;
    # one alone takes a quarter more and a little, and the last of five comes alone
    assert work(1, 4) == pytest.approx(one * 1.2625, rel=1e-4)
    assert work(5, 4) == pytest.approx(one * (4 + 1.2625), rel=1e-4)
    assert work(5, 1) == pytest.approx(one * 5 * 1.2625, rel=1e-4)


def test_a_tile_waits_for_memory(info, monkeypatch):
    tile = TiledMatmul(Tile(32, 32, 4, 4), 1)
    far = dataclasses.replace(ROUND, latency=50.0)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "of", lambda info: far)
        # one group: 100 tiles of 16 steps along k, each of which takes four reads to be there,
        # and the first one and the last result
        waits = 100 * 4 * 50 + 2 * 15 * 50
        assert tile.cost(product(4, 4, 1600), info) == pytest.approx(7 + waits, rel=0.04)
    # what all move takes longer than the products of so shallow a sum
    moved = 4 * (2 * 50_000 * 2 + 50_000 * 50_000)
    assert tile.cost(product(50_000, 50_000, 2), info) >= 7 + moved / (500 * 0.94)


def test_small_products_wait_or_multiply(info):
    direct = DirectMatmul()
    # one round of 640 work-items, each of which waits a quarter of the latency for each depth
    assert direct.cost(product(8, 8, 16), info) >= 7 + 16 * 0.5 / 4
    many = direct.cost(product(1000, 640, 100), info)
    assert many == pytest.approx(7 + 7.5 + 640_000 * 116 / (1e4 * direct.ON_GPU))


def test_neighbours_that_read_rows_of_their_own_wait_for_memory(info):
    direct, n, k = DirectMatmul(), 100_000, 64
    beside = product(1, n, k)
    apart = dataclasses.replace(beside, b_strides=(*beside.b_strides[:-2], 1, k))
    moved = 4 * (k + n * k + n)
    assert direct.cost(apart, info) == pytest.approx(7 + 7.5 + moved / (500 * direct.APART))
    assert direct.cost(beside, info) < direct.cost(apart, info)
    # who has lanes sum along the depth reads all of it in order
    assert SkinnyMatmul().cost(apart, info) < direct.cost(apart, info)


def test_a_long_operand_is_read_once(info):
    skinny = SkinnyMatmul()
    rows, k = 100_000, 64  # enough for every unit
    read = rows * k * 4 / (500 * 0.94)
    multiplied = rows * k * 2 / (1e4 * skinny.ON_GPU)
    want = 7 + 7.5 + read + multiplied
    assert skinny.cost(product(rows, 2, k), info) == pytest.approx(want)
    # what keeps one unit busy leaves nine idle; a hundred times as much does not
    few = skinny.cost(product(skinny.LEAST // 80, 2, 8), info)
    ten = skinny.cost(product(skinny.LEAST * 10 // 8, 2, 8), info)
    assert (few - 14.5) * 10 == pytest.approx(ten - 14.5)


def test_slices_are_added_up(info):
    assert reduction_time(1000, 1, info) == 0.0
    assert reduction_time(1000, 8, info) == pytest.approx(7 + 4 * 1000 * 17 / 470)
    assert reduction_time(1000, 33, info) == pytest.approx(7 + 4 * 0.5 + 4 * 1000 * 67 / 470)


@pytest.fixture
def near(info, monkeypatch):
    """`info` of a machine whose memory never is what takes longest."""
    machine_near = dataclasses.replace(ROUND, bandwidth=1e6)
    monkeypatch.setattr(machine, "of", lambda info: machine_near)
    return info


def test_products_of_matrix_units_move_their_operands(info):
    p = product(64, 50_000, 64)
    moved = 4 * (64 * 64 + 64 * 50_000 + 64 * 50_000) / 500
    fragments = FragmentMatmul(FragmentTile(64, 64, 32, 32, 0.5), 1)
    wgmma = HopperMatmul(SHAPES[0], 1)
    assert fragments.cost(p, info) == pytest.approx(7 + 7.5 + moved / 0.8)
    assert wgmma.best(p, info)[0] >= moved / 0.94
    # an operand that all batches share is moved once
    shared = dataclasses.replace(p, batch=(1, 1, 10), b_strides=(0, 0, 0, *p.b_strides[-2:]))
    shared = dataclasses.replace(shared, a_strides=(0, 0, 64 * 64, *p.a_strides[-2:]))
    assert shared.nbytes == 4 * (10 * 64 * 64 + 64 * 50_000 + 10 * 64 * 50_000)


def test_matrix_units_follow_their_rate(near):
    info = near
    solver = FragmentMatmul(FragmentTile(64, 64, 32, 32, 0.5), 1)
    deep, deeper = (solver.cost(product(640, 640, k), info) for k in (6400, 12800))
    # 100 tiles are five rounds of two groups on ten units; float32 reaches 0.8 of the efficiency
    rounds = 5 * 2 * 64 * 64
    assert deeper - deep == pytest.approx(rounds * 6400 / (1e4 * 0.5 * 0.8), rel=1e-6)
    assert solver.cost(product(640, 640, 64, BF16), info) < solver.cost(product(640, 640, 64), info)


def test_warpgroups_take_rounds_too(near):
    info = near
    shape = SHAPES[0]  # 128 x 256, one group a unit
    solver = HopperMatmul(shape, 1)
    one, two = (solver.best(product(128 * tiles, 256, 4096, BF16), info)[0] for tiles in (10, 11))
    assert two == pytest.approx(2 * one)
    assert one > 128 * 256 * 4096 / 2e4  # at the units' rate without any loss


def test_a_convolution_of_one_tap_costs_its_product(info):
    p = ConvProblem(
        FORWARD, (2, 8, 8, 32), (1, 1, 32, 48), (2, 8, 8, 48), (1, 1), ((0, 0), (0, 0)), (1, 1),
        1, False, F32, F32, F32,
    )  # fmt: skip
    costs = [s.cost(product(128, 48, 32), info) for s in matmul.SOLVERS
             if s.applies(product(128, 48, 32), info)]  # fmt: skip
    assert PointwiseConv().cost(p, info) == min(costs)


def test_depthwise_convolutions_count_what_they_move(info):
    p = ConvProblem(
        FORWARD, (4, 16, 16, 64), (3, 3, 1, 64), (4, 16, 16, 64), (1, 1), ((1, 1), (1, 1)), (1, 1),
        64, False, F32, F32, F32,
    )  # fmt: skip
    assert p.products == 4 * 16 * 16 * 64 * 9
    assert p.nbytes == 4 * (2 * 4 * 16 * 16 * 64 + 9 * 64)
    bound = max(p.products / (1e4 * DepthwiseStrips.ON_GPU), p.nbytes / 470)
    assert DepthwiseStrips().cost(p, info) == pytest.approx(7 + bound)


def test_pools_count_launches(info):
    p = PoolProblem("max_grad", (1, 4, 4, 4), (1, 2, 2, 4), (2, 2), (2, 2), ((0, 0), (0, 0)),
                    False, F32)  # fmt: skip
    # 64 elements of x and 16 of y: read once, and written once
    moved = (2 * 64 + 16) * 4 / 470
    assert CellPool().cost(p, info) == pytest.approx(7 + max(moved, 64 / (1e4 * CellPool.ON_GPU)))
    assert PlacePool().cost(p, info) > 14


def test_attention_counts_its_products(info):
    near = Tensor(F32, (32 * 4 * 16, 4 * 16, 16, 1))
    p = AttentionProblem(2, 32, 32, 4, 4, 16, 16, 0.25, False, F32, near, near, near)
    assert p.products == 2 * 4 * 32 * 32 * 32
    moved = 4 * 4 * (2 * 32 * 4 * 16) / 470  # queries, keys, values and the result
    want = 7 + max(moved, p.products / (1e4 * TiledAttention.ON_GPU))
    assert TiledAttention().cost(p, info) == pytest.approx(want)
    back = dataclasses.replace(p, grad=near)
    assert back.products == 2 * 4 * 32 * 32 * 80


# -- where rates come from


def test_drivers_facts():
    facts = next(found.info for found in devices.find_devices() if found.info)
    card = dict(kind="gpu", vendor="NVIDIA Corporation", compute_units=108, clock_mhz=1410)
    a100 = dataclasses.replace(facts, **card, nvidia_capability=(8, 0), matrix="mma80")
    found = machine.of_facts(a100)
    # 9.7 and 19.5 TFLOP/s are of the ordinary units, 156 and 312 of the matrix units
    assert 2e-6 * found.rate(F32) == pytest.approx(19.5, rel=0.01)
    assert 2e-6 * found.matrix_rate(F32) == pytest.approx(156, rel=0.01)
    assert 2e-6 * found.matrix_rate(BF16) == pytest.approx(312, rel=0.01)
    amd = dataclasses.replace(
        a100, vendor="Advanced Micro Devices, Inc.", nvidia_capability=None, matrix="",
        compute_units=120, clock_mhz=2124,
    )  # fmt: skip
    found = machine.of_facts(amd)
    assert found.matrix == () and 2e-6 * found.rate(F32) == pytest.approx(32.6, rel=0.01)
    cpu = dataclasses.replace(
        facts, kind="cpu", compute_units=4, clock_mhz=3000, simd_width=8, nvidia_capability=None,
        matrix="",
    )  # fmt: skip
    assert machine.of_facts(cpu).rate(F32) == 4 * 3000 * 16
    for each in (a100, amd, cpu):
        found = machine.of_facts(each)
        assert min(found.bandwidth, found.local_bandwidth, found.launch, found.latency) > 0


def test_shipped_rates_of_a_card(hopper_info):
    found = machine.of(hopper_info)
    assert (found.units, found.clock) == (132, 1980)
    assert 2e-6 * found.rate(F32) == pytest.approx(66.9, rel=0.01)
    assert 2e-6 * found.matrix_rate(BF16) == pytest.approx(1070, rel=0.01)
    assert found.bandwidth == 4.261e6 and found.launch == 6.5
    other = dataclasses.replace(hopper_info, name="another card")
    assert shipped.rates(other) == {} and shipped.rates(hopper_info)


def test_measured_rates_and_facts_for_the_rest():
    facts = next(found.info for found in devices.find_devices() if found.info)
    measured = peaks.Peaks({"float32": 4e12, "float32 products": 9e12}, 3e11, 5e-6)
    found = machine.of_peaks(facts, measured)
    assert found.rate(F32) == 2e6 and found.bandwidth == pytest.approx(3e5)
    assert found.launch == pytest.approx(5)
    assert found.latency == machine.of_facts(facts).latency


def test_planning_alone_measures_nothing(monkeypatch):
    def refused(*_):
        raise AssertionError("measured")

    monkeypatch.setattr(peaks, "measure_rates", refused)
    monkeypatch.setattr(peaks, "load", lambda device: None)
    monkeypatch.setattr(machine, "_known", {})
    facts = devices.default().info
    planned = dataclasses.replace(facts, name="a device that is not there")
    assert machine.of(planned) == machine.of_facts(planned)
    monkeypatch.setattr(devices, "open_device", lambda info: None)
    closed = dataclasses.replace(facts)
    assert machine.of(closed) == machine.of_facts(closed)


def test_rates_are_measured_once_and_kept(tmp_path, monkeypatch):
    dev = devices.default()
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    assert dev.context and peaks.load(dev) is None
    monkeypatch.setattr(machine, "_known", {})
    found = machine.of(dev.info)
    kept = peaks.load(dev)
    assert kept is not None and not kept.whole
    assert found == machine.of_peaks(dev.info, kept)
    assert min(kept.flops["float32"], kept.bandwidth, kept.launch, kept.latency) > 0
    assert kept.local_bandwidth > 0
    monkeypatch.setattr(peaks, "measure_rates", None)  # never again
    monkeypatch.setattr(machine, "_known", {})
    assert machine.of(dev.info) == found


def test_children_that_test_a_driver_measure_nothing(tmp_path, monkeypatch):
    """Others use the device beside them, and what they kept would be everybody's."""
    dev = devices.default()
    assert dev.context
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERASCL_CHECK", children.testing()["KERASCL_CHECK"])
    monkeypatch.setattr(machine, "_known", {})
    assert machine.of(dev.info) == machine.of_facts(dev.info) and peaks.load(dev) is None
    kept = peaks.Peaks({"float32": 4e12}, 3e11, 5e-6, 0.0, 0.0, 2e11, 1e-7)
    peaks.save(dev, kept)  # as the process that began them does
    monkeypatch.setattr(machine, "_known", {})
    assert machine.of(dev.info) == machine.of_peaks(dev.info, kept)


@pytest.mark.parametrize("module", ["kerascl.checks.trial", "kerascl.runtime.selftest",
                                    "kerascl.kernels.selftests.asked"])  # fmt: skip
def test_who_begins_children_that_test_says_so(module):
    """All that say that the child itself checks nothing."""
    text = Path(importlib.import_module(module).__file__).read_text()
    assert "children.testing(" in text and "KERASCL_CHECK" not in text


@pytest.mark.parametrize("waited", [0, 1, 3])
def test_runs_are_long_enough_where_others_were_first(waited, monkeypatch):
    """A round takes 1 us; the first runs wait 7 ms for others."""
    taken = []

    def fastest(device, run, quiet):
        run()
        return taken[-1] * 1e-6 + (7e-3 if len(taken) <= waited else 0)

    monkeypatch.setattr(peaks, "_fastest", fastest)
    rounds, seconds = peaks._of_rounds(None, taken.append, 0.01, 1 << 20)
    assert rounds == taken[-1] and 0.005 <= seconds < 0.03
    assert rounds / seconds == pytest.approx(1e6, rel=0.15)
    assert peaks._of_rounds(None, taken.append, 10.0, 1000) == (1000, pytest.approx(1e-3))


def test_where_memory_is_short_the_facts_serve(monkeypatch):
    dev = devices.default()
    assert dev.context

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(peaks, "known", full)
    monkeypatch.setattr(machine, "_known", {})
    assert machine.of(dev.info) == machine.of_facts(dev.info)


def test_a_chain_of_reads_visits_everything(rng):
    """The latency is that of places that no cache holds only if the chain is one cycle."""
    mask, at, seen = (1 << 12) - 1, 0, set()
    for _ in range(mask + 1):
        seen.add(at)
        at = (at * 1664525 + 1013904223) & mask
    assert len(seen) == mask + 1 and at == 0


# -- records of the nearest problem


def test_distance_counts_doublings():
    base = product(100, 200, 300)
    assert nearest.distance(base, base) == 0
    assert nearest.distance(base, product(200, 200, 300)) == 1
    assert nearest.distance(base, product(50, 400, 300)) == 1
    far = dataclasses.replace(base, a=BF16)
    assert nearest.distance(base, far) == math.inf
    assert nearest.distance(base, dataclasses.replace(base, precision="high")) == math.inf
    turned = dataclasses.replace(base, a_strides=(*base.a_strides[:3], 1, 100))
    assert nearest.distance(base, turned) == math.inf


def test_the_nearest_record_corrects_costs(info):
    direct, skinny, tiled = DirectMatmul(), SkinnyMatmul(), TiledMatmul(Tile(64, 64, 4, 4, 0.5))
    solvers = direct, skinny, tiled
    asked, near, farther = product(1000, 8, 512), product(1000, 8, 1024), product(1000, 8, 1500)
    times = {"direct": 3 * direct.cost(near, info), "skinny": 0.5 * skinny.cost(near, info)}
    timed = [(farther, {"direct": 1.0}), (near, times), (product(5000, 8, 512), {"direct": 1.0})]
    found = nearest.correction(asked, timed, solvers, info)
    assert found.ratios == pytest.approx({"direct": 3, "skinny": 0.5})
    assert found.weight == pytest.approx(0.5)  # one doubling of the two that NEAR is
    assert found.of("direct") == pytest.approx(math.sqrt(3))
    assert found.of("skinny") == pytest.approx(math.sqrt(0.5))
    assert found.of(tiled.name) == pytest.approx(math.sqrt(1.75))  # the others' median
    same = nearest.correction(near, timed, solvers, info)
    assert same.weight == 1 and same.of("direct") == pytest.approx(3)
    assert nearest.correction(product(1000, 8, 8000), timed[1:], solvers, info) is None
    wild = nearest.Correction({"direct": 1000.0}, 1.0)
    assert wild.of("direct") == nearest.MOST


def test_records_with_times_decide_and_correct(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    database.forget()
    info = devices.default().info
    m, n, k = 640, 72, 250
    known, asked = product(m, n, k), product(m, n, k + 10)
    usable = [s for s in matmul.SOLVERS if s.applies(known, info)]
    assert len(usable) > 2
    usual = database.choose("gemm", matmul.SOLVERS, matmul.VARIANTS, asked, info)
    costs = {s.name: s.cost(known, info) for s in usable}
    other = min((s for s in usable if s is not usual), key=lambda s: costs[s.name])
    ratio = other.cost(asked, info) / usual.cost(asked, info)
    # the usual one took much longer than it should have: as far as one correction goes
    times = {usual.name: costs[usual.name] * 4, other.name: costs[other.name] / 4}
    assert database.keep(info, {f"gemm {database.key(known)}": times})
    fastest = min(times, key=times.get)
    args = "gemm", matmul.SOLVERS, matmul.VARIANTS
    assert database.choose(*args, known, info).name == fastest
    estimate = database.estimate("gemm", matmul.SOLVERS, asked, info)
    weight = 1 - np.log2((k + 10) / k) / 2
    assert estimate(usual) == pytest.approx(usual.cost(asked, info) * 4**weight)
    assert estimate(other) == pytest.approx(other.cost(asked, info) / 4**weight)
    expected = other if ratio < 16**weight else usual
    assert database.choose(*args, asked, info) is expected
    database.forget()


@pytest.mark.parametrize(
    "kept", ["3", '{"gemm x": 3}', '{"gemm x": {}}', '{"gemm x": {"direct": -1}}', "[]"]
)
def test_records_that_are_none(kept):
    with pytest.raises((ValueError, TypeError)):
        database._parse(kept.encode())
    good = {"gemm x": "direct", "gemm y": {"direct": 2.0, "skinny": 1.0}}
    assert database._parse(json.dumps(good).encode()) == good
    assert database.fastest_first(good["gemm y"]) == ["skinny", "direct"]


@pytest.mark.parametrize("floats", [4, 8, 16])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_vectors_of_peaks_are_some_that_opencl_has(dev, floats, dtype):
    """Of 64 bytes, in halves, there would be 32."""
    info = dataclasses.replace(dev.info, kind="cpu", simd_width=floats)
    widths = peaks._widths(SimpleNamespace(info=info), dtype)
    assert widths[0] == 1 and set(widths) <= {1, 2, 4, 8, 16}


def test_rates_are_measured_once_a_gpu_s_clock_has_risen(dev, monkeypatch):
    rates = iter([20.0, 35.0, 60.0, 60.5])
    found = []

    def arithmetic(*_):
        found.append(next(rates, 60.0))
        return found[-1]

    monkeypatch.setattr(peaks, "arithmetic", arithmetic)
    monkeypatch.setattr(peaks, "_SETTLED", 0.01)
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, kind="cpu"))
    peaks.wake(dev)
    assert not found
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, kind="gpu"))
    peaks.wake(dev)
    assert found[:4] == [20.0, 35.0, 60.0, 60.5] and len(found) > 4


def test_a_gpu_that_sleeps_on_is_kept_busy(dev, monkeypatch):
    """Its rate does not rise for longer than others take, but is far from what the driver says."""
    asked = []

    def arithmetic(*_):
        time.sleep(0.002)
        asked.append(10.0 if len(asked) < 30 else 60.0)
        return asked[-1]

    monkeypatch.setattr(peaks, "arithmetic", arithmetic)
    monkeypatch.setattr(peaks, "_SETTLED", 0.01)
    monkeypatch.setattr(peaks, "_LONGEST", 30.0)
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, kind="gpu"))
    assert peaks.wake(dev, 90.0) == 60.0 and len(asked) > 30
    asked.clear()
    monkeypatch.setattr(peaks, "_LONGEST", 0.02)  # a card may be slower than its driver says
    assert peaks.wake(dev, 90.0) == 10.0 and len(asked) < 30
