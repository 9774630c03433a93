"""One plan alone on a device: on fresh random inputs and poisoned memory, checked and timed."""

from __future__ import annotations

import functools
import math

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.run import enqueue
from kerascl.kernels.contract.source import FP64
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, ConvProblem
from kerascl.kernels.matmul.problem import MatmulProblem, reach
from kerascl.kernels.pool.problem import PoolProblem
from kerascl.kernels.scan.problem import ScanProblem
from kerascl.kernels.scatter.problem import ScatterProblem
from kerascl.kernels.sort.problem import SortProblem
from kerascl.runtime.device import Device
from kerascl.runtime.profile import profile

_POISON = b"\xff"  # NaN in every float dtype
# Random numbers that the host draws for an input; a larger one has them again and again.  A prime,
# so that they lie elsewhere in each row.
_DRAWN = 4_194_301
_ITEMS = 16384
_COMPARE = """\
__kernel void compare(__global const STORED* got, __global const STORED* wanted, const ulong n,
                      __global T* sums) {
  T difference = 0, size = 0;
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) {
    const T w = WANTED, d = GOT - w;
    difference += d * d;
    size += w * w;
  }
  sums[2 * get_global_id(0)] = difference;
  sums[2 * get_global_id(0) + 1] = size;
}
"""
# Relative error allowed against true float32, by what the inputs are rounded to.
_BOUNDS = {"highest": 2e-5, "high": 2e-3}


class Timing:
    """Random inputs for one problem, to time solvers on.

    Args:
        problem: of products, convolutions, attention, pooling, scans, sorts or scatters.
        dev: where to run.
    """

    def __init__(self, problem, dev: Device):
        self.problem = problem
        self.dev = dev
        self.out = _stored(problem)
        rng = np.random.default_rng()
        self._slots = {
            name: self._random(rng, count, dtype)
            for name, (count, dtype) in _inputs(problem).items()
        }
        self._result = dev.buffers.allocate(max(_total(problem) * self.out.itemsize, 16))

    def plan(self, solver) -> Plan:
        """What `plan` gives for this problem and device."""
        return plan(solver, self.problem, self.dev.info)

    def seconds(self, plan: Plan, repeats: int) -> float:
        """Median seconds of device time."""
        self._launch(plan)
        self.dev.queue.finish()
        times = []
        for _ in range(repeats):
            with profile(self.dev, show=False) as recorded:
                self._launch(plan)
            times.append(sum(s.end - s.start for s in recorded.spans if s.name != "fill"))
        return float(np.median(times)) * 1e-9

    def _launch(self, plan: Plan) -> None:
        slots = self._slots | {"out": self._result}
        for k, nbytes in enumerate(plan.workspace):
            slots[f"ws{k}"] = self.dev.buffers.allocate(nbytes)
        enqueue(plan, slots, self.dev)

    def _random(self, rng: np.random.Generator, count: int, dtype: DType):
        size = dtype.itemsize
        buffer = self.dev.buffers.allocate(max(count * size, 16))
        drawn = min(count, _DRAWN)
        numbers = _numbers(dtype, _DRAWN)
        if dtype.is_integer:  # places of a scatter
            numbers = rng.integers(0, max(getattr(self.problem, "rows", 2), 1), _DRAWN)
            numbers = numbers.astype(dtype.numpy)
        numbers = np.roll(numbers, rng.integers(len(numbers)))[:drawn]
        self.dev.queue.write(buffer, np.ascontiguousarray(numbers))
        while drawn < count:  # twice as many each time
            more = min(drawn, count - drawn)
            self.dev.queue.copy(buffer, buffer, more * size, 0, drawn * size)
            drawn += more
        return buffer


class Trial(Timing):
    """Inputs and a reference for one problem; tries solvers on it.

    Args:
        problem: a MatmulProblem or ConvProblem with floating inputs.
        reference: a solver that is right beyond doubt.
        dev: where to run.
    """

    def __init__(self, problem, reference, dev: Device):
        super().__init__(problem, dev)
        self._sum = dtypes.float64 if self.out.is_double else dtypes.float32
        nbytes = problem.total * self.out.itemsize
        self._wanted = dev.buffers.allocate(nbytes)
        self._sums = dev.buffers.allocate(2 * _ITEMS * self._sum.itemsize)
        self._compute(self.plan(reference))
        dev.queue.copy(self._result, self._wanted, nbytes)

    def error(self, plan: Plan) -> float:
        """Relative error by norm against the reference; NaN where something was not written."""
        self._compute(plan)
        queue, load = self.dev.queue, self.out.load
        source = _COMPARE.replace("WANTED", load.format(p="wanted", i="i"))
        source = source.replace("GOT", load.format(p="got", i="i"))
        types = f"#define T {self._sum.storage}\n#define STORED {self.out.storage}\n"
        extension = FP64 if self.out.is_double else ""
        kernel = self.dev.programs.kernel(extension + types + dtypes.PRELUDE + source, "compare")
        count = np.uint64(self.problem.total)
        queue.launch(kernel, (_ITEMS,), (64,), (self._result, self._wanted, count, self._sums))
        sums = queue.read(self._sums, np.empty((_ITEMS, 2), self._sum.numpy))
        difference, size = np.sqrt(sums.astype(np.float64).sum(0))
        return float(difference / (size or 1.0))

    @property
    def bound(self) -> float:
        """The largest error that is still right."""
        exact = self.problem.precision == "highest" and self.problem.a is dtypes.float32
        return _BOUNDS["highest" if exact else "high"]

    def _compute(self, plan: Plan) -> None:
        self.dev.queue.fill(self._result, _POISON)
        self._launch(plan)


