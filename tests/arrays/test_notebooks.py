"""What people see of arrays: their text, tables in notebooks, completion, help, plots, errors."""

import inspect
import re

import matplotlib
import numpy as np
import pytest

import kerascl as kc


def test_repr_says_values_shape_dtype_and_device(rng):
    host = rng.normal(size=(2, 3)).astype("f")
    x = kc.array(host)
    text = repr(x)
    values = np.array([float(t) for t in re.findall(r"-?\d+\.\d*", text.split("]]")[0])])
    np.testing.assert_allclose(values, host.ravel(), rtol=1e-5)
    assert text.startswith("kerascl.array([[")
    assert f"shape=(2, 3), dtype=float32, device={x.device.info.name!r})" in text
    assert "..." in repr(kc.zeros((300, 300)))


def test_html(rng):
    host = rng.integers(0, 99, (2, 3))
    found = re.findall(r"<td>(\d+)</td>", kc.array(host)._repr_html_())
    assert [int(t) for t in found] == host.ravel().tolist()
    wide = kc.array(np.arange(40.0))._repr_html_()
    assert wide.count("<td>") == 13 and "⋯" in wide and "shape (40,) · float" in wide
    assert kc.zeros((50, 50))._repr_html_().count("<tr>") == 13
    for shape in ((), (0, 3), (2, 2, 2)):
        assert kc.zeros(shape)._repr_html_().startswith("<pre>")
    kc.jit(lambda x: kc.array(0.0 if "traced" in x._repr_html_() + repr(x) else 1 / 0))(kc.ones(2))


def test_completion_offers_no_internals():
    offered = {name for name in dir(kc) if not name.startswith("__")}
    assert not {n for n in offered if n[0] == "_"} and not offered & {"core", "compiler", "engine"}
    assert {"sin", "random", "linalg", "nn", "Array", "grad", "float32", "softmax"} <= offered
    methods = set(dir(kc.ones(2)))
    assert {"sum", "reshape", "numpy", "at"} <= methods
    assert not methods & {"_node", "backward", "trainable", "_keras_mask", "stand_for"}
    assert {"normal", "default_rng", "split", "choice"} <= set(dir(kc.random))


def _public():
    yield from ((n, getattr(kc, n)) for n in dir(kc) if not n.startswith("__"))
    for room in (kc.linalg, kc.fft, kc.nn, kc.random):
        yield from ((f"{room.__name__}.{n}", getattr(room, n)) for n in room.__all__)
    yield from ((f"Array.{n}", getattr(kc.Array, n)) for n in dir(kc.ones(1)) if n[0] != "_"
                if not isinstance(inspect.getattr_static(kc.Array, n), property))  # fmt: skip
    yield from ((f"Generator.{n}", getattr(kc.random.Generator, n))
                for n in dir(kc.random.Generator) if n[0] != "_")  # fmt: skip


def test_every_public_name_has_help():
    callables = [(n, f) for n, f in _public() if callable(f)]
    assert len(callables) > 400
    assert not [n for n, f in callables if len(inspect.getdoc(f) or "") < 10]


def test_plots(rng, tmp_path):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    x, y = kc.linspace(0, 1, 20), kc.array(rng.normal(size=20).astype("f"))
    figure, (first, second, third, fourth) = pyplot.subplots(1, 4)
    (line,) = first.plot(x, y)
    np.testing.assert_array_equal(line.get_ydata(), y.numpy())
    second.scatter(x, y, c=y)
    counts, _, _ = third.hist(y, bins=5)
    np.testing.assert_array_equal(counts, np.histogram(y.numpy(), 5)[0])
    image = fourth.imshow(kc.outer(x, y))
    np.testing.assert_allclose(image.get_array(), np.outer(x.numpy(), y.numpy()), rtol=1e-6)
    figure.savefig(tmp_path / "plot.png")
    pyplot.close(figure)


def test_files(rng, tmp_path):
    x = kc.array(rng.normal(size=(3, 2)).astype("f"))
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    np.savetxt(tmp_path / "x.txt", x)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x.numpy())
    np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["x"], x.numpy())
    np.testing.assert_allclose(np.loadtxt(tmp_path / "x.txt"), x.numpy())


WRONG = [
    "x + y", "x @ x", "x @ v", "kc.concatenate([x, v])", "kc.stack([x, v])", "x.reshape(5)", "x[3]",
    "x[0, 0, 0]", "x.sum(axis=2)", "x[kc.array([True, False, True])]", "kc.where(x > 0, x, y)",
    "kc.broadcast_to(x, (3, 3))", "x.transpose(0, 0)", "kc.split(x, 5)", "kc.dot(x, x)",
    "kc.einsum('ij,jk->ik', x, x)", "kc.tensordot(x, v, 1)", "kc.linalg.solve(x, v)",
    "kc.linalg.inv(x)", "kc.take_along_axis(x, y, 0)", "x.at[0].set(y)", "kc.moveaxis(x, 5, 0)",
    "kc.diag(kc.ones((2, 2, 2)))", "kc.interp(v, v, x)", "kc.zeros(-1)", "kc.maximum(x, v)",
    "x.astype('text')", "kc.nn.softmax(x, axis=4)", "kc.pad(x, ((1, 1),) * 3)", "kc.cross(x, v)",
    "kc.random.normal(kc.random.key(0), (2, -1))", "kc.vmap(kc.dot)(x, v)", "x.squeeze(0)",
    "kc.expand_dims(x, 7)", "kc.searchsorted(x, v)", "kc.average(x, weights=v)",
]  # fmt: skip


@pytest.mark.parametrize("line", WRONG)
def test_errors_come_where_the_line_stands(line):
    """Not when a value is read."""
    names = {"kc": kc, "x": kc.ones((2, 4)), "y": kc.ones((3, 5)), "v": kc.ones(3)}
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        eval(line, names)
    assert len(str(caught.value)) > 10
