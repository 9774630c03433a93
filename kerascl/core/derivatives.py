"""Derivatives of functions: what a tape around a call gives, as functions of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from kerascl.core.array import Array
from kerascl.core.context import P, R
from kerascl.core.node import Node
from kerascl.core.tape import (
    GradientTape,
    another,
    as_source,
    flatten_sources,
    from_number,
    ones_like,
)


class _Sources:
    """The arguments that a function is differentiated by.

    It gets Arrays of its own in their place: what it reads from outside is constant, also where
    that is the same Array, and elements that it assigns change nothing outside.
    """

    def __init__(self, name: str, args: tuple[Any, ...], argnums: int | Sequence[int]):
        self._name = name
        self._single = isinstance(argnums, int)
        numbers = [argnums] if isinstance(argnums, int) else list(argnums)
        self._leaves: list[Any] = []
        self._rebuilds: list[Callable[[Iterator[Any]], Any]] = []
        self.args = list(args)
        for k in numbers:
            try:
                argument = args[k]
            except IndexError:
                raise TypeError(
                    f"{name}: argnums names argument {k}, but the function was called with "
                    f"{len(args)} positional arguments"
                ) from None
            first = len(self._leaves)
            rebuild = flatten_sources(argument, self._leaves, self._own)
            self._rebuilds.append(rebuild)
            self.args[k] = rebuild(iter(self._leaves[first:]))
        self._nodes = [x._node if isinstance(x, Array) else None for x in self._leaves]

    def _own(self, value: Any) -> Any:
        if isinstance(value, Array):
            return another(value)
        if isinstance(value, bool | int):
            raise TypeError(
                f"{self._name}: an argument is the integer {value!r}, which has no derivative; "
                f"pass {float(value)!r}"
            )
        if isinstance(value, float | complex) or hasattr(value, "__array_interface__"):
            return another(from_number(value))
        as_source(value)
        return value

    def arrays(self) -> list[Array]:
        """The Arrays as they were handed over, whatever was assigned to their elements since."""
        return [
            as_source(x) if node is None else _held(node)
            for x, node in zip(self._leaves, self._nodes, strict=True)
        ]

    def rebuild(self, found: Sequence[Any]) -> Any:
        """One result for each source, in the structure of the arguments."""
        items = iter(found)
        results = [rebuild(items) for rebuild in self._rebuilds]
        return results[0] if self._single else tuple(results)


def _held(node: Node) -> Array:
    array = None if node.handle is None else node.handle()
    return Array(node) if array is None else array


def value_and_grad(
    function: Callable[P, R], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """A function that gives `(function(*args), gradient)`.

    ```python
    loss, slope = kerascl.value_and_grad(lambda w: kerascl.sum(w**2))(w)
    ```

    Args:
        function: its result is a floating Array, of which the sum counts.
        argnums: the argument to differentiate by, or several: an Array, a State, a float, or a
            nested structure of these.  What the function reads from elsewhere is constant.
        has_aux: whether the function returns `(loss, anything)`.

    Returns:
        The function's result, and the gradient in the structure of the argument (a tuple of these
        for several `argnums`): Arrays of the arguments' shapes, None where the loss does not
        depend on one.

    Raises:
        TypeError: from the call, for integer arguments and results that are not floating.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Any]:
        sources = _Sources("grad", args, argnums)
        with GradientTape() as tape:
            output = cast(Callable[..., R], function)(*sources.args, **kwargs)
        loss = cast(Any, output)[0] if has_aux else output
        return output, sources.rebuild(tape.gradient(loss, sources.arrays()))

    return wrapped


