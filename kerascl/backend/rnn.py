"""Recurrence over time: what Keras' recurrent layers call."""

from __future__ import annotations

from collections.abc import Callable

from keras.src import tree

from kerascl.backend.layer import hides_masked
from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.backend.ops.core import scan_steps
from kerascl.backend.tracing import ShapeTrace
from kerascl.core.array import Array
from kerascl.core.tape import pause
from kerascl.dtypes import bool_, int32
from kerascl.ops import recurrent
from kerascl.ops.control import is_zero
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import expand_dims, flip, transpose
from kerascl.ops.pointwise import where
from kerascl.ops.reduction import any as any_along
from kerascl.ops.scan import cumsum
from kerascl.ops.views import expand_to, reshape_to


def rnn(
    step_function: Callable,
    inputs,
    initial_states,
    go_backwards: bool = False,
    mask=None,
    constants=None,
    unroll: bool = False,
    input_length=None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
    return_all_outputs: bool = True,
):
    """Iterate `step_function(input, states) -> (output, new_states)` over the time axis.

    Args:
        step_function: sees one step of `inputs` (batch, …) and the states, followed by
            `constants`.
        inputs: nested Arrays of shape (batch, time, …), or (time, batch, …) with `time_major`.
        initial_states: nested Arrays.
        go_backwards: iterate from the last step; outputs come in that order.
        mask: bool (batch, time) or (batch, time, 1), or with time first; a masked step keeps the
            states and repeats the previous output (zeros before the first).
        constants: more Arrays passed to each step.
        unroll, input_length: of no effect; one form serves all, and lengths are always known.
        zero_output_for_mask: give zeros for masked steps instead.
        return_all_outputs: whether all outputs are needed; else `outputs` holds the last alone.

    Returns:
        (last output, outputs with time where `inputs` has it, last states).

    Raises:
        ValueError: when there are no time steps.
    """
    inputs = tree.map_structure(convert_to_tensor, inputs)
    states = tree.map_structure(convert_to_tensor, initial_states)
    constants = tuple(constants or ())
    if not time_major:
        inputs = tree.map_structure(_swap, inputs)
    length = tree.flatten(inputs)[0].shape[0]
    if not length:
        raise ValueError("a recurrent layer needs at least one time step")
    if go_backwards:
        inputs = tree.map_structure(lambda x: flip(x, 0), inputs)

    def step(x, states):
        y, new = step_function(x, (*states, *constants) if constants else states)
        new = [cast_to(convert_to_tensor(n), s.dtype)
               for n, s in zip(tree.flatten(new), tree.flatten(states), strict=True)]  # fmt: skip
        return convert_to_tensor(y), tree.pack_sequence_as(states, new)

    if mask is None:

        def body(carry, x):
            y, new = step(x, carry)
            return new, y

        states, outputs = scan_steps(body, states, inputs, length, False, return_all_outputs)
    else:
        mask = _time_mask(convert_to_tensor(mask), time_major, go_backwards)
        previous = full((), 0) if zero_output_for_mask else _no_output(step, inputs, states)

        def body(carry, x):
            (states, previous), (x, valid) = carry, x
            y, new = step(x, states)
            shown = where(_over(valid, y), y, 0 if zero_output_for_mask else previous)
            new = tree.map_structure(lambda n, s: where(_over(valid, n), n, s), new, states)
            return (new, previous if zero_output_for_mask else shown), shown

        (states, _), outputs = scan_steps(
            body, (states, previous), (inputs, mask), length, False, return_all_outputs
        )
    if return_all_outputs:
        last = outputs[-1]
    else:
        last, outputs = outputs, reshape_to(outputs, (1, *outputs.shape))
    return last, outputs if time_major else _swap(outputs), states


def _swap(x: Array) -> Array:
    return transpose(x, (1, 0, *range(2, x.ndim)))


def _time_mask(mask: Array, time_major: bool, backwards: bool) -> Array:
    """bool (time, batch), in the order of iteration."""
    mask = cast_to(mask, bool_)
    if mask.ndim > 2:
        mask = any_along(mask, tuple(range(2, mask.ndim)))
    if not time_major:
        mask = _swap(mask)
    return flip(mask, 0) if backwards else mask


def _over(valid: Array, x: Array) -> Array:
    """A mask (batch,) in the shape of `x` (batch, …)."""
    return expand_to(reshape_to(valid, (valid.shape[0], *[1] * (x.ndim - 1))), x.shape)


def _no_output(step: Callable, inputs, states) -> Array:
    with ShapeTrace(), pause():
        y, _ = step(tree.map_structure(lambda x: x[0], inputs), states)
    return full(y.shape, 0, y.dtype)


def cudnn_ok(*args, **kwargs) -> bool:
    """Whether cuDNN runs a recurrent layer; never here."""
    return False


def lstm(
    inputs,
    initial_state_h,
    initial_state_c,
    mask,
    kernel,
    recurrent_kernel,
    bias,
    activation: Callable,
    recurrent_activation: Callable,
    return_sequences: bool = False,
    go_backwards: bool = False,
    unroll: bool = False,
):
    """An LSTM over (batch, time, features): input products for all steps at once, then one launch.

    `mask` and what a masked step shows are as in `rnn`; whether it shows zeros is asked of the
    layer that calls.

    Returns:
        (last output, outputs in order of iteration, [h, c]), as `rnn`.

    Raises:
        ValueError: when there are no time steps.
    """
    x, h, c = _same_dtype(kernel, inputs, initial_state_h, initial_state_c)
    kernel, recurrent_kernel = _weight(kernel, x), _weight(recurrent_kernel, x)
    valid = None if mask is None else _time_mask(convert_to_tensor(mask), False, False)
    outputs, h_last, c_last = recurrent.lstm(
        x, h, c, kernel, recurrent_kernel, _weight(bias, x), activation, recurrent_activation,
        go_backwards, valid,
    )  # fmt: skip
    return _results(outputs, h, [h_last, c_last], valid, return_sequences, go_backwards)


