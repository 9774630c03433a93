"""Automatic differentiation in reverse mode over array code.

Vjps are written in array code, so a tape that is active while another one
computes a gradient records that computation too: higher derivatives need
nothing more.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

from kerascl.core.array import Array, State, apply
from kerascl.core.batch import as_lanes, note
from kerascl.core.labels import GRADIENT
from kerascl.core.op import Kind, Op, register
from kerascl.core.scope import current

ALIAS = register(Op("alias", Kind.VIEW))

_arithmetic: dict[str, Callable] = {}


def install_arithmetic(
    add: Callable, zeros_like: Callable, ones_like: Callable, sum_to: Callable
) -> None:
    """Give the tape the few operations it needs; called by the ops room."""
    _arithmetic.update(add=add, zeros_like=zeros_like, ones_like=ones_like, sum_to=sum_to)


class GradientTape:
    """Records operations so that gradients can be taken.

    ```python
    with kerascl.GradientTape() as tape:
        loss = kerascl.mean((x @ w - y) ** 2)
    (dw,) = tape.gradient(loss, [w])
    ```

    Every differentiable operation inside the `with` block is recorded, so
    nothing has to be watched; `gradient` may be called inside the block (for
    higher derivatives, with another tape around) or after it, any number of
    times.
    """

    def __init__(self):
        self._records: list[tuple] = []
        self.lanes: tuple = ()  # inside which vmaps it records

    def __enter__(self) -> GradientTape:
        self.lanes = current.lanes
        current.tapes = (*current.tapes, self)
        return self

    def __exit__(self, *exception) -> None:
        current.tapes = tuple(tape for tape in current.tapes if tape is not self)

    def record(self, vjp: Callable, inputs: tuple, attrs: tuple, outputs) -> None:
        """Note one operation; `outputs` is an Array or a tuple of them."""
        self._records.append((vjp, inputs, attrs, outputs))

    @property
    def records(self) -> list[tuple]:
        """What was noted: (vjp, inputs, attributes, outputs), in order of execution."""
        return self._records

    def reset(self) -> None:
        """Forget everything recorded so far."""
        self._records.clear()

    def gradient(self, target, sources, output_gradients=None):
        """The gradient of `target` (summed over its elements) with respect to `sources`.

        Args:
            target: a floating Array, or a list of them.
            sources: an Array, a State, an object whose `value` is one of these, or a (nested)
                list, tuple or dict of them.
            output_gradients: like `target`: the gradient of some later loss
                with respect to it; ones by default.

        Returns:
            Gradients in the structure of `sources`; None where `target` does
            not depend on a source.

        Raises:
            TypeError: when `target` is not floating.
        """
        targets = list(target) if isinstance(target, list | tuple) else [target]
        if output_gradients is None:
            seeds = [None] * len(targets)
        elif isinstance(output_gradients, list | tuple):
            seeds = list(output_gradients)
        else:
            seeds = [output_gradients]
        flat: list[Array] = []
        structure = _flatten(sources, flat)
        with _without(self):
            results = backward(self._records, targets, seeds, flat)
        return structure(iter(results))


def _flatten(value, flat: list[Array]) -> Callable:
    """Append the arrays of a nested structure to `flat`; gives a function that rebuilds it."""
    if isinstance(value, dict):
        parts = {k: _flatten(v, flat) for k, v in value.items()}
        return lambda items: {k: part(items) for k, part in parts.items()}
    if isinstance(value, list | tuple):
        parts = [_flatten(v, flat) for v in value]
        kind = type(value)
        make = kind._make if hasattr(kind, "_make") else kind
        return lambda items: make([part(items) for part in parts])
    flat.append(as_source(value))
    return next


def as_source(value) -> Array:
    """The Array behind a source of differentiation."""
    while not isinstance(value, Array):
        inner = value.value if isinstance(value, State) else getattr(value, "_value", None)
        if inner is None:
            inner = getattr(value, "value", None)
        if inner is None:
            raise TypeError(f"cannot take a gradient with respect to {value!r}")
        value = inner
    return value


class _Deaf:
    """A tape that only counts as one."""

    lanes: tuple = ()

    def record(self, *args) -> None:
        """Forget it."""


def private_tapes(tapes: tuple) -> tuple[GradientTape, tuple]:
    """A new tape for a trace of its own, and the tapes to make active there.

    These are as many as `tapes`: how many there are says which order of derivative may be asked.
    """
    tape = GradientTape()
    return tape, (tape, *[_Deaf()] * (len(tapes) - 1)) if tapes else ()


@contextlib.contextmanager
def _without(tape: GradientTape):
    previous = current.tapes
    current.tapes = tuple(t for t in previous if t is not tape)
    try:
        yield
    finally:
        current.tapes = previous


@contextlib.contextmanager
def pause():
    """Operations inside are recorded on no tape."""
    previous, current.tapes = current.tapes, ()
    try:
        yield
    finally:
        current.tapes = previous


def backward(
    records: Sequence[tuple], targets: list[Array], seeds: list, sources: list[Array]
) -> list[Array | None]:
    """Gradients of `targets` for `sources`, from records in order of execution."""
    relevant = {id(x) for x in sources}
    path = []
    for record in records:
        if any(id(x) in relevant for x in record[1]):
            outputs = record[3]
            path.append(record)
            for y in outputs if type(outputs) is tuple else (outputs,):
                relevant.add(id(y))
    add, zeros_like, sum_to = (_arithmetic[name] for name in ("add", "zeros_like", "sum_to"))
    grads: dict[int, Array] = {}
    for target, seed in zip(targets, seeds, strict=True):
        if not (target.dtype.is_float or target.dtype.is_complex):
            raise TypeError(f"gradient: target has dtype {target.dtype.name}; it must be floating")
        seed = _arithmetic["ones_like"](target) if seed is None else seed
        known = grads.get(id(target))
        grads[id(target)] = seed if known is None else add(known, seed)
    wanted = {id(x) for x in sources}
    labels = current.labels
    before = labels.last if labels is not None else ""
    for vjp, inputs, attrs, outputs in reversed(path):
        if type(outputs) is tuple:
            found = [grads.get(id(y)) for y in outputs]
            if all(g is None for g in found):
                continue
            g = tuple(
                zeros_like(y) if d is None else d for d, y in zip(found, outputs, strict=True)
            )
        else:
            # an intermediate's gradient is complete here and never needed again
            key = id(outputs)
            g = grads.get(key) if key in wanted else grads.pop(key, None)
            if g is None:
                continue
        if labels is not None:
            first = outputs[0] if type(outputs) is tuple else outputs
            labels.mark(labels.at(first._node.serial) + GRADIENT)
        for x, d in zip(inputs, vjp(g, outputs, *inputs, *attrs), strict=False):
            if d is None or id(x) not in relevant:
                continue
            if d.shape != x.shape:  # constants of shape () broadcast without a node
                d = sum_to(d, x.shape)
            known = grads.get(id(x))
            grads[id(x)] = d if known is None else add(known, d)
    if labels is not None:
        labels.mark(before)
    return [grads.get(id(x)) for x in sources]


def stop_gradient(x: Array) -> Array:
    """`x` as a constant for differentiation."""
    return apply(ALIAS, (x,), (), x.shape, x.dtype)


def custom_gradient(function: Callable) -> Callable:
    """Replace the derivative of a function.

    `function(*args)` returns `(output, grad)`, where `output` is an Array or a
    tuple of Arrays and `grad(*upstream)` gives one gradient (or None) for each
    argument.
    """

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        tapes = current.tapes
        with pause():
            output, grad = function(*args, **kwargs)
        if not tapes:
            return output
        single = isinstance(output, Array)
        arrays, positions = [], []
        for position, arg in enumerate(args):
            if isinstance(arg, Array) or hasattr(arg, "_value") or isinstance(arg, State):
                arrays.append(as_source(arg))
                positions.append(position)

        # fresh handles: an output that is an input must not share its identity
        outputs = [stop_gradient(y) for y in ((output,) if single else output)]
        outputs = as_lanes(arrays, outputs)
        outputs = outputs[0] if single else tuple(outputs)

        def vjp(g, y, *inputs):
            upstream = (g,) if single else g
            results = grad(*upstream)
            if not isinstance(results, list | tuple):
                results = (results,)
            if len(results) == len(positions):
                return tuple(results)
            return tuple(results[p] if p < len(results) else None for p in positions)

        note(tapes, vjp, tuple(arrays), outputs)
        return outputs if single else (type(output)(outputs) if type(output) is list else outputs)

    return wrapped


def value_and_grad(function: Callable, argnums: int | Sequence[int] = 0, has_aux=False) -> Callable:
    """A function that gives `(function(*args), gradient)`.

    The gradient is with respect to argument `argnums` (a tuple of gradients
    for a sequence); an argument may be a nested structure of arrays.  With
    `has_aux` the function returns `(loss, anything)`.
    """

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with GradientTape() as tape:
            output = function(*args, **kwargs)
        loss = output[0] if has_aux else output
        single = isinstance(argnums, int)
        sources = [args[k] for k in ([argnums] if single else argnums)]
        grads = tape.gradient(loss, sources)
        return output, (grads[0] if single else tuple(grads))

    return wrapped


def grad(function: Callable, argnums: int | Sequence[int] = 0, has_aux=False) -> Callable:
    """The gradient of a function with a scalar result; see `value_and_grad`."""
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        output, gradient = both(*args, **kwargs)
        return (gradient, output[1]) if has_aux else gradient

    return wrapped
