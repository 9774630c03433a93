"""Small steps that become a part of the products which alone read them: a CPU passes for a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.program import prologue
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.contract.source import SPACE, Source
from kerascl.ops import nn
from tests import profiles

WIDTH = 768
TOLERANCES = {"float32": 3e-6, "bfloat16": 2e-2, "float16": 3e-3}


@pytest.fixture
def card(dev, monkeypatch):
    """The device with the schedules of a GPU, on which products of a few rows are skinny."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, profiles.load()["rtx4090"].info))


def norm(x, scale, shift):
    mean, variance = nn.moments(x, -1, keepdims=True)
    return (x - mean) * kc.rsqrt(variance + 1e-5) * scale + shift


def reference(x, scale, shift):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def drawn(rng, *shapes, dtype="float32"):
    """Arrays, and the same in float64."""
    arrays = [kc.array(rng.standard_normal(s).astype(np.float32)).astype(dtype) for s in shapes]
    return arrays, [x.astype("float32").numpy().astype(np.float64) for x in arrays]


def names(function, *args):
    return [step.name for step in function.captured(*args).program.steps]


def check(found, wanted, dtype="float32"):
    found = found.astype("float32").numpy()
    assert np.linalg.norm(found - wanted) < TOLERANCES[dtype] * np.linalg.norm(wanted)


@pytest.mark.parametrize("rows", [1, prologue.MOST_ROWS])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_a_norm_before_three_products_is_no_launch(dtype, rows, card, rng):
    shapes = (rows, WIDTH), (WIDTH,), (WIDTH,), *[(WIDTH, 96)] * 3
    arrays, values = drawn(rng, *shapes, dtype=dtype)
    function = kc.jit(lambda x, s, t, *w: [norm(x, s, t) @ m for m in w])
    for _ in range(2):
        for found, w in zip(function(*arrays), values[3:]):
            check(found, reference(*values[:3]) @ w, dtype)
    (name,) = (n for n in names(function, *arrays) if "reduce" not in n)
    assert "multi_gemm_skinny_after_reduction" in name


def test_nor_is_a_mask(card, rng):
    (x, w), values = drawn(rng, (4, 96), (96, 64))
    seen = np.array([[True], [False], [True], [True]])
    function = kc.jit(lambda x, seen, w: kc.where(seen, kc.sort(x, -1), 0) @ w)
    seen = kc.array(seen)
    check(function(x, seen, w), np.where(seen.numpy(), np.sort(values[0]), 0) @ values[1])
    assert any("gemm_skinny_after_map" in name for name in names(function, x, seen, w))


def test_what_others_read_stays_and_so_do_many_rows(card, rng):
    (x, s, t, w), values = drawn(rng, (1, WIDTH), (WIDTH,), (WIDTH,), (WIDTH, 32))
    wanted = reference(*values[:3])
    both = kc.jit(lambda x, s, t, w: [(y := norm(x, s, t)) @ w, y])
    found, own = both(x, s, t, w)
    check(found, wanted @ values[3])
    check(own, wanted)
    assert not any("after" in name for name in names(both, x, s, t, w))
    (many,), (value,) = drawn(rng, (4 * prologue.MOST_ROWS, WIDTH))
    apart = kc.jit(lambda x, s, t, w: norm(x, s, t) @ w)
    check(apart(many, s, t, w), reference(value, *values[1:3]) @ values[3])
    assert not any("after" in name for name in names(apart, many, s, t, w))


def test_a_carried_value_is_not_replaced_while_other_groups_normalise_it(card, rng):
    (x, s, t, w), values = drawn(rng, (1, WIDTH), (WIDTH,), (WIDTH,), (WIDTH, WIDTH))
    steps = 7

    def body(x, k):
        return x + norm(x, s, t) @ w, k + 1

    function = kc.jit(lambda x: kc.while_loop(lambda x, k: k < steps, body, (x, 0))[0])
    wanted = values[0]
    for _ in range(steps):
        wanted = wanted + reference(wanted, *values[1:3]) @ values[3]
    check(function(x), wanted)


# -- without a device ----------------------------------------------------------
INFO = SimpleNamespace(compute_units=4, local_mem_bytes=49152)
MAP = "  const int i = get_global_id(0);\n  if (i >= 64) return;\n  buf1[i] = buf0[i];\n"


def made(body=MAP, size=64, nbytes=256, kind="temporary", between=(), aliases=(), groups=1, own=0):
    """What becomes of a map from slot 0 to 1, and a product from 1 to 2."""
    params = "__global float* buf0", "__global float* buf1"
    inner = "__global const float* restrict pS"
    maker = Step("", "map", (), [Use(0), Use(1)], (size,), (64,), writes=frozenset((1,)))
    reader = Step("", "dot", (), [Use(1), Use(2)], (256 * groups,), (256,), writes=frozenset((2,)))
    space = SPACE.format("__global")
    texts = (
        Source("map", params, body, (), False),
        Source("dot", (inner, "__global float* y"), space, (), False, inner=inner, local_bytes=own),
    )
    kinds = ("input", kind, "output", "temporary")
    slots = [Slot(k, nbytes, n) for n, k in enumerate(kinds)]
    aliases = set(aliases)
    generated = [(maker, texts[0]), (reader, texts[1])]
    steps = [maker, *between, reader]
    return *prologue.absorb(steps, generated, slots, aliases, INFO), aliases


def test_the_products_step_has_the_arguments_of_both():
    (step,), ((same, source),), aliases = made(aliases=[(0, 2), (3, 2)])
    assert [a.index for a in step.args] == [0, 2] and step.writes == {2} and same is step
    assert source.params == ("__global float* made_buf0", "__global float* y")
    assert SPACE.format("__local") in source.body and "if (i >= 64) continue;" in source.body
    assert aliases == {(3, 2)}


@pytest.mark.parametrize(
    "case",
    [
        {"kind": "output"},
        {"size": 2 * prologue.MOST_ITEMS},
        {"nbytes": 2 * prologue.MOST_BYTES},
        {"own": INFO.local_mem_bytes - 256},
        {"groups": 4 * prologue.MOST_GROUPS + 1},
        {"body": MAP.replace("get_global_id(0)", "get_global_id(1)")},
        {"body": MAP + "  if (!i) return;\n  barrier(CLK_LOCAL_MEM_FENCE);\n"},
        # what the map reads is written before the product, or its result is read in between
        {"between": [Step("", "", (), [Use(3), Use(0)], (1,), (1,), writes=frozenset((0,)))]},
        {"between": [Step("", "", (), [Use(1), Use(3)], (1,), (1,), writes=frozenset((3,)))]},
    ],
    ids=lambda case: next(iter(case)),
)
def test_what_stays_a_launch(case):
    steps, generated, _ = made(**case)
    assert len(steps) == 2 + len(case.get("between", ())) and len(generated) == 2
