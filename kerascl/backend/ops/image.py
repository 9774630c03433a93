"""`keras.ops.image`: colours, resizing, warping, filtering."""

from __future__ import annotations

import numpy as np
from keras.src.backend.config import standardize_data_format
from keras.src.random.seed_generator import draw_seed

from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.backend.ops.image_resample import (
    FILL_MODES,
    FILTERS,
    resize_axis,
    resize_nearest,
    sample_at,
    scale_axis,
)
from kerascl.backend.ops.linalg import solve
from kerascl.core.array import Array
from kerascl.dtypes import float32, promote
from kerascl.ops import convolution, random
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, floating
from kerascl.ops.movement import concatenate, expand_dims, iota, moveaxis, pad, squeeze, stack
from kerascl.ops.pointwise import absolute, clip, exp, floor, maximum, minimum, where
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "affine_transform", "compute_homography_matrix", "elastic_transform", "gaussian_blur",
    "hsv_to_rgb", "map_coordinates", "perspective_transform", "resize", "rgb_to_grayscale",
    "rgb_to_hsv", "scale_and_translate", "sobel_edges",
]  # fmt: skip

RESIZE_INTERPOLATIONS = ("bilinear", "nearest", "lanczos3", "lanczos5", "bicubic")
_ORDERS = {"nearest": 0, "bilinear": 1}


def _check_rank(images: Array) -> None:
    if images.ndim not in (3, 4):
        raise ValueError(
            "Invalid images rank: expected rank 3 (single image) "
            "or rank 4 (batch of images). Received input with shape: "
            f"images.shape={images.shape}"
        )


def _check_float(images: Array) -> None:
    if not images.dtype.is_float:
        raise ValueError(
            "Invalid images dtype: expected float dtype. "
            f"Received: images.dtype={images.dtype.name}"
        )


def _check_choice(name: str, value, choices) -> None:
    if value not in choices:
        raise ValueError(
            f"Invalid value for argument `{name}`. Expected of one "
            f"{tuple(choices)}. Received: {name}={value}"
        )


def _planes(images: Array, axis: int) -> list[Array]:
    """The channels of images, each without the channel axis."""
    x = moveaxis(images, axis, 0)
    return [x[k] for k in range(x.shape[0])]


# -- colours ------------------------------------------------------------------------------
def rgb_to_grayscale(images, data_format=None) -> Array:
    """The luminance of RGB images, with one channel."""
    images = convert_to_tensor(images)
    axis = -1 if standardize_data_format(data_format) == "channels_last" else -3
    _check_rank(images)
    channels = images.shape[axis]
    if channels not in (1, 3):
        raise ValueError(
            "Invalid channel size: expected 3 (RGB) or 1 (Grayscale). "
            f"Received input with shape: images.shape={images.shape}"
        )
    if channels == 1:
        return images
    x = cast_to(images, floating(images.dtype)[0])
    red, green, blue = _planes(x, axis)
    gray = red * 0.2989 + green * 0.5870 + blue * 0.1140
    return cast_to(expand_dims(gray, axis), images.dtype)


def rgb_to_hsv(images, data_format=None) -> Array:
    """Hue, saturation and value (each in 0 … 1) of floating RGB images."""
    images = convert_to_tensor(images)
    axis = -1 if standardize_data_format(data_format) == "channels_last" else -3
    _check_rank(images)
    _check_float(images)
    images = where(absolute(images) < _eps(images.dtype), 0, images)
    red, green, blue = _planes(images, axis)
    value = maximum(maximum(red, green), blue)
    span = value - minimum(minimum(red, green), blue)
    saturation = where(value > 0, span / where(value > 0, value, 1), 0)
    norm = 1.0 / (6.0 * where(span > 0, span, 1))
    hue = where(value == green, norm * (blue - red) + 2 / 6, norm * (red - green) + 4 / 6)
    hue = where(value == red, norm * (green - blue), hue)
    hue = where(span > 0, hue, 0)
    hue = hue + where(hue < 0, 1, 0)
    return stack([hue, saturation, value], axis)


def _eps(dtype) -> float:
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}.get(dtype.name, 2.0**-23)


def hsv_to_rgb(images, data_format=None) -> Array:
    """The inverse of `rgb_to_hsv`."""
    images = convert_to_tensor(images)
    axis = -1 if standardize_data_format(data_format) == "channels_last" else -3
    _check_rank(images)
    _check_float(images)
    hue, saturation, value = _planes(images, axis)
    sector = (hue - floor(hue)) * 6.0
    rest = 1.0 - saturation
    planes = (
        clip(absolute(sector - 3.0) - 1.0, 0, 1),
        clip(2.0 - absolute(sector - 2.0), 0, 1),
        clip(2.0 - absolute(sector - 4.0), 0, 1),
    )
    return stack([value * (rest + saturation * p) for p in planes], axis)


