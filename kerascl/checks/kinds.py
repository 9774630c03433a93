"""One small computation or more for each kind of kernel, with NumPy's answer.

Inputs are small multiples of 1/8, which makes most sums exact; else tolerances follow from the
dtype: a driver that is wrong is wrong by far more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kerascl import philox
from kerascl.compiler.run.capture import jit
from kerascl.core.array import Array
from kerascl.core.derivatives import value_and_grad
from kerascl.dtypes import as_dtype
from kerascl.ops import random
from kerascl.ops.attention import dot_product_attention
from kerascl.ops.bits import bitwise_not
from kerascl.ops.contraction import matmul
from kerascl.ops.convolution import conv
from kerascl.ops.creation import array
from kerascl.ops.gather import take
from kerascl.ops.nn import softmax
from kerascl.ops.pointwise import absolute, exp, maximum, sigmoid, tanh, where
from kerascl.ops.pooling import average_pool, max_pool
from kerascl.ops.recurrent import lstm
from kerascl.ops.reduction import argmax, mean
from kerascl.ops.reduction import max as largest
from kerascl.ops.reduction import sum as total
from kerascl.ops.scan import cummax, cumsum
from kerascl.ops.sorting import argsort, segment_sum, sort, top_k
from kerascl.runtime import device as devices
from kerascl.runtime.device import DeviceInfo

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Case:
    """One computation.

    Attributes:
        kind: of the kernels that it takes.
        name: what it computes, and its sizes.
        inputs: (rng) -> NumPy arrays.
        run: (*Array) -> arrays.
        want: (*inputs) -> NumPy arrays in float64 or integers.
        bound: most that a result may differ from it, relative to its largest value.
    """

    kind: str
    name: str
    inputs: Callable[[np.random.Generator], Arrays]
    run: Callable[..., tuple[Array, ...]]
    want: Callable[..., Arrays]
    bound: float = 0.0

    def problem(self, rng: np.random.Generator, captured: bool) -> str:
        """What is wrong with a result, or "".

        Inputs are new, so that nothing left in memory passes for one."""
        inputs = self.inputs(rng)
        run = jit(self.run) if captured else self.run
        got = [x.numpy() for x in run(*map(array, inputs))]
        for k, (found, want) in enumerate(zip(got, self.want(*map(_wide, inputs)), strict=True)):
            if found.shape != np.shape(want):
                return f"result {k} has shape {found.shape}"
            bound = self.bound if found.dtype.kind not in "biu" else 0
            found, want = _wide(found), _wide(np.asarray(want))
            scale = float(np.max(np.abs(want), initial=1e-30))
            with np.errstate(invalid="ignore"):
                wrong = ~(np.abs(found - want) <= bound * scale)
            if wrong.any():
                count, at = int(wrong.sum()), int(np.argmax(wrong))
                values = f"{found.reshape(-1)[at]:g}, not {want.reshape(-1)[at]:g}"
                return f"{count} of {wrong.size} results, the first at {at}: {values}"
        return ""


def _wide(x: np.ndarray) -> np.ndarray:
    """Floats, of whatever dtype, in float64; integers and truths in int64."""
    return x.astype(np.int64 if x.dtype.kind in "biu" else np.float64)


def _floats(*shapes: tuple[int, ...], dtype: str = "float32") -> Callable:
    """Multiples of 1/8 up to 4: exact in every dtype, and their products and sums in float32."""

    def make(rng: np.random.Generator) -> Arrays:
        kind = as_dtype(dtype).numpy
        return tuple((rng.integers(-32, 33, s) / 8).astype(kind) for s in shapes)

    return make


def _integers(*shapes: tuple[int, ...], dtype: str = "int32") -> Callable:
    def make(rng: np.random.Generator) -> Arrays:
        return tuple(rng.integers(0, 100, s).astype(dtype) for s in shapes)

    return make


def _distinct(count: int, dtype: str = "float32") -> Callable:
    return lambda rng: (rng.permutation(count).astype(as_dtype(dtype).numpy),)


def _map(n: int, dtype: str) -> Iterator[Case]:
    def run(x, y):
        return (where(x > y, x * y + 1, absolute(x) - y),)

    def want(x, y):
        return (np.where(x > y, x * y + 1, np.abs(x) - y),)

    yield Case(
        "map",
        f"arithmetic {dtype}[{n}]",
        _floats((n,), (n,), dtype=dtype),
        run,
        want,
        _BOUND[dtype],
    )


def _bits(n: int, dtype: str) -> Iterator[Case]:
    def run(x, y):
        return bitwise_not(maximum(x, y)), maximum(x, bitwise_not(y)) + y

    def want(x, y):
        x, y = x.astype(dtype), y.astype(dtype)
        return ~np.maximum(x, y), np.maximum(x, ~y) + y

    yield Case("map", f"bits {dtype}[{n}]", _integers((n,), (n,), dtype=dtype), run, want)


def _functions(n: int) -> Iterator[Case]:
    def want(x):
        return np.exp(-np.abs(x)), np.tanh(x)

    yield Case(
        "map",
        f"functions float32[{n}]",
        _floats((n,)),
        lambda x: (exp(-absolute(x)), tanh(x)),
        want,
        1e-5,
    )


def _reduction(rows: int, n: int, dtype: str) -> Iterator[Case]:
    def run(x):
        return total(-x, 1), mean(x * 2, 1), total(x, 0)

    def want(x):
        return -x.sum(1), (2 * x).mean(1), x.sum(0)

    yield Case(
        "reduction",
        f"sums {dtype}[{rows}, {n}]",
        _floats((rows, n), dtype=dtype),
        run,
        want,
        _BOUND[dtype],
    )


def _argmax(n: int) -> Iterator[Case]:
    yield Case(
        "reduction",
        f"argmax float32[{n}]",
        _distinct(n),
        lambda x: (argmax(x),),
        lambda x: (np.asarray(np.argmax(x)),),
    )


def _rows(rows: int, n: int) -> Iterator[Case]:
    def want(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        centred = x - x.mean(-1, keepdims=True)
        return e / e.sum(-1, keepdims=True), centred / np.sqrt(
            (centred**2).mean(-1, keepdims=True) + 1e-3
        )

    def run(x):
        centred = x - mean(x, -1, keepdims=True)
        return softmax(x), centred / (mean(centred * centred, -1, keepdims=True) + 1e-3) ** 0.5

    yield Case(
        "rows", f"softmax, normalisation float32[{rows}, {n}]", _floats((rows, n)), run, want, 1e-5
    )

    # a compiler kept a negated float, and what follows from it, wrongly from barrier to barrier
    def turned(x):
        y = 1 / (1 + np.exp(-x))
        return x.min(-1, keepdims=True) - x, y - y.mean(-1, keepdims=True)

    def turn(x):
        y = sigmoid(x)
        return -x - largest(-x, -1, keepdims=True), y - mean(y, -1, keepdims=True)

    many = 6 * rows  # so that a work-group has one
    yield Case(
        "rows", f"of negations float32[{many}, {n}]", _floats((many, n)), turn, turned, 1e-5
    )


def _product(m: int, n: int, k: int, dtype: str) -> Iterator[Case]:
    def run(a, b):
        return matmul(a, b), matmul(a, b) * 2 + 1

    def want(a, b):
        return a @ b, a @ b * 2 + 1

    yield Case(
        "product",
        f"{dtype}[{m}, {k}] x [{k}, {n}]",
        _floats((m, k), (k, n), dtype=dtype),
        run,
        want,
        _BOUND[dtype],
    )


def _conv(size: int, channels: int, filters: int, groups: int) -> Iterator[Case]:
    def run(x, w):
        _, slopes = value_and_grad(
            lambda x, w: total(conv(x, w, padding="same") ** 2) / 2, (0, 1)
        )(x, w)
        return conv(x, w, padding="same"), *slopes

    def want(x, w):
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        depth, each = w.shape[2], w.shape[3] // groups
        y, dx, dw = np.zeros((*x.shape[:3], w.shape[3])), np.zeros(padded.shape), np.zeros(w.shape)
        taps = [(i, j) for i in range(3) for j in range(3)]
        parts = [
            (slice(g * depth, (g + 1) * depth), slice(g * each, (g + 1) * each))
            for g in range(groups)
        ]
        for i, j in taps:
            for c, f in parts:
                y[..., f] += padded[:, i : i + size, j : j + size, c] @ w[i, j][:, f]
        for i, j in taps:
            for c, f in parts:
                part = padded[:, i : i + size, j : j + size, c]
                dx[:, i : i + size, j : j + size, c] += y[..., f] @ w[i, j][:, f].T
                dw[i, j][:, f] = np.einsum("nhwc,nhwf->cf", part, y[..., f])
        return y, dx[:, 1:-1, 1:-1], dw

    shapes = (2, size, size, channels), (3, 3, channels // groups, filters)
    yield Case(
        "convolution",
        f"float32[2, {size}, {size}, {channels}] by {filters}, {groups} groups",
        _floats(*shapes),
        run,
        want,
        2e-3,
    )


def _pool(size: int, channels: int) -> Iterator[Case]:
    def run(x):
        _, (slope,) = value_and_grad(lambda x: total(max_pool(x, 2, 2) * 3), (0,))(x)
        return max_pool(x, 2, 2), average_pool(x, 2, 2), slope

    def want(x):
        n, h, w, c = x.shape
        windows = x.reshape(n, h // 2, 2, w // 2, 2, c)
        y = windows.max((2, 4), keepdims=True)
        return y[:, :, 0, :, 0], windows.mean((2, 4)), 3.0 * (windows == y).reshape(x.shape)

    def inputs(rng):  # all different, so that each window has one largest
        return (
            rng.permutation(2 * size * size * channels)
            .astype(np.float32)
            .reshape(2, size, size, channels),
        )

    yield Case("pooling", f"float32[2, {size}, {size}, {channels}]", inputs, run, want, 1e-6)


def _scan(rows: int, n: int) -> Iterator[Case]:
    def want(x):
        return np.cumsum(x, 1), np.maximum.accumulate(x, 1)

    yield Case(
        "scan",
        f"float32[{rows}, {n}]",
        _floats((rows, n)),
        lambda x: (cumsum(x, 1), cummax(x, 1)),
        want,
        1e-6,
    )


def _sort(n: int) -> Iterator[Case]:
    def run(x):
        return sort(x), argsort(x), *top_k(x, min(5, n))

    def want(x):
        order = np.argsort(x)
        best = order[::-1][: min(5, n)]
        return np.sort(x), order, x[best], best

    yield Case("sort", f"float32[{n}]", _distinct(n), run, want)


def _scatter(n: int, rows: int) -> Iterator[Case]:
    def inputs(rng):
        return (rng.integers(-32, 33, (n, 3)) / 8).astype(np.float32), rng.integers(
            0, rows, n
        ).astype(np.int32)

    def run(x, index):
        return segment_sum(x, index, rows), take(x, index % n, 0)

    def want(x, index):
        sums = np.zeros((rows, 3))
        np.add.at(sums, index, x)
        return sums, x[index % n]

    yield Case("scatter", f"{n} rows to {rows}", inputs, run, want, 1e-6)


def _threefry(key: np.ndarray, count: int) -> np.ndarray:
    k = [np.uint32(key[0]), np.uint32(key[1]), np.uint32(key[0] ^ key[1] ^ 0x1BD11BDA)]
    x, y = np.arange(count, dtype=np.uint32) + k[0], np.zeros(count, np.uint32) + k[1]
    for block in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x = x + y
            y = ((y << np.uint32(turn)) | (y >> np.uint32(32 - turn))) ^ x
        x, y = x + k[(block + 1) % 3], y + k[(block + 2) % 3] + np.uint32(block + 1)
    return x


def _random(n: int) -> Iterator[Case]:
    def want(key):
        with np.errstate(over="ignore"):
            bits = _threefry(key.astype(np.uint32), n)
        return bits, (bits >> np.uint32(8)) * 2.0**-24, philox.kept(key, (n,), 2**31)

    def inputs(rng):
        return (rng.integers(0, 2**32, 2, np.uint32),)

    def run(key):
        bits, halves = random.random_bits(key, (n,)), random.bernoulli(key, (n,), 0.5)
        return bits, random.uniform(key, (n,)), halves

    yield Case("random", f"uint32[{n}]", inputs, run, want, 2e-7)


def _attention(length: int, width: int) -> Iterator[Case]:
    def want(q, k, v):
        logits = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(width)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (np.einsum("bhts,bshd->bthd", weights, v),)

    shape = (2, length, 2, width)
    yield Case(
        "attention",
        f"float32{list(shape)}",
        _floats(shape, shape, shape),
        lambda q, k, v: (dot_product_attention(q, k, v),),
        want,
        5e-3,
    )


def _recurrent(length: int, units: int) -> Iterator[Case]:
    batch, features = 3, 4

    def run(x, w, u, b):
        zero = array(np.zeros((batch, units), np.float32))
        return lstm(x, zero, zero, w, u, b, tanh, sigmoid)

    def want(x, w, u, b):
        def gate(z):
            return 1 / (1 + np.exp(-z))

        h = c = np.zeros((batch, units))
        outputs = []
        for t in range(length):
            i, f, g, o = np.split(x[:, t] @ w + h @ u + b, 4, 1)
            c = gate(f) * c + gate(i) * np.tanh(g)
            h = gate(o) * np.tanh(c)
            outputs.append(h)
        return np.stack(outputs), h, c

    shapes = (batch, length, features), (features, 4 * units), (units, 4 * units), (4 * units,)
    yield Case(
        "recurrent", f"LSTM, {length} steps of {units} units", _floats(*shapes), run, want, 5e-3
    )


_LOOP = """
__kernel void loop_check(__global uint* seeds, const int rounds) {
    uint x = seeds[get_global_id(0)];
    for (int k = 0; k < rounds; ++k) x = x * 1664525u + 1013904223u;
    seeds[get_global_id(0)] = x;
}
"""


def _loop(rounds: int) -> Iterator[Case]:
    """A loop of a work-item: Mesa's llvmpipe ends those of more than 65,535 rounds."""

    def run(seeds):
        device, values = devices.default(), seeds.numpy()
        kernel = device.programs.kernel(_LOOP, "loop_check")
        memory = device.buffers.allocate(values.nbytes)
        device.queue.write(memory, values)
        device.queue.launch(kernel, values.shape, None, (memory, np.int32(rounds)))
        return (array(device.queue.read(memory, np.empty_like(values))),)

    def want(seeds):
        # x -> a x + c done `rounds` times is x -> p x + q: the powers of two among the rounds.
        p, q, a, c, left = 1, 0, 1664525, 1013904223, rounds
        while left:
            if left & 1:
                p, q = p * a % 2**32, (q * a + c) % 2**32
            a, c, left = a * a % 2**32, c * (a + 1) % 2**32, left >> 1
        return (np.array([(p * int(x) + q) % 2**32 for x in seeds]),)

    yield Case("loop", f"{rounds} rounds", _integers((4,), dtype="uint32"), run, want)


