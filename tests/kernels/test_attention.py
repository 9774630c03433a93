"""Attention kernels against the plain formula in float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes, philox
from kerascl.kernels.attention import cpu as attention_cpu
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem, Dropout, KeptProblem, Tensor
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.selftests import trial
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_selftest
from kerascl.runtime.errors import DeviceError
from tests import profiles
from tests.kernels import ptx
from tests.kernels.harness import devices, poisoned, random_array, run_outputs
from tests.kernels.mma_emulator import emulated_class
from tests.philox import kept

DEVICES = list(devices().values())
SOLVERS = {
    "cpu": (attention_cpu.CpuAttention(), attention_cpu.CpuAttentionGradient()),
    "cpu_chunks": (attention_cpu.CpuAttention(), attention_cpu.CpuAttentionGradient(chunks=3)),
    "tile": (attention_tiled.TiledAttention(), attention_tiled.TiledAttentionGradient()),
    "mma": (
        emulated_class(unit_attention.FragmentAttention)(),
        emulated_class(unit_attention.FragmentAttentionGradient)(),
    ),
}


def emulates(dev):
    """Whether kernels of matrix units may be emulated there."""
    return dev.info.kind == "cpu"


def contiguous(shape):
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


def tensor(shape, dtype, full=None):
    """Contiguous memory, repeated along axes where `full` is larger."""
    full = full or shape
    steps = zip(shape, full, contiguous(shape), strict=True)
    return Tensor(dtype, tuple(0 if n < m else s for n, m, s in steps))


class Case:
    """Random inputs of one problem, and what the float64 formula gives."""

    def __init__(
        self, sizes, rng, causal=False, bias=None, mask=None, dtype=dtypes.float32, swapped=False,
        dropout=None,
    ):  # fmt: skip
        batch, length, source, heads, groups, width, depth = sizes
        q_shape = (batch, length, heads, width)
        k_shape = (batch, source, groups, width)
        v_shape = (batch, source, groups, depth)
        y_shape = (batch, length, heads, depth)
        full = (batch, heads, length, source)
        q, k, v, g = (random_array(rng, s, dtype) for s in (q_shape, k_shape, v_shape, y_shape))
        self.extra = {}
        problem = dict(
            batch=batch, length=length, source=source, heads=heads, groups=groups, width=width,
            depth=depth, scale=0.8 * width**-0.5, causal=causal, dtype=dtype,
            q=tensor(q_shape, dtype), k=tensor(k_shape, dtype), v=tensor(v_shape, dtype),
        )  # fmt: skip
        if bias is not None:
            shape = tuple(n if keep else 1 for n, keep in zip(full, bias, strict=True))
            self.extra["bias"] = random_array(rng, shape, dtype)
            problem["bias"] = tensor(shape, dtype, full)
        if mask is not None:
            shape = tuple(n if keep else 1 for n, keep in zip(full, mask, strict=True))
            visible = rng.random(shape) > 0.4
            visible[..., -1:, :] = False  # rows that see nothing
            visible[..., : shape[-2] // 2, :1] = False
            self.extra["mask"] = visible
            problem["mask"] = tensor(shape, dtypes.bool_, full)
        self.factors = 1.0
        if dropout is not None:
            key = rng.integers(2**32, size=2, dtype=np.uint32)
            self.extra["key"] = key[:1].repeat(5)
            self.extra["key"][[1, 4]] = key
            problem["dropout"] = dataclasses.replace(dropout, step=3, offset=1)
            self.factors = kept(key, full, dropout.limit, dropout.first) * dropout.factor
        self.inputs = {"a": q, "b": k, "c": v}
        if swapped:  # keys lie as (batch, groups, width, source), one element further on
            moved = np.ascontiguousarray(k.transpose(0, 2, 3, 1))
            self.inputs["b"] = np.concatenate([moved.ravel()[:1], moved.ravel()])
            s = contiguous(moved.shape)
            problem["k"] = Tensor(dtype, (s[0], s[3], s[1], s[2]), 1)
        self.g = g
        self.forward = AttentionProblem(**problem)
        self.backward = dataclasses.replace(self.forward, grad=tensor(y_shape, dtype))
        self._expect(q, k, v, g, full)

    def _expect(self, q, k, v, g, full):
        p = self.forward
        q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
        repeat = p.heads // p.groups
        k, v = (np.repeat(x, repeat, 2) for x in (k, v))
        logits = np.einsum("bthd,bshd->bhts", q, k) * p.scale
        if "bias" in self.extra:
            logits = logits + self.extra["bias"].astype(np.float64)
        visible = np.broadcast_to(self.extra.get("mask", True), full).copy()
        if p.causal:
            visible &= np.tril(np.ones(full[2:], bool))
        logits = np.where(visible, logits, -1e38)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        self.y = np.einsum("bhts,bshd->bthd", weights * self.factors, v)
        back = np.einsum("bthd,bshd->bhts", g, v) * self.factors
        total = (weights * back).sum(-1, keepdims=True)
        self.delta = np.ascontiguousarray(total[..., 0].transpose(0, 2, 1)).astype(np.float32)
        slope = np.where(visible, weights * (back - total), 0) * p.scale

        def shared(x):
            return x.reshape(p.batch, p.source, p.groups, repeat, -1).sum(3)

        self.dq = np.einsum("bhts,bshd->bthd", slope, k)
        self.dk = shared(np.einsum("bhts,bthd->bshd", slope, q))
        self.dv = shared(np.einsum("bhts,bthd->bshd", weights * self.factors, g))

    def check(self, solvers, dev, bound=None):
        p = self.forward
        if solvers is SOLVERS["mma"] and not emulates(dev):
            pytest.skip("what a GPU can show of emulated kernels it shows without an emulator")
        forward, backward = solvers
        extras = dict(zip("def", self.extra.values(), strict=False))
        outs = {
            "out": poisoned(self.y.shape, p.dtype),
            "stat": poisoned((p.batch, p.heads, p.length), dtypes.float32),
        }
        plan = forward.plan(p, dev.info, store_epilogue(p.dtype))
        got = run_outputs(plan, self.inputs | extras, outs, dev)
        close(got["out"], self.y, bound)
        inputs = self.inputs | {"d": self.g, "e": got["stat"], "f": self.delta}
        inputs |= dict(zip("ghi", self.extra.values(), strict=False))
        outs = {"out": self.dq, "dk": self.dk, "dv": self.dv}
        outs = {name: poisoned(x.shape, p.dtype) for name, x in outs.items()}
        plan = backward.plan(self.backward, dev.info, store_epilogue(p.dtype))
        got = run_outputs(plan, inputs, outs, dev)
        close(got["out"], self.dq, bound)
        close(got["dk"], self.dk, bound)
        close(got["dv"], self.dv, bound)


def close(got, want, bound=None):
    bound = bound or {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[got.dtype.name]
    got = got.astype(np.float64)
    assert np.isfinite(got).all(), "poison or overflow in the output"
    norm = np.linalg.norm(want)
    error = np.linalg.norm(got - want)
    # a gradient that vanishes (one key) has nothing to be relative to
    assert error <= bound * norm + 1e-6, f"relative error {error / norm:.2e}"


# (batch, length, source, heads, groups, width, depth)
SIZES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 16, 16, 2, 2, 16, 16),
    (1, 65, 40, 3, 1, 33, 64),
    (2, 9, 129, 2, 1, 40, 8),
]
RAGGED = (2, 37, 70, 4, 2, 10, 13)
FEW = (1, 37, 45, 2, 1, 6, 7)  # instructions to emulate
WAYS = {
    "plain": {},
    "causal": dict(causal=True),
    "bias": dict(bias=(0, 1, 1, 1)),
    "bias_keys": dict(bias=(1, 0, 0, 1), causal=True),
    "mask": dict(mask=(1, 0, 1, 1)),
    "mask_keys": dict(mask=(1, 0, 0, 1), bias=(0, 0, 1, 1)),
    "mask_causal": dict(mask=(1, 1, 1, 1), causal=True),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("solvers", list(SOLVERS))
def test_sizes(solvers, sizes, dev, rng):
    Case(sizes, rng).check(SOLVERS[solvers], dev)


def sizes_for(solvers):
    return FEW if solvers == "mma" else RAGGED


@pytest.mark.every(3)
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("solvers", list(SOLVERS))
def test_ways(solvers, way, dev, rng):
    Case(sizes_for(solvers), rng, **WAYS[way]).check(SOLVERS[solvers], dev)


DROPPED = {
    "plain": dict(dropout=Dropout(int(0.9 * 2**32), 1 / 0.9)),  # of 32 bits, the others of 16
    "mask": dict(mask=(1, 1, 1, 1), causal=True, dropout=Dropout(3 * 2**30, 4 / 3)),
    "far": dict(causal=True, dropout=Dropout(2**31, 2.0, first=2**32 - 99)),
    "halves": dict(
        bias=(0, 1, 1, 1), mask=(1, 0, 0, 1), dtype=dtypes.bfloat16, dropout=Dropout(2**31, 2.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "solvers, way",
    [
        ("cpu", "plain"), ("cpu", "far"), ("cpu_chunks", "mask"), ("cpu", "halves"),
        ("tile", "far"), ("tile", "plain"), ("mma", "halves"), ("mma", "plain"),
    ],
)
def test_dropout(solvers, way, dev, rng):
    """The weights kept are those that the generator's text in NumPy keeps, in both passes."""
    Case(sizes_for(solvers), rng, **DROPPED[way]).check(SOLVERS[solvers], dev)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("solvers", list(SOLVERS))
