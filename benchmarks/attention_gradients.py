"""Gradients of attention on an H200: warpgroup instructions against mma.sync.

    python card_wback.py                  run it from the repository's root (PYTHONPATH is set here)
    CARD_DRY=1 python card_wback.py       small problems by portable kernels, to try this file

Prints each result at once.  Errors are relative norms against float64 of dq, dk, dv of the first and
of the last head; times are medians of 20, by events, of each launch (queries', keys').  Ends by itself
after LIMIT seconds, whatever hangs.
"""

import dataclasses
import os
import subprocess
import sys
import threading
import time

LIMIT = float(os.environ.get("CARD_LIMIT", "540"))
START = time.time()
DRY = bool(os.environ.get("CARD_DRY"))
sys.path.insert(0, os.getcwd())
os.environ["PYTHONPATH"] = os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", "")


def say(*text):
    print(f"[{time.time() - START:5.0f}]", *text, flush=True)


def end():
    say("time is over")
    os._exit(0)


timer = threading.Timer(LIMIT, end)
timer.daemon = True
timer.start()

import numpy as np  # noqa: E402

from kerascl import dtypes  # noqa: E402
from kerascl.kernels.attention import tiled  # noqa: E402
from kerascl.kernels.attention.problem import AttentionProblem, Dropout, Tensor  # noqa: E402
from kerascl.kernels.contract.epilogue import store_epilogue  # noqa: E402
from kerascl.kernels.contract.run import enqueue  # noqa: E402
from kerascl.kernels.hopper import attention, attention_gradient as ag, probe  # noqa: E402
from kerascl.kernels.units import attention16  # noqa: E402
from kerascl.runtime import device  # noqa: E402
from kerascl.runtime.profile import profile  # noqa: E402
from tests.philox import kept  # noqa: E402