def gru(
    inputs,
    initial_state,
    mask,
    kernel,
    recurrent_kernel,
    bias,
    activation: Callable,
    recurrent_activation: Callable,
    return_sequences: bool = False,
    go_backwards: bool = False,
    unroll: bool = False,
    reset_after: bool = True,
):
    """A GRU over (batch, time, features); see `lstm`.

    Raises:
        NotImplementedError: with the reset gate before the product; Keras then iterates its own
            cell with `rnn`.
    """
    if not reset_after:
        raise NotImplementedError
    x, h = _same_dtype(kernel, inputs, initial_state)
    kernel, recurrent_kernel = _weight(kernel, x), _weight(recurrent_kernel, x)
    bias = _weight(bias, x)
    first, second = (None, None) if bias is None else (bias[0], bias[1])
    valid = None if mask is None else _time_mask(convert_to_tensor(mask), False, False)
    outputs, h_last = recurrent.gru(
        x, h, kernel, recurrent_kernel, first, second, activation, recurrent_activation,
        go_backwards, valid,
    )  # fmt: skip
    return _results(outputs, h, [h_last], valid, return_sequences, go_backwards)


def _same_dtype(kernel, inputs, *states) -> list[Array]:
    x = convert_to_tensor(inputs)
    if not x.dtype.is_float:
        x = cast_to(x, convert_to_tensor(kernel).dtype)
    if not x.shape[1]:
        raise ValueError("a recurrent layer needs at least one time step")
    # Keras' GRU passes its one state in a list
    alone = [s[0] if isinstance(s, list | tuple) else s for s in states]
    return [x, *[convert_to_tensor(s, x.dtype) for s in alone]]


def _weight(w, x: Array) -> Array | None:
    return None if w is None else convert_to_tensor(w, x.dtype)


def _results(
    outputs: Array, initial: Array, states: list[Array], valid: Array | None, all_outputs: bool,
    backwards: bool,
):  # fmt: skip
    """What `rnn` returns, from the first state after each step (time, batch, units).

    A masked step repeats the output before it, which is zero until the first valid step, or shows
    zeros.
    """
    last = states[0]
    if valid is not None:
        if hides_masked():
            shown = valid
        elif is_zero(initial):
            shown = None
        else:
            shown = cumsum(valid, 0, int32, reverse=backwards) > 0
        if shown is not None:
            outputs = where(expand_to(expand_dims(shown, 2), outputs.shape), outputs, 0)
            last = outputs[0 if backwards else -1]
    if not all_outputs:
        return last, reshape_to(last, (last.shape[0], 1, *last.shape[1:])), states
    return last, _swap(flip(outputs, 0) if backwards else outputs), states


def bidirectional_lstm(
    inputs, fwd_initial_state_h, fwd_initial_state_c, bwd_initial_state_h, bwd_initial_state_c,
    mask, fwd_kernel, fwd_recurrent_kernel, fwd_bias, bwd_kernel, bwd_recurrent_kernel, bwd_bias,
    activation: Callable, recurrent_activation: Callable, return_sequences: bool = False,
    unroll: bool = False,
):  # fmt: skip
    """Two LSTMs in opposite directions over (batch, time, features); see `lstm`.

    Returns:
        `lstm`'s results of each; the second one's outputs too are in the order of the inputs.
    """
    common = activation, recurrent_activation, return_sequences
    forward = lstm(
        inputs, fwd_initial_state_h, fwd_initial_state_c, mask, fwd_kernel, fwd_recurrent_kernel,
        fwd_bias, *common,
    )  # fmt: skip
    backward = lstm(
        inputs, bwd_initial_state_h, bwd_initial_state_c, mask, bwd_kernel, bwd_recurrent_kernel,
        bwd_bias, *common, go_backwards=True,
    )  # fmt: skip
    return forward, _in_order(backward, return_sequences)


def bidirectional_gru(
    inputs, fwd_initial_state, bwd_initial_state, mask, fwd_kernel, fwd_recurrent_kernel, fwd_bias,
    bwd_kernel, bwd_recurrent_kernel, bwd_bias, activation: Callable,
    recurrent_activation: Callable, return_sequences: bool = False, unroll: bool = False,
    reset_after: bool = True,
):  # fmt: skip
    """Two GRUs in opposite directions; see `bidirectional_lstm` and `gru`."""
    common = {"return_sequences": return_sequences, "reset_after": reset_after}
    forward = gru(
        inputs, fwd_initial_state, mask, fwd_kernel, fwd_recurrent_kernel, fwd_bias, activation,
        recurrent_activation, **common,
    )  # fmt: skip
    backward = gru(
        inputs, bwd_initial_state, mask, bwd_kernel, bwd_recurrent_kernel, bwd_bias, activation,
        recurrent_activation, go_backwards=True, **common,
    )  # fmt: skip
    return forward, _in_order(backward, return_sequences)


def _in_order(results, all_outputs: bool):
    last, outputs, states = results
    return last, flip(outputs, 1) if all_outputs else outputs, states
