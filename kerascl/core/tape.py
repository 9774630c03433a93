"""Automatic differentiation in reverse mode over array code.

Vjps are written in array code, so a tape that is active while another one
computes a gradient records that computation too: higher derivatives need
nothing more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from kerascl.core.array import Array, State, apply
from kerascl.core.batch import as_batched, note
from kerascl.core.context import P, R, current
from kerascl.core.holders import enrol
from kerascl.core.labels import GRADIENT
from kerascl.core.node import new_serial
from kerascl.core.op import Kind, Op, register
from kerascl.core.types import Attrs, Gradients, Outputs, Shape, Tape, Vjp

ALIAS = register(Op("alias", Kind.VIEW))

_arithmetic: dict[str, Callable[..., Any]] = {}

# (vjp, inputs, attributes, outputs)
Record: TypeAlias = tuple[Vjp, tuple[Array, ...], Attrs, Outputs]


def install_arithmetic(**operations: Callable[..., Any]) -> None:
    """Give the tape the few operations it needs; called by the ops room."""
    _arithmetic.update(operations)


class GradientTape:
    """Records operations so that gradients can be taken.

    ```python
    with kerascl.GradientTape() as tape:
        loss = kerascl.mean((x @ w - y) ** 2)
    (dw,) = tape.gradient(loss, [w])
    ```

    Every differentiable operation inside the `with` block is recorded, whatever it reads: arrays,
    States, Keras variables, trainable or not. Nothing has to be watched. Gradients are taken after
    the block, or inside it, for higher derivatives with another tape around. Where elements of a
    source were assigned, `x[key] = value`, its gradient is that of the value that it has at the
    end of the block.

    Args:
        persistent: whether more than one `gradient`, `jacobian` or `batch_jacobian` may be asked
            for. Without, the first forgets what was recorded, which frees the memory.
        watch_accessed_variables: False gives None for sources that neither were watched nor
            depend on what was.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True):
        self._records: list[Record] = []
        self._persistent = persistent
        self._watched: list[Array] | None = None if watch_accessed_variables else []
        self._spent = False
        self._open = False
        # sources whose elements were assigned after the block, with what they were at its end
        self._moved: dict[int, tuple[Array, Array]] = {}
        self.tracers: tuple[Any, ...] = ()  # inside which vmaps it records
        enrol(self)

    def __enter__(self) -> GradientTape:
        if any(tape is self for tape in current.tapes):
            raise ValueError("this tape is recording already")
        self.tracers = current.tracers
        current.tapes = (*current.tapes, self)
        self._open = True
        self._moved = {}
        return self

    def __exit__(self, *exception: object) -> None:
        current.tapes = tuple(tape for tape in current.tapes if tape is not self)
        self._open = False

    def swap(self, array: Array, other: Array) -> None:
        """Hold `other` where `array` stood; see `core.holders`."""
        found = swap_records(self._records, array, other)
        if self._watched is not None:
            self._watched = [other if x is array else x for x in self._watched]
        if found and not self._open:
            self._moved.setdefault(id(array), (array, other))

    def record(self, vjp: Vjp, inputs: tuple[Array, ...], attrs: Attrs, outputs: Outputs) -> None:
        """Note one operation; `outputs` is an Array or a tuple of them."""
        if not self._spent:
            self._records.append((vjp, inputs, attrs, outputs))

    @property
    def records(self) -> list[Record]:
        """What was noted: (vjp, inputs, attributes, outputs), in order of execution."""
        return self._records

    def watch(self, tensor: Any) -> None:
        """Say that gradients for `tensor` will be asked; needed with
        `watch_accessed_variables=False` only.

        Args:
            tensor: an Array, a State, a Keras variable, or a nested structure of them.

        Raises:
            TypeError: for something else, and for arrays that are not floating.
        """
        flat: list[Array] = []
        flatten_sources(tensor, flat)
        for x in flat:
            if not (x.dtype.is_float or x.dtype.is_complex):
                raise TypeError(f"watch: an array has dtype {x.dtype.name}; it must be floating")
        if self._watched is not None:
            self._watched += flat

    def stop_recording(self) -> AbstractContextManager[None]:
        """A block whose operations are not recorded on this tape."""
        return _without(self)

    def reset(self) -> None:
        """Forget everything recorded and watched so far."""
        self._records = []
        self._spent = False
        if self._watched is not None:
            self._watched = []

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = "none",
    ) -> Any:
        """The gradient of `target` (summed over its elements) with respect to `sources`.

        Args:
            target: a floating Array, or a (nested) list, tuple or dict of them.
            sources: an Array, a State, a Keras variable or other object whose `value` is one of
                these, or a (nested) list, tuple or dict of them.
            output_gradients: like `target`: the gradient of some later loss
                with respect to it; ones by default, also where an entry is None.
            unconnected_gradients: what a source gets that `target` does not depend on: "none"
                or "zero".

        Returns:
            Gradients in the structure of `sources`.

        Raises:
            TypeError: when `target` is not floating.
            ValueError: for another `unconnected_gradients`, and when `output_gradients` has not
                as many entries as `target`.
            RuntimeError: when gradients were taken before and the tape is not persistent.
        """
        zero = _zero_wanted(unconnected_gradients)
        targets: list[Array] = []
        flatten_sources(target, targets)
        if output_gradients is None:
            seeds: list[Array | None] = [None] * len(targets)
        else:
            seeds = []
            flatten_sources(output_gradients, seeds, lambda x: None if x is None else as_source(x))
            if len(seeds) != len(targets):
                raise ValueError(
                    f"output_gradients has {len(seeds)} entries for {len(targets)} targets"
                )
        flat: list[Array] = []
        structure = flatten_sources(sources, flat)
        with _without(self):
            results = self._backward(targets, seeds, flat)
            self._spend()
            return structure(iter(_filled(results, flat, zero)))

    def jacobian(self, target: Any, sources: Any, unconnected_gradients: Any = "none") -> Any:
        """The derivative of each element of `target` by each element of `sources`.

        Args:
            target: a floating Array.
            sources, unconnected_gradients: as for `gradient`.

        Returns:
            For each source an array of shape `target.shape + source.shape`, in the structure of
            `sources`.

        Raises:
            TypeError, ValueError, RuntimeError: as `gradient`.
        """
        zero = _zero_wanted(unconnected_gradients)
        target = as_source(target)
        flat: list[Array] = []
        structure = flatten_sources(sources, flat)
        with _without(self):
            rows = self._rows(target, flat, target.size, target.shape)
            found = [None if g is None else g.reshape((*target.shape, *x.shape))
                     for g, x in zip(rows, flat, strict=True)]  # fmt: skip
            self._spend()
            return structure(iter(_filled(found, flat, zero, target.shape)))

    def batch_jacobian(
        self, target: Any, source: Any, unconnected_gradients: Any = "none"
    ) -> Array | None:
        """The jacobian of each row of `target` by the same row of `source`.

        Args:
            target: a floating Array of shape (batch, …) whose rows depend on no other rows of
                `source`.
            source: an Array, State or Keras variable of shape (batch, …).
            unconnected_gradients: as for `gradient`.

        Returns:
            An array of shape `target.shape + source.shape[1:]`.

        Raises:
            TypeError, ValueError, RuntimeError: as `gradient`; ValueError when the batches differ.
        """
        zero = _zero_wanted(unconnected_gradients)
        target, source = as_source(target), as_source(source)
        if not target.ndim or not source.ndim or target.shape[0] != source.shape[0]:
            raise ValueError(
                "batch_jacobian: target and source must have the same first dimension, but have "
                f"shapes {target.shape} and {source.shape}"
            )
        inner = target.shape[1:]
        shape = (*target.shape, *source.shape[1:])
        with _without(self):
            (rows,) = self._rows(target, [source], math.prod(inner), (1, *inner))
            if rows is not None:
                rows = _arithmetic["moveaxis"](rows, 0, 1)
                rows = rows.reshape(shape)
            self._spend()
            if rows is None and zero:
                rows = _arithmetic["zeros"](shape, source.dtype)
        return rows

    def _backward(
        self, targets: list[Array], seeds: Sequence[Array | None], sources: list[Array]
    ) -> list[Array | None]:
        if self._spent:
            raise RuntimeError(
                "this tape's gradients were taken before, and what it recorded was forgotten; "
                "use kerascl.GradientTape(persistent=True) to take several"
            )
        sources = [self._moved[id(x)][1] if id(x) in self._moved else x for x in sources]
        targets = [self._moved[id(x)][1] if id(x) in self._moved else x for x in targets]
        found = backward(self._records, targets, seeds, sources)
        if self._watched is not None:
            known = _downstream(self._records, self._watched)
            found = [g if id(x) in known else None for g, x in zip(found, sources, strict=True)]
        return found

    def _rows(
        self, target: Array, sources: list[Array], count: int, shape: Shape
    ) -> list[Array | None]:
        """Gradients of `count` elements of `target` (in every place of its axes of 1 in `shape`),
        along a new first axis; None as `gradient`."""
        if not count:
            return [None] * len(sources)
        seeds = _arithmetic["eye"](count, target.dtype).reshape((count, *shape))

        def row(seed: Array) -> list[Array | None]:
            if seed.shape != target.shape:
                seed = _arithmetic["expand_to"](seed, target.shape)
            return self._backward([target], [seed], sources)

        rows: list[Array | None] = _arithmetic["vmap"](row)(seeds)
        return rows

    def _spend(self) -> None:
        if not self._persistent:
            self._spent = True
            self._records = []


