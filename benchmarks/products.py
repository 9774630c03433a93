"""Every matrix-product and convolution solver on one device: correct, and how fast.

    python benchmarks/products.py --groups gemm resnet50 --batch 64 --dtypes float32

For each problem every applicable solver computes fresh random inputs into an output poisoned with
NaN and is compared, by relative norm, with the float64 product of the same inputs on the device.
Times are medians of device events.  Prints TFLOP/s for each solver; the one that the cost model
takes has a star.  Each group runs in a process of its own, since a faulting kernel ends a context.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time

import numpy as np
import pyopencl as cl

from kerascl import dtypes
from kerascl.kernels import conv, gemm
from kerascl.kernels.conv_problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem, gemm_shape
from kerascl.kernels.gemm_problem import GemmProblem
from kerascl.kernels.solver import Plan, Ref, Scalar, store_epilogue
from kerascl.runtime import device

# name: size, channels, filters, kernel, stride
LAYERS = {
    "resnet50": [
        (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1),
        (56, 256, 64, 1, 1), (56, 256, 128, 1, 2), (56, 256, 512, 1, 2), (28, 128, 128, 3, 1),
        (28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 512, 256, 1, 2), (28, 512, 1024, 1, 2),
        (14, 256, 256, 3, 1), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (14, 1024, 512, 1, 2),
        (14, 1024, 2048, 1, 2), (7, 512, 512, 3, 1), (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1),
    ],
    "resnet18": [
        (56, 64, 128, 3, 2), (28, 128, 256, 3, 2), (14, 256, 512, 3, 2), (56, 64, 128, 1, 2),
        (14, 256, 512, 1, 2),
    ],
    "vgg16": [
        (224, 3, 64, 3, 1), (224, 64, 64, 3, 1), (112, 64, 128, 3, 1), (112, 128, 128, 3, 1),
        (56, 128, 256, 3, 1), (56, 256, 256, 3, 1), (28, 256, 512, 3, 1), (28, 512, 512, 3, 1),
        (14, 512, 512, 3, 1), (1, 25088, 4096, 1, 1),
    ],
    "alexnet": [
        (224, 3, 64, 11, 4), (27, 64, 192, 5, 1), (13, 192, 384, 3, 1), (13, 384, 256, 3, 1),
        (13, 256, 256, 3, 1), (1, 9216, 4096, 1, 1), (1, 4096, 4096, 1, 1),
    ],
    "mobilenet": [
        (224, 3, 32, 3, 2), (112, 32, 64, 1, 1), (56, 64, 128, 1, 1), (56, 128, 128, 1, 1),
        (28, 128, 256, 1, 1), (14, 512, 512, 1, 1), (7, 1024, 1024, 1, 1),
    ],
}  # fmt: skip

# m, n, k, transposed a, transposed b
GEMMS = [
    (512, 512, 512, 0, 0), (1024, 1024, 1024, 0, 0), (2048, 2048, 2048, 0, 0),
    (4096, 4096, 4096, 0, 0), (4096, 4096, 4096, 0, 1), (4096, 4096, 4096, 1, 0),
    (4096, 4096, 4096, 1, 1), (200704, 64, 576, 0, 0), (50176, 128, 1152, 0, 0),
    (1000, 333, 129, 0, 0), (1000, 333, 129, 1, 1), (333, 1024, 72, 0, 1), (129, 64, 4088, 1, 0),
]  # fmt: skip

FILL = """
uint mix(uint x) {
  x = (x ^ (x >> 16)) * 0x7feb352du, x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
__kernel void fill(__global float* a, __global double* wide, uint seed, ulong n, int half_bits) {
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) {
    const uint h = mix((uint)i ^ mix(seed + (uint)(i >> 32)));
    float v = ((float)(h & 0xffffu) + (float)(h >> 16)) * 3.051757e-5f - 2.0f;
    v *= 1.2247449f + (float)(h % 7u) * 0.01f;
    if (half_bits == 1) {
      const ushort s = (ushort)((as_uint(v) + 0x7fffu + ((as_uint(v) >> 16) & 1u)) >> 16);
      ((__global ushort*)a)[i] = s, v = as_float((uint)s << 16);
    } else if (half_bits == 2) {
      vstore_half_rte(v, i, (__global half*)a), v = vload_half(i, (__global half*)a);
    } else {
      a[i] = v;
    }
    wide[i] = v;
  }
}
__kernel void compare(__global const float* a, __global const double* b, ulong n,
                      __global double* parts) {
  double d = 0, s = 0;
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) {
    d += (a[i] - b[i]) * (a[i] - b[i]), s += b[i] * b[i];
  }
  parts[2 * get_global_id(0)] = d, parts[2 * get_global_id(0) + 1] = s;
}
"""
HOST = {"int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64}


class Bench:
    """One device with a profiling queue."""

    def __init__(self):
        self.dev = device.default()
        self.info = self.dev.info
        properties = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.dev.context, properties=properties)
        program = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + FILL
        self.tools = {n: self.dev.programs.kernel(program, n).handle for n in ("fill", "compare")}
        self.seed = int(time.time()) & 0xFFFFFF

    def buffer(self, nbytes: int):
        return cl.Buffer(self.dev.context, cl.mem_flags.READ_WRITE, max(nbytes, 16))

    def inputs(self, count: int, dtype):
        """`count` fresh random values in the dtype, and the same in float64."""
        narrow, wide = self.buffer(count * dtype.itemsize), self.buffer(count * 8)
        bits = {"bfloat16": 1, "float16": 2}.get(dtype.name, 0)
        self.seed += 1
        fill = self.tools["fill"]
        fill(self.queue, (132 * 2048,), None, narrow, wide, np.uint32(self.seed),
             np.uint64(count), np.int32(bits))  # fmt: skip
        return narrow, wide

    def error(self, got, want, count: int) -> float:
        size = 132 * 512
        parts = self.buffer(size * 16)
        self.tools["compare"](self.queue, (size,), None, got, want, np.uint64(count), parts)
        host = np.empty((size, 2))
        cl.enqueue_copy(self.queue, host, parts)
        d, s = host.sum(0)
        return float((d / s) ** 0.5)

    def bind(self, plan: Plan, slots: dict):
        """The plan's launches as closures that enqueue them."""
        slots = dict(slots)
        for k, nbytes in enumerate(plan.workspace):
            slots[f"ws{k}"] = self.buffer(nbytes)
        calls = []
        for launch in plan.launches:
            kernel = self.dev.programs.kernel(launch.source, launch.name, launch.options).clone()
            args = []
            for a in launch.args:
                if isinstance(a, Ref):
                    whole = slots[a.slot]
                    part = (
                        whole.get_sub_region(a.offset, whole.size - a.offset) if a.offset else whole
                    )
                    args.append(part)
                elif isinstance(a, Scalar):
                    args.append(a.host if hasattr(a, "host") else HOST[a.ctype](a.value))
                else:
                    args.append(cl.LocalMemory(a.nbytes))
            handle = kernel.handle
            handle.set_args(*args)
            calls.append((kernel, handle, launch.global_size, launch.local_size, args))
        return calls

    def run(self, calls):
        return [cl.enqueue_nd_range_kernel(self.queue, h, g, loc) for _, h, g, loc, _ in calls]

    def time(self, calls, reps: int) -> float:
        """Median seconds, first start to last end."""
        self.run(calls)
        self.queue.finish()
        runs = [self.run(calls) for _ in range(reps)]
        self.queue.finish()
        return statistics.median((r[-1].profile.end - r[0].profile.start) * 1e-9 for r in runs)