# -- resizing -------------------------------------------------------------------------------
def resize(
    images, size, interpolation="bilinear", antialias=False, crop_to_aspect_ratio=False,
    pad_to_aspect_ratio=False, fill_mode="constant", fill_value=0.0, data_format=None,
) -> Array:  # fmt: skip
    """Images of another height and width; see `keras.ops.image.resize`."""
    first = standardize_data_format(data_format) == "channels_first"
    if interpolation not in RESIZE_INTERPOLATIONS:
        raise ValueError(
            "Invalid value for argument `interpolation`. Expected of one "
            f"{RESIZE_INTERPOLATIONS}. Received: interpolation={interpolation}"
        )
    if fill_mode != "constant":
        raise ValueError(
            "Invalid value for argument `fill_mode`. Only `'constant'` "
            f"is supported. Received: fill_mode={fill_mode}"
        )
    if pad_to_aspect_ratio and crop_to_aspect_ratio:
        raise ValueError(
            "Only one of `pad_to_aspect_ratio` & `crop_to_aspect_ratio` can be `True`."
        )
    if len(size) != 2:
        raise ValueError(
            "Argument `size` must be a tuple of two elements "
            f"(height, width). Received: size={size}"
        )
    images = convert_to_tensor(images)
    _check_rank(images)
    rows = images.ndim - (2 if first else 3)
    target_height, target_width = (int(n) for n in size)
    height, width = images.shape[rows : rows + 2]
    if crop_to_aspect_ratio:
        crop_height = max(min(height, int(float(width * target_height) / target_width)), 1)
        crop_width = max(min(width, int(float(height * target_width) / target_height)), 1)
        top = int(float(height - crop_height) / 2)
        left = int(float(width - crop_width) / 2)
        key = [slice(None)] * images.ndim
        key[rows : rows + 2] = slice(top, top + crop_height), slice(left, left + crop_width)
        images = images[tuple(key)]
    elif pad_to_aspect_ratio:
        pad_height = max(height, int(float(width * target_height) / target_width))
        pad_width = max(width, int(float(height * target_width) / target_height))
        top = int(float(pad_height - height) / 2)
        left = int(float(pad_width - width) / 2) if top == 0 else 0
        widths = [(0, 0)] * images.ndim
        widths[rows : rows + 2] = (top, top), (left, left)
        images = pad(images, widths, constant_values=fill_value)
    if interpolation == "nearest":
        for axis, n in ((rows, target_height), (rows + 1, target_width)):
            images = resize_nearest(images, axis, n)
        return images
    images = cast_to(images, floating(images.dtype)[0])
    for axis, n in ((rows, target_height), (rows + 1, target_width)):
        images = resize_axis(images, axis, n, interpolation, antialias)
    return images


def scale_and_translate(
    images, output_shape, scale, translation, spatial_dims, method, antialias=True
) -> Array:
    """Images resampled so that position p goes to p * scale + translation; outside is 0.

    Args:
        output_shape: of the result, all dimensions.
        scale, translation: (k,), for the k dimensions `spatial_dims`.
        method: "linear", "cubic", "lanczos3", "lanczos5" or an alias with bi or tri.
    """
    _check_choice("method", method, FILTERS)
    images = convert_to_tensor(images)
    scale, translation = convert_to_tensor(scale), convert_to_tensor(translation)
    dtype = floating(promote(scale.dtype, translation.dtype))[0]
    scale, translation = cast_to(scale, dtype), cast_to(translation, dtype)
    x = cast_to(images, floating(images.dtype)[0])
    for k, axis in enumerate(spatial_dims):
        axis = axis % x.ndim
        x = scale_axis(x, axis, output_shape[axis], scale[k], translation[k], method, antialias)
    return x


# -- warping ----------------------------------------------------------------------------------
def _check_warp(interpolation: str, fill_mode: str | None) -> None:
    if interpolation not in _ORDERS:
        raise ValueError(
            "Invalid value for argument `interpolation`. Expected of one "
            f"{set(_ORDERS)}. Received: interpolation={interpolation}"
        )
    if fill_mode is not None and fill_mode not in FILL_MODES:
        raise ValueError(
            "Invalid value for argument `fill_mode`. Expected of one "
            f"{set(FILL_MODES)}. Received: fill_mode={fill_mode}"
        )


def _warp(images: Array, rows: Array, columns: Array, order, fill_mode, fill_value, first) -> Array:
    """Batches of images read at positions (batch or 1, height, width)."""
    batch = images.shape[0]
    height, width = rows.shape[1:]
    if first:
        shape = (batch, images.shape[1], height, width)
        spec = (("d", 0), ("d", 1), ("i", 0), ("i", 1))
        positions = [reshape_to(p, (p.shape[0], 1, height, width)) for p in (rows, columns)]
    else:
        shape = (batch, height, width, images.shape[3])
        spec = (("d", 0), ("i", 0), ("i", 1), ("d", 3))
        positions = [reshape_to(p, (*p.shape, 1)) for p in (rows, columns)]
    return sample_at(images, positions, spec, shape, order, fill_mode, fill_value)