def _zero_wanted(unconnected_gradients: Any) -> bool:
    chosen: str = getattr(unconnected_gradients, "value", unconnected_gradients)
    if chosen not in ("none", "zero"):
        raise ValueError(
            f"unconnected_gradients must be 'none' or 'zero', not {unconnected_gradients!r}"
        )
    return chosen == "zero"


def _filled(
    found: list[Array | None], sources: list[Array], zero: bool, lead: Shape = ()
) -> list[Array | None]:
    """Gradients, with zeros of shape `lead + source.shape` for those that are None, if wanted."""
    if not zero:
        return found
    zeros = _arithmetic["zeros"]
    return [
        zeros((*lead, *x.shape), x.dtype) if g is None else g
        for g, x in zip(found, sources, strict=True)
    ]


def _downstream(records: list[Record], roots: list[Array]) -> set[int]:
    """The ids of `roots` and of all that was computed from them."""
    known = {id(x) for x in roots}
    for _, inputs, _, outputs in records:
        if any(id(x) in known for x in inputs):
            known |= {id(y) for y in (outputs if type(outputs) is tuple else (outputs,))}
    return known


def flatten_sources(
    value: Any, flat: list[Any], leaf: Callable[[Any], Any] | None = None
) -> Callable[[Iterator[Any]], Any]:
    """Append the arrays of a nested structure to `flat`; gives a function that rebuilds it."""
    if isinstance(value, dict):
        parts = {k: flatten_sources(v, flat, leaf) for k, v in value.items()}
        return lambda items: {k: part(items) for k, part in parts.items()}
    if isinstance(value, list | tuple):
        rebuilds = [flatten_sources(v, flat, leaf) for v in value]
        kind = type(value)
        make = kind._make if hasattr(kind, "_make") else kind
        return lambda items: make([rebuild(items) for rebuild in rebuilds])
    flat.append((leaf or as_source)(value))
    return next