def test_halves(solvers, dtype, dev, rng):
    sizes = (1, 20, 35, 1 if solvers == "mma" else 2, 1, 24, 12)
    case = Case(sizes, rng, True, (0, 1, 1, 1), (1, 0, 0, 1), dtype)
    case.check(SOLVERS[solvers], dev)


@pytest.mark.parametrize("solvers", list(SOLVERS))
def test_strides(solvers, dev, rng):
    sizes = (1, 18, 21, 2, 1, 12, 10) if solvers == "mma" else (2, 18, 21, 4, 2, 12, 20)
    Case(sizes, rng, swapped=True).check(SOLVERS[solvers], dev)


def test_rows_far_apart_are_copied(dev, rng):
    case = Case((1, 260, 257, 2, 2, 128, 144), rng, causal=True)
    plan = SOLVERS["cpu"][1].plan(case.backward, dev.info, store_epilogue(dtypes.float32))
    assert any(launch.name == "attention_store" for launch in plan.launches)
    case.check(SOLVERS["cpu"], dev)


@pytest.mark.parametrize("solvers", ["cpu", "tile"])
def test_most_features(solvers, dev, rng):
    Case((1, 12, 10, 1, 1, 256, 256), rng, causal=True).check(SOLVERS[solvers], dev)


def test_large_logits_do_not_overflow(dev, rng):
    case = Case((1, 33, 70, 1, 1, 16, 16), rng)
    for name, solvers in SOLVERS.items():
        if name == "mma" and not emulates(dev):
            continue
        q = case.inputs["a"] * 1e4
        case.inputs["a"] = q
        outs = {
            "out": poisoned(case.y.shape, dtypes.float32),
            "stat": poisoned((1, 1, 33), dtypes.float32),
        }
        plan = solvers[0].plan(case.forward, dev.info, store_epilogue(dtypes.float32))
        got = run_outputs(plan, case.inputs, outs, dev)["out"]
        k, v = case.inputs["b"], case.inputs["c"]
        logits = np.einsum("bthd,bshd->bts", q.astype(np.float64), k.astype(np.float64))[0]
        best, (second, first) = logits.argmax(-1), np.sort(logits)[:, -2:].T
        clear = (first - second) * case.forward.scale > 30  # the others weigh below 1e-13
        assert np.isfinite(got).all() and clear.mean() > 0.8
        np.testing.assert_allclose(got[0, clear, 0], v[0, best[clear], 0], rtol=1e-5)
        case.inputs["a"] = q / 1e4


