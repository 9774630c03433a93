"""The lines of `lines.py`, each run with kerascl and with NumPy."""

import ast
import copy
import pickle
import types

import numpy as np
import pytest

import kerascl as kc
from tests.arrays import lines

# the names under which JAX's users look for things
JAX = types.SimpleNamespace(
    **{name: getattr(kc, name) for name in dir(kc)},
)


def _lines(text):
    return [line for line in text.strip().splitlines() if line]


def _inputs(rng):
    m = rng.normal(size=(3, 3)).astype("f") + 4 * np.eye(3, dtype="f")
    return {
        "x": rng.normal(size=(3, 4)).astype("f"),
        "y": rng.normal(size=(3, 4)).astype("f"),
        "v": rng.normal(size=5).astype("f"),
        "w": rng.normal(size=5).astype("f"),
        "m": m,
        "n": rng.integers(0, 9, 6).astype("int32"),
        "b": rng.random((3, 4)) < 0.5,
        "z": (rng.normal(size=4) + 1j * rng.normal(size=4)).astype("complex64"),
    }


def _value(line, names):
    """What the last statement of a line gives."""
    *before, last = ast.parse(line).body
    exec(compile(ast.Module(before, []), "line", "exec"), names)
    return eval(compile(ast.Expression(last.value), "line", "eval"), names)


def _agrees(found, wanted, line):
    if isinstance(wanted, tuple | list):
        assert len(found) == len(wanted), line
        for f, w in zip(found, wanted, strict=True):
            _agrees(f, w, line)
        return
    if wanted is None or isinstance(wanted, str | bytes | bool | np.dtype):
        assert found == wanted if wanted is not None else found is None, f"{line}: {found!r}"
        return
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, f"{line}: shape {found.shape}, not {wanted.shape}"
    assert found.dtype.kind == wanted.dtype.kind, f"{line}: {found.dtype}, not {wanted.dtype}"
    if wanted.dtype.kind in "fc":
        size = max(1.0, np.linalg.norm(wanted.ravel())) if np.isfinite(wanted).all() else 1.0
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6 * size, err_msg=line)
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=line)


def _both(rng, ours, theirs, on_device=False):
    host = _inputs(rng)
    names = {k: kc.array(x) for k, x in host.items()}
    names |= {"xp": kc, "kc": kc, "np": np, "jnp": kc, "jax": JAX, "pickle": pickle, "copy": copy}
    found = _value(ours, names)
    wanted = _value(theirs, {**host, "xp": np, "np": np})
    if on_device:
        for part in found if isinstance(found, tuple | list) else [found]:
            assert isinstance(part, kc.Array), f"{ours} gives {type(part)}"
    _agrees(found, wanted, ours)


@pytest.mark.parametrize("line", _lines(lines.SAME))
def test_line(rng, line):
    _both(rng, line, line)


@pytest.mark.every(6)
@pytest.mark.parametrize("line", _lines(lines.LESS))
def test_less_frequent_line(rng, line):
    _both(rng, line, line)


@pytest.mark.parametrize("line", _lines(lines.NUMPY))
def test_line_of_numpy(rng, line):
    _both(rng, line, line.replace(".numpy()", ""), on_device=True)


@pytest.mark.parametrize(("ours", "theirs"), lines.PAIRS, ids=[a for a, _ in lines.PAIRS])
def test_line_and_its_like(rng, ours, theirs):
    _both(rng, ours, theirs)


def test_the_list_is_long():
    count = len(_lines(lines.SAME)) + len(_lines(lines.NUMPY)) + len(lines.PAIRS)
    assert count >= 150