def from_number(value: Any) -> Array:
    """An Array from what is none: a number, or an array of NumPy."""
    array: Array = _arithmetic["as_array"](value)
    return array


def ones_like(x: Array) -> Array:
    """Ones of an Array's shape and dtype."""
    array: Array = _arithmetic["ones_like"](x)
    return array


def as_source(value: Any) -> Array:
    """The Array behind a source of differentiation."""
    while not isinstance(value, Array):
        inner = value.value if isinstance(value, State) else getattr(value, "_value", None)
        if inner is None:
            inner = getattr(value, "value", None)
        if inner is None:
            raise TypeError(f"cannot take a gradient with respect to {value!r}")
        value = inner
    return value


def swap_records(records: list[Record], array: Array, other: Array) -> bool:
    """Put `other` wherever `array` stands in records; gives whether it stood there."""
    found = False

    def changed(x: Array) -> Array:
        return other if x is array else x

    for k, (vjp, inputs, attrs, outputs) in enumerate(records):
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        if any(x is array for x in (*inputs, *several)):
            made = tuple(map(changed, several))
            now = made if isinstance(outputs, tuple) else made[0]
            records[k] = (vjp, tuple(map(changed, inputs)), attrs, now)
            found = True
    return found


class NullTape:
    """A tape that only counts as one."""

    tracers: tuple[Any, ...] = ()

    def record(self, *args: Any) -> None:
        """Forget it."""


