"""The parts of products, convolutions and attention: rates against the device's peaks, and
correctness.

Samples of each result are compared with float64 on the host.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

import kerascl as kc
from kerascl.commands import tune
from kerascl.commands.bench import CONVOLUTIONS, PRODUCTS, device_seconds
from kerascl.commands.reports.parts import Item, Setting, Tell
from kerascl.commands.reports.solvers import predicted
from kerascl.dtypes import BY_NAME
from kerascl.kernels.tuning import database, machine
from kerascl.runtime import device as devices

HIGHEST = "float32, highest"
# What a result may differ by, relative and by norm: what matrix units round inputs to (TF32), what
# the result is rounded to when it is stored, or what long sums in float32 lose.
BOUNDS = {"float32": 2e-3, HIGHEST: 2e-5, "float16": 2e-3, "bfloat16": 6e-3}
_EFFICIENCY = 0.2  # of the peak: what is assumed where sizes are chosen
_MOST_SECONDS = 0.5  # of one run
_MOST_ELEMENTS = 2**26  # of one array: the host holds all three, too
_RUNS = 0.3  # seconds of the runs of one problem
_BATCHES = 64, 16, 4, 1
_SAMPLES = 16
_DRAWN = 1_048_573  # random numbers, repeated in larger inputs; a prime
_QUICK = (512, 512, 512), (1000, 333, 129), (2048, 2048, 2048)
_QUICK_CONVOLUTIONS = "resnet 56 3x3", "resnet 28 1x1 /2"
_MORE_PRODUCTS = ((64, 4096, 4096), (3, 1024, 1000))  # few rows: what inference asks


@dataclass(frozen=True)
class _Work:
    """A computation: what it costs at least, and how its result is checked.

    Attributes:
        flops: operations; a multiply-add counts two.
        nbytes: of its inputs and its result, each moved once.
        error: (result) -> relative error of some samples, by norm, in float64.
    """

    call: Callable[[], Any]
    flops: float
    nbytes: float
    error: Callable[[np.ndarray], float]


def _dtypes(quick: bool) -> tuple[str, ...]:
    return ("float32", "float16") if quick else ("float32", "float16", "bfloat16", HIGHEST)


def _stored(dtype: str) -> str:
    return "float32" if dtype == HIGHEST else dtype


def _peak(dtype: str) -> float:
    """Operations a second that the device reaches for such inputs at best."""
    rates = machine.of(devices.default().info)
    kind = BY_NAME[_stored(dtype)]
    matrix = 0.0 if dtype == HIGHEST else rates.matrix_rate(kind)
    return 2e6 * max(rates.rate(BY_NAME["float32"]), matrix)


def _fits(flops: float, dtype: str, *elements: float) -> bool:
    info = devices.default().info
    sizes = [4 * n for n in elements]
    room = max(sizes) <= info.max_alloc_bytes and sum(sizes) <= info.global_mem_bytes / 4
    room = room and max(elements) <= _MOST_ELEMENTS
    return room and flops / (_EFFICIENCY * _peak(dtype)) <= _MOST_SECONDS


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> tuple[Any, np.ndarray]:
    """A random array on the device, and the same on the host in its own dtype."""
    numbers = rng.standard_normal(min(_DRAWN, int(np.prod(shape))), np.float32)
    host = np.resize(numbers, shape).astype(BY_NAME[_stored(dtype)].numpy)
    return kc.array(host), host


def _relative(found: np.ndarray, wanted: np.ndarray) -> float:
    found = np.asarray(found, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def _run(name: str, dtype: str, make: Callable[[np.random.Generator], _Work], tell: Tell) -> None:
    device, work = devices.default(), make(np.random.default_rng())
    with kc.precision_scope("highest") if dtype == HIGHEST else nullcontext():
        with database.recording() as met:
            result = work.call()
        found = result.numpy()
        begun = time.perf_counter()
        work.call()
        device.queue.finish()
        once = time.perf_counter() - begun
        seconds = device_seconds(device, work.call, int(np.clip(_RUNS / once, 3, 20)))
    error = work.error(found)
    peak, bandwidth = _peak(dtype), machine.of(device.info).bandwidth * 1e6
    chosen = [predicted(*one) for one in met]
    row = {
        "name": name, "dtype": dtype, "seconds": seconds, "flops": work.flops,
        "nbytes": work.nbytes, "error": error, "solver": ", ".join(s for s, _ in chosen),
        "peak": peak, "bandwidth": bandwidth,
        "predicted": sum(cost for _, cost in chosen) * 1e-6,
        "problems": [database.to_json(*one) for one in met if one[0] in tune.KINDS],
    }  # fmt: skip
    if not error <= BOUNDS[dtype]:
        row["wrong"] = f"relative error {error:.1e}, at most {BOUNDS[dtype]:.0e} is right"
    tell(row)


def products(setting: Setting) -> Iterator[Item]:
    """Matrix products, one dtype after the other."""
    sizes = _QUICK if setting.quick else (*PRODUCTS, *_MORE_PRODUCTS)
    for dtype in _dtypes(setting.quick):
        for m, k, n in sizes:
            if _fits(2.0 * m * k * n, dtype, m * k, k * n, m * n):
                make = functools.partial(_product, m, k, n, dtype)
                name = f"{m} x {k} x {n}"
                yield Item(f"{name} {dtype}", functools.partial(_run, name, dtype, make))


def _product(m: int, k: int, n: int, dtype: str, rng: np.random.Generator) -> _Work:
    (a, wide_a), (b, wide_b) = _draw(rng, (m, k), dtype), _draw(rng, (k, n), dtype)
    rows = rng.integers(0, m, _SAMPLES)
    product = kc.jit(kc.matmul)

    def error(found: np.ndarray) -> float:
        wanted = wide_a[rows].astype(np.float64) @ wide_b.astype(np.float64)
        return _relative(found[rows], wanted)

    nbytes = (m * k + k * n + m * n) * BY_NAME[_stored(dtype)].itemsize
    return _Work(lambda: product(a, b), 2.0 * m * k * n, nbytes, error)


@dataclass(frozen=True)
class _Conv:
    """A convolution with padding "same": side of square images, channels, kernel, stride, filters,
    groups, and images of a batch."""

    side: int
    channels: int
    kernel: int
    stride: int
    filters: int
    groups: int = 1
    batch: int = 1

    @property
    def out(self) -> int:
        """The side of the result."""
        return -(-self.side // self.stride)

    @property
    def before(self) -> int:
        """Padding at the beginning of each side, as "same" means it."""
        total = max((self.out - 1) * self.stride + self.kernel - self.side, 0)
        return total // 2

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the images, the weights and the result."""
        n, s, o, k = self.batch, self.side, self.out, self.kernel
        weights = (k, k, self.channels // self.groups, self.filters)
        return (n, s, s, self.channels), weights, (n, o, o, self.filters)

    @property
    def flops(self) -> float:
        """Operations of each of the three."""
        _, w, y = self.shapes
        return 2.0 * float(np.prod(y)) * self.kernel**2 * w[2]


_LAYERS = {name: _Conv(*sizes) for name, *sizes in CONVOLUTIONS} | {
    "mobilenet 56 depthwise": _Conv(56, 128, 3, 1, 128, 128)
}
_WAYS = ("forward", "data gradient", "filter gradient")


def convolutions(setting: Setting) -> Iterator[Item]:
    """Layers of networks forward and both of their gradients, one dtype after the other."""
    dtypes = ("float32",) if setting.quick else ("float32", "float16", "bfloat16")
    for dtype in dtypes:
        for name, layer in _LAYERS.items():
            if setting.quick and name not in _QUICK_CONVOLUTIONS:
                continue
            for batch in _BATCHES:
                sized = _Conv(**(vars(layer) | {"batch": batch}))
                if _fits(sized.flops, dtype, *(float(np.prod(s)) for s in sized.shapes)):
                    break
            else:
                continue
            for way in _WAYS:
                make = functools.partial(_convolution, sized, way, dtype)
                title = f"{name} {way}, batch {batch}"
                yield Item(f"{title} {dtype}", functools.partial(_run, title, dtype, make))


def _convolution(layer: _Conv, way: str, dtype: str, rng: np.random.Generator) -> _Work:
    arrays, hosts = zip(*(_draw(rng, shape, dtype) for shape in layer.shapes))
    x, w, dy = arrays

    def forward(x, w):
        return kc.conv(x, w, strides=layer.stride, padding="same")

    def gradient(x, w, dy):
        with kc.GradientTape() as tape:
            target = x if way == "data gradient" else w
            tape.watch(target)
            y = forward(x, w)
        return tape.gradient(y, target, dy)

    function = kc.jit(forward if way == "forward" else gradient)
    given = (x, w) if way == "forward" else (x, w, dy)
    check = {"forward": _forward, "data gradient": _data, "filter gradient": _filter}[way]
    nbytes = sum(map(np.prod, layer.shapes)) * BY_NAME[dtype].itemsize
    return _Work(
        lambda: function(*given), layer.flops, float(nbytes),
        lambda found: _relative(*check(layer, hosts, found, rng)),
    )  # fmt: skip


def _pixels(rng: np.random.Generator, batch: int, side: int) -> Iterator[tuple[int, int, int]]:
    """Some, with the corners of the first image among them, where padding shows."""
    yield 0, 0, 0
    yield batch - 1, side - 1, side - 1
    for _ in range(_SAMPLES):
        yield int(rng.integers(batch)), int(rng.integers(side)), int(rng.integers(side))


def _grouped(layer: _Conv, patch: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """One tap: channels of a pixel to filters."""
    size = layer.channels // layer.groups
    parts = patch.reshape(layer.groups, size)
    kernels = weights.reshape(size, layer.groups, layer.filters // layer.groups)
    return np.einsum("gc,cgf->gf", parts, kernels).reshape(-1)


def _taps(layer: _Conv, at: int) -> Iterator[tuple[int, int]]:
    """(tap, place in the image) of the result at a place of one axis, without padding."""
    for tap in range(layer.kernel):
        place = at * layer.stride + tap - layer.before
        if 0 <= place < layer.side:
            yield tap, place


def _readers(layer: _Conv, place: int) -> Iterator[tuple[int, int]]:
    """(tap, place in the result) of what reads a place of the image."""
    for tap in range(layer.kernel):
        at, rest = divmod(place + layer.before - tap, layer.stride)
        if not rest and 0 <= at < layer.out:
            yield tap, at


def _forward(layer: _Conv, hosts, found, rng) -> tuple[np.ndarray, np.ndarray]:
    x, w, _ = hosts
    got, wanted = [], []
    for n, i, j in _pixels(rng, layer.batch, layer.out):
        total = np.zeros(layer.filters)
        for p, row in _taps(layer, i):
            for q, column in _taps(layer, j):
                pixel = x[n, row, column].astype(np.float64)
                total += _grouped(layer, pixel, w[p, q].astype(np.float64))
        got.append(found[n, i, j])
        wanted.append(total)
    return np.array(got), np.array(wanted)


def _data(layer: _Conv, hosts, found, rng) -> tuple[np.ndarray, np.ndarray]:
    _, w, dy = hosts
    size, each = layer.channels // layer.groups, layer.filters // layer.groups
    got, wanted = [], []
    for n, row, column in _pixels(rng, layer.batch, layer.side):
        total = np.zeros((layer.groups, size))
        for p, i in _readers(layer, row):
            for q, j in _readers(layer, column):
                slopes = dy[n, i, j].astype(np.float64).reshape(layer.groups, each)
                kernels = w[p, q].astype(np.float64).reshape(size, layer.groups, each)
                total += np.einsum("gf,cgf->gc", slopes, kernels)
        got.append(found[n, row, column])
        wanted.append(total.reshape(-1))
    return np.array(got), np.array(wanted)


def _filter(layer: _Conv, hosts, found, rng) -> tuple[np.ndarray, np.ndarray]:
    x, _, dy = hosts
    size, each = layer.channels // layer.groups, layer.filters // layer.groups
    got, wanted = [], []
    for _ in range(4):
        p, q, f = (int(rng.integers(n)) for n in (layer.kernel, layer.kernel, layer.filters))
        group = slice(f // each * size, (f // each + 1) * size)
        rows = [(i, place) for i in range(layer.out) for t, place in _taps(layer, i) if t == p]
        columns = [(j, place) for j in range(layer.out) for t, place in _taps(layer, j) if t == q]
        here = np.ix_(range(layer.batch), *([at for _, at in axis] for axis in (rows, columns)))
        there = np.ix_(range(layer.batch), *([i for i, _ in axis] for axis in (rows, columns)))
        pixels = x[..., group][here].astype(np.float64).reshape(-1, size)
        slopes = dy[..., f][there].astype(np.float64).reshape(-1)
        got.append(found[p, q, :, f])
        wanted.append(slopes @ pixels)
    return np.concatenate(got), np.concatenate(wanted)


@dataclass(frozen=True)
class _Attention:
    """Batch entries, queries and as many keys, heads, and features of a head."""

    batch: int
    length: int
    heads: int
    features: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of queries, keys, values and the result."""
        return self.batch, self.length, self.heads, self.features


_ATTENTIONS = _Attention(1, 512, 8, 64), _Attention(2, 2048, 16, 64), _Attention(2, 1024, 8, 128)


def attention(setting: Setting) -> Iterator[Item]:
    """Attention of each dtype, and with its gradients; these compute logits twice."""
    for dtype in _dtypes(setting.quick):
        for sizes in _ATTENTIONS[: 1 if setting.quick else None]:
            for products, way in ((2, "forward"), (7, "with gradients")):
                flops = 2.0 * products * float(np.prod(sizes.shape)) * sizes.length
                if _fits(flops, dtype, *[float(np.prod(sizes.shape))] * 4):
                    make = functools.partial(_attend, sizes, way, flops, dtype)
                    name = f"{' x '.join(map(str, sizes.shape))} {way}"
                    yield Item(f"{name} {dtype}", functools.partial(_run, name, dtype, make))


def _attend(
    sizes: _Attention, way: str, flops: float, dtype: str, rng: np.random.Generator
) -> _Work:
    arrays, hosts = zip(*(_draw(rng, sizes.shape, dtype) for _ in range(4)))
    q, k, v, dy = arrays
    at = int(rng.integers(sizes.batch)), slice(None), int(rng.integers(sizes.heads))

    def forward(q, k, v):
        return kc.dot_product_attention(q, k, v)

    def gradients(q, k, v, dy):
        with kc.GradientTape() as tape:
            tape.watch([q, k, v])
            y = forward(q, k, v)
        return kc.concatenate(tape.gradient(y, [q, k, v], dy), -1)

    def error(found: np.ndarray) -> float:
        """Of one head, whole."""
        a, b, c, d = (x[at].astype(np.float64) for x in hosts)
        scale = sizes.features**-0.5
        logits = a @ b.T * scale
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        if way == "forward":
            return _relative(found[at], weights @ c)
        slopes = d @ c.T
        slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True)) * scale
        wanted = slopes @ b, slopes.T @ a, weights.T @ d
        return max(map(_relative, np.split(found[at], 3, -1), wanted))

    call = kc.jit(forward if way == "forward" else gradients)
    given = (q, k, v) if way == "forward" else (q, k, v, dy)
    moved = 4 if way == "forward" else 8
    nbytes = moved * float(np.prod(sizes.shape)) * BY_NAME[_stored(dtype)].itemsize
    return _Work(lambda: call(*given), flops, nbytes, error)
