"""Kernels that differ only in where they read or write."""

import numpy as np

import kerascl as kc
from kerascl.compiler.program import offsets
from kerascl.compiler.program.program import Step
from kerascl.kernels.contract.source import Source


def test_layers_that_read_their_part_of_an_array_share_a_kernel(rng):
    layers, width = 5, 24
    host = rng.standard_normal((layers, 2, width)).astype(np.float32)

    @kc.jit
    def function(x, cache):
        for k in range(layers):  # each waits for the one before
            x = kc.sort(x * cache[k, 0] + cache[k, 1], -1)
        return x

    x = rng.standard_normal((3, width)).astype(np.float32)
    wanted = x.astype(np.float64)
    for first, second in host.astype(np.float64):
        wanted = np.sort(wanted * first + second)
    for _ in range(2):
        found = function(kc.array(x), kc.array(host)).numpy()
        assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)
    steps = function.captured(kc.array(x), kc.array(host)).program.steps
    maps = [step for step in steps if step.name.startswith("map")]
    # that of the first begins where the array does, and has one number less
    assert len(maps) == layers and len({step.name for step in maps}) == 2


def test_a_loop_writes_each_part(rng):
    """As a cache of keys and values is filled, of which each layer's part is an input again."""
    layers, length, width, steps = 4, 6, 8, 5
    host = rng.standard_normal((layers, length, width)).astype(np.float32)

    def body(cache, x, k):
        parts = []
        for layer in range(layers):
            here = kc.arange(length)[:, None] == k
            part = kc.where(here, kc.tanh(x), cache[layer])
            x = x + kc.sum(part, 0, keepdims=True)
            parts.append(part)
        return kc.stack(parts), x, k + 1

    function = kc.jit(lambda c, x: kc.while_loop(lambda c, x, k: k < steps, body, (c, x, 0))[:2])
    x = rng.standard_normal((1, width)).astype(np.float32)
    cache, wide = host.astype(np.float64), x.astype(np.float64)
    for k in range(steps):
        for layer in range(layers):
            cache[layer, k] = np.tanh(wide)
            wide = wide + cache[layer].sum(0, keepdims=True)
    for found, wanted in zip(function(kc.array(host), kc.array(x)), (cache, wide)):
        assert np.linalg.norm(found.numpy() - wanted) < 1e-5 * np.linalg.norm(wanted)


def source(body, params=("__global float* buf0", "__global float* buf1")):
    return Source("map", params, body, (), False)


def shared(*bodies):
    steps = [Step("", "map", (), [], (1,), (1,)) for _ in bodies]
    found = offsets.share([(step, source(body)) for step, body in zip(steps, bodies)])
    return [text.body for _, text in found], [step.args for step in steps], found[0][1].params


def test_numbers_that_differ_are_arguments():
    form = "buf0[i] = buf1[(7*x0+{})] + buf1[(x0+{})] + buf1[(x0+{})] + buf1[(x0+5)];"
    texts, args, params = shared(form.format(8, 9, 8), form.format(16, 1, 16), "buf0[i] = 1;")
    assert texts[0] == texts[1] == form.format("offset_0", "offset_1", "offset_0")
    assert args == [[8, 9], [16, 1], []] and all(type(n) is np.int32 for n in args[0])
    assert params[2:] == ("const int offset_0", "const int offset_1")


def test_other_numbers_and_equal_texts_stay():
    for bodies in (
        ("buf0[i] = 8;", "buf0[i] = 9;"), ("buf0[8*i] = 1;", "buf0[9*i] = 1;"),
        ("buf0[(x0+8)] = 1;",) * 2, ("buf0[(i+3)] = 1;", f"buf0[(i+{2**31})] = 1;"),
        ("buf0[(i+8L)] = 1;", "buf0[(i+9L)] = 1;"),
    ):  # fmt: skip
        texts, args, _ = shared(*bodies)
        assert texts == list(bodies) and args == [[]] * 2
