"""What rewriting simplifies; no device."""

import pytest

import kerascl as kc
from kerascl.compiler.graph import rewrite
from kerascl.core.node import topological
from kerascl.core.op import COPY
from kerascl.core.traced import BARRIER
from kerascl.dtypes import int32
from kerascl.ops.attention import ATTENTION
from kerascl.ops.control import LOOP
from kerascl.ops.convolution import CONV, DATA_GRAD
from kerascl.ops.views import PAD, PERMUTE, RESHAPE, SLICE
from tests.compiler.graphs import argument, nodes_of, simplified


def test_equal_values_are_computed_once():
    x = argument(4)
    (y,) = simplified(kc.exp(x) * kc.exp(x))
    assert y.inputs[0] is y.inputs[1]
    (y,) = simplified(kc.exp(x) * kc.expm1(x))
    assert y.inputs[0] is not y.inputs[1]


def test_zeros_of_both_signs_stay_apart():
    x = argument(4)
    (y,) = simplified(kc.maximum(x, 0.0) * kc.maximum(x, 0.0))
    assert y.inputs[0] is y.inputs[1]
    (y,) = simplified(kc.maximum(x, 0.0) * kc.maximum(x, -0.0))
    assert y.inputs[0] is not y.inputs[1]


def test_neutral_numbers_leave_the_other_input():
    x, k = argument(4), argument(4, dtype=int32)
    for y in (x + -0.0, -0.0 + x, x - 0, x * 1, 1 * x, x / 1, k + 0, 0 + k, k * 1):
        (found,) = simplified(y)  # a root has memory of its own
        assert found.op is COPY and found.inputs[0] in (x._node, k._node)
    for y in (0 - x, 1 / x, x + 1, x * 0, x + 0.0):  # -0.0 + 0.0 is 0.0
        assert simplified(y)[0].op is y._node.op


def test_reshapes_of_reshapes_are_one():
    x = kc.exp(argument(4, 6))
    (y,) = simplified(kc.reshape(kc.reshape(x, (6, 4)), (2, 12)))
    assert y.op is RESHAPE and y.inputs[0].op is x._node.op
    (y,) = simplified(kc.reshape(kc.reshape(x, (24,)), (4, 6)))
    assert y.op is x._node.op


def test_permutations_of_permutations_are_one():
    x = kc.exp(argument(2, 3, 4))
    (y,) = simplified(kc.transpose(kc.transpose(x, (1, 2, 0)), (2, 0, 1)) + 1)
    assert y.inputs[0].op is x._node.op
    (y,) = simplified(kc.transpose(kc.transpose(x, (1, 2, 0)), (1, 0, 2)) + 1)
    assert y.inputs[0].op is PERMUTE and y.inputs[0].attrs == ((2, 1, 0),)


def test_moving_an_axis_of_one_is_a_reshape():
    (y,) = simplified(kc.transpose(kc.exp(argument(1, 3, 4)), (1, 2, 0)) + 1)
    assert y.inputs[0].op is RESHAPE


def attended(key, value, heads=6):
    """The inputs of attention after rewriting."""
    y = kc.dot_product_attention(argument(2, 5, heads, 4), key, value)
    return next(x for x in topological(simplified(y)) if x.op is ATTENTION).inputs


def test_attention_reads_each_group_once(monkeypatch):
    monkeypatch.setattr(rewrite, "formula_of", lambda *_: None)  # its kernels serve everybody
    key, value = kc.exp(argument(2, 7, 3, 4)), argument(2, 7, 3, 8)
    found = attended(kc.repeat(key, 2, 2), kc.repeat(value, 2, 2))
    assert [x.shape for x in found[1:]] == [(2, 7, 3, 4), (2, 7, 3, 8)]
    assert found[1].op is key._node.op and found[2] is value._node
    one = kc.repeat(argument(2, 7, 1, 4), 6, 2)  # all share a group
    assert [x.shape[2] for x in attended(one, one)[1:]] == [1, 1]
    # what would be other heads' or leaves one of both as it was
    for wrong in (kc.tile(key, (1, 1, 2, 1)), kc.repeat(kc.sin(argument(2, 7, 1, 4)), 6, 2)):
        assert [x.shape[2] for x in attended(wrong, kc.repeat(value, 2, 2))[1:]] == [6, 6]
    flat = kc.reshape(kc.repeat(argument(2, 7, 12), 2, 2), (2, 7, 6, 4))  # features repeated
    assert [x.shape[2] for x in attended(flat, flat)[1:]] == [6, 6]


