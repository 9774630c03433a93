"""Attention by warpgroup matrix instructions on a CPU, see `emulator`, against float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention import solvers
from kerascl.kernels.attention.problem import Dropout, Tensor
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import attention, probe, tiles
from kerascl.kernels.hopper.attention import HopperAttention, Tile, takes
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests import attention as selftest
from kerascl.kernels.selftests import trial
from kerascl.kernels.units import attention16
from kerascl.runtime.errors import DeviceError
from tests.kernels import emulator, ptx
from tests.kernels.harness import changed, poisoned, run_outputs
from tests.kernels.mma_emulator import emulated16
from tests.kernels.test_attention import Case, attention_of, close, contiguous, tensor

BF16, F16 = dtypes.bfloat16, dtypes.float16
SMALL = Tile(2, 32, 3)


def run(case, info, dev, tile=SMALL, groups=2, fault=None):
    """The result and the statistic of a case."""
    p = case.forward
    assert takes(p)
    plan = HopperAttention(tile, groups).plan(p, info, store_epilogue(p.dtype))
    if fault:
        changed(plan, fault)
    outs = {
        "out": poisoned(case.y.shape, p.dtype),
        "stat": poisoned((p.batch, p.heads, p.length), dtypes.float32),
    }
    inputs = case.inputs | dict(zip("d", case.extra.values(), strict=False))
    return emulator.run_outputs_of(plan, inputs, outs, dev)


def statistic(case):
    """log2 of the sum of 2^logit of each row."""
    p = case.forward
    q, k = (case.inputs[x].astype(np.float64) for x in "ab")
    k = np.repeat(k, p.heads // p.groups, 2)
    logits = np.einsum("bthd,bshd->bhts", q, k) * p.scale
    if p.causal:
        logits = np.where(np.tril(np.ones(logits.shape[2:], bool)), logits, -np.inf)
    return np.logaddexp.reduce(logits, -1) / np.log(2)


def check(case, info, dev, **more):
    got = run(case, info, dev, **more)
    close(got["out"], case.y)
    np.testing.assert_allclose(got["stat"], statistic(case), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 197, 300])
def test_lengths(length, causal, cpu_dev, cpu_info, rng):
    """Of one and of several blocks and tiles, whole and partial, one tile a work-group and more."""
    case = Case((1, length, length, 2, 1, 24, 16), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev)


@pytest.mark.parametrize("tile", [
    *attention.TILES, Tile(3, 48, 2), Tile(1, 32, 2), Tile(2, 64, 8, turns=True),
], ids=str)  # fmt: skip
def test_tiles(tile, cpu_dev, cpu_info, rng):
    case = Case((1, 150, 290, 1, 1, 72, 64), rng, causal=True, dtype=BF16)
    check(case, cpu_info, cpu_dev, tile=tile)


@pytest.mark.parametrize("width, depth", [(8, 128), (128, 8), (128, 128), (64, 104), (40, 24)])
def test_features(width, depth, cpu_dev, cpu_info, rng):
    """One panel of 64 or two, whole and partial, of keys and of values."""
    case = Case((2, 70, 75, 1, 1, width, depth), rng, dtype=F16)
    check(case, cpu_info, cpu_dev)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_shared_keys(groups, cpu_dev, cpu_info, rng):
    """Neighbouring heads share keys, and all do; three work-groups for 24 tiles."""
    case = Case((2, 200, 90, 6, groups, 16, 24), rng, causal=True, dtype=BF16)
    check(case, cpu_info, cpu_dev, groups=3)


DROPOUTS = {  # words of 16 bits and of 32, and counters beyond 32
    "coarse": Dropout(3 * 2**30, 4 / 3), "fine": Dropout(int(0.9 * 2**32), 1 / 0.9),
    "far": Dropout(2**31, 2.0, first=2**32 - 99),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_dropout(causal, name, cpu_dev, cpu_info, rng):
    """The numbers are those of `philox`, which all kernels draw."""
    case = Case(
        (2, 70, 75, 2, 1, 16, 24), rng, causal=causal, dtype=BF16, dropout=DROPOUTS[name]
    )
    check(case, cpu_info, cpu_dev)


def test_dropout_is_bit_for_bit_that_of_the_backward_pass(cpu_dev, cpu_info, rng):
    """Values that are the identity show which probabilities are kept; every one is seen alone."""
    size = 64
    case = Case((1, 70, size, 1, 1, 16, size), rng, dtype=F16, dropout=DROPOUTS["coarse"])
    case.inputs["c"] = np.eye(size, dtype=np.float16).reshape(1, size, 1, size)
    got = run(case, cpu_info, cpu_dev)["out"]
    np.testing.assert_array_equal(got[0, :, 0] != 0, case.factors[0, 0] != 0)


def test_strided_rows(cpu_dev, cpu_info, rng):
    """Heads before rows, and keys and values as parts of longer rows."""
    case = Case((2, 70, 75, 4, 2, 16, 16), rng, causal=True, dtype=BF16)
    q, k, v = (case.inputs[x] for x in "abc")
    moved = np.ascontiguousarray(q.transpose(0, 2, 1, 3))
    a, b, c, d = contiguous(moved.shape)
    both = np.concatenate([k, v], -1)
    steps = contiguous(both.shape)
    stat = statistic(case)
    case.inputs.update(a=moved, b=both, c=both)
    case.forward = dataclasses.replace(
        case.forward, q=Tensor(BF16, (a, c, b, d)), k=Tensor(BF16, steps),
        v=Tensor(BF16, steps, 16),
    )  # fmt: skip
    got = run(case, cpu_info, cpu_dev)
    close(got["out"], case.y)
    np.testing.assert_allclose(got["stat"], stat, rtol=1e-5, atol=1e-5)


def test_repeated_keys(cpu_dev, cpu_info, rng):
    """Keys and values of the first batch entry and head serve all, by strides of zero."""
    case = Case((2, 20, 40, 2, 2, 16, 16), rng, dtype=BF16)
    one = Case((1, 20, 40, 1, 1, 16, 16), rng, dtype=BF16)
    k, v = one.inputs["b"], one.inputs["c"]
    case.inputs.update(b=k, c=v)
    flat = (0, 16, 0, 1)
    case.forward = p = dataclasses.replace(case.forward, k=Tensor(BF16, flat), v=Tensor(BF16, flat))
    got = run(case, cpu_info, cpu_dev)["out"]
    q, k, v = (x.astype(np.float64) for x in (case.inputs["a"], k, v))
    logits = np.einsum("bthd,sd->bhts", q, k[0, :, 0]) * p.scale
    weights = np.exp(logits)
    weights /= weights.sum(-1, keepdims=True)
    close(got, np.einsum("bhts,sd->bthd", weights, v[0, :, 0]))


def test_large_logits(cpu_dev, cpu_info, rng):
    """The running maximum grows from block to block: sums without it would overflow."""
    case = Case((1, 20, 200, 1, 1, 16, 16), rng, dtype=F16)
    rising = np.linspace(1, 60, 200)[:, None, None]
    case.inputs["b"] = (np.abs(case.inputs["b"]) * rising).astype(np.float16)
    queries = np.abs(case.inputs["a"].astype(np.float64))
    most = np.einsum("bthd,bshd->bhts", queries, case.inputs["b"].astype(np.float64)).max()
    case.inputs["a"] = (queries * (300 / (most * case.forward.scale))).astype(np.float16)
    q, k, v = (x.astype(np.float64) for x in case.inputs.values())
    logits = np.einsum("bthd,bshd->bhts", q, k) * case.forward.scale
    assert logits.max() > 200
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    case.y = np.einsum("bhts,bshd->bthd", weights, v)
    check(case, cpu_info, cpu_dev)


FAULTS = {
    "keys handed back early": (
        "      WG_WAIT(1);\n      WGMMA_KEEP_S(x);", "      WGMMA_KEEP_S(x);"
    ),
    "values handed back early": (
        "      WG_WAIT(0);\n      WGMMA_KEEP_O(o);\n      HAND_BACK(values);",
        "      HAND_BACK(values);\n      WG_WAIT(0);\n      WGMMA_KEEP_O(o);",
    ),
    "operands change under way": (
        "SOFTMAX(j * BC)\n      WG_WAIT(0);", "SOFTMAX(j * BC)\n      TO_OPERAND\n      WG_WAIT(0);"
    ),
    "other phase": ("BAR_WAIT(empty + 8 * stage, phase ^ 1)", "BAR_WAIT(empty + 8 * stage, phase)"),
    "values never handed back": ("HAND_BACK(values);", ""),
    "no fence": ("WG_FENCE; \\\n    EACH(k_, BC / 16)", "EACH(k_, BC / 16)"),
    "other bytes": ("PANELS(DEPTH) * PANEL);", "PANEL - 128);"),
    "values for keys": ("if (i == last || (i > 0 && !(i & 1)))", "if (i == last || i > 1)"),
    "other steps of keys": ("k_ % 4 * 2)", "k_ % 4 * 4)"),
    "other steps of values": ("at_ + (ulong)(k_ * 128)", "at_ + (ulong)(k_ * 64)"),
    "results not scaled": ("o[n] *= keep[n >> 1 & 1];", ""),
    "rows' scales swapped": ("keep[n >> 1 & 1]", "keep[n & 1]"),
    "sums not scaled": ("sum[r_] * keep[r_] +", "sum[r_] +"),
    "keys beyond the last": ("s_ >= S ? -INFINITY : ", ""),
    "diagonal as any other": ("hidden_ = CAUSAL && s_ > row0 + ROW(0, e_)", "hidden_ = 0"),
    "diagonal's other rows": ("s_ > row0 + ROW(0, e_)", "s_ > row0"),
    "queries of another tile": ("LOAD_QUERIES(tile + groups)", "LOAD_QUERIES(tile)"),
    "other columns of queries": ("8 * (e_ >> 1); \\\n      const INDEX_T", "0; const INDEX_T"),
    "other key drawn for": ("(words_, row0, (s0) + 8 * n_)", "(words_, row0, s0)"),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_seen(fault, cpu_dev, cpu_info, rng):
    case = Case(
        (1, 130, 140, 2, 1, 40, 24), rng, causal="beyond" not in fault, dtype=F16,
        dropout=DROPOUTS["coarse"] if "drawn" in fault else None,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        check(case, cpu_info, cpu_dev, fault=FAULTS[fault])


def test_results_are_those_of_the_other_kernel(cpu_dev, cpu_info, rng):
    """attention_mma.cl, emulated: the same statistics, and the same probabilities dropped."""
    case = Case((1, 70, 75, 2, 1, 16, 24), rng, causal=True, dtype=F16, dropout=DROPOUTS["fine"])
    got = run(case, cpu_info, cpu_dev)
    outs = {"out": poisoned(case.y.shape, F16), "stat": poisoned((1, 2, 70), dtypes.float32)}
    other = emulated16(attention16.Attention16)((((256, attention16.Tile(2, 1, 16)),),))
    plan = other.plan(case.forward, cpu_info, store_epilogue(F16))
    inputs = case.inputs | dict(zip("d", case.extra.values(), strict=True))
    want = run_outputs(plan, inputs, outs, cpu_dev)
    np.testing.assert_allclose(got["stat"], want["stat"], rtol=1e-5, atol=1e-5)
    close(got["out"], want["out"].astype(np.float64))


def test_what_is_taken():
    p = attention_of(64, BF16)
    assert takes(p) and takes(attention_of(128, F16)) and takes(attention_of(72, BF16))
    assert takes(dataclasses.replace(p, dropout=DROPOUTS["far"], causal=True))
    steps = p.k.strides
    for other in (
        attention_of(64), attention_of(136, BF16), attention_of(20, BF16),
        dataclasses.replace(p, grad=p.q),
        dataclasses.replace(p, bias=tensor((1, 1, 200, 200), BF16)),
        dataclasses.replace(p, mask=tensor((1, 1, 200, 200), dtypes.bool_)),
        dataclasses.replace(p, k=dataclasses.replace(p.k, offset=4)),
        dataclasses.replace(p, v=Tensor(BF16, (steps[0], -steps[1], *steps[2:]), 199 * steps[1])),
        dataclasses.replace(p, k=Tensor(BF16, (steps[0], 0, *steps[2:]))),
    ):  # fmt: skip
        assert not takes(other)


def of(length, features, **more):
    """Enough work for any card."""
    x = tensor((16, length, 12, features), BF16)
    return dataclasses.replace(
        attention_of(features, BF16), batch=16, length=length, source=length, heads=12, groups=12,
        q=x, k=x, v=x, **more,
    )  # fmt: skip


@pytest.fixture
def hopper(hopper_info, monkeypatch):
    monkeypatch.setattr(attention16, "available", lambda *_: True)
    return dataclasses.replace(hopper_info, nvidia_capability=(9, 0))


@pytest.mark.parametrize("drop", [None, *DROPOUTS.values()], ids=["all", *DROPOUTS])
@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("length", [197, 512, 2048, 8192])
def test_it_is_chosen(length, features, drop, hopper, monkeypatch):
    p = of(length, features, dropout=drop)
    chosen = contract.choose(solvers.SOLVERS, p, hopper)
    assert chosen.name == "wgmma_attention"
    assert chosen.block(p, hopper).holds(p)
    monkeypatch.setattr(probe, "available", lambda info, name, _: name != "wgmma_attention")
    assert contract.choose(solvers.SOLVERS, p, hopper).name == "mma16"


def test_blocks_waste_little(hopper):
    """Two blocks of 112 keys hold 197, as no two of 128 do."""
    assert HopperAttention().block(of(197, 64, causal=False), hopper).bc == 112
    assert HopperAttention().block(of(2048, 64, causal=False), hopper).bc == 128
    assert attention.TILES[0].blocks(of(300, 64, causal=True)) == [1, 2, 3]
    assert attention.TILES[0].blocks(of(300, 64, causal=False)) == [3, 3, 3]


@pytest.mark.every(3)
@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("drop", [None, *DROPOUTS.values()], ids=["all", *DROPOUTS])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("tile", attention.TILES, ids=str)
def test_registers_hold_everything(tile, features, causal, drop, hopper):
    """And no product waits for the one before."""
    p = of(512, features, causal=causal, dropout=drop)
    if not tile.holds(p):
        assert HopperAttention().block(p, hopper) != tile
        return
    (launch,) = HopperAttention(tile).plan(p, hopper, store_epilogue(BF16)).launches
    used = ptx.resources(launch.source, "sm_90", launch.local_size[0], sm_90a)
    assert used["spills"] == used["lost"] == 0
    assert tiles.SHARED_LIMIT >= used["local"] > 64 * 1024


def test_self_test(cpu_dev, cpu_info, monkeypatch):
    """It passes where the hardware does as it should, and says what is wrong where not."""
    fault = ()

    def compute(plan, inputs, outs, dev):
        if fault and emulator.is_emulated(plan.launches[0]):
            changed(plan, fault)
        for name, got in emulator.run_outputs_of(plan, inputs, outs, cpu_dev).items():
            outs[name][...] = got

    monkeypatch.setattr(trial, "compute", compute)
    sizes = 1, 70, 130, 2, 16, 24, True
    for keep in (0.75, 0.9):  # numbers of 16 and of 32 bits
        monkeypatch.setattr(selftest, "CASES", {"64": ((*sizes, keep), 3)})
        trial.run(cpu_dev, selftest.trials(cpu_info, "float16 64"))
    fault = FAULTS["other steps of values"]
    with pytest.raises(DeviceError, match="attention is wrong"):
        trial.run(cpu_dev, selftest.trials(cpu_info, "float16 64"))
