"""What a convolution is: the problem, its geometry as kernel parameters, its implicit GEMM."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.sizes import ceil_div, index_type

FORWARD, DATA_GRAD, FILTER_GRAD = "forward", "data_grad", "filter_grad"


@dataclass(frozen=True)
class ConvProblem:
    """One convolution or one of its gradients.

    y[n, o, f] = sum over taps j and channels c of x[n, o * stride + j * dilation - pad_lo, c]
    * w[j, c, f], with zeros outside x.  Group g joins channels c of x with filters f of the same
    g-th part.  Slots "a" and "b" are, aligned to at least 16 bytes each:

        forward      a = x, b = w,  output y
        data_grad    a = dy, b = w, output dx of shape x (also the transposed convolution)
        filter_grad  a = x, b = dy, output dw of shape w

    Attributes:
        kind: "forward", "data_grad" or "filter_grad".
        x_shape: (images, *spatial, channels), whatever the memory layout.
        w_shape: (*kernel, channels // groups, filters); always laid out so.
        y_shape: (images, *out, filters).
        strides, dilation: one positive int a dimension.
        pads: (low, high) a dimension; either may be negative (cropping).  Only `low` and y_shape
            enter the arithmetic.
        groups: number of groups.
        channels_first: x and y lie in memory as (images, channels, *spatial).
        a, b: dtypes of the inputs; acc: dtype in which products are summed.
        precision: "high" or "highest", as for a MatmulProblem.
    """

    kind: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    channels_first: bool
    a: DType
    b: DType
    acc: DType
    precision: str = "highest"

    @property
    def rank(self) -> int:
        """Number of spatial dimensions."""
        return len(self.w_shape) - 2

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The logical shape of the output (channels last for x and y)."""
        shapes = {FORWARD: self.y_shape, DATA_GRAD: self.x_shape, FILTER_GRAD: self.w_shape}
        return shapes[self.kind]

    @property
    def total(self) -> int:
        """Number of output elements."""
        return math.prod(self.out_shape)

    @property
    def products(self) -> int:
        """Multiply-adds, those of padding counted too."""
        images, filters = math.prod(self.y_shape[:-1]), self.w_shape[-1]
        return images * filters * math.prod(self.w_shape[:-1])

    @property
    def nbytes(self) -> int:
        """Of both inputs and the result, each moved once."""
        sizes = math.prod(self.x_shape), math.prod(self.w_shape), math.prod(self.y_shape)
        return self.a.itemsize * sum(sizes)

    @property
    def terms(self) -> int:
        """The most products in one output element's sum."""
        taps = math.prod(self.w_shape[:-2])
        if self.kind == FORWARD:
            return taps * self.w_shape[-2]
        if self.kind == DATA_GRAD:
            return taps * self.w_shape[-1] // self.groups
        return math.prod(self.y_shape[:-1])


def normalise_conv(p: ConvProblem) -> ConvProblem:
    """The same convolution with two spatial dimensions (three if there are three).

    Leading dimensions of one tap that change nothing are dropped or merged into the images
    where the layout allows it.
    """
    missing = 2 - p.rank
    if missing <= 0:
        return p
    ones = (1,) * missing
    return dataclasses.replace(
        p,
        x_shape=(p.x_shape[0], *ones, *p.x_shape[1:]),
        w_shape=(*ones, *p.w_shape),
        y_shape=(p.y_shape[0], *ones, *p.y_shape[1:]),
        strides=(*ones, *p.strides),
        pads=(*((0, 0),) * missing, *p.pads),
        dilation=(*ones, *p.dilation),
    )


def image_strides(shape: tuple[int, ...], channels_first: bool) -> tuple[int, int, int]:
    """Element strides (image, pixel, channel) of a contiguous array of logical `shape`."""
    pixels, channels = math.prod(shape[1:-1]), shape[-1]
    if channels_first:
        return pixels * channels, 1, pixels
    return pixels * channels, channels, 1


def usable(p: ConvProblem, info) -> bool:
    """Whether the device has the dtypes: doubles are missing on many."""
    return info.fp64 or "float64" not in (p.a.name, p.b.name, p.acc.name)


def conv_index(p: ConvProblem) -> str:
    """The index type: coordinates may overhang by a padded or dilated kernel."""
    sizes = [math.prod(s) for s in (p.x_shape, p.y_shape, p.w_shape)]
    overhang = max(k * d for k, d in zip(p.w_shape, p.dilation)) + max(
        abs(v) for q in p.pads for v in q
    )
    row = math.prod(p.x_shape[2:]) + math.prod(p.y_shape[2:])
    return index_type(max(sizes) + 2**16 + overhang * row * 2)


def geometry(p: ConvProblem) -> Params:
    """Spatial parameters: IN is the gathered side (x, or dy for a data gradient), OUT the other
    (the iterated output pixels; dy's for a filter gradient)."""
    gathered, other = (p.y_shape, p.x_shape) if p.kind == DATA_GRAD else (p.x_shape, p.y_shape)
    return Params().axes(
        p.rank, IN=gathered[1:-1], OUT=other[1:-1], KER=p.w_shape[:-2], STRIDE=p.strides,
        DIL=p.dilation, PAD=tuple(low for low, _ in p.pads),
    )  # fmt: skip


def kind_defines(p: ConvProblem) -> str:
    """The macros that tell a kernel which of the three problems it solves, and in how many axes."""
    return (
        f"#define DIMS {p.rank}\n"
        f"#define DATA_GRAD {int(p.kind == DATA_GRAD)}\n"
        f"#define FILTER_GRAD {int(p.kind == FILTER_GRAD)}\n"
        f"#define CHANNELS_FIRST {int(p.channels_first)}\n"
    )


@dataclass(frozen=True)
class GemmShape:
    """Sizes of the implicit GEMM of one group and one class."""

    m: int
    n: int
    k: int
    classes: int
    channels: int  # depth channels (forward, data_grad) or row channels (filter_grad) of a group


def gemm_shape(p: ConvProblem) -> GemmShape:
    """The sizes of the matrix product that the convolution is, one of each group and each class of
    strided gradients."""
    channels, filters = p.w_shape[-2], p.w_shape[-1] // p.groups
    taps, images = math.prod(p.w_shape[:-2]), p.x_shape[0]
    if p.kind == FORWARD:
        return GemmShape(math.prod(p.y_shape[:-1]), filters, taps * channels, 1, channels)
    if p.kind == FILTER_GRAD:
        return GemmShape(taps * channels, filters, math.prod(p.y_shape[:-1]), 1, channels)
    rows = images * math.prod(ceil_div(s, t) for s, t in zip(p.x_shape[1:-1], p.strides))
    deep = math.prod(
        ceil_div(k, t // math.gcd(t, d)) for k, t, d in zip(p.w_shape, p.strides, p.dilation)
    )
    return GemmShape(rows, channels, deep * filters, math.prod(p.strides), filters)


def product_params(p: ConvProblem, index: str, tiles_m: int, splits: int, slice_: int) -> Params:
    """Parameters of conv_simt.cl: geometry, sizes of the implicit GEMM and steps in memory."""
    shape = gemm_shape(p)
    params = geometry(p).add(
        "int", BATCH=p.x_shape[0], CIN=shape.channels, COUT=shape.n, GROUPS=p.groups,
        SPLITS=splits, KSLICE=slice_, TILES_M=tiles_m,
    )  # fmt: skip

    def image(names: tuple[str, str, str], sides: tuple[int, ...]) -> None:
        params.add(index, **dict(zip(names, image_strides(sides, p.channels_first))))

    image(("aN", "aP", "aC"), p.y_shape if p.kind == DATA_GRAD else p.x_shape)
    if p.kind == FILTER_GRAD:
        image(("bN", "bP", "bC"), p.y_shape)
        return params
    image(("oN", "oP", "oC"), p.out_shape)
    filters = p.w_shape[-1]
    depth, column = (filters, 1) if p.kind == FORWARD else (1, filters)
    wide = filters // p.groups
    return params.add(index, wTap=p.w_shape[-2] * filters, wC=depth, wN=column, wG=wide)