def test_a_convolution_pads_itself():
    x, w = argument(2, 8, 8, 3), argument(3, 3, 3, 4)
    (y,) = simplified(kc.conv(kc.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0))), w))
    assert y.op is CONV and y.inputs[0] is x._node
    assert y.attrs[1] == ((1, 2), (0, 1))


@pytest.mark.parametrize(
    "pads, value",
    [(((0, 0), (1, 1), (1, 1), (0, 0)), 1.0), (((0, 0), (1, 1), (1, 1), (1, 0)), 0.0)],
    ids=["ones", "channels"],
)
def test_but_not_with_ones_nor_channels(pads, value):
    x = argument(2, 8, 8, 3)
    padded = kc.pad(x, pads, constant_values=value)
    (y,) = simplified(kc.conv(padded, argument(3, 3, padded.shape[-1], 4)))
    assert y.inputs[0].op is PAD


def test_a_part_of_an_images_gradient_is_all_that_is_computed():
    x, w = argument(2, 8, 8, 3), argument(3, 3, 3, 4)

    def loss(x):
        return kc.sum(kc.conv(kc.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), w))

    gradient = kc.grad(loss)(x)
    assert any(n.op is SLICE for n in nodes_of(gradient))
    (y,) = simplified(gradient)
    assert y.op is DATA_GRAD and y.shape == x.shape and y.attrs[1] == ((1, 1), (1, 1))


def test_a_loop_over_a_padded_array_keeps_its_padding():
    x = kc.pad(argument(3, 4), ((1, 0), (0, 0)))
    y, _ = kc.scan(lambda carry, row: (carry + row, row), argument(4), x)
    (node,) = simplified(y)
    loop = next(n for n in nodes_of(y) if n.op is LOOP)
    assert any(x.op is PAD for x in loop.inputs) and node.shape == (4,)


def test_barriers_keep_equal_values_apart():
    x = kc.exp(argument(4))
    kept = kc.remat(lambda x: kc.exp(x))

    def loss(x):
        return kc.sum(kept(x))

    (y,) = simplified(kc.grad(loss)(x))
    assert any(n.op is BARRIER for n in _below(y))


def _below(node):
    found, stack = [], [node]
    while stack:
        found.append(stack.pop())
        stack.extend(found[-1].inputs)
    return found


def test_roots_have_memory_of_their_own():
    x = kc.exp(argument(4))
    a, b = simplified(x, kc.reshape(x, (2, 2)))
    assert a.op is x._node.op and b.op is COPY


def test_imaginary_parts_that_are_zero_are_left_out():
    x = argument(4, 6)
    whole = kc.fft.dft(x)[0]._node.inputs[0]
    zeros = kc.zeros_like(x), kc.transpose(kc.zeros((6, 4))), kc.cast(kc.zeros(()), "float32")
    for zero in zeros:
        (found,) = simplified(kc.fft.dft(x, kc.broadcast_to(zero, (4, 6)))[0])
        assert len(found.inputs[0].inputs) == len(whole.inputs) == 2
    assert len(simplified(kc.fft.dft(x, x)[0])[0].inputs[0].inputs) == 3
    assert len(simplified(kc.fft.dft(x, kc.ones_like(x))[0])[0].inputs[0].inputs) == 3