def grad(
    function: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, Any]:
    """The gradient of a function with a scalar result.

    ```python
    kerascl.grad(lambda x: x**2)(3.0)                # 6
    kerascl.grad(kerascl.grad(lambda x: x**3))(2.0)  # 12
    ```

    Args:
        function, argnums, has_aux: see `value_and_grad`.

    Returns:
        A function that gives the gradient, or `(gradient, anything)` with `has_aux`.

    Raises:
        TypeError: as `value_and_grad`.
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        output, gradient = both(*args, **kwargs)
        return (gradient, cast(Any, output)[1]) if has_aux else gradient

    return wrapped


def jacobian(function: Callable[P, Any], argnums: int | Sequence[int] = 0) -> Callable[P, Any]:
    """The derivative of each element of a function's result by each element of an argument.

    ```python
    kerascl.jacobian(kerascl.sin)(x)   # diag(cos(x)) for a vector x
    ```

    It is computed in reverse mode, all rows at once.

    Args:
        function: gives a floating Array.
        argnums: see `value_and_grad`.

    Returns:
        A function that gives an Array of shape `result.shape + argument.shape` in the structure of
        the argument (a tuple of these for several `argnums`); zeros where nothing depends on it.

    Raises:
        TypeError: as `value_and_grad`.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        sources = _Sources("jacobian", args, argnums)
        with GradientTape() as tape:
            output = cast(Callable[..., Any], function)(*sources.args, **kwargs)
        return sources.rebuild(tape.jacobian(output, sources.arrays(), "zero"))

    return wrapped


def hessian(function: Callable[P, Any], argnums: int = 0) -> Callable[P, Any]:
    """The second derivatives of a function with a scalar result.

    ```python
    kerascl.hessian(lambda x: kerascl.sum(x**3))(x)   # diag(6 * x) for a vector x
    ```

    Args:
        function: gives a floating Array of one element.
        argnums: the argument to differentiate by, an Array.

    Returns:
        A function that gives an Array of shape `argument.shape + argument.shape`.

    Raises:
        TypeError: as `value_and_grad`.
    """
    return jacobian(jacobian(function, argnums), argnums)


def vjp(
    function: Callable[..., Any], *primals: Any
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """A function's result, and what carries a gradient of it back to its arguments.

    ```python
    y, back = kerascl.vjp(kerascl.sin, x)
    (dx,) = back(dy)                       # cos(x) * dy
    ```

    Args:
        function: gives a floating Array, or a nested structure of them.
        primals: its arguments: Arrays, floats, or nested structures of them.

    Returns:
        `function(*primals)`, and `back(upstream)`, which takes something like the result and gives
        a tuple of gradients, one like each argument; it may be called often.

    Raises:
        TypeError: for integer arguments and results that are not floating.
    """
    sources = _Sources("vjp", primals, tuple(range(len(primals))))
    with GradientTape(persistent=True) as tape:
        output = function(*sources.args)
    arrays = sources.arrays()

    def back(upstream: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = sources.rebuild(tape.gradient(output, arrays, upstream, "zero"))
        return found

    return output, back


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """A function's result, and its derivative in the direction of `tangents`.

    ```python
    y, dy = kerascl.jvp(kerascl.sin, (x,), (dx,))   # dy = cos(x) * dx
    ```

    It is computed in reverse mode, twice: the gradient is linear in what flows back, and its
    derivative by that is the one sought.

    Args:
        function: gives a floating Array.
        primals: its arguments: Arrays or floats.
        tangents: a direction for each argument, of its shape.

    Returns:
        `function(*primals)`, and an Array of its shape.

    Raises:
        TypeError: for integer arguments and results that are not floating.
        ValueError: when there are not as many tangents as primals, or shapes differ.
    """
    directions = [from_number(t) for t in tangents]
    if len(directions) != len(primals):
        raise ValueError(f"jvp: there are {len(directions)} tangents for {len(primals)} primals")
    sources = _Sources("jvp", tuple(primals), tuple(range(len(primals))))
    with GradientTape() as outer:
        with GradientTape() as inner:
            output = function(*sources.args)
        arrays = sources.arrays()
        for k, (x, t) in enumerate(zip(arrays, directions, strict=True)):
            if x.shape != t.shape:
                raise ValueError(f"jvp: tangent {k} has shape {t.shape}, its primal {x.shape}")
        seed = another(ones_like(output))
        back = inner.gradient(output, arrays, seed, "zero")
    return output, outer.gradient(back, seed, directions, "zero")