def test_blocks_fit_small_local_memory():
    info = dataclasses.replace(
        DEVICES[0].info, kind="gpu", local_mem_bytes=32768, max_work_group_size=256
    )
    for features in (8, 32, 64, 128, 256):
        shape = (1, 64, 1, features)
        x = tensor(shape, dtypes.float32)
        p = AttentionProblem(1, 64, 64, 1, 1, features, features, 1.0, False, x.dtype, x, x, x)
        for problem in (p, dataclasses.replace(p, grad=x)):
            block = attention_tiled.block_for(problem, info)
            assert block.local_bytes(problem) <= 32768 - 256
            assert contract.choose(attention.SOLVERS, problem, info).name.startswith("tile")


@pytest.mark.parametrize("features", [8, 32, 64, 128, 256])
def test_blocks_keep_to_a_card_s_registers(features):
    shape = (4, 1024, 8, features)
    x = tensor(shape, dtypes.float32)
    p = AttentionProblem(4, 1024, 1024, 8, 8, features, features, 1.0, False, x.dtype, x, x, x)
    seen = set()
    for name, profile in profiles.load().items():
        for problem in (p, dataclasses.replace(p, grad=x)):
            block = attention_tiled.block_for(problem, profile.info)
            single = block.br * block.bc == block.threads
            if profile.info.registers and not single:
                assert block.registers(problem) <= profile.info.registers, name
                seen.add(name)
    assert features > 128 or {"rx580", "uhd630", "a770", "max1550"} <= seen


