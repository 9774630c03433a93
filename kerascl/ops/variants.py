"""Which variant of a user's kernel is the fastest: checked against the first, then timed."""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from kerascl.core.array import Array
from kerascl.core.context import current
from kerascl.ops.declare import cast_to
from kerascl.ops.dtype_functions import finfo
from kerascl.ops.pointwise import absolute, divide, equal, logical_and, logical_or, not_equal, where
from kerascl.ops.reduction import all as every
from kerascl.ops.reduction import max as largest
from kerascl.ops.reduction import sum as total

REPEATS = 7
# Relative error by norm that another order of sums may make, in units of the dtype's rounding.
_ROUNDINGS = 64


class Call(Protocol):
    """A launch that can be made with outputs filled before."""

    initial: float | None


def fastest(
    name: str,
    text: str,
    variants: Mapping[str, Callable[[], Any]],
    run: Callable[[Any], tuple[Array, ...]],
    device: Any,
) -> str:
    """The variant to take, from times that are kept or, where values are known, measured now.

    While a function is traced or batched there are no values: the first one, if nothing is kept.

    Args:
        text: what the times are kept under, with all that they depend on.
        variants: of each label, what makes its launch; ValueError, TypeError or the compiler's
            errors say that there is none.
        run: the results of a launch, not yet evaluated.

    Raises:
        kerascl.CompileError and others: the first variant is none.
    """
    first = next(iter(variants))
    engine = current.engine
    times = {label: t for label, t in engine.kept_times(text, device).items() if label in variants}
    if not times:
        if current.trace is not None or current.tracers:
            return first
        times = _measured(name, variants, run, device)
        if not times:  # none could be timed
            return first
        engine.keep_times(text, times, device)
    return min(times, key=lambda label: times[label])


def _measured(
    name: str,
    variants: Mapping[str, Callable[[], Any]],
    run: Callable[[Any], tuple[Array, ...]],
    device: Any,
) -> dict[str, float]:
    engine, times = current.engine, {}
    wanted: tuple[Array, ...] = ()
    for label, make in variants.items():
        if not wanted:
            call = make()
            wanted, problem = _execute(run, call), ""
        else:
            call, problem = engine.attempt(make)
            problem = problem or _wrong(run, call, wanted)
        if not problem:
            execute = functools.partial(_execute, run, call)
            seconds, problem = engine.attempt(
                functools.partial(engine.seconds, execute, REPEATS, device)
            )
        if problem:
            warnings.warn(f"{name}: {label} is left out: {problem}", RuntimeWarning, stacklevel=5)
        else:
            times[label] = seconds * 1e6
    return times


def _execute(run: Callable[[Any], tuple[Array, ...]], call: Any) -> tuple[Array, ...]:
    results = run(call)
    current.engine.evaluate([x._node for x in results])
    return results


def _wrong(run: Callable[[Any], tuple[Array, ...]], call: Any, wanted: tuple[Array, ...]) -> str:
    """What is wrong with a variant's results, or ""."""
    if call.initial is None:  # what is not written must not hold the last variant's results
        call = replace(call, initial=float(random.randint(3, 120)))

    def differ() -> bool:
        return any(_differ(x, y) for x, y in zip(run(call), wanted, strict=True))

    found, problem = current.engine.attempt(differ)
    return problem or ("its result is another than the first one's" if found else "")


def _differ(found: Array, wanted: Array) -> bool:
    nan = logical_and(not_equal(found, found), not_equal(wanted, wanted))
    same = logical_or(equal(found, wanted), nan)
    if not (wanted.dtype.is_float or wanted.dtype.is_complex) or not wanted.size:
        return not bool(every(same))
    wide = wanted.dtype.accumulator
    a, b = cast_to(found, wide), cast_to(wanted, wide)
    sizes = absolute(b)
    finite = where(sizes < math.inf, sizes, 0)
    scale = largest(finite)
    scale = where(equal(scale, 0), 1, scale)
    error = where(same, 0, divide(absolute(a - b), scale))
    size = divide(finite, scale)
    bound = _ROUNDINGS * finfo(wanted.dtype).eps
    # written so that NaN among the errors is wrong, too
    return not float(total(error * error)) <= bound**2 * float(total(size * size))