def solve(bench: Bench, name: str, problem, solvers, sizes, flops: float, args) -> None:
    """Check and time every solver of one problem; prints a line."""
    info, count = bench.info, problem.total
    a, wide_a = bench.inputs(sizes[0], problem.a)
    b, wide_b = bench.inputs(sizes[1], problem.b)
    want = bench.buffer(count * 8)
    f64 = dtypes.float64
    exact = dataclasses.replace(problem, a=f64, b=f64, acc=f64)
    simt = [s for s in solvers if "tiled" in s.name]
    reference = min((s for s in simt if s.applies(exact, info)), key=lambda s: s.cost(exact, info))
    plan = reference.plan(exact, info, store_epilogue(f64))
    calls = bench.bind(plan, {"a": wide_a, "b": wide_b, "out": want})
    bench.run(calls)
    bench.queue.finish()
    wide_a.release(), wide_b.release()
    out = bench.buffer(count * 4)
    taken = min(
        (s for s in solvers if s.applies(problem, info)), key=lambda s: s.cost(problem, info)
    )
    best_simt = min(
        (s for s in simt if s.applies(problem, info)), key=lambda s: s.cost(problem, info)
    )
    results, worst = [], 0.0
    for solver in solvers:
        matrix = any(word in solver.name for word in args.solvers)
        if not solver.applies(problem, info) or not (solver in (taken, best_simt) or matrix):
            continue
        try:
            plan = solver.plan(problem, info, store_epilogue(dtypes.float32))
            calls = bench.bind(plan, {"a": a, "b": b, "out": out})
            cl.enqueue_fill_buffer(bench.queue, out, np.float32("nan"), 0, count * 4)
            bench.run(calls)
            bench.queue.finish()
            error = bench.error(out, want, count)
            seconds = bench.time(calls, args.reps)
        except Exception as fault:
            if "OUT_OF_RESOURCES" in str(fault) or "INVALID_COMMAND_QUEUE" in str(fault):
                print(f"FAULT {name} {solver.name}: {str(fault)[:200]}", flush=True)
                raise
            results.append((0.0, f"{solver.name}=FAIL({str(fault)[:900]})"))
            continue
        bad = "" if error < args.tolerance else f"!!{error:.1e}"
        worst = max(worst, error) if error == error else float("nan")
        star = "*" if solver is taken else ""
        label = solver.name.replace("mma", "")
        predicted = solver.cost(problem, info) / 1.8e5
        results.append((flops / seconds / 1e12,
                        f"{label}{star}={flops / seconds / 1e12:.0f}({seconds * 1e6:.0f}/"
                        f"{predicted:.0f}){bad}"))  # fmt: skip
    results.sort(reverse=True, key=lambda r: r[0])
    print(f"{name} err {worst:.1e} | " + " ".join(r[1] for r in results[: args.show]), flush=True)
    for memory in (a, b, want, out):
        memory.release()


