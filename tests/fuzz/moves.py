"""Movements of elements in random programs: one text moves NumPy's values and their bounds, too."""

from __future__ import annotations

import math

import numpy as np

from tests.fuzz.values import Value, common, require

MOVES: dict[str, tuple] = {}  # name -> number of operands, rule, weight


def _move(name, count=1, weight=1):
    """`function(draw, shape, …) -> text`, a movement of elements."""

    def add(function):
        def apply(draw, *xs):
            xs = common(*xs)
            text = function(draw, *(x.shape for x in xs))

            def move(arrays):
                values = [f"x[{k}]" for k in range(len(arrays))]
                return eval(text.format(*values), {"xp": np, "np": np, "x": arrays})

            value = move([x.array for x in xs])
            error = move([x.error for x in xs]) if xs[0].is_float else 0.0
            return Value(xs[0].dtype, value, error), text

        MOVES[name] = (count, apply, weight)
        return function

    return add


def listed(numbers, dtype="int32") -> str:
    return f"np.array({np.asarray(numbers).tolist()}, '{dtype}')"


@_move("transpose", weight=2)
def _transpose(draw, shape):
    return f"xp.transpose({{0}}, {tuple(draw.shuffled(range(len(shape))))})"


@_move("reshape", weight=2)
def _reshape(draw, shape):
    size = math.prod(shape)
    first = draw.choice([d for d in range(1, size + 1) if size % d == 0] or [0])
    rest = size // max(first, 1)
    new = draw.choice([(first, -1), (-1, first), (-1,), (1, size), (rest, 1, first)])
    if not size:
        new = draw.choice([(0,), (3, 0), (0, 1, 2)])
    return f"xp.reshape({{0}}, {new})"


@_move("slice", weight=3)
def _slice(draw, shape):
    parts = []
    for n in shape:
        if n and draw.boolean(0.2):
            parts.append(str(draw.randint(-n, n - 1)))
            continue
        near = n if draw.boolean(0.3) else min(n, 3)  # often most of a long axis
        start = draw.choice(["", draw.randint(-n - 1, near + 1)])
        stop = draw.choice(["", "", draw.randint(-near - 1, n + 1)])
        parts.append(f"{start}:{stop}:{draw.choice(['', 1, 2, 3, -1, -2])}")
    if draw.boolean():
        parts = [*parts[: draw.randint(0, len(parts))], "..."]
    if draw.boolean():
        parts.insert(draw.randint(0, len(parts)), "None")
    return f"{{0}}[{', '.join(parts) or '...'}]"


@_move("flip")
def _flip(draw, shape):
    return f"xp.flip({{0}}, {tuple(a for a in range(len(shape)) if draw.boolean())})"


@_move("roll")
def _roll(draw, shape):
    require(shape)
    return f"xp.roll({{0}}, {draw.randint(-7, 7)}, {draw.randint(0, len(shape) - 1)})"


@_move("tile")
def _tile(draw, shape):
    repeats = tuple(draw.randint(0, 2) for _ in range(draw.randint(0, len(shape) + 1)))
    return f"xp.tile({{0}}, {repeats})"


@_move("repeat")
def _repeat(draw, shape):
    require(shape)
    return f"xp.repeat({{0}}, {draw.randint(0, 3)}, {draw.randint(-len(shape), len(shape) - 1)})"


@_move("broadcast_to")
def _broadcast(draw, shape):
    new = (draw.randint(0, 2), *[3 if n == 1 and draw.boolean() else n for n in shape])
    return f"xp.broadcast_to({{0}}, {new})"


@_move("pad", weight=2)
def _pad(draw, shape):
    require(shape)
    widths = [(draw.randint(0, 2), draw.randint(0, 2)) for _ in shape]
    modes = ["constant"] if 0 in shape else ["constant", "edge", "wrap", "reflect", "symmetric"]
    return f"xp.pad({{0}}, {widths}, '{draw.choice(modes)}')"


@_move("tril")
def _tril(draw, shape):
    require(len(shape) >= 2)
    return f"xp.{draw.choice(['tril', 'triu'])}({{0}}, {draw.randint(-2, 2)})"


@_move("diagonal")
def _diagonal(draw, shape):
    require(len(shape) >= 2)
    return f"xp.diagonal({{0}}, {draw.randint(-2, 2)}, 0, -1)"


@_move("take", weight=2)
def _take(draw, shape):
    require(shape and shape[-1])
    at = draw.several(range(-shape[-1], shape[-1]), draw.choice([4, 20]))
    dtype = draw.choice(["int32", "int64"] + ["int8"] * (shape[-1] < 128))
    return f"xp.take({{0}}, {listed(at, dtype)}, -1)"


@_move("index")
def _index(draw, shape):
    require(shape and 0 not in shape[:2])
    rows = draw.several(range(-shape[0], shape[0]), 4, 1)
    if len(shape) == 1 or draw.boolean():
        return f"{{0}}[{listed(rows)}]"
    columns = [draw.randint(0, shape[1] - 1) for _ in rows]
    if draw.boolean():
        return f"{{0}}[{listed([[row] for row in rows])}, {listed(columns)}]"
    return f"{{0}}[{listed(rows)}, {listed(columns)}]"


@_move("take_along_axis")
def _along(draw, shape):
    require(shape and shape[0] and math.prod(shape) < 100)
    at = np.array([draw.randint(0, shape[0] - 1) for _ in range(2 * math.prod(shape[1:]))])
    return f"xp.take_along_axis({{0}}, {listed(at)}.reshape({(2, *shape[1:])}), 0)"


@_move("concatenate", 2, weight=4)
def _concatenate(draw, a, b):
    require(a and len(a) == len(b))
    axis = draw.randint(0, len(a) - 1)
    require(a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :])
    return f"xp.concatenate([{{0}}, {{1}}, {{0}}], {axis})"


@_move("stack", 2)
def _stack(draw, a, b):
    require(a == b)
    return f"xp.stack([{{0}}, {{1}}], {draw.randint(-len(a) - 1, len(a))})"
