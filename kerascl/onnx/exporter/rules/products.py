"""Matrix products and convolutions."""

from __future__ import annotations

from kerascl.dtypes import DType
from kerascl.onnx.exporter.graph import Graph, Order
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.table import rule
from kerascl.onnx.exporter.sizes import Dim, Shape, Size, is_static, pointwise, same_everywhere
from kerascl.ops.contraction import MATMUL
from kerascl.ops.convolution import CONV, DATA_GRAD


@rule(MATMUL)
def _matmul(g: Graph, v: Value) -> None:
    a, b = (_in(g, x, g.name(x), v.dtype) for x in v.inputs)
    g.bind(v, g.add("MatMul", a, b))


def _in(g: Graph, x: Value, name: str, dtype: DType) -> str:
    return name if x.dtype is dtype else g.cast(name, dtype)


def channels_first(rank: int, is_first: bool) -> Order:
    """The order of axes that ONNX has images in."""
    return tuple(range(rank)) if is_first else (0, rank - 1, *range(1, rank - 1))


def spatial(shape: Shape, is_first: bool) -> Shape:
    """The sizes of an image."""
    return shape[2:] if is_first else shape[1:-1]


def window_attributes(
    v: Value, sizes: Shape, window: Shape, strides: Shape, pads: tuple[Shape, ...]
) -> dict[str, object]:
    """Strides and padding: numbers, or SAME_UPPER where they follow from sizes that are free."""
    where = f"{v.label or v.op.name}: the padding"
    attributes: dict[str, object] = {"strides": list(strides)}
    if all(is_static(p) for p in pads):
        low, high = zip(*pads, strict=True)
        if any(low) or any(high):
            attributes["pads"] = [*low, *high]
        return attributes
    for n, k, s, pad in zip(sizes, window, strides, pads, strict=True):
        total = pointwise(_same_padding, n, k, s)
        half = pointwise(lambda t: t // 2, total)
        if pad != (half, total - half):
            same_everywhere(next(p for p in pad if isinstance(p, Dim)), where)
    return attributes | {"auto_pad": "SAME_UPPER"}


def _same_padding(n: int, k: int, s: int) -> int:
    return max((-(-n // s) - 1) * s + k - n, 0)


@rule(CONV)
def _conv(g: Graph, v: Value) -> None:
    name, order = convolution(g, v)
    g.bind(v, name, order)


def convolution(g: Graph, v: Value, *bias: str) -> tuple[str, Order]:
    """A convolution's result, plus a vector along its filters, and the order of its axes."""
    x, w = v.inputs
    strides, pads, dilation, groups, is_first, _ = v.attrs
    rank = len(x.shape)
    order = channels_first(rank, is_first)
    kernel = w.shape[:-2]
    window = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    attributes = window_attributes(v, spatial(x.shape, is_first), window, strides, pads)
    y = g.add(
        "Conv", _in(g, x, g.name(x, order), v.dtype), _kernel(g, w, v.dtype), *bias,
        kernel_shape=list(kernel), dilations=list(dilation), group=groups, **attributes,
    )  # fmt: skip
    return y, order


def _kernel(g: Graph, w: Value, dtype: DType) -> str:
    """(*kernel, channels, filters) as (filters, channels, *kernel)."""
    rank = len(w.shape)
    return _in(g, w, g.weight(w, (rank - 1, rank - 2, *range(rank - 2))), dtype)


@rule(DATA_GRAD)
def _conv_transpose(g: Graph, v: Value) -> None:
    x, w = v.inputs
    strides, pads, dilation, groups, is_first, _ = v.attrs
    order = channels_first(len(x.shape), is_first)
    kernel = w.shape[:-2]
    low, high, more = [], [], []
    old, new = spatial(x.shape, is_first), spatial(v.shape, is_first)
    for n, m, k, s, d, (before, after) in zip(
        old, new, kernel, strides, dilation, pads, strict=True
    ):
        full: Size = (n - 1) * s + (k - 1) * d + 1
        extra = same_everywhere(
            m - (full - before - after), f"{v.label or 'a transposed convolution'}: its size"
        )
        low.append(before)
        high.append(after - min(extra, 0))  # less than a stride is left out
        more.append(max(extra, 0))
    inside = [min(m, s - 1) for m, s in zip(more, strides, strict=True)]
    y = g.add(
        "ConvTranspose", _in(g, x, g.name(x, order), v.dtype), _kernel(g, w, v.dtype),
        kernel_shape=list(kernel), strides=list(strides), dilations=list(dilation), group=groups,
        pads=[*low, *high], output_padding=inside,
    )  # fmt: skip
    beyond = [m - i for m, i in zip(more, inside, strict=True)]
    if any(beyond):  # where no window reaches there are zeros
        y = g.pad(y, (0,) * len(order), (0, 0, *beyond), "")
    g.bind(v, y, order)