def private_tapes(tapes: Sequence[Tape]) -> tuple[GradientTape, tuple[Tape, ...]]:
    """A new tape for a trace of its own, and the tapes to make active there.

    These are as many as `tapes`: how many there are says which order of derivative may be asked.
    """
    tape = GradientTape()
    return tape, (tape, *[NullTape()] * (len(tapes) - 1)) if tapes else ()


def _without(tape: GradientTape) -> AbstractContextManager[None]:
    return current.replaced(tapes=tuple(t for t in current.tapes if t is not tape))


def pause() -> AbstractContextManager[None]:
    """A block whose operations are recorded on no tape."""
    return current.replaced(tapes=())


def backward(
    records: Sequence[Record],
    targets: list[Array],
    seeds: Sequence[Array | None],
    sources: list[Array],
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
            g: Any = tuple(
                zeros_like(y) if d is None else d for d, y in zip(found, outputs, strict=True)
            )
        else:
            # an intermediate's gradient is complete here and never needed again
            key = id(outputs)
            g = grads.get(key) if key in wanted else grads.pop(key, None)
            if g is None:
                continue
        if labels is not None:
            first = outputs[0] if isinstance(outputs, tuple) else outputs
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


def another(x: Array) -> Array:
    """`x` as another Array with the same derivative: elements assigned to one stay as they are in
    the other."""
    y = stop_gradient(x)
    if current.tapes:
        note(current.tapes, lambda g, y, x: (g,), (x,), y)
    return y


def distinct(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose results are new Arrays, also where it gives back what it was given."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        start = new_serial()
        result = function(*args, **kwargs)
        if isinstance(result, list | tuple):
            return type(result)([_fresh(x, start) for x in result])
        return _fresh(result, start)

    return wrapped


def _fresh(x: Any, start: int) -> Any:
    return another(x) if isinstance(x, Array) and x._node.serial < start else x


def custom_gradient(
    function: Callable[P, tuple[R, Callable[..., Any]]],
) -> Callable[P, R]:
    """Replace the derivative of a function.

    `function(*args)` returns `(output, grad)`, where `output` is an Array or a
    tuple of Arrays and `grad(*upstream)` gives one gradient (or None) for each
    argument.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tapes = current.tapes
        with pause():
            output, grad = function(*args, **kwargs)
        if not tapes:
            return output
        single = isinstance(output, Array)
        arrays: list[Array] = []
        positions = []
        for position, arg in enumerate(args):
            if isinstance(arg, Array) or hasattr(arg, "_value") or isinstance(arg, State):
                arrays.append(as_source(arg))
                positions.append(position)

        # fresh handles: an output that is an input must not share its identity
        given: Any = (output,) if single else output
        fresh = as_batched(arrays, [stop_gradient(y) for y in given])
        outputs = fresh[0] if single else tuple(fresh)

        def vjp(g: Any, y: Outputs, *inputs: Array) -> Gradients:
            upstream = (g,) if single else g
            results = grad(*upstream)
            if not isinstance(results, list | tuple):
                results = (results,)
            if len(results) == len(positions):
                return tuple(results)
            return tuple(results[p] if p < len(results) else None for p in positions)

        note(tapes, vjp, tuple(arrays), outputs)
        return list(fresh) if type(output) is list else outputs

    return wrapped