def affine_transform(
    images, transform, interpolation="bilinear", fill_mode="constant", fill_value=0,
    data_format=None,
) -> Array:  # fmt: skip
    """Images read at (a0 * x + a1 * y + a2, b0 * x + b1 * y + b2).

    Args:
        transform: (8,) or (batch, 8): a0, a1, a2, b0, b1, b2, and two values that are not used.
    """
    first = standardize_data_format(data_format) == "channels_first"
    _check_warp(interpolation, fill_mode)
    images, transform = convert_to_tensor(images), convert_to_tensor(transform)
    _check_rank(images)
    if transform.ndim not in (1, 2):
        raise ValueError(
            "Invalid transform rank: expected rank 1 (single transform) "
            "or rank 2 (batch of transforms). Received input with shape: "
            f"transform.shape={transform.shape}"
        )
    single = images.ndim == 3
    x = expand_dims(images, 0) if single else images
    transform = cast_to(transform, floating(transform.dtype)[0].accumulator)
    if transform.ndim == 1:
        transform = expand_dims(transform, 0)
    a0, a1, a2, b0, b1, b2 = (reshape_to(transform[:, k], (transform.shape[0], 1, 1))
                              for k in range(6))  # fmt: skip
    row, column = _pixel_grid(x, first, transform.dtype)
    rows = row * b1 + column * b0 + b2
    columns = row * a1 + column * a0 + a2
    y = _warp(x, rows, columns, _ORDERS[interpolation], fill_mode, fill_value, first)
    return squeeze(y, 0) if single else y


def _pixel_grid(x: Array, first: bool, dtype) -> tuple[Array, Array]:
    """Row and column of each pixel: two arrays (1, height, width)."""
    shape = (1, *(x.shape[2:] if first else x.shape[1:3]))
    return cast_to(iota(shape, 1), dtype), cast_to(iota(shape, 2), dtype)


def perspective_transform(
    images, start_points, end_points, interpolation="bilinear", fill_value=0, data_format=None
) -> Array:
    """Images warped so that four start points (x, y) come to lie on the end points."""
    first = standardize_data_format(data_format) == "channels_first"
    images = convert_to_tensor(images)
    start_points = convert_to_tensor(start_points, "float32")
    end_points = convert_to_tensor(end_points, "float32")
    _check_warp(interpolation, None)
    _check_rank(images)
    for name, points in (("start_points", start_points), ("end_points", end_points)):
        if points.shape[-2:] != (4, 2) or points.ndim not in (2, 3):
            raise ValueError(
                f"Invalid {name} shape: expected (4,2) for a single image"
                f" or (N,4,2) for a batch. Received shape: {points.shape}"
            )
    if start_points.shape != end_points.shape:
        raise ValueError(
            "start_points and end_points must have the same shape."
            f" Received start_points.shape={start_points.shape}, "
            f"end_points.shape={end_points.shape}"
        )
    single = images.ndim == 3
    x = expand_dims(images, 0) if single else images
    if start_points.ndim == 2:
        start_points, end_points = expand_dims(start_points, 0), expand_dims(end_points, 0)
    matrix = compute_homography_matrix(start_points, end_points)
    h = [reshape_to(matrix[:, k], (matrix.shape[0], 1, 1)) for k in range(8)]
    row, column = _pixel_grid(x, first, float32)
    depth = h[6] * column + h[7] * row + 1.0
    columns = (h[0] * column + h[1] * row + h[2]) / depth
    rows = (h[3] * column + h[4] * row + h[5]) / depth
    y = _warp(x, rows, columns, _ORDERS[interpolation], "constant", fill_value, first)
    return squeeze(y, 0) if single else y


def compute_homography_matrix(start_points, end_points) -> Array:
    """(batch, 8): the projective map from end points (batch, 4, 2) to start points."""
    start_points, end_points = convert_to_tensor(start_points), convert_to_tensor(end_points)
    dtype = floating(promote(start_points.dtype, end_points.dtype))[0]
    start, end = cast_to(start_points, dtype), cast_to(end_points, dtype)
    start_x, start_y = start[..., 0], start[..., 1]
    end_x, end_y = end[..., 0], end[..., 1]
    zero, one = end_x * 0, end_x * 0 + 1
    x_rows = [end_x, end_y, one, zero, zero, zero, -start_x * end_x, -start_x * end_y]
    y_rows = [zero, zero, zero, end_x, end_y, one, -start_y * end_x, -start_y * end_y]
    matrix = concatenate([stack(x_rows, -1), stack(y_rows, -1)], 1)
    target = expand_dims(concatenate([start_x, start_y], -1), -1)
    return squeeze(solve(matrix, target), -1)


