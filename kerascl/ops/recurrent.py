"""Recurrent layers: the input's products for all steps at once, then the recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerascl.core.array import Array
from kerascl.core.context import current
from kerascl.core.tape import GradientTape, custom_gradient
from kerascl.core.types import Gradients
from kerascl.ops.contraction import matmul
from kerascl.ops.control import loop
from kerascl.ops.declare import scalar
from kerascl.ops.movement import concatenate, expand_dims, transpose
from kerascl.ops.pointwise import add, where
from kerascl.ops.recurrence import Cell, recurrence
from kerascl.ops.reduction import sum
from kerascl.ops.views import expand_to, reshape_to


def recurrent(
    cell: Cell,
    inputs: Array,
    states: list[Array],
    kernel: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    reverse: bool = False,
) -> tuple[Array, list[Array]]:
    """Run `states = cell(inputs[t], states[0] @ kernel + bias, states)` over t.

    One launch does it where `recurrence` serves; otherwise a loop launches the body of each step.
    The kernel's gradient is one product over all steps in any case (Appleyard, Kocisky and
    Blunsom, 2016, https://arxiv.org/abs/1604.01946).

    Args:
        cell: elementwise code from (steps' inputs, recurrent product, states) to new states; the
            first two are lists of gates.
        inputs: (time, batch, gates * units).
        states: each (batch, units); the first one enters the product.
        kernel: (units, gates * units).
        bias: (gates * units,), added to the product.
        mask: bool (time, batch); a step that is not valid keeps the states.
        reverse: from the last step to the first.

    Returns:
        The first state after each step (time, batch, units), and the final states.
    """
    found = recurrence(cell, inputs, states, kernel, bias, mask, reverse)
    if found is None:
        found = _loop(cell, inputs, states, kernel, bias, mask, reverse)
    return found


def _loop(
    cell: Cell,
    inputs: Array,
    states: list[Array],
    kernel: Array,
    bias: Array | None,
    mask: Array | None,
    reverse: bool,
) -> tuple[Array, list[Array]]:
    count, gates = len(states), inputs.shape[-1] // kernel.shape[0]
    shift = [] if bias is None else [bias]
    valid = [] if mask is None else [mask]

    def product(h: Array, w: Array, b: list[Array]) -> Array:
        z = matmul(h, w)
        return add(z, b[0]) if b else z

    def run_cell(x: Array, z: Array, now: list[Array], valid: list[Array]) -> list[Array]:
        new = cell(_parts(x, gates), _parts(z, gates), now)
        if not valid:
            return new
        over = expand_to(expand_dims(valid[0], 1), now[0].shape)
        return [where(over, n, s) for n, s in zip(new, now, strict=True)]

    if len(current.tapes) != 1:  # none, or a second derivative may be wanted

        def plain(now: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
            x, *valid = slices
            new = run_cell(x, product(now[0], kernel, shift), now, valid)
            return new, [new[0]]

        final, (outputs,) = loop(plain, states, [inputs, *valid], reverse=reverse)
        return outputs, final

    def forward(now: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        x, *valid = slices
        z = product(now[0], kernel, shift)
        new = run_cell(x, z, now, valid)
        return new, [*new, z]

    @custom_gradient
    def run(inputs: Array, kernel: Array, *rest: Array) -> tuple[Any, Callable[..., Gradients]]:
        initial = list(rest[:count])
        final, streamed = loop(forward, initial, [inputs, *valid], reverse=reverse)
        saved, products = streamed[:count], streamed[count]
        before = [_shifted(s, i, reverse) for s, i in zip(saved, initial, strict=True)]

        def gradient(*upstream: Array) -> Gradients:
            d_outputs, d_final = upstream[0], list(upstream[1:])

            def step(carry: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
                d_out, x, z, *rest = slices
                past, valid = rest[:count], rest[count:]
                carry = [add(carry[0], d_out), *carry[1:]]
                with GradientTape() as tape:
                    new = run_cell(x, z, past, valid)
                grads = tape.gradient(new, [x, z, *past], carry)
                grads = [_or_zeros(g, t) for g, t in zip(grads, [x, z, *past], strict=True)]
                d_x, d_z, *d_past = grads
                d_past[0] = add(d_past[0], matmul(d_z, transpose(kernel)))
                return d_past, [d_x, d_z]

            d_initial, (d_inputs, d_products) = loop(
                step, d_final, [d_outputs, inputs, products, *before, *valid], reverse=not reverse
            )
            steps = inputs.shape[0] * inputs.shape[1]
            flat_h = reshape_to(before[0], (steps, kernel.shape[0]))
            flat_z = reshape_to(d_products, (steps, kernel.shape[1]))
            d_kernel = matmul(transpose(flat_h), flat_z)
            d_bias = [sum(flat_z, 0)] if shift else []
            return (d_inputs, d_kernel, *d_initial, *d_bias)

        return (saved[0], *final), gradient

    outputs, *final = run(inputs, kernel, *states, *shift)
    return outputs, final


def _shifted(saved: Array, initial: Array, reverse: bool) -> Array:
    """The state before each step."""
    first = expand_dims(initial, 0)
    if reverse:
        return concatenate([saved[1:], first], 0)
    return concatenate([first, saved[:-1]], 0)


def _or_zeros(g: Array | None, x: Array) -> Array:
    return expand_to(scalar(0, x.dtype), x.shape) if g is None else g


def _parts(x: Array, count: int) -> list[Array]:
    units = x.shape[-1] // count
    return [x[..., k * units : (k + 1) * units] for k in range(count)]


def _gates(inputs: Array, kernel: Array, bias: Array | None) -> Array:
    """(batch, time, features) to (time, batch, gates)."""
    z = matmul(transpose(inputs, (1, 0, 2)), kernel)
    return z if bias is None else add(z, bias)


def lstm(
    inputs: Array,
    h: Array,
    c: Array,
    kernel: Array,
    recurrent_kernel: Array,
    bias: Array | None,
    activation: Callable[..., Any],
    recurrent_activation: Callable[..., Any],
    reverse: bool = False,
    mask: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), gates in Keras' order i f c o.

    Args:
        inputs: (batch, time, features); h, c: (batch, units).
        kernel: (features, 4 units); recurrent_kernel: (units, 4 units); bias: (4 units,).
        mask: bool (time, batch); a step that is not valid keeps the states.

    Returns:
        Outputs (time, batch, units) in the order of the inputs, and the final h and c.
    """

    def cell(x: list[Array], z: list[Array], states: list[Array]) -> list[Array]:
        i, f, g, o = (add(a, b) for a, b in zip(x, z, strict=True))
        carry = recurrent_activation(f) * states[1] + recurrent_activation(i) * activation(g)
        return [recurrent_activation(o) * activation(carry), carry]

    gates = _gates(inputs, kernel, bias)
    outputs, (h, c) = recurrent(cell, gates, [h, c], recurrent_kernel, None, mask, reverse)
    return outputs, h, c


def gru(
    inputs: Array,
    h: Array,
    kernel: Array,
    recurrent_kernel: Array,
    bias: Array | None,
    recurrent_bias: Array | None,
    activation: Callable[..., Any],
    recurrent_activation: Callable[..., Any],
    reverse: bool = False,
    mask: Array | None = None,
) -> tuple[Array, Array]:
    """Gated recurrent unit with the reset gate after the product (Cho et al., 2014; cuDNN's form).

    Args:
        inputs: (batch, time, features); h: (batch, units).
        kernel: (features, 3 units), gates in Keras' order z r h.
        recurrent_kernel: (units, 3 units).
        bias, recurrent_bias: (3 units,).
        mask: bool (time, batch); a step that is not valid keeps the state.

    Returns:
        Outputs (time, batch, units) in the order of the inputs, and the final h.
    """

    def cell(x: list[Array], w: list[Array], states: list[Array]) -> list[Array]:
        (x_z, x_r, x_h), (w_z, w_r, w_h) = x, w
        z = recurrent_activation(x_z + w_z)
        r = recurrent_activation(x_r + w_r)
        new = activation(x_h + r * w_h)
        return [z * states[0] + (1 - z) * new]

    gates = _gates(inputs, kernel, bias)
    outputs, (h,) = recurrent(cell, gates, [h], recurrent_kernel, recurrent_bias, mask, reverse)
    return outputs, h
