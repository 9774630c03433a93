"""Small steps that become a part of the products which alone read them: a CPU passes for a GPU."""

import dataclasses
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
def real(dev):
    """The device's own facts."""
    return dev.info


@pytest.fixture
def card(dev, real, monkeypatch):
    """The device with the schedules of a GPU, on which products of a few rows are skinny."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    monkeypatch.setattr(dev, "info", profiles.disguise(real, profiles.load()["rtx4090"].info))


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


def quantized(x, epsilon=0.0):
    """Rows as whole numbers up to 127, and their scales, as layers in int8 make them."""
    scale = kc.divide(127, kc.max(kc.abs(x), axis=-1, keepdims=True) + epsilon).astype(x.dtype)
    return kc.clip(kc.round(x * scale), -127, 127).astype("int8"), scale


def whole(x, w):
    return kc.matmul(x, w, dtype=kc.int32)


def halves(rng, rows, depth, dtype):
    """Multiples of 0.5 that the dtype has, of which the largest is 127: all scales are 1."""
    most = {"float32": 127, "float16": 127, "bfloat16": 63}[dtype]
    x = rng.integers(-2 * most, 2 * most + 1, (rows, depth)).astype(np.float32) / 2
    x[np.arange(rows), rng.integers(0, depth, rows)] = rng.choice([-127, 127], rows)
    return x


def int8s(rng, *shape):
    return rng.integers(-127, 128, shape).astype(np.int8)


@pytest.mark.parametrize("rows", [1, prologue.MOST_ROWS])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("depth, width", [(WIDTH, 96), (WIDTH + 3, 53), (4 * WIDTH, 40), (5, 7)])
def test_a_row_is_quantised_in_the_product_that_reads_it(depth, width, dtype, rows, card, rng):
    """The numbers become the product's operand, the scale is its epilogue's; halves are even."""
    x, w = halves(rng, rows, depth, dtype), int8s(rng, depth, width)
    kept = rng.choice([0.5, 1.0, 2.0], width).astype(np.float32)

    def product(x, w, kept):
        numbers, scale = quantized(x)
        return whole(numbers, w).astype("float32") / (kept * scale)

    function = kc.jit(product)
    args = kc.array(x).astype(dtype), kc.array(w), kc.array(kept)
    wanted = np.rint(x).astype(np.int64) @ w.astype(np.int64) / kept
    for _ in range(2):
        np.testing.assert_array_equal(function(*args).numpy(), wanted.astype(np.float32))
    slices = any("gemm_reduce" in name for name in names(function, *args))
    if depth >= 512 and not slices:  # of fewer, other work-groups find the largest
        (name,) = names(function, *args)
        assert "gemm_skinny_after" in name


@pytest.mark.parametrize("rows", [1, prologue.MOST_ROWS])
def test_the_last_group_of_slices_finds_the_scale_too(rows, real, card, dev, rng, monkeypatch):
    if not real.device_atomics:
        pytest.skip("the device's work-groups have no atomics for each other")
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, device_atomics=True))
    x, w = halves(rng, rows, 4 * WIDTH, "float32"), int8s(rng, 4 * WIDTH, 96)

    def product(x, w):
        numbers, scale = quantized(x)
        return whole(numbers, w).astype("float32") / scale

    function, args = kc.jit(product), (kc.array(x), kc.array(w))
    wanted = np.rint(x).astype(np.int64) @ w.astype(np.int64)
    for _ in range(3):
        np.testing.assert_array_equal(function(*args).numpy(), wanted.astype(np.float32))
    (step,) = function.captured(*args).program.steps
    assert "gemm_skinny_after" in step.name and "#define ARRIVES 1" in step.source


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_so_is_a_norm_of_it_for_several_products(dtype, card, rng):
    arrays, values = drawn(rng, (1, WIDTH), (WIDTH,), (WIDTH,), (96,), dtype=dtype)
    kernels = [int8s(rng, WIDTH, 96) for _ in range(3)]

    def products(x, s, t, bias, *kernels):
        numbers, scale = quantized(norm(x, s, t), 1e-7)
        found = [whole(numbers, w).astype("float32") / scale for w in kernels]
        return [found[0], found[1] + bias, kc.nn.relu(found[2])]

    function = kc.jit(products)
    args = *arrays, *map(kc.array, kernels)
    y = reference(*values[:3])
    wanted = [y @ w for w in kernels]
    wanted = [wanted[0], wanted[1] + values[3], np.maximum(wanted[2], 0)]
    for found, value in zip(function(*args), wanted):
        found = found.astype("float32").numpy()
        # a number is off by up to a half of the 127th part of the largest
        assert np.linalg.norm(found - value) < 0.03 * np.linalg.norm(value)
    assert all("after_reduction" in name for name in names(function, *args))


def test_a_scale_that_others_read_is_stored(card, rng):
    x, w = halves(rng, 1, WIDTH, "float32"), int8s(rng, WIDTH, 40)

    def product(x, w):
        numbers, scale = quantized(x)
        return whole(numbers, w) / scale, scale

    function, args = kc.jit(product), (kc.array(2 * x), kc.array(w))
    found, scale = function(*args)
    np.testing.assert_array_equal(scale.numpy(), [[0.5]])
    wanted = 2.0 * (np.rint(x).astype(np.int64) @ w.astype(np.int64))
    np.testing.assert_array_equal(found.numpy(), wanted.astype(np.float32))
    assert not any("after" in name for name in names(function, *args))


def test_each_iteration_quantises_what_the_last_one_made(card, rng):
    x, w = halves(rng, 1, 96, "float32"), int8s(rng, 96, 96)
    steps = 5

    def body(x, k):
        numbers, scale = quantized(x, 1e-7)
        return kc.tanh(whole(numbers, w).astype("float32") / (9000 * scale)), k + 1

    w = kc.array(w)
    function = kc.jit(lambda x: kc.while_loop(lambda x, k: k < steps, body, (x, 0))[0])
    wanted = x
    for _ in range(steps):
        scale = np.float32(127) / (np.abs(wanted).max() + np.float32(1e-7))
        numbers = np.rint(wanted * scale).astype(np.int64)
        wanted = np.tanh(numbers @ w.numpy().astype(np.int64) / (9000 * scale)).astype(np.float32)
    found = function(kc.array(x)).numpy()
    assert np.linalg.norm(found - wanted) < 5e-3 * np.linalg.norm(wanted)


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


EPILOGUE = "#define EPILOGUE(acc_, i_) { y[i_] = acc_ * scale[0]; }\n"


@pytest.mark.parametrize(
    "body, joins",
    [
        (EPILOGUE, True),
        (EPILOGUE.replace("y[", "const float v = vload_half(0, scale); y["), True),
        (EPILOGUE.replace("scale[0]", "vload4(0, scale).x"), False),
        ("#define EPILOGUE_READ(i_) { kept = scale[0]; }\n" + EPILOGUE, False),
        (EPILOGUE + "  y[0] = scale[0];\n", False),
    ],
    ids=["epilogue", "half", "pointer", "before", "elsewhere"],
)  # fmt: skip
def test_only_an_epilogue_finds_further_results_there(body, joins):
    text = "  const int i = get_global_id(0);\n  buf1[i] = buf0[i];\n  buf2[0] = 3;\n"
    inner = "__global const float* restrict pS"
    maker = Step("", "map", (), [Use(0), Use(1), Use(3)], (64,), (64,), writes=frozenset((1, 3)))
    reader = Step("", "dot", (), [Use(1), Use(3), Use(2)], (256,), (256,), writes=frozenset((2,)))
    texts = (
        Source("map", tuple(f"__global float* buf{k}" for k in range(3)), text, (), False),
        Source(
            "dot", (inner, "__global float* scale", "__global float* y"),
            SPACE.format("__global") + body, (), False, inner=inner,
            epilogue=("__global float* scale", "__global float* y"),
        ),
    )  # fmt: skip
    slots = [Slot(k, 256, n) for n, k in enumerate(("input", "temporary", "output", "temporary"))]
    generated = [(maker, texts[0]), (reader, texts[1])]
    steps, found = prologue.absorb([maker, reader], generated, slots, set(), INFO)
    assert len(steps) == (1 if joins else 2)
    if joins:
        assert [a.index for a in steps[0].args] == [0, 2]
        assert found[0][1].params == ("__global float* made_buf0", "__global float* y")


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