BF, HF = dtypes.bfloat16, dtypes.float16
COARSE, FINE = Dropout(59 * 2**26, 64 / 59), Dropout(int(0.9 * 2**32), 1 / 0.9)
# batch, rows, heads, groups, features, causal, dropout, dtype
PROBLEMS = [
    ("vit", 64, 197, 12, 12, 64, False, COARSE, BF),
    ("2048/128 causal drop", 4, 2048, 8, 8, 128, True, COARSE, HF),
    ("2048/128", 4, 2048, 8, 8, 128, False, None, BF),
    ("gpt2", 8, 1024, 12, 12, 64, True, COARSE, BF),
    ("2048", 4, 2048, 12, 12, 64, False, None, BF),
    ("8192 causal", 1, 8192, 12, 12, 64, True, None, BF),
    ("8192/128 causal", 1, 8192, 8, 8, 128, True, None, BF),
    ("gpt2 plain", 8, 1024, 12, 12, 64, True, None, BF),
    ("512", 16, 512, 12, 12, 64, False, None, HF),
]
if DRY:
    PROBLEMS = [(n, 1, 70, 4, g // 3 or 1, f, c, d, t) for n, _, _, _, g, f, c, d, t in PROBLEMS]
BOUNDS = {"bfloat16": 1e-2, "float16": 2e-3}
dev = next(f.device for f in device.find_devices()
           if f.device and (DRY or f.device.info.kind == "gpu"))
info = dev.info
say("device", info.name, info.matrix, info.driver_version)


def contiguous(shape):
    steps = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        steps[axis - 1] = steps[axis] * shape[axis]
    return tuple(steps)


def make(batch, rows, heads, groups, features, causal, drop, dtype):
    q = Tensor(dtype, contiguous((batch, rows, heads, features)))
    k = Tensor(dtype, contiguous((batch, rows, groups, features)))
    p = AttentionProblem(
        batch, rows, rows, heads, groups, features, features, features**-0.5, causal, dtype,
        q, k, k, dropout=drop,
    )
    return p, dataclasses.replace(p, grad=q)


def upload(array):
    buffer = dev.buffers.allocate(max(array.nbytes, 16))
    dev.queue.write(buffer, np.ascontiguousarray(array))
    return buffer


def poison(shape, dtype):
    x = np.empty(shape, dtype.numpy)
    x.view(np.uint8).fill(0xFF)
    return x


def enqueue_plan(plan, slots):
    own = dict(slots)
    for n, nbytes in enumerate(plan.workspace):
        own[f"ws{n}"] = dev.buffers.allocate(nbytes)
    enqueue(plan, own, dev)


def times(plan, slots, repeats=20):
    for _ in range(3):
        enqueue_plan(plan, slots)
    dev.queue.finish()
    with profile(dev, show=False) as recorded:
        for _ in range(repeats):
            enqueue_plan(plan, slots)
    names = {launch.name for launch in plan.launches}
    spans = [s.end - s.start for s in recorded.spans if s.name in names]
    count = len(plan.launches)
    assert len(spans) == count * repeats, (len(spans), [s.name for s in recorded.spans][:9])
    return [float(np.median(spans[n::count])) / 1e3 for n in range(count)]


def reference(p, q, k, v, g, key, b, group):
    """dq of the group's heads and its dk, dv, in float64, by blocks of queries."""
    repeat = p.heads // p.groups
    kk, vv = (x[b, :, group].astype(np.float64) for x in (k, v))
    dk, dv, dqs = np.zeros_like(kk), np.zeros_like(vv), []
    fours = -(-p.source // 4)
    for h in range(group * repeat, (group + 1) * repeat):
        dq = np.empty((p.length, p.width))
        for t0 in range(0, p.length, 1024):
            t1 = min(t0 + 1024, p.length)
            qq, gg = (x[b, t0:t1, h].astype(np.float64) for x in (q, g))
            logits = qq @ kk.T * p.scale
            if p.causal:
                logits[np.arange(p.source)[None] > np.arange(t0, t1)[:, None]] = -np.inf
            w = np.exp(logits - logits.max(-1, keepdims=True))
            w /= w.sum(-1, keepdims=True)
            factors = 1.0
            if p.dropout is not None:
                first = p.dropout.first + ((b * p.heads + h) * p.length + t0) * fours
                factors = kept(key, w.shape, p.dropout.limit, first) * p.dropout.factor
            back = gg @ vv.T * factors
            slope = w * (back - (w * back).sum(-1, keepdims=True)) * p.scale
            dq[t0:t1] = slope @ kk
            dk += slope.T @ qq
            dv += (w * factors).T @ gg
        dqs.append(dq)
    return np.stack(dqs, 1), dk, dv


def error(got, want):
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))


# Where each tile is tried, too.
ALL_TILES = {"vit", "vit plain", "gpt2", "2048", "2048/128", "8192/128 causal"}


def solvers_of(p, name=""):
    if DRY:
        return [("tile", tiled.TiledAttentionGradient())]
    found = [("mma16", attention16.Attention16Gradient(room=attention16.LARGE))]  # asks no self-test
    if ag.takes(p):
        found.append(("wgmma", ag.HopperAttentionGradient()))
        kinds = [[t for t in ag.rows_of(table, p.width) if t.holds(p)]
                 for table in (ag.QUERIES, ag.KEYS)]
        for n in range(max(map(len, kinds)) if name in () else 0):
            pair = [kind[min(n, len(kind) - 1)] for kind in kinds]
            found.append((f"  {pair[0]} {pair[1]}".replace("Tile", ""),
                          ag.HopperAttentionGradient(*pair)))
    return found


def build(name, p, back):
    """All programs of a problem at once, and that of the forward kernel."""
    plans = [s.plan(back, info, store_epilogue(p.dtype)) for _, s in solvers_of(back, name)]
    plans.append(attention.HopperAttention().plan(p, info, store_epilogue(p.dtype)))
    texts = {(x.source, x.options): None for plan in plans for x in plan.launches}
    begin = time.time()
    try:
        dev.programs.build(list(texts))
        say(f"{name:26s} built {len(texts)} programs in {time.time() - begin:.0f} s")
    except Exception as problem:
        say(f"{name:26s} building all at once:", type(problem).__name__, str(problem)[:600])


def one(name, p, back):
    if not DRY:
        build(name, p, back)
    rng = np.random.default_rng()
    shape, small = (p.batch, p.length, p.heads, p.width), (p.batch, p.source, p.groups, p.width)
    q, k, v, g = (
        rng.standard_normal(s, np.float32).astype(p.dtype.numpy) for s in (shape, small, small, shape)
    )
    key = rng.integers(2**32, size=2, dtype=np.uint32)
    slots = {n: upload(x) for n, x in zip("abcd", (q, k, v, g), strict=True)}
    extra = {} if p.dropout is None else {"d": upload(key)}
    forward = attention.HopperAttention() if not DRY else tiled.TiledAttention()
    stat, y = poison((p.batch, p.heads, p.length), dtypes.float32), poison(shape, p.dtype)
    own = {"a": slots["a"], "b": slots["b"], "c": slots["c"], "stat": upload(stat), "out": upload(y)}
    enqueue_plan(forward.plan(p, info, store_epilogue(p.dtype)), own | extra)
    dev.queue.read(own["out"], y)
    delta = np.einsum("bthd,bthd->bth", y.astype(np.float32), g.astype(np.float32))
    slots |= {"e": own["stat"], "f": upload(delta)}
    if p.dropout is not None:
        slots["g"] = upload(key)
    places = sorted({(0, 0), (p.batch - 1, p.groups - 1)})
    wanted = [reference(p, q, k, v, g, key, *place) for place in places]
    repeat = p.heads // p.groups
    products = p.logits * 2 * 5 * p.width
    for label, solver in solvers_of(back, name):
        try:
            plan = solver.plan(back, info, store_epilogue(p.dtype))
            outs = {"out": poison(shape, p.dtype), "dk": poison(small, p.dtype),
                    "dv": poison(small, p.dtype)}
            places_of = {n: upload(x) for n, x in outs.items()}
            enqueue_plan(plan, slots | places_of)
            for n, buffer in places_of.items():
                dev.queue.read(buffer, outs[n])
            errors = []
            for (b, group), (dq, dk, dv) in zip(places, wanted, strict=True):
                heads = slice(group * repeat, (group + 1) * repeat)
                errors.append([error(outs["out"][b, :, heads], dq), error(outs["dk"][b, :, group], dk),
                               error(outs["dv"][b, :, group], dv)])
            worst = np.max(errors, 0)
            finite = all(np.isfinite(x.astype(np.float32)).all() for x in outs.values())
            right = finite and (worst < BOUNDS[p.dtype.name]).all()
            taken = times(plan, slots | places_of)
            total = sum(taken)
            tiles = solver.block(back, info) if label == "wgmma" else ""
            say(f"{name:26s} {label:10s}", "right" if right else "WRONG", "errors",
                " ".join(f"{e:.1e}" for e in worst), "us", " ".join(f"{t:.1f}" for t in taken),
                f"sum {total:.1f}", f"{products / total * 1e-6:.0f} TFLOP/s", tiles)
        except Exception as problem:  # the others are worth something yet
            say(f"{name:26s} {label:10s}", "FAILED", type(problem).__name__, str(problem)[:300])


def main():
    if not DRY:
        say("self-test", probe.available(info, ag.SELF_TEST))
    for name, *rest in PROBLEMS:
        try:
            one(name, *make(*rest))
        except Exception as problem:
            say(name, "FAILED", type(problem).__name__, str(problem)[:300])
    say("done")


main()
os._exit(0)