@pytest.mark.every(3)
@pytest.mark.parametrize("block", dict.fromkeys(block for _, block in attention_tiled.BACKWARD))
def test_blocks_of_the_gradient(block, dev, rng, monkeypatch):
    """Those that this device does not choose, too."""
    features = 12 if block.threads < 64 else 64
    case = Case((1, 70, 45, 2, 1, features, 20), rng, causal=True, mask=(1, 0, 0, 1))
    if not block.fits(case.backward, dev.info):
        pytest.skip("the device has no room")
    forward, backward = SOLVERS["tile"][0], attention_tiled.TiledAttentionGradient()
    monkeypatch.setattr(backward, "block", lambda *_: block)
    case.check((forward, backward), dev)


def test_other_dtypes_are_refused():
    x = tensor((1, 8, 1, 8), dtypes.float64)
    p = AttentionProblem(1, 8, 8, 1, 1, 8, 8, 1.0, False, dtypes.float64, x, x, x)
    with pytest.raises(NotImplementedError, match="float64"):
        attention.plan(p, DEVICES[0].info, store_epilogue(dtypes.float64))


@pytest.fixture
def card(monkeypatch):
    """Facts of an NVIDIA card on which the self-test passes."""
    for module in (unit_attention, attention16):
        monkeypatch.setattr(module, "available", lambda info, *_: info.matrix != "")
    return dataclasses.replace(
        DEVICES[0].info, kind="gpu", matrix="mma80", nvidia_capability=(8, 0), compute_units=100,
        local_mem_bytes=49152, max_work_group_size=1024,
    )  # fmt: skip


def attention_of(features, dtype=dtypes.float32, **more):
    x = tensor((4, 200, 6, features), dtype)
    return AttentionProblem(
        4, 200, 200, 6, 6, features, features, 1.0, True, dtype, x, x, x, **more
    )  # fmt: skip


