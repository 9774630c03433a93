"""Which layer the steps of a captured function belong to."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.core.labels import mark


def layers(function, *args):
    """Of each kernel, in and around loops, the layer and the name."""
    steps = kc.jit(function).captured(*map(kc.array, args)).program.steps
    return [(leaf.layer, leaf.name) for step in steps for leaf in step.leaves]


@pytest.mark.parametrize("known", [False, True])
def test_of_loops(known, rng, monkeypatch):
    """A cache that stays where it lies, too, whose body's graph is made anew."""
    monkeypatch.setenv("KERASCL_RESIDENT", "3")  # as `kerascl profile` does
    x = rng.standard_normal((1, 40)).astype(np.float32)
    w = rng.standard_normal((2, 40, 40)).astype(np.float32)

    def function(x, w, cache, n):
        def body(k, x, cache):
            mark("first")
            x = kc.tanh(x @ w[0])
            mark("second")
            cache = cache.at[k].set(x[0])
            x = kc.sort(x @ w[1] + kc.sum(cache))
            mark("")
            return k + 1, x, cache

        mark("around")
        start = kc.cumsum(x)
        mark("")
        if known:
            return kc.fori_loop(0, 5, lambda k, c: body(k, *c)[1:], (start, cache))
        return kc.while_loop(lambda k, *_: k < n, body, (kc.array(np.int32(0)), start, cache))

    found = layers(function, x, w, np.zeros((300, 40), np.float32), np.int32(5))
    kinds = {("gemm" if "gemm" in name else "sort" if "sort" in name else "scan" if "scan" in name
              else "", layer) for layer, name in found}  # fmt: skip
    assert {("gemm", "first"), ("gemm", "second"), ("sort", "second"), ("scan", "around")} <= kinds
    assert {layer for kind, layer in kinds if kind == "scan"} == {"around"}
    assert not {("gemm", ""), ("sort", ""), ("sort", "first")} & kinds