def map_coordinates(inputs, coordinates, order, fill_mode="constant", fill_value=0.0) -> Array:
    """Values of an array at fractional positions.

    Args:
        inputs: any array.
        coordinates: (inputs.ndim, *shape) positions.
        order: 0 (nearest) or 1 (linear).
    """
    inputs, coordinates = convert_to_tensor(inputs), convert_to_tensor(coordinates)
    if coordinates.shape[0] != inputs.ndim:
        raise ValueError(
            "First dim of `coordinates` must be the same as the rank of `inputs`. "
            f"Received inputs with shape: {inputs.shape} and coordinate "
            f"leading dim of {coordinates.shape[0]}"
        )
    if coordinates.ndim < 2:
        raise ValueError(
            "Invalid coordinates rank: expected at least rank 2."
            f" Received input with shape: {coordinates.shape}"
        )
    if fill_mode not in FILL_MODES:
        raise ValueError(
            "Invalid value for argument `fill_mode`. Expected one of "
            f"{set(FILL_MODES)}. Received: fill_mode={fill_mode}"
        )
    if order not in range(2):
        raise ValueError(
            f"Invalid value for argument `order`. Expected one of {[0, 1]}. Received: order={order}"
        )
    coordinates = cast_to(coordinates, floating(coordinates.dtype)[0])
    positions = [coordinates[k] for k in range(inputs.ndim)]
    spec = tuple(("i", k) for k in range(inputs.ndim))
    shape = coordinates.shape[1:]
    return sample_at(inputs, positions, spec, shape, order, fill_mode, fill_value)


# -- filtering ----------------------------------------------------------------------------------
def _filter_each(images: Array, kernel: Array, first: bool) -> Array:
    """Every channel convolved with the same (height, width) kernel, padded with zeros."""
    channels = images.shape[1 if first else 3]
    wide = expand_to(reshape_to(kernel, (*kernel.shape, 1, 1)), (*kernel.shape, channels, 1))
    return convolution.depthwise_conv(images, wide, 1, "same", 1, first)


def gaussian_blur(images, kernel_size=(3, 3), sigma=(1.0, 1.0), data_format=None) -> Array:
    """Images blurred by a Gaussian; `kernel_size` and `sigma` are (x, y)."""
    first = standardize_data_format(data_format) == "channels_first"
    images = convert_to_tensor(images)
    _check_rank(images)
    sigma = convert_to_tensor(sigma, images.dtype)

    def line(size: int, width: Array) -> Array:
        x = cast_to(iota((size,), 0), width.dtype) - (size - 1) / 2
        weights = exp(-0.5 * (x / width) ** 2)
        return weights / total(weights)

    across, down = line(kernel_size[0], sigma[0]), line(kernel_size[1], sigma[1])
    kernel = reshape_to(down, (down.size, 1)) * across
    single = images.ndim == 3
    y = _filter_each(expand_dims(images, 0) if single else images, kernel, first)
    return squeeze(y, 0) if single else y


def sobel_edges(images, data_format=None) -> Array:
    """Gradients of images: (dy, dx) on a new last axis."""
    images = convert_to_tensor(images)
    first = data_format == "channels_first"
    down = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]], np.float32)
    edges = [_filter_each(images, as_array(k, images.dtype), first) for k in (down, down.T)]
    return stack(edges, -1)


def elastic_transform(
    images, alpha=20.0, sigma=5.0, interpolation="bilinear", fill_mode="reflect", fill_value=0.0,
    seed=None, data_format=None,
) -> Array:  # fmt: skip
    """Images warped by a smooth random field of displacements."""
    first = standardize_data_format(data_format) == "channels_first"
    _check_warp(interpolation, fill_mode)
    images = convert_to_tensor(images)
    _check_rank(images)
    alpha, sigma = float(alpha), float(sigma)
    side = int(6 * sigma) | 1
    single = images.ndim == 3
    x = expand_dims(images, 0) if single else images
    row, column = _pixel_grid(x, first, float32)
    batch = x.shape[0]
    key = draw_seed(seed)
    noise = []
    for stream in range(2):
        field = random.normal(random.fold_in(key, stream), (batch, *row.shape[1:]), 0.0, sigma)
        field = gaussian_blur(expand_dims(field, 1), (side, side), (sigma, sigma), "channels_first")
        noise.append(squeeze(field, 1))
    rows, columns = row + alpha * noise[0], column + alpha * noise[1]
    y = _warp(x, rows, columns, _ORDERS[interpolation], fill_mode, fill_value, first)
    return squeeze(y, 0) if single else y
