"""Fourier transforms along an axis."""

from __future__ import annotations

from math import prod

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.fft import solvers as fft
from kerascl.kernels.fft.problem import FftProblem
from kerascl.kernels.fft.stages import work
from kerascl.ops.fft import FFT, FFT_COMPLEX

_SLOTS = ("re", "im")


def _plan(call: Call) -> Plan:
    node = call.node
    sign, axis, scale = node.attrs
    roots, x, *rest = node.inputs
    levels, fine, _ = roots.shape
    given = "complex" if x.dtype.is_complex else "pair" if rest else "real"
    joined = node.op is FFT_COMPLEX
    wanted = ("complex",) if joined else tuple(_SLOTS[k] for k in sorted(call.wanted))
    problem = FftProblem(
        outer=prod(x.shape[:axis]),
        length=x.shape[axis],
        inner=prod(x.shape[axis + 1 :]),
        sign=sign,
        dtype=x.dtype.real,
        acc=roots.dtype,
        fine=fine,
        given=given,
        wanted=wanted,
        scale=scale,
        levels=levels,
    )
    return fft.plan(problem, call.info, call.epilogue)


def _flops(node: Node) -> int:
    return int(node.size * work(node.shape[node.attrs[1]]))


OPERATIONS = (
    LibraryOperation(FFT, _plan, outputs=lambda node: _SLOTS, flops=_flops, zeros=frozenset({2})),
    LibraryOperation(FFT_COMPLEX, _plan, flops=_flops),
)
