"""The text of generated kernels: what is read, computed and stored; no device."""

import dataclasses
import re

import pytest

import kerascl as kc
from kerascl.compiler.generate.emit import Scope, Writer, literal
from kerascl.compiler.graph.symbolic import variable
from kerascl.dtypes import bfloat16, bool_, float32, int8, int32, int64
from tests import profiles
from tests.compiler.graphs import argument, kernels, text


@pytest.mark.parametrize(
    "value, dtype, expected",
    [
        (1, int32, "(1)"), (-(2**31), int32, "(-2147483647-1)"), (3, int64, "(3L)"),
        (0.1, float32, "(0.1f)"), (float("inf"), float32, "(INFINITY)"), (True, bool_, "1"),
        (-0.0, float32, "(-0.0f)"),
    ],
)  # fmt: skip
def test_literals(value, dtype, expected):
    assert literal(value, dtype) == expected


def test_a_value_that_is_read_twice_is_loaded_once():
    x = argument(64)
    assert text(kc.exp(x) * x + x).count("buf0[") == 1


def test_equal_places_are_one_variable():
    node = kc.exp(argument(8, 4))._node
    scope = Scope(Writer(False, False))
    place = (variable("x0", 8), variable("x1", 4))
    first = scope.value(node, place, (), {id(node.inputs[0])})
    assert scope.value(node, place, (), {id(node.inputs[0])}) == first
    turned = (variable("x1", 4), variable("x0", 4))
    assert scope.value(node, turned, (), {id(node.inputs[0])}) != first


def test_stores_come_after_all_reads():
    x = argument(64)
    y = kc.tanh(x)
    body = text(y, kc.reshape(y, (8, 8)) + kc.reshape(x, (8, 8)))
    stored = [m.start() for m in re.finditer(r"buf\d\[[^]]*\] = ", body)]
    read = [m.start() for m in re.finditer(r"= buf\d\[", body)]
    assert len(stored) == 2 and max(read) < min(stored)


def test_views_are_index_arithmetic():
    x = argument(6, 4)
    assert "%" not in text(kc.reshape(kc.exp(x), (24,)))
    assert re.search(r"buf\d\[\(?4\*x1\+x0\)?\]", text(kc.transpose(x, (1, 0)) + 1))


def test_padding_guards_its_reads():
    body = text(kc.pad(argument(6), ((1, 1),), constant_values=7))
    assert re.search(r"\(u(int|long)\)\(x0-1\) < 6", body) and "7.0f" in body


def test_eager_kernels_take_sizes_as_arguments():
    x = argument(37, 5)
    assert "185" in text(kc.exp(x)) and "185" not in text(kc.exp(x), generic=True)
    wide, narrow = (kernels(kc.exp(argument(n)), generic=True).launches[0] for n in (640, 64))
    assert wide.source.body == narrow.source.body and wide.args != narrow.args


def test_a_reductions_result_stays_in_registers_for_its_row():
    x = argument(64, 8)
    total = kc.sum(x, 1, keepdims=True)
    body = text(x / total)
    assert len(re.findall(r"buf\d\[[^]]*\] = ", body)) == 1  # the quotient alone is stored
    assert len(re.findall(r"buf\d\[[^]]*\] = ", text(x / total, total))) == 2


@pytest.mark.parametrize("axis", (0, 1))
def test_large_work_groups_are_promised_to_the_compiler(axis):
    # A kernel of 160 registers, say, cannot be launched with 512 work-items on 65,536 registers.
    info = profiles.load()["rtx4090"].info
    launches = kernels(kc.sum(argument(4096, 4096), axis), info=info).launches
    sizes = [launch.local_size[0] for launch in launches]
    assert (max(sizes) > 256) == (axis == 0)
    for size, launch in zip(sizes, launches):
        promise = f"reqd_work_group_size({size}, 1, 1)"
        assert (promise in launch.source.text) == (size > 256)


def test_extremes_are_one_instruction_where_there_is_one():
    info = profiles.load()["rtx4090"].info
    for function, name in ((kc.max, "max"), (kc.min, "min")):
        (launch,) = kernels(function(argument(4096, 64), 1), info=info).launches
        assert f"{name}.NaN.f32" in "".join(launch.source.helpers)
        assert f"kcl_{name}_nan(" in launch.source.body and "!=" not in launch.source.body
        (launch,) = kernels(function(argument(4096, 64, dtype=int32), 1), info=info).launches
        assert "_nan" not in launch.source.body


def test_16_bit_values_are_rounded_where_they_are_fused():
    x = argument(64, dtype=bfloat16)
    fused = bfloat16.round.split("{v}")[0]
    assert text(kc.exp(x) * 2).count(fused) >= 1
    assert fused not in text(kc.exp(argument(64)) * 2)


SIZES = {"float": 4, "int": 4, "uint": 4, "long": 8, "ulong": 8, "double": 8, "double2": 16}


@pytest.mark.parametrize("card", ["rtx4090", "mi300x", "a770", "uhd630", "max1550"])
@pytest.mark.parametrize("dtype", [bfloat16, float32, int64])
@pytest.mark.parametrize("columns", [8, 64, 3072])
def test_tall_arrays_fit_local_memory_and_work_groups(card, dtype, columns):
    """However many registers are merged, and of whatever size."""
    info = profiles.load()[card].info
    x = argument(200_000, columns, dtype=dtype)
    several = kc.sum(x, 0), kc.argmin(x, 0), kc.argmax(x, 0), kc.max(x, 0), kc.prod(x, 0)
    for arrays in (several[:1], several[:2], several):
        for launch in kernels(*arrays, info=info).launches:
            text = launch.source.body
            found = re.findall(r"__local (\w+) \w+\[(\d+)\]", text)
            assert sum(SIZES[kind] * int(n) for kind, n in found) <= info.local_mem_bytes
            assert launch.local_size[0] <= info.max_work_group_size


@pytest.mark.parametrize("group", [64, 128])
def test_columns_side_by_side_need_no_large_work_group(group):
    info = dataclasses.replace(profiles.load()["uhd630"].info, max_work_group_size=group)
    for dtype in (int8, bfloat16, float32):
        (launch, *_) = kernels(kc.max(argument(200_000, 64, dtype=dtype), 0), info=info).launches
        assert launch.local_size[0] <= group