@functools.lru_cache(maxsize=4)
def _numbers(dtype: DType, count: int) -> np.ndarray:
    """Drawn once in a process; every input begins elsewhere among them."""
    return np.random.default_rng().standard_normal(count, np.float32).astype(dtype.numpy)


def plan(solver, problem, info) -> Plan:
    """The solver's plan with nothing but a store behind it, of the dtype that networks keep."""
    return solver.plan(problem, info, store_epilogue(_stored(problem)))


def _stored(problem) -> DType:
    """Of 16-bit inputs the same: what is written counts where little is computed."""
    if not isinstance(problem, MatmulProblem | ConvProblem):
        return problem.dtype
    if problem.a.itemsize == 2:
        return problem.a
    return dtypes.float32 if problem.acc.itemsize <= 4 else problem.acc


def _inputs(problem) -> dict[str, tuple[int, DType]]:
    """Elements and dtype of each slot but that of the result."""
    p = problem
    if isinstance(p, ConvProblem):
        a = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        b = p.y_shape if p.kind == FILTER_GRAD else p.w_shape
        return {"a": (math.prod(a), p.a), "b": (math.prod(b), p.b)}
    if isinstance(p, MatmulProblem):
        return {
            "a": (reach((*p.batch, p.m, p.k), p.a_strides, p.a_offset), p.a),
            "b": (reach((*p.batch, p.k, p.n), p.b_strides, p.b_offset), p.b),
        }
    if isinstance(p, PoolProblem):
        x, y = math.prod(p.x_shape), math.prod(p.y_shape)
        sizes = {"average_grad": (y,), "max_grad": (x, y, y), "max_select": (x, y, x)}
        return {slot: (n, p.dtype) for slot, n in zip("abc", sizes.get(p.kind, (x,)))}
    if isinstance(p, ScanProblem):
        return {"a": (_total(p), p.dtype)}
    if isinstance(p, SortProblem):
        return {"a": (p.rows * p.length, p.dtype), "indices": (_total(p), dtypes.int32)}
    if isinstance(p, ScatterProblem):
        rows = p.rows * p.width, p.dtype
        updates = {"a": (p.count, p.index_dtype), "b": (p.count * p.width, p.dtype)}
        return updates | {"c": rows} if p.base else updates
    assert isinstance(p, AttentionProblem)
    return _attention_inputs(p)


def _attention_inputs(p: AttentionProblem) -> dict[str, tuple[int, DType]]:
    queries, keys = (p.batch, p.length, p.heads), (p.batch, p.source, p.groups)
    logits = p.batch, p.heads, p.length, p.source
    rows = math.prod(queries)
    tensors = [(p.q, (*queries, p.width)), (p.k, (*keys, p.width)), (p.v, (*keys, p.depth))]
    tensors += [(p.grad, (*queries, p.depth))] if p.grad else []
    rest = [(x, logits) for x in (p.bias, p.mask) if x]
    found = {
        slot: (reach(shape, x.strides, x.offset), x.dtype)
        for slot, (x, shape) in zip("abcd" if p.grad else "abc", tensors)
    }
    found |= {
        slot: (reach(shape, x.strides, x.offset), x.dtype)
        for slot, (x, shape) in zip("gh" if p.grad else "de", rest)
    }
    if (drop := p.dropout) is not None:
        slot = chr(ord("g" if p.grad else "d") + len(rest))
        found[slot] = (reach((2,), (drop.step,), drop.offset), dtypes.uint32)
    if p.grad is None:
        return found | {"stat": (rows, dtypes.float32)}
    count = math.prod(keys)
    return found | {
        "e": (rows, dtypes.float32), "f": (rows, dtypes.float32),
        "dk": (count * p.width, p.dtype), "dv": (count * p.depth, p.dtype),
    }  # fmt: skip


def _total(problem) -> int:
    """Elements of the result."""
    p = problem
    if isinstance(p, PoolProblem):
        return math.prod(p.result_shape)
    if isinstance(p, ScanProblem):
        return p.outer * p.length * p.inner
    if isinstance(p, SortProblem):
        return p.rows * p.keep
    if isinstance(p, ScatterProblem):
        return p.rows * p.width
    if isinstance(p, AttentionProblem):
        return p.batch * p.length * p.heads * (p.depth if p.grad is None else p.width)
    return problem.total
