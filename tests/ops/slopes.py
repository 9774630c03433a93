"""Gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import kerascl as kc
from kerascl.runtime import device


def relative(found, expected) -> float:
    """The norm of the difference, relative to that of `expected`."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))


def check_gradients(function: Callable, *values: np.ndarray, rng, order: int = 1) -> None:
    """Compare the derivative of `function` along random directions with central differences.

    Args:
        function: of Arrays, differentiable at and around `values`; gives an Array.
        values: floating inputs.
        order: 2 also checks the derivative of the gradient.
    """
    double = device.default().info.fp64
    dtype, step, bound = (np.float64, 1e-5, 1e-6) if double else (np.float32, 2e-3, 3e-2)
    values = [np.asarray(v, dtype) for v in values]
    weights = None

    def loss(*arrays):
        nonlocal weights
        y = function(*arrays)
        if weights is None:
            weights = kc.array(rng.standard_normal(y.shape).astype(dtype))
        return kc.sum(y * weights)

    _compare(loss, values, rng, step, bound)
    if order == 2:
        inner = [kc.array(rng.standard_normal(v.shape).astype(dtype)) for v in values]

        def slope(*arrays):
            with kc.GradientTape() as tape:
                y = loss(*arrays)
            gradients = tape.gradient(y, list(arrays))
            return sum(
                kc.sum(g * d) for g, d in zip(gradients, inner, strict=True) if g is not None
            )

        _compare(slope, values, rng, step, bound)


def _compare(loss, values, rng, step, bound) -> None:
    arrays = [kc.array(v) for v in values]
    with kc.GradientTape() as tape:
        y = loss(*arrays)
    gradients = tape.gradient(y, arrays)
    directions = [rng.standard_normal(v.shape).astype(v.dtype) for v in values]
    places = [
        [v + sign * step * d for v, d in zip(values, directions, strict=True)] for sign in (1, -1)
    ]
    ends = [float(loss(*map(kc.array, place))) for place in places]
    expected = (ends[0] - ends[1]) / (2 * step)
    # By how much they moved, rounded: of large float32 that is not quite `directions`.
    moved = [(np.float64(up) - down) / (2 * step) for up, down in zip(*places, strict=True)]
    parts = [
        0.0 if g is None else float((g.numpy() * d).sum())
        for g, d in zip(gradients, moved, strict=True)
    ]
    scale = max(abs(expected), sum(abs(p) for p in parts), 1e-3)
    assert abs(sum(parts) - expected) <= bound * scale, (sum(parts), expected)
