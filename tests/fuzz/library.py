"""Convolutions, pooling, einsum, quantiles, updates, loops, and every other rule under vmap.

Shapes are drawn where few would fit: elements are taken from the operands in turn.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.fuzz.moves import listed
from tests.fuzz.rules import RULES, SCANS, _float, apply, rule
from tests.fuzz.values import (
    EPS,
    INTEGERS,
    TINY,
    Draw,
    Unfit,
    Value,
    common,
    converted,
    require,
    rounded,
)


def _taken(x: Value, shape: tuple[int, ...], operand: int) -> tuple[Value, str]:
    """Elements of an operand in turn, in another shape."""
    require(x.array.size)
    at = np.arange(math.prod(shape)) % x.array.size
    value = x.array.reshape(-1)[at].reshape(shape)
    error = x.error.reshape(-1)[at].reshape(shape) if x.is_float else 0.0
    text = f"kc.reshape({{{operand}}}, (-1,))"
    if math.prod(shape) != x.array.size:
        text = f"kc.take({text}, np.arange({len(at)}, dtype='int32') % {x.array.size}, 0)"
    return Value(x.dtype, value, error), f"kc.reshape({text}, {shape})"


def _multilinear(function, xs: list[Value], terms: int, steps: int = 2) -> Value:
    """Sums of `terms` products, rounded `steps` times to the dtype on the way."""
    value = function(*(x.array for x in xs))
    if not xs[0].is_float:
        return Value(xs[0].dtype, value)
    size = function(*(np.abs(x.array) for x in xs))
    most = function(*(np.abs(x.array) + x.error for x in xs))
    dtype = xs[0].dtype
    unit = (terms + 8) * min(EPS[dtype], EPS["float32"]) + steps * EPS[dtype]
    return rounded(dtype, value, most - size + unit * most, 2)


# -- windows
def _spatial(draw: Draw) -> tuple[int, list[int]]:
    rank = draw.choice([1, 2, 2, 2, 3])
    return rank, [draw.randint(1, {1: 40, 2: 12, 3: 6}[rank]) for _ in range(rank)]


def _padding(draw: Draw, sizes, windows, strides):
    """As it is written; zeros on both sides of each dimension; how many windows there are."""
    kind = draw.choice(["valid", "same", "explicit"])
    pads = [(0, 0)] * len(sizes)
    if kind == "same":
        totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, w, s in zip(sizes, windows, strides)]
        pads = [(t // 2, t - t // 2) for t in totals]
    elif kind == "explicit":
        pads = [(draw.randint(0, w - 1), draw.randint(0, w - 1)) for w in windows]
    counts = [(n + sum(p) - w) // s + 1 for n, p, w, s in zip(sizes, pads, windows, strides)]
    require(all(n + sum(p) >= w for n, p, w in zip(sizes, pads, windows)))
    return pads if kind == "explicit" else kind, pads, counts


def _windows(x, kernel, counts, strides, dilation):
    """For each place in a window: that place, and the elements there, of (N, *spatial, C)."""
    for place in itertools.product(*map(range, kernel)):
        parts = [
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, n, s in zip(place, dilation, counts, strides)
        ]
        yield place, x[(slice(None), *parts)]


def _oriented(draw: Draw, text: str, rank: int) -> tuple[str, str, bool]:
    """An array (N, *spatial, C) as it is given, and how a result is turned back."""
    if draw.boolean(0.6):
        return text, "{}", False
    first = (0, rank + 1, *range(1, rank + 1))
    last = (0, *range(2, rank + 2), 1)
    return f"kc.transpose({text}, {first})", f"kc.transpose({{}}, {last})", True


@rule(2, weight=4)
def conv(draw, x, y):
    x, y = common(x, y)
    require(x.dtype != "bool")
    rank, sizes = _spatial(draw)
    kernel = [draw.randint(1, 3 if rank > 1 else 5) for _ in sizes]
    if rank == 2 and draw.boolean(0.4):
        kernel = [3, 3]
    strides = [draw.choice([1, 1, 2, 3]) for _ in sizes]
    dilation = [1] * rank if max(strides) > 1 else [draw.choice([1, 1, 2]) for _ in sizes]
    groups = draw.choice([1, 1, 1, 2, 3])
    depth, filters = draw.choice([1, 2, 4, 8]), groups * draw.choice([1, 2, 8])
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    written, pads, counts = _padding(draw, sizes, extents, strides)
    a, a_text = _taken(x, (draw.randint(1, 2), *sizes, groups * depth), 0)
    w, w_text = _taken(y, (*kernel, depth, filters), 1)

    def function(x, w):
        x = np.pad(x, [(0, 0), *pads, (0, 0)])
        total = np.zeros((), x.dtype)
        for place, part in _windows(x, kernel, counts, strides, dilation):
            part = part.reshape(*part.shape[:-1], groups, depth)
            at = w[place].reshape(depth, groups, filters // groups)
            total = total + np.einsum("...gc,cgf->...gf", part, at)
        return total.reshape(*total.shape[:-2], filters)

    value = _multilinear(function, [a, w], math.prod(kernel) * depth)
    if x.is_float:  # Winograd's sums are of larger terms than the products
        most = np.max(np.abs(a.array) + a.error) * np.max(np.abs(w.array) + w.error)
        terms = math.prod(kernel) * depth
        more = 64 * min(EPS[x.dtype], EPS["float32"]) * terms * most
        value.error = value.error + more
    given, back, first = _oriented(draw, a_text, rank)
    call = f"kc.conv({given}, {w_text}, {strides}, {written!r}, {dilation}, {first})"
    return value, back.format(call)


@rule(2, weight=2)
def conv_transpose(draw, x, y):
    x, y = common(x, y)
    require(x.dtype != "bool")
    rank, sizes = _spatial(draw)
    sizes = [min(n, 8) for n in sizes]
    kernel = [draw.randint(1, 3) for _ in sizes]
    strides = [draw.choice([1, 2, 3]) for _ in sizes]
    dilation = [draw.choice([1, 1, 2]) for _ in sizes] if max(strides) == 1 else [1] * rank
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    pads = [(draw.randint(0, e - 1), draw.randint(0, e - 1)) for e in extents]
    results = [
        (n - 1) * s + low + high + 2 - e
        for n, s, e, (low, high) in zip(sizes, strides, extents, pads)
    ]
    require(min(results) > 0)
    depth, filters = draw.choice([1, 2, 5]), draw.choice([1, 3, 8])
    a, a_text = _taken(x, (draw.randint(1, 2), *sizes, depth), 0)
    w, w_text = _taken(y, (*kernel, filters, depth), 1)

    def function(x, w):
        whole = [(n - 1) * s + e for n, s, e in zip(sizes, strides, extents)]
        y = np.zeros((x.shape[0], *whole, filters), x.dtype)
        for place, part in _windows(y, kernel, sizes, strides, dilation):
            part += np.einsum("...c,fc->...f", x, w[place])
        start = [e - 1 - low for e, (low, _) in zip(extents, pads)]
        return y[(slice(None), *(slice(b, b + n) for b, n in zip(start, results)))]

    given, back, first = _oriented(draw, a_text, rank)
    call = f"kc.conv_transpose({given}, {w_text}, {strides}, {pads}, {dilation}, {first})"
    value = _multilinear(function, [a, w], math.prod(kernel) * depth)
    return value, back.format(call)


@rule(1, weight=2)
def pool(draw, x):
    require(x.is_float)
    rank, sizes = _spatial(draw)
    window = [draw.randint(1, min(3, n)) for n in sizes]
    strides = [draw.choice([1, 2, w]) for w in window]
    written, pads, counts = _padding(draw, sizes, window, strides)
    a, text = _taken(x, (draw.randint(1, 2), *sizes, draw.choice([1, 3, 8])), 0)
    widths = [(0, 0), *pads, (0, 0)]
    given, back, first = _oriented(draw, text, rank)

    def gathered(array, outside):
        array = np.pad(array, widths, constant_values=outside)
        return np.stack([p for _, p in _windows(array, window, counts, strides, [1] * rank)])

    errors = gathered(a.error, 0.0)
    if draw.boolean():
        text = f"kc.max_pool({given}, {window}, {strides}, {written!r}, {first})"
        return Value(x.dtype, gathered(a.array, -np.inf).max(0), errors.max(0)), back.format(text)
    count = gathered(np.ones(a.shape), 0.0).sum(0)
    unit = len(errors) * min(EPS[x.dtype], EPS["float32"])
    size = gathered(np.abs(a.array), 0.0)
    error = (errors.sum(0) + unit * (size + errors).sum(0)) / count
    text = f"kc.average_pool({given}, {window}, {strides}, {written!r}, {first})"
    value = rounded(x.dtype, gathered(a.array, 0.0).sum(0) / count, error, 3)
    return value, back.format(text)


# -- products
@rule(2, weight=3)
def einsum(draw, x, y):
    x, y = common(x, y)
    require(x.dtype != "bool")
    sizes = {label: draw.randint(1, 6) for label in "abcde"}
    sizes[draw.choice("abcde")] = draw.choice([7, 16, 17])
    operands = [0, 1] + [0] * draw.boolean(0.25)
    labels = [draw.several("abcde", 3, 1) for _ in operands]
    if not draw.boolean(0.2):  # diagonals are rare
        labels = [list(dict.fromkeys(one)) for one in labels]
    used = sorted({label for one in labels for label in one})
    result = [label for label in draw.shuffled(used) if draw.boolean()]
    spec = f"{','.join(map(''.join, labels))}->{''.join(result)}"
    parts = [
        _taken((x, y)[k], tuple(sizes[label] for label in one), k)
        for k, one in zip(operands, labels)
    ]
    terms = math.prod(sizes[label] for label in used if label not in result)
    require(terms < 3000)
    value = _multilinear(lambda *a: np.einsum(spec, *a), [v for v, _ in parts], terms, 8)
    return value, f"kc.einsum('{spec}', {', '.join(text for _, text in parts)})"


# -- order
@rule(1, weight=2)
def quantile(draw, x):
    x = _float(x)
    require(x.shape and x.array.size)
    axis = draw.choice([None, *range(len(x.shape))])
    count = x.array.size if axis is None else x.shape[axis]
    kind = draw.choice(["median", "quantile", "percentile"])
    keep = draw.boolean()
    if kind == "median":
        value, method, q = np.median(x.array, axis, keepdims=keep), "midpoint", None
        text = f"kc.median({{0}}, {axis}, {keep})"
    else:
        q = draw.choice([0.0, 1.0, 0.5, round(draw.random(), 3)])
        method = draw.choice(["linear", "lower", "higher", "midpoint", "nearest"])
        place = 2 * q * (count - 1)  # what is between two is told apart from what is one of them
        clear = 0.01 < place % 1 < 0.99 or q in (0.0, 1.0)
        require(method == "linear" or clear)
        value = np.quantile(x.array, q, axis, method=method, keepdims=keep)
        scaled = q if kind == "quantile" else round(100 * q, 1)
        text = f"kc.{kind}({{0}}, {scaled}, {axis}, '{method}', {keep})"
    span = np.max(np.abs(x.array) + x.error)
    unit = 8 * count * EPS["float32"] + 4 * EPS[x.dtype]
    between = 0.0 if method in ("lower", "higher", "nearest") else unit * span
    return rounded(x.dtype, value, np.max(x.error) + between, 2), text


@rule(2, special=True, weight=2)
def sorted_by(draw, x, y):
    """One array in the order of another, whose equal elements stay in order."""
    require(x.shape and x.shape == y.shape and x.exact)
    axis = draw.randint(0, len(x.shape) - 1)
    at = np.argsort(x.array, axis, kind="stable")
    error = np.take_along_axis(y.error, at, axis) if y.is_float else 0.0
    value = Value(y.dtype, np.take_along_axis(y.array, at, axis), error)
    return value, f"kc.take_along_axis({{1}}, kc.argsort({{0}}, {axis}), {axis})"


@rule(1, special=True)
def sort_descending(draw, x):
    require(x.shape and x.exact and x.dtype != "bool")
    require(not (x.is_float and np.isnan(x.array).any()))
    axis = draw.randint(0, len(x.shape) - 1)
    value = np.flip(np.sort(x.array, axis), axis)
    return Value(x.dtype, value), f"kc.sort({{0}}, {axis}, descending=True)"


# -- updates
_MODES = {"set": None, "add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}


@rule(2, weight=4)
def at_update(draw, x, y):
    require(x.shape and x.shape[0] and x.array.size and x.dtype != "bool")
    y = converted(y, x.dtype)
    n = x.shape[0]
    mode = draw.choice(list(_MODES))
    rows = draw.several(range(-n, n), 6, 1)
    if mode == "set":  # which of several would stay is not told
        rows = draw.sample(range(n), draw.randint(1, min(n, 6)))
    start, step = draw.randint(0, n - 1), draw.randint(1, 3)
    key, key_text = draw.choice([
        (np.array(rows), listed(rows)), (slice(start, None, step), f"{start}::{step}"),
        ((..., -1), "..., -1"), (slice(None, None, -1), "::-1"),
    ])  # fmt: skip
    shape = x.array[key].shape
    require(math.prod(shape))
    v, text = _taken(y, shape, 1)

    def updated(a, b, function=_MODES[mode]):
        a = a.copy()
        if function is None:
            a[key] = b
        else:
            function.at(a, key, b)
        return a

    text = f"{{0}}.at[{key_text}].{mode}(kc.cast({text}, '{x.dtype}'))"
    if not x.is_float:
        return Value(x.dtype, updated(x.array, v.array)), text
    if mode in ("set", "max", "min"):
        own = updated(x.error, v.error, None if mode == "set" else np.maximum)
        return Value(x.dtype, updated(x.array, v.array), own), text
    size = updated(np.abs(x.array), np.abs(v.array))
    most = updated(np.abs(x.array) + x.error, np.abs(v.array) + v.error)
    error = most - size + 7 * (EPS[x.dtype] * most + TINY[x.dtype])
    return rounded(x.dtype, updated(x.array, v.array), error, 2), text


@rule(1, weight=2)
def segments(draw, x):
    require(x.shape and x.shape[0] >= 3 and x.array.size and x.dtype != "bool")
    ids = draw.shuffled([0, 1, 2] + [draw.randint(0, 2) for _ in range(x.shape[0] - 3)])
    name = draw.choice(["max", "min", "prod"])
    require(name != "prod" or not x.is_float)
    function = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}[name]

    def reduced(array, function):
        rows = [function.reduce(array[np.array(ids) == k], 0) for k in range(3)]
        return np.stack(rows).astype(array.dtype)

    error = reduced(x.error, np.maximum) if x.is_float else 0.0
    text = f"kc.segment_{name}({{0}}, {listed(ids)}, 3)"
    return Value(x.dtype, reduced(x.array, function), error), text


# -- loops and scans
@rule(1, weight=2)
def recurrence(draw, x):
    """A loop over the first axis, whose carry and results depend on all steps before."""
    require(x.shape and 0 < x.shape[0] <= 40 and x.array.size and x.dtype != "bool")
    reverse, last = draw.boolean(), draw.boolean(0.3)
    body = "(c * 0.5 + x, c - x)" if x.is_float else "(c * 3 + x, c - x)"
    carry = Value(x.dtype, np.zeros(x.shape[1:], x.array.dtype))
    results = [carry] * x.shape[0]
    for k in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        one = Value(x.dtype, x.array[k], x.error[k] if x.is_float else 0.0)
        if x.is_float:
            results[k] = rounded(x.dtype, carry.array - one.array, carry.error + one.error)
            half = rounded(x.dtype, carry.array * 0.5, carry.error * 0.5)
            carry = rounded(x.dtype, half.array + one.array, half.error + one.error)
        else:
            three = np.multiply(carry.array, np.array(3, x.array.dtype))
            results[k] = Value(x.dtype, np.subtract(carry.array, one.array))
            carry = Value(x.dtype, np.add(three, one.array))
    init = f"kc.zeros({x.shape[1:]}, '{x.dtype}')"
    text = f"kc.scan(lambda c, x: {body}, {init}, {{0}}, reverse={reverse})[{0 if last else 1}]"
    if last:
        return carry, text
    error = np.stack([r.error for r in results]) if x.is_float else 0.0
    return Value(x.dtype, np.stack([r.array for r in results]), error), text


@rule(1)
def cumsum_reversed(draw, x):
    require(x.shape and not x.is_float)
    axis = draw.randint(0, len(x.shape) - 1)
    dtype = SCANS[x.dtype]
    value = np.flip(np.cumsum(np.flip(x.array, axis), axis, dtype=dtype), axis)
    return Value(dtype, value), f"kc.cumsum({{0}}, {axis}, reverse=True)"


# -- reductions of padded and shifted arrays ------------------------------------------------------
_REDUCTIONS = ["sum", "sum", "sum", "max", "min", "prod", "any", "all", "count_nonzero", "argmax",
               "argmin", "mean", "cumsum"]  # fmt: skip


def _padded(draw, shape) -> str:
    """Both ends of the last axis and some of the others, by unlike widths."""
    *others, last = [(draw.randint(0, 2), draw.randint(0, 2)) for _ in shape]
    others = [width if draw.boolean(0.3) else (0, 0) for width in others]
    last = draw.choice([last, (1, 1), (draw.randint(1, 3), draw.randint(1, 3))])
    fill = draw.choice([0, 0, 1, 5])
    return f"xp.pad({{0}}, {[*others, last]}, 'constant', constant_values={fill})"


def _shifted(draw, shape) -> str:
    """The last axis from an element on, and up to one, sometimes with a step or backwards."""
    n = shape[-1]
    first, end = draw.randint(0, min(3, n - 1)), draw.randint(0, min(3, n - 1))
    stop = n - end if first < n - end else n
    back = f"{stop - 1}:{first - 1 if first else ''}:-1"
    part = draw.choice([f"{first}:{stop}", f"{first}:{stop}", f"{first}:{stop}:2", back])
    return f"{{0}}[..., {part}]"


def _neighbours(draw, shape) -> str:
    """Each element beside the next one, or that beyond it."""
    require(shape[-1] > 2)
    by = draw.choice([1, 2])
    return f"({{0}}[..., {by}:] {draw.choice(['^', '|', '&'])} {{0}}[..., :-{by}])"


@rule(1, weight=8)
def shifted_reduction(draw, x):
    """Integers and bools of an odd length mostly, padded and cut, then reduced."""
    require(x.shape and x.array.size and not x.is_float)
    text, array = "{0}", x.array
    moves = [_padded, _padded, _shifted, _neighbours]
    for move in draw.choices(moves, k=draw.choice([1, 1, 2, 3])):
        own = move(draw, array.shape)
        array = eval(own.format("x"), {"xp": np, "x": array})
        text = own.replace("{0}", text)
    if array.shape[-1] % 2 == 0 and draw.boolean(0.8):
        text, array = f"{text}[..., 1:]", array[..., 1:]
    moved = Value(x.dtype, array)
    if x.dtype != "bool" and draw.boolean(0.25):
        moved = converted(moved, draw.choice(INTEGERS))
        text = f"kc.cast({text}, '{moved.dtype}')"
    value, reduced = apply(draw.choice(_REDUCTIONS), draw, moved)
    return value, reduced.replace("{0}", text)


_INNER = sorted(name for name, one in RULES.items() if one.count <= 2)


@rule(2, weight=6)
def vmap(draw, x, y):
    """Another operation, of each element of a batch."""
    inner = draw.choice(_INNER)
    count, seed = RULES[inner].count, draw.getrandbits(32)
    axis = draw.randint(0, max(0, len(x.shape) - 1))
    require(x.shape and 0 < x.shape[axis] <= 20 and max(x.array.size, y.array.size) <= 600)
    shared = draw.boolean(0.3)  # one second operand for all
    require(shared or count == 1 or (len(y.shape) > axis and y.shape[axis] == x.shape[axis]))

    def element(v: Value, k: int) -> Value:
        error = np.take(v.error, k, axis) if v.is_float else 0.0
        return Value(v.dtype, np.take(v.array, k, axis), error)

    found = []
    for k in range(x.shape[axis]):
        operands = [element(x, k), y if shared or count == 1 else element(y, k)][:count]
        try:
            found.append(apply(inner, Draw(seed), *operands))
        except ValueError as error:  # elements' shapes that do not go together
            raise Unfit from error
    require(len({(text, v.dtype, v.shape) for v, text in found}) == 1)
    values = [value for value, _ in found]
    back = draw.randint(0, values[0].array.ndim)
    names = ["r", "s"][:count]
    axes = [axis, None if shared else axis][:count]
    function = f"lambda {', '.join(names)}: {found[0][1].format(*names)}"
    given = ", ".join(f"{{{k}}}" for k in range(count))
    error = np.stack([v.error for v in values], back) if values[0].is_float else 0.0
    value = Value(values[0].dtype, np.stack([v.array for v in values], back), error)
    return value, f"kc.vmap({function}, {axes}, {back})({given})"
