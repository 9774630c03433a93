"""Recurrent networks: RNN, GRU and LSTM, one launch for all steps where kerascl's kernels serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerascl.core.array import Array
from kerascl.onnx.importer.graph import Call
from kerascl.onnx.importer.rules import operator
from kerascl.ops import nn, pointwise
from kerascl.ops.contraction import matmul
from kerascl.ops.control import loop
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import iota, stack, transpose
from kerascl.ops.recurrent import recurrent
from kerascl.ops.views import reshape_to

Activation = Callable[[Array], Array]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    def by(default: float, value: float | None) -> float:
        return default if value is None else value

    table: dict[str, Activation] = {
        "relu": nn.relu,
        "tanh": pointwise.tanh,
        "sigmoid": pointwise.sigmoid,
        "softsign": nn.softsign,
        "softplus": nn.softplus,
        "affine": lambda x: x * by(1.0, alpha) + by(0.0, beta),
        "leakyrelu": lambda x: nn.leaky_relu(x, by(0.01, alpha)),
        "thresholdedrelu": lambda x: pointwise.where(x > by(1.0, alpha), x, 0),
        "scaledtanh": lambda x: pointwise.tanh(x * by(1.0, beta)) * by(1.0, alpha),
        "hardsigmoid": lambda x: pointwise.clip(x * by(0.2, alpha) + by(0.5, beta), 0.0, 1.0),
        "elu": lambda x: nn.elu(x, by(1.0, alpha)),
    }
    found = table.get(name.lower())
    if found is None:
        raise ValueError(f"activation {name!r} is not one of the standard's")
    return found


def _activations(call: Call, default: list[str], directions: int) -> list[Activation]:
    names = (call.get("activations") or default * directions)[: len(default) * directions]
    if len(names) != len(default) * directions:
        raise ValueError(f"{len(names)} activations, not {len(default)} for each direction")
    alphas = list(call.get("activation_alpha") or [])
    betas = list(call.get("activation_beta") or [])
    made = []
    takes_alpha = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
    takes_beta = ("affine", "scaledtanh", "hardsigmoid")
    for name in names:
        alpha = alphas.pop(0) if alphas and name.lower() in takes_alpha else None
        beta = betas.pop(0) if betas and name.lower() in takes_beta else None
        made.append(_activation(name, alpha, beta))
    return made


class _Layer:
    """What the three operators share: directions, layouts, lengths, first states."""

    def __init__(self, call: Call, x: Array, w: Array, r: Array, gates: int, default: list[str]):
        self.call = call
        self.units = r.shape[-1]
        hidden = call.get("hidden_size")
        if hidden is not None and hidden != self.units:
            raise ValueError(f"hidden_size is {hidden}, the weights have {self.units} units")
        self.batch_first = bool(call.get("layout", 0))
        self.x = transpose(x, (1, 0, 2)) if self.batch_first else x
        self.steps, self.batch = self.x.shape[:2]
        direction = call.get("direction", "forward")
        self.reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
            direction
        ]
        if w.shape[0] != len(self.reverse):
            raise ValueError(f"weights of {w.shape[0]} directions, not those of {direction!r}")
        self.gates = gates
        self.activations = _activations(call, default, len(self.reverse))
        limit = call.get("clip")
        self.clip: Activation = (
            (lambda x: x) if not limit else (lambda x: pointwise.clip(x, -limit, limit))
        )

    def state(self, given: Array | None, direction: int) -> Array:
        """The first state of a direction (batch, units)."""
        if given is None:
            return full((self.batch, self.units), 0, self.x.dtype)
        return given[:, direction] if self.batch_first else given[direction]

    def functions(self, direction: int) -> list[Activation]:
        """The activations of a direction."""
        each = len(self.activations) // len(self.reverse)
        return self.activations[direction * each : (direction + 1) * each]

    def mask(self, lengths: Array | None) -> Array | None:
        """Which steps of each sequence count, bool (steps, batch)."""
        if lengths is None:
            return None
        place = iota((self.steps, self.batch), 0)
        return place < cast_to(reshape_to(lengths, (1, self.batch)), place.dtype)

    def results(self, outputs: list[Array], *finals: list[Array]) -> tuple[Array, ...]:
        """Outputs and final states in the operator's layout."""
        y = stack(outputs, 1)  # (steps, directions, batch, units)
        last = [stack(states, 0) for states in finals]
        if self.batch_first:
            return transpose(y, (2, 0, 1, 3)), *(transpose(h, (1, 0, 2)) for h in last)
        return y, *last

    def hidden_past_end(self, y: Array, mask: Array | None) -> Array:
        """Outputs after the end of a sequence are 0."""
        if mask is None:
            return y
        return pointwise.where(reshape_to(mask, (*mask.shape, 1)), y, 0)


