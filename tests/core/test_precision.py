"""The precision of float32 products: chosen by setting or block, kept by gradients and captures."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.core import context
from kerascl.core import node as graph


@pytest.fixture(autouse=True)
def restored():
    yield
    context.Context.process_precision = None


def products(*arrays):
    """The precision noted in every product behind some arrays."""
    nodes = graph.topological([a._node for a in arrays])
    return {n.attrs[-1] for n in nodes if n.op.name == "matmul" or n.op.name.startswith("conv")}


def test_blocks_go_before_settings(monkeypatch):
    monkeypatch.delenv("KERASCL_PRECISION", raising=False)
    assert context.precision() == "high"
    monkeypatch.setenv("KERASCL_PRECISION", "highest")
    assert context.precision() == "highest"
    kc.set_precision("high")
    assert context.precision() == "high"
    with kc.precision_scope("highest"):
        assert context.precision() == "highest"
    assert context.precision() == "high"
    with pytest.raises(ValueError, match="highest"):
        kc.set_precision("low")
    with pytest.raises(ValueError, match="highest"), kc.precision_scope("medium"):
        pass


@pytest.mark.parametrize("dtype, noted", [("float32", "highest"), ("bfloat16", "high")])
def test_products_and_their_gradients_note_it(dtype, noted):
    x, w = kc.ones((1, 6, 6, 2), dtype), kc.ones((3, 3, 2, 4), dtype)
    with kc.GradientTape() as tape:
        with kc.precision_scope("highest"):
            y = kc.conv(x, w) @ kc.ones((4, 5), dtype)
        loss = kc.sum(y)
    grads = tape.gradient(loss, [x, w])
    assert products(loss, *grads) == {noted}


def test_a_capture_for_each_precision():
    seen = []

    @kc.jit
    def product(a, b):
        seen.append(context.precision())
        return a @ b

    a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    for name in ("high", "highest", "high"):
        with kc.precision_scope(name):
            np.testing.assert_array_equal(product(a, b).numpy(), np.full((3, 2), 4.0))
    assert seen == ["high", "highest"]
