"""What weights of a group share is found once, and anew for those of another group."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate.grouped import MOST, grouped
from kerascl.kernels.contract.computed import Grouped, Key, Term
from tests import profiles
from tests.compiler.test_computed import check, drawn, fours, packed, program, unpacked

GROUPS = 5


def in_runs(depth, rng):
    return np.arange(depth) * GROUPS // depth


def shuffled(depth, rng):
    return rng.integers(0, GROUPS, depth)


def one_elsewhere(depth, rng):
    """Runs, but for a few weights of another group, the first and the last among them."""
    place = in_runs(depth, rng)
    some = np.array([0, depth // 2, depth - 1, *rng.integers(0, depth, 3)])
    place[some] = (place[some] + 2) % GROUPS
    return place


def from_the_end(depth, rng):
    return in_runs(depth, rng) - GROUPS


def outside(depth, rng):
    place = in_runs(depth, rng)
    place[depth // 3] = GROUPS
    return place


@pytest.fixture(params=["rtx4090", "malig715"])
def card(request, dev, monkeypatch):
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    info = profiles.disguise(dev.info, profiles.load()[request.param].info)
    monkeypatch.setattr(dev, "info", info)


@pytest.mark.parametrize("places", [in_runs, shuffled, one_elsewhere, from_the_end, outside])
@pytest.mark.parametrize("keys", ["float32", "int32", "int8"])
@pytest.mark.parametrize("along", ["rows", "depth"])
@pytest.mark.parametrize("depth, width, rows", [(2048, 64, 1), (1000, 48, 2), (772, 44, 8)])
def test_weights_whose_groups_lie_anyhow(depth, width, rows, along, keys, places, card, rng):
    """What lies side by side are neighbours along the rows, or along the depth, as the logits'."""
    x, w, zeros = drawn(rng, rows, depth), fours(rng, depth, width), fours(rng, GROUPS, width)
    scales, place = drawn(rng, GROUPS, width), places(depth, rng)

    turned = along == "depth"

    def product(x, w, scales, zeros, place):
        at, axis = place.astype("int32"), int(turned)
        numbers = unpacked(w, depth if turned else width, 1)
        shifted = numbers - kc.take(zeros, at, axis).astype("float32")
        weights = shifted * kc.take(scales, at, axis)
        return x @ (weights.T if turned else weights)

    function = kc.jit(product)
    tables = [t.T.copy() if turned else t for t in (w, scales, zeros)]
    values = x, packed(tables[0], 1), *tables[1:], place.astype(keys)
    args = [kc.array(v) for v in values]
    found = function(*args)
    if places is outside:
        assert np.isnan(found.numpy()).all()
    else:
        check(found, x @ ((w.astype(np.float64) - zeros[place]) * scales[place]))
    assert any("#define L_GROUP" in step.source for step in program(function, *args).steps)


def test_roundings_stay(card, rng):
    """In bfloat16, each weight is rounded as memory would hold it."""
    x, w, scales = drawn(rng, 1, 512), fours(rng, 512, 64), drawn(rng, GROUPS, 64)
    place = in_runs(512, rng)

    def product(x, w, scales, place):
        weights = unpacked(w, 64, 1).astype("bfloat16") * kc.take(scales, place, 0)
        return x @ weights.astype("float32")

    scales = kc.array(scales).astype("bfloat16")
    args = kc.array(x), kc.array(packed(w, 1)), scales, kc.array(place.astype(np.int32))
    weights = kc.array(w * scales.astype("float32").numpy()[place]).astype("bfloat16")
    check(kc.jit(product)(*args), x @ weights.astype("float32").numpy().astype(np.float64))


TERMS = [Term("row", 8, 1), Term("k", 100, 8)]
PARAMS = ["__global const float* table", "__global const float* scales", "__global char* zeros"]
KEY = ("float", "key", "table[k]")
KEYS = ("uint4", "keys", "*(__global const uint4*)(table + 4*row)")
WEIGHT = ("char", "weight", "weights[8*k+row]")


def test_the_text_is_divided():
    lines = [
        "const int at = (int)key;",
        "const float scale = scales[8 * at + row]; const char zero = zeros[at];",
        "const float value = (weight - zero) * scale;",
    ]
    assert grouped([KEY], [WEIGHT], TERMS, lines, ["value"], PARAMS) == Grouped(
        (Key(*KEY, "table"),),
        False,
        (
            "const int at = (int)key;", "const float scale = scales[8 * at + row];",
            "const char zero = zeros[at];",
        ),
        (("float", "scale"), ("int", "zero")),
        ("const float value = (weight - zero) * scale;",),
    )  # fmt: skip


def test_neighbours_may_have_keys_of_their_own():
    """Those are loads that depend on the neighbours' term alone; what is found may depend on the
    other one."""
    lines = [
        "const float scale = scales[8 * (int)as_float(keys.s0) + k];",
        "const float value = weight * scale;",
    ]
    found = grouped([], [WEIGHT, KEYS], TERMS, lines, ["value"], PARAMS)
    assert found == Grouped(
        (Key(*KEYS, "table"),), True, (lines[0],), (("float", "scale"),), (lines[1],)
    )


def test_small_numbers_whose_bits_are_looked_at_keep_their_type():
    lines = ["const char at = zeros[(int)key];", "const float value = as_uchar(at) * weight;"]
    found = grouped([KEY], [WEIGHT], TERMS, lines, ["value"], PARAMS)
    assert found.kept == (("char", "at"),)


@pytest.mark.parametrize(
    "keys, lines",
    [
        pytest.param([], ["const float value = scales[3] * weight;"], id="no keys"),
        pytest.param([KEY], ["const float value = key * weight;"], id="nothing behind keys"),
        pytest.param(
            [KEY], ["const float v = scales[(int)key];", "const float value = v * key * weight;"],
            id="a key for each",
        ),
        pytest.param([KEY], ["float v; if (key) v = scales[0];"], id="other statements"),
        pytest.param(
            [("float", "key", "table[k] + scales[k]")], ["const float value = zeros[(int)key];"],
            id="keys of two tables",
        ),
        pytest.param(
            [KEY], [f"const float v{n} = scales[(int)key + {n}];" for n in range(MOST + 1)]
            + ["const float value = weight" + "".join(f" + v{n}" for n in range(MOST + 1)) + ";"],
            id="too much to keep",
        ),
    ],
)  # fmt: skip
def test_other_texts_stay_whole(keys, lines):
    assert grouped(keys, [WEIGHT], TERMS, lines, ["value"], PARAMS) is None
