"""Losses, and the optimisers that the standard has for graphs that train themselves."""

from __future__ import annotations

from typing import Any

from kerascl.core.array import Array
from kerascl.core.tape import GradientTape
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer.graph import Call, device
from kerascl.onnx.importer.rules import operator
from kerascl.ops import gather, nn, pointwise, reduction
from kerascl.ops.declare import cast_to
from kerascl.ops.views import reshape_to

_TRAINING = "ai.onnx.preview.training"


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    call: Call, x: Array, target: Array, weight: Array | None = None
) -> Array:
    """Losses -x at the target classes, weighted by class and reduced as `reduction` says.

    Args:
        x: logarithms of probabilities (N, classes, …).
        target: integers (N, …); those equal to `ignore_index` do not count.
        weight: (classes,).

    Raises:
        ValueError: for weights of another shape.
    """
    return _picked_loss(call, x, target, weight)


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    call: Call, x: Array, target: Array, weight: Array | None = None
) -> tuple[Array, Array]:
    """The loss `negative_log_likelihood` of the log-softmax of `x` over axis 1, and that itself."""
    logs = nn.log_softmax(x, 1)
    return _picked_loss(call, logs, target, weight), logs


def _picked_loss(call: Call, logs: Array, target: Array, weight: Array | None) -> Array:
    ignored = call.get("ignore_index")
    classes = logs.shape[1]
    index = target
    counts: Any = None
    if ignored is not None:
        counts = pointwise.not_equal(target, ignored)
        index = pointwise.where(counts, target, 0)
    wide = reshape_to(index, (index.shape[0], 1, *index.shape[1:]))
    flat = reshape_to(gather.take_along_axis(logs, wide, 1), index.shape)
    loss = -flat
    shares: Any = None
    if weight is not None:
        if weight.shape != (classes,):
            raise ValueError(f"weights of shape {weight.shape} for {classes} classes")
        shares = gather.take(weight, index, 0)
    if counts is not None:
        valid = cast_to(counts, logs.dtype)
        shares = valid if shares is None else shares * valid
    if shares is not None:
        loss = pointwise.where(shares == 0, 0.0, loss * shares)
    how = call.get("reduction", "mean")
    if how == "none":
        return cast_to(loss, logs.dtype)
    if how == "sum":
        return cast_to(reduction.sum(loss), logs.dtype)
    if shares is None:
        return cast_to(reduction.mean(loss), logs.dtype)
    return cast_to(reduction.sum(loss) / reduction.sum(shares), logs.dtype)


@operator("Gradient", domain=_TRAINING)
def gradient(call: Call, *inputs: Array) -> tuple[Array, ...]:
    """Slopes of a value of the graph, which is computed again from the given inputs."""
    names, known = call["xs"], [*call["xs"], *(call.get("zs") or [])]
    scope = {**call.scope, **dict(zip(known, inputs))}
    with GradientTape() as tape:
        call.graph.replay(scope, call.node, set(known), call.run)
        result = device(scope[call["y"]])
    found = tape.gradient(result, list(inputs[: len(names)]), unconnected_gradients="zero")
    return tuple(found)


# -- optimisers --------------------------------------------------------------------
def _groups(inputs: tuple[Array, ...], each: int) -> list[list[Array]]:
    count = len(inputs) // each
    return [[inputs[k * count + i] for k in range(each)] for i in range(count)]


def _in_order(rows: list[list[Array]]) -> tuple[Array, ...]:
    return tuple(row[k] for k in range(len(rows[0])) for row in rows)


@operator("Adagrad", domain=_TRAINING)
def adagrad(call: Call, rate: Array, step: Array, *inputs: Array) -> tuple[Array, ...]:
    """Updated variables, then their sums of squared gradients.

    Inputs are the variables, their gradients and those sums, in groups.  The rate decays with the
    steps; `norm_coefficient` times a variable is added to its gradient.
    """
    rows = []
    r = rate / (1.0 + cast_to(step, BY_NAME["float32"]) * call["decay_factor"])
    for x, g, h in _groups(inputs, 3):
        g = g + call["norm_coefficient"] * x
        h = h + g * g
        rows.append([x - r * g / (pointwise.sqrt(h) + call["epsilon"]), h])
    return _in_order(rows)


@operator("Momentum", domain=_TRAINING)
def momentum(call: Call, rate: Array, step: Array, *inputs: Array) -> tuple[Array, ...]:
    """Updated variables, then their velocities; in mode "nesterov" with one step of foresight.

    Inputs are the variables, their gradients and velocities, in groups.  In step 0 `beta` is 1.
    """
    rows = []
    alpha = call["alpha"]
    beta = pointwise.where(step > 0, call["beta"], 1.0)
    for x, g, v in _groups(inputs, 3):
        g = g + call["norm_coefficient"] * x
        v = alpha * v + beta * g
        change = g + alpha * v if call["mode"] == "nesterov" else v
        rows.append([x - rate * change, v])
    return _in_order(rows)


@operator("Adam", domain=_TRAINING)
def adam(call: Call, rate: Array, step: Array, *inputs: Array) -> tuple[Array, ...]:
    """Updated variables, then the running means of gradients and of their squares.

    Inputs are the variables, their gradients and both means, in groups.  In step 0 the rate is not
    corrected for means that began at 0; `norm_coefficient_post` shrinks the results.
    """
    rows = []
    alpha, beta = call["alpha"], call["beta"]
    t = cast_to(step, BY_NAME["float32"])
    correction = pointwise.sqrt(1 - pointwise.power(beta, t)) / (1 - pointwise.power(alpha, t))
    r = pointwise.where(t > 0, rate * correction, rate)
    for x, g, v, h in _groups(inputs, 4):
        g = g + call["norm_coefficient"] * x
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        new = x - r * v / (pointwise.sqrt(h) + call["epsilon"])
        rows.append([(1 - call["norm_coefficient_post"]) * new, v, h])
    return _in_order(rows)