@operator("RNN")
def rnn(
    call: Call, x: Array, w: Array, r: Array, b: Array | None = None,
    lengths: Array | None = None, h: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """All steps' outputs, and the last state, of simple recurrent layers in one or both directions.

    Args:
        x: (steps, batch, features), or (batch, steps, features) where `layout` is 1.
        w, r: (directions, units, features) and (directions, units, units).
        b: (directions, 2 * units), for inputs and for states.
        lengths: steps of each sequence; outputs after them are 0.
        h: (directions, batch, units); None: zeros.  (batch, directions, units) where `layout` is 1.

    Raises:
        ValueError: when weights do not fit `hidden_size` or `direction`.
    """
    layer = _Layer(call, x, w, r, 1, ["Tanh"])
    mask, outputs, finals = layer.mask(lengths), [], []
    for d, reverse in enumerate(layer.reverse):
        (function,) = layer.functions(d)

        def cell(xs: list[Array], zs: list[Array], states: list[Array], f: Any = function) -> Any:
            return [f(layer.clip(xs[0] + zs[0]))]

        inputs = matmul(layer.x, transpose(w[d]))
        if b is not None:
            inputs = inputs + (b[d][: layer.units] + b[d][layer.units :])
        y, (last,) = recurrent(
            cell, inputs, [layer.state(h, d)], transpose(r[d]), None, mask, reverse
        )
        outputs.append(layer.hidden_past_end(y, mask))
        finals.append(last)
    return layer.results(outputs, finals)


@operator("LSTM")
def lstm(
    call: Call, x: Array, w: Array, r: Array, b: Array | None = None,
    lengths: Array | None = None, h: Array | None = None, c: Array | None = None,
    p: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """Gates lie in the order i o f c; see `kerascl.ops.recurrent.lstm` for the reference."""
    layer = _Layer(call, x, w, r, 4, ["Sigmoid", "Tanh", "Tanh"])
    n, mask = layer.units, layer.mask(lengths)
    coupled = bool(call.get("input_forget"))
    outputs, hs, cs = [], [], []
    for d, reverse in enumerate(layer.reverse):
        f, g, k = layer.functions(d)
        peep = None if p is None else [p[d][a * n : (a + 1) * n] for a in range(3)]

        def cell(
            xs: list[Array], zs: list[Array], states: list[Array],
            f: Any = f, g: Any = g, k: Any = k, peep: Any = peep,
        ) -> list[Array]:  # fmt: skip
            i, o, e, z = (layer.clip(a + b) if peep is None else a + b for a, b in zip(xs, zs))
            old = states[1]
            if peep is not None:
                i, e = layer.clip(i + peep[0] * old), layer.clip(e + peep[2] * old)
                z = layer.clip(z)
            i = f(i)
            forget = 1 - i if coupled else f(e)
            carry = forget * old + i * g(z)
            o = f(o if peep is None else layer.clip(o + peep[1] * carry))
            return [o * k(carry), carry]

        inputs = matmul(layer.x, transpose(w[d]))
        if b is not None:
            inputs = inputs + (b[d][: 4 * n] + b[d][4 * n :])
        states = [layer.state(h, d), layer.state(c, d)]
        if peep is None:
            y, (last, carry) = recurrent(
                cell, inputs, states, transpose(r[d]), None, mask, reverse
            )
        else:
            y, (last, carry) = _stepped(cell, inputs, states, transpose(r[d]), 4, mask, reverse)
        outputs.append(layer.hidden_past_end(y, mask))
        hs.append(last)
        cs.append(carry)
    return layer.results(outputs, hs, cs)


@operator("GRU")
def gru(
    call: Call, x: Array, w: Array, r: Array, b: Array | None = None,
    lengths: Array | None = None, h: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """Gates lie in the order z r h."""
    layer = _Layer(call, x, w, r, 3, ["Sigmoid", "Tanh"])
    n, mask = layer.units, layer.mask(lengths)
    after = bool(call.get("linear_before_reset"))
    outputs, finals = [], []
    for d, reverse in enumerate(layer.reverse):
        f, g = layer.functions(d)
        kernel = transpose(r[d])
        inputs = matmul(layer.x, transpose(w[d]))
        bias = None if b is None else b[d][3 * n :]
        if b is not None:
            inputs = inputs + b[d][: 3 * n]

        def cell(
            xs: list[Array], zs: list[Array], states: list[Array], f: Any = f, g: Any = g
        ) -> list[Array]:
            z, s = f(layer.clip(xs[0] + zs[0])), f(layer.clip(xs[1] + zs[1]))
            new = g(layer.clip(xs[2] + s * zs[2]))
            return [(1 - z) * new + z * states[0]]

        states = [layer.state(h, d)]
        if after:
            y, (last,) = recurrent(cell, inputs, states, kernel, bias, mask, reverse)
        else:
            y, last = _reset_first(
                layer, inputs, states[0], kernel, bias, f, g, mask, reverse
            )
        outputs.append(layer.hidden_past_end(y, mask))
        finals.append(last)
    return layer.results(outputs, finals)


def _reset_first(
    layer: _Layer, inputs: Array, h: Array, kernel: Array, bias: Array | None,
    f: Activation, g: Activation, mask: Array | None, reverse: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """A GRU whose reset gate comes before the product, two products a step."""
    n = layer.units
    if bias is not None:
        inputs = inputs + bias

    def step(carry: Any, slices: Any) -> Any:
        (old,), x = carry, slices[0]
        both = matmul(old, kernel[:, : 2 * n])
        z = f(layer.clip(x[:, :n] + both[:, :n]))
        s = f(layer.clip(x[:, n : 2 * n] + both[:, n:]))
        new = g(layer.clip(x[:, 2 * n :] + matmul(s * old, kernel[:, 2 * n :])))
        h = (1 - z) * new + z * old
        if mask is not None:
            h = pointwise.where(reshape_to(slices[1], (layer.batch, 1)), h, old)
        return [h], [h]

    xs = [inputs] if mask is None else [inputs, mask]
    (last,), (y,) = loop(step, [h], xs, reverse=reverse)
    return y, last


def _stepped(
    cell: Any, inputs: Array, states: list[Array], kernel: Array, gates: int,
    mask: Array | None, reverse: bool,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """`recurrent` for cells that read vectors of their own."""
    n = kernel.shape[0]

    def cut(x: Array) -> list[Array]:
        return [x[:, k * n : (k + 1) * n] for k in range(gates)]

    def step(carry: Any, slices: Any) -> Any:
        new = cell(cut(slices[0]), cut(matmul(carry[0], kernel)), carry)
        if mask is not None:
            valid = reshape_to(slices[1], (slices[1].size, 1))
            new = [pointwise.where(valid, a, b) for a, b in zip(new, carry)]
        return new, [new[0]]

    xs = [inputs] if mask is None else [inputs, mask]
    last, (y,) = loop(step, states, xs, reverse=reverse)
    return y, last