_BOUND = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2, "int32": 0.0}


_EVERY = (*range(1, 41), 47, 48, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 4097)
_SOME = (1, 2, 7, 8, 15, 16, 17, 20, 31, 32, 33, 64, 65, 100, 257, 1025)


def few() -> Iterator[tuple[Case, bool]]:
    """A handful, with whether each is captured, grouped by kind: for a driver's first use.

    Generated kernels differ between eager and captured work, hand-written ones do not.
    """
    for case in (
        *_map(37, "float32"), *_bits(37, "int32"), *_functions(19), *_reduction(5, 20, "float32"),
        *_reduction(3, 3001, "float32"), *_rows(7, 33),
    ):  # fmt: skip
        yield case, False
        yield case, True
    for case in (
        *_product(33, 37, 41, "float32"), *_conv(9, 5, 7, 1), *_pool(8, 5), *_scan(3, 600),
        *_sort(300), *_scatter(50, 7), *_random(37), *_attention(19, 16), *_recurrent(4, 8),
        *_loop(1_000_000),
    ):  # fmt: skip
        yield case, False


def many() -> Iterator[tuple[Case, bool]]:
    """Each kind at many lengths and dtypes; some of them captured, which builds each anew."""
    floats, integers = ("float32", "float16", "bfloat16", "float64"), ("int32", "uint8", "int64")
    made = [c for n in _EVERY for t in floats for c in _map(n, t)]
    made += [c for n in _EVERY for t in integers for c in _bits(n, t)]
    made += [c for n in _EVERY for c in _functions(n)]
    made += [c for n in _EVERY for t in floats for c in _reduction(5, n, t)]
    made += [c for n in (1, 20, 300) for c in _reduction(n, 3001, "float32")]
    made += [c for n in _EVERY[1:] for c in _argmax(n)]
    made += [c for n in _EVERY[1:] for c in _rows(7, n)]
    made += [c for n in _SOME for t in floats for c in _product(n, 37, 41, t)]
    made += [
        c for n in _SOME for c in (*_product(33, n, 41, "float32"), *_product(33, 37, n, "float32"))
    ]
    made += [
        c
        for n in (4, 9, 16)
        for c in (*_conv(n, 5, 7, 1), *_conv(n, 16, 32, 1), *_conv(n, 8, 8, 8))
    ]
    made += [c for n in (2, 8, 14) for channels in (1, 5, 16) for c in _pool(n, channels)]
    made += [c for n in _SOME for c in _scan(3, n)]
    made += [c for n in (5000, 70000) for c in _scan(2, n)]
    made += [c for n in (*_SOME, 5000, 70000) for c in _sort(n)]
    made += [c for n in _SOME for c in (*_scatter(n, 7), *_scatter(n, 100))]
    made += [c for n in _EVERY for c in _random(n)]
    made += [c for n in _SOME[2:12] for width in (16, 40) for c in _attention(n, width)]
    made += [c for units in (1, 8, 33, 70) for c in _recurrent(4, units)]
    made += [c for rounds in (100, 70_000, 1_000_000) for c in _loop(rounds)]
    for number, case in enumerate(made):
        yield case, False
        if number % 16 == 0:
            yield case, True


CASES = {"few": few, "many": many}


def possible(case: Case, info: DeviceInfo) -> bool:
    """Whether a device has what a case needs."""
    return info.fp64 or "float64" not in case.name