def gemm_problems(group: str, args):
    for m, n, k, ta, tb in GEMMS:
        for dtype in args.dtypes:
            t = dtypes.as_dtype(dtype)
            p = GemmProblem(
                m, n, k, (), (1, m) if ta else (k, 1), (1, k) if tb else (n, 1), t, t,
                t.accumulator, precision=args.precision,
            )  # fmt: skip
            name = f"{m}x{n}x{k} {'NT'[ta]}{'NT'[tb]} {dtype[:4]}"
            yield name, gemm.normalise(p), gemm.SOLVERS, (m * k, k * n), 2.0 * m * n * k


def layer_problems(group: str, args):
    for batch in args.batch:
        for size, c, f, k, s in LAYERS[group]:
            out = -(-size // s)
            pad = max((out - 1) * s + k - size, 0)
            pads = ((pad // 2, pad - pad // 2),) * 2
            for kind in (FORWARD, DATA_GRAD, FILTER_GRAD):
                if kind == DATA_GRAD and c == 3:
                    continue
                for dtype in args.dtypes:
                    t = dtypes.as_dtype(dtype)
                    p = ConvProblem(
                        kind, (batch, size, size, c), (k, k, c, f), (batch, out, out, f), (s, s),
                        pads, (1, 1), 1, False, t, t, t.accumulator, precision=args.precision,
                    )  # fmt: skip
                    x, w, y = batch * size * size * c, k * k * c * f, batch * out * out * f
                    sizes = {FORWARD: (x, w), DATA_GRAD: (y, w), FILTER_GRAD: (x, y)}[kind]
                    flops = 2.0 * y * k * k * c
                    g = gemm_shape(p)
                    name = (
                        f"b{batch} {size} {c}>{f} {k}/{s} {kind[:4]} {g.m}x{g.n}x{g.k} {dtype[:4]}"
                    )
                    solvers = conv.SOLVERS
                    if conv.Pointwise().applies(p, device.default().info):
                        p, solvers = pointwise(p), gemm.SOLVERS
                    yield name, p, solvers, sizes, flops


def pointwise(problem: ConvProblem) -> GemmProblem:
    """The matrix product that a 1x1 convolution is planned as."""
    seen, plan = [], gemm.plan
    gemm.plan = lambda p, info, epilogue: seen.append(p) or Plan([])
    try:
        conv.Pointwise().plan(problem, device.default().info, store_epilogue(dtypes.float32))
    finally:
        gemm.plan = plan
    return gemm.normalise(seen[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", default=["gemm", *LAYERS])
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--precision", default="high")
    parser.add_argument("--solvers", nargs="+", default=["mma"], help="words of solvers' names")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--show", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=5e-4)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if not args.child:
        for group in args.groups:
            print(f"== {group} {args.precision}: solver=TFLOP/s(us/predicted us)", flush=True)
            rest = ["--child", "--groups", group]
            command = [sys.executable, __file__, *sys.argv[1:], *rest]
            try:
                code = subprocess.run(command, timeout=args.timeout).returncode
            except subprocess.TimeoutExpired:
                code = "timeout"
            if code:
                print(f"== {group} ended with {code}", flush=True)
        return 0
    bench = Bench()
    make = gemm_problems if args.groups[0] == "gemm" else layer_problems
    for problem in make(args.groups[0], args):
        solve(bench, *problem, args)
    print(json.dumps({"built": bench.dev.programs.built_from_source}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