def test_who_takes_matrix_units(card):
    def name(p, info=card):
        return contract.choose(attention.SOLVERS, p, info).name

    p = attention_of(64)
    grad = p.q
    assert (name(p), name(dataclasses.replace(p, grad=grad))) == ("mma", "mma_grad")
    assert name(dataclasses.replace(p, precision="highest")) == "tile"
    assert name(attention_of(64, dtypes.bfloat16, precision="highest")) == "mma16"
    assert name(attention_of(20, dtypes.bfloat16)) == "mma"
    assert name(attention_of(160)) == "tile"
    assert name(attention_of(96, grad=tensor((4, 200, 6, 96), dtypes.float32))) == "tile_grad"
    assert name(p, dataclasses.replace(card, matrix="")) == "tile"


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("features, dtype", [(32, dtypes.float32), (64, dtypes.bfloat16)], ids=str)
def test_matrix_units_compile(card, features, dtype):
    p = attention_of(features, dtype)
    for solver in (unit_attention.FragmentAttention(), unit_attention.FragmentAttentionGradient()):
        problem = p if solver.name == "mma" else dataclasses.replace(p, grad=p.q)
        for launch in solver.plan(problem, card, store_epilogue(dtype)).launches:
            used = ptx.resources(launch.source, threads=launch.local_size[0])
            assert used["spills"] == 0 and used["registers"] > 60


# Blocks of attention_mma.cl in TF32, forward and backward, with sizes of a problem: features in
# chunks and one by one, the last 16 or fewer of them, and columns that end within a block.
UNITS_TILES = {
    "two fragments": ((2, 2, 32), (2, 1, 32), (1, 75, 75, 1, 1, 32, 16)),
    "forty columns": ((2, 2, 40), (2, 1, 40), (1, 37, 90, 2, 1, 20, 48)),
    "single floats": ((2, 1, 16), (1, 1, 40), (1, 21, 50, 1, 1, 33, 18)),
}


def unit_solvers(forward, backward, late=True, fault=None):
    return tuple(
        emulated_class(kind, late, fault)(unit_attention.FragmentBlock(*block))
        for kind, block in (
            (unit_attention.FragmentAttention, forward),
            (unit_attention.FragmentAttentionGradient, backward),
        )
    )


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("tile", list(UNITS_TILES))
def test_tiles_of_matrix_units(tile, late, cpu_dev, rng):
    *blocks, sizes = UNITS_TILES[tile]
    Case(sizes, rng, causal=True).check(unit_solvers(*blocks, late), cpu_dev)


def test_matrix_units_take_negative_scales(cpu_dev, rng):
    """Logits do not grow with products."""
    case = Case((1, 37, 45, 1, 1, 16, 16), rng)
    q = case.inputs["a"]
    case.forward, case.backward = (
        dataclasses.replace(p, scale=-p.scale) for p in (case.forward, case.backward)
    )
    case._expect(q, case.inputs["b"], case.inputs["c"], case.g, (1, 1, 37, 45))
    case.check(SOLVERS["mma"], cpu_dev)


