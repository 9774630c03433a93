"""Bulk tensor copies (TMA): the descriptors of tensors in memory."""

from __future__ import annotations

from kerascl.dtypes import DType
from kerascl.kernels.hopper.ptx import KINDS, TO_TF32


def depth_of(dtype: DType) -> int:
    """Elements of k in one stage: 128 bytes."""
    return 128 // dtype.itemsize


def map_words(
    dtype: DType, sizes: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...],
    rounded: bool = True,
) -> tuple[int, ...]:  # fmt: skip
    """Words 1 to 8 of a tensor map (word 0 is the address).

    Tiled, 128-byte swizzle, zeros outside, L2 promotion to 128 bytes.

    Args:
        sizes: elements of each dimension, innermost first.
        steps: bytes between neighbours of dimensions 1 and up, multiples of 16.
        box: elements of a box, at most 256 each; box[0] is 128 bytes.
        rounded: whether float32 is rounded to tf32.
    """
    s = [step >> 4 for step in steps] + [0] * (5 - len(sizes))
    d = [size - 1 for size in sizes] + [0] * (5 - len(sizes))
    b = [size - 1 for size in box] + [0] * (5 - len(box))
    nbytes = dtype.itemsize
    for size in box:
        nbytes *= size
    code = KINDS[dtype.name].code & (~0 if rounded else ~TO_TF32)
    head = (len(sizes) - 1) << 4 | code | 3 << 13 | 2 << 17
    return (
        head | s[0] << 32,
        s[1] | s[2] << 32,
        s[3],
        d[0] | d[1] << 32,
        d[2] | d[3] << 32,
        d[4] | b[0] << 56,
        b[1] | b[2] << 8 | b[3] << 16 | b[4] << 24,
        nbytes,
    )