FAULTS = {
    "no wait": ("WAIT(STAGES - 2);", ""),
    "wrong stage": ("stage == 0 ? STAGES - 1 : stage - 1", "stage"),
    "other half of the depth": ("(lane >> 3) * 16", "(lane >> 4) * 16"),
    "fragments swapped": ("MMA(sums[i][4 * n + p]", "MMA(sums[i][4 * n + (p ^ 1)]"),
    "the last sixteen": ("(padded) / 8 - 2 + p], a", "(padded) / 8 - 1 - p], a"),
    "zeros left out": ("r_ < left_ && CHUNK * c_ < (features)", "1"),
    "neighbours": ("v_[2 * e_ + p_]", "v_[2 * p_ + e_]"),
    "always growing": ("DOWNWARD || (last) >= S || ", ""),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_of_matrix_units_are_seen(fault, cpu_dev, rng):
    """A wrong text is seen; one that reads what is not there, as poison or as a wrong number."""
    case = Case((1, 37, 45, 1, 1, 40, 16), rng)
    solvers = unit_solvers((2, 1, 16), (2, 1, 16), fault=FAULTS[fault])
    with pytest.raises(AssertionError, match=r"relative error|poison"):
        case.check(solvers, cpu_dev)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("rows, columns", [(197, 40), (512, 32)])
@pytest.mark.parametrize("kind, drop", [
    (AttentionProblem, None), (AttentionProblem, Dropout(59 * 2**26, 64 / 59)),
    (KeptProblem, Dropout(59 * 2**26, 64 / 59)),
], ids=["all", "drop", "kept"])  # fmt: skip
def test_registers_of_matrix_units_hold_everything(card, rows, columns, kind, drop):
    """Of the larger blocks, those that leave fewer columns idle."""
    x = tensor((64, rows, 12, 64), dtypes.float32)
    p = kind(64, rows, rows, 12, 12, 64, 64, 0.125, False, x.dtype, x, x, x, dropout=drop)
    for solver in (unit_attention.FragmentAttention(), unit_attention.FragmentAttentionGradient()):
        problem = p if solver.name == "mma" else dataclasses.replace(p, grad=x)
        block = solver.block(problem, card)
        assert (block.warps, block.bc) == (4, columns)
        assert block.local_bytes(problem) <= 48 << 10
        for launch in solver.plan(problem, card, store_epilogue(x.dtype)).launches:
            used = ptx.resources(launch.source, threads=launch.local_size[0])
            assert used["spills"] <= SPILLS
            assert used["local"] <= block.local_bytes(problem)


# Bytes: of keys' gradients with dropout alone, of values that the loop reads once.
SPILLS = 32


def test_self_test_of_matrix_units(cpu_dev, monkeypatch):
    """It passes where the units work, and says what is wrong where they do not."""
    for name in ("FragmentAttention", "FragmentAttentionGradient"):
        monkeypatch.setattr(unit_attention, name, emulated_class(getattr(unit_attention, name)))
    plain = (1, 20, 37, 2, 12, 20, True, 1.0)
    dropout = (*plain[:-1], 0.75)
    blocks = (unit_attention.FragmentBlock(2, 1, 16), unit_attention.FragmentBlock(2, 1, 32))
    monkeypatch.setattr(attention_selftest, "BOUNDS", {dtypes.float32: 2e-3})
    monkeypatch.setattr(attention_selftest, "CASES", {"dropout": ((dropout, blocks),)})
    forward, gradient = (f"float32 dropout {way}" for way in attention_selftest.WAYS)
    for part in (forward, gradient):
        trial.run(cpu_dev, attention_selftest.trials(cpu_dev.info, part))
    with monkeypatch.context() as patched:
        wrong = philox.SOURCE.replace("(key + 4ul", "(key + 3ul")
        patched.setattr(philox, "SOURCE", wrong)
        with pytest.raises(DeviceError, match="attention is wrong"):
            trial.run(cpu_dev, attention_selftest.trials(cpu_dev.info, forward))
    monkeypatch.setattr(attention_selftest, "CASES", {"": ((plain, blocks),)})
    fault = ("(8 * j + m) * (4", "(8 * j + 1 - m) * (4")  # depths of values swapped
    for name in ("FragmentAttention", "FragmentAttentionGradient"):
        kind = getattr(unit_attention, name).__mro__[1]
        monkeypatch.setattr(unit_attention, name, emulated_class(kind, fault=fault))
    with pytest.raises(DeviceError, match="attention is wrong"):
        trial.run(cpu_dev, attention_selftest.trials(cpu_dev.info, "float32 forward"))
