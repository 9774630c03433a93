"""Reductions that memory should bound, on an H200: time, bandwidth, error; each in several schedules.

    PYTHONPATH=$PWD:/tmp/site python card_bandw.py      from the root of a tree: with `kerascl/compiler/
        generate/columns.py` all variants, without the tree as it is ("base")
    CARD_DRY=1 KERASCL_DEVICE=intel ...                  small sizes, to try this file
    CARD_CASES=ln_fwd,bias CARD_VARIANTS=default CARD_NETS=0 CARD_LIMIT=60

Times are medians of events of launches, all of a call together.  "cold": arguments rotate through
more than L2 holds, "hot": always the same.  % of the copy of 512 MB measured in this run.
"""

import os, sys, threading, time, re
sys.path.insert(0, os.getcwd())
LIMIT, START = float(os.environ.get("CARD_LIMIT", "140")), time.time()
threading.Timer(LIMIT, lambda: (print("time is over", flush=True), os._exit(3))).start()
DRY = bool(os.environ.get("CARD_DRY"))
os.environ.setdefault("KERASCL_CHECK", "0")
os.environ.setdefault("KERAS_BACKEND", "kerascl")
import numpy as np
import kerascl as kc
from kerascl.compiler.generate import neighbours, reductions, rows
from kerascl.runtime import device
from kerascl.runtime.profile import profile
try:
    from kerascl.compiler.generate import columns, held, online
except ImportError:
    columns = held = online = None
NEW = columns is not None
d = device.default()
info = d.info
TREE = "new" if NEW else "base"
def left(): return LIMIT - (time.time() - START)
def say(*a): print(*a, flush=True)
say("tree", TREE, kc.__file__, "device", info.name, info.compute_units, "units")


rng = np.random.default_rng()
R, F, B, T, H = (12608, 768, 64, 197, 12) if not DRY else (1604, 768, 44, 20, 12)
CER, CEC, CEP = (4096, 50257, 50304) if not DRY else (300, 5025, 5056)
EPS, LIM = 1e-5, 0.9
def f32(x): return x.astype("float32")
def draws(shape, dtype="bfloat16", scale=1.0):
    return kc.array((rng.standard_normal(shape, np.float32) * scale).astype(np.float32)).astype(dtype)
def host(x, at=None):
    v = x.numpy() if at is None else x.numpy()[at]
    return v.astype(np.float64) if "float" in str(x.dtype) else v

# -- the cases: inputs, function, reference of some rows or of all ---------------------------------
def ln_fwd(key, res, y, bias, gamma, beta):
    keep = kc.random.bernoulli(key, y.shape, LIM)
    s = res + kc.where(keep, (y + bias.astype("bfloat16")) * (1 / LIM), 0)
    f = f32(s)
    total = kc.sum(f, -1, keepdims=True)
    var = kc.var(f, -1, keepdims=True)
    inv = kc.rsqrt(var + EPS) * gamma
    return keep, s, total, var, (f * inv + (-(total * (1 / F)) * inv + beta)).astype("bfloat16")
def ln_fwd_ref(a, out, at):
    s = host(out[1], at)
    y = host(a[2], at) + host(a[3].astype("bfloat16"))
    want = host(a[1], at) + np.where(out[0].numpy()[at] != 0, y / LIM, 0)
    n = (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + EPS)
    kept = out[0].numpy().mean()
    assert DRY or abs(kept - LIM) < 1e-3, kept
    return [(s, want, 8e-3), (host(out[4], at), n * host(a[4]) + host(a[5]), 4e-3), (host(out[3], at), s.var(1, keepdims=True), 1e-5)]
def ln_bwd(dy, x, dres, keep, total, var, gamma):
    f, g = f32(x), f32(dy)
    inv, mean = kc.rsqrt(var + EPS), total * (1 / F)
    dg = g * (inv * gamma)
    s1 = kc.sum(dg, -1, keepdims=True)
    s2 = kc.sum((g * f + g * (-mean)) * gamma, -1, keepdims=True)
    slope = s2 * -0.5 * inv / (var + EPS) * (2 / F)
    new = dres + (dg + ((f - mean) * slope + -s1 * (1 / F))).astype("bfloat16")
    return new, kc.where(keep, new, 0) * (1 / LIM)
def ln_bwd_ref(a, out, at):
    dy, x, dres, keep, total, var = (host(v, at) for v in a[:6])
    gamma = host(a[6])
    inv, xc = 1 / np.sqrt(var + EPS), x - total / F
    g = dy * gamma
    want = dres + inv * (g - g.mean(1, keepdims=True)) - xc * inv**3 * (g * xc).mean(1, keepdims=True)
    return [(host(out[0], at), want, 4e-3), (host(out[1], at), np.where(keep != 0, want / LIM, 0), 8e-3)]
def ln_sum(x):  # statistics alone, and the row normalised: two reads' worth of work, one of memory
    f = f32(x)
    m = kc.mean(f, -1, keepdims=True)
    return ((f - m) * kc.rsqrt(kc.var(f, -1, keepdims=True) + EPS)).astype("bfloat16")
def ln_sum_ref(a, out, at):
    s = host(a[0], at)
    return [(host(out, at), (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + EPS), 4e-3)]
def att(a, b): return kc.sum(f32(a) * f32(b), -1)
def att_ref(a, out, at): return [(host(out), (host(a[0]) * host(a[1])).sum(-1), 1e-5)]
def bias(x): return kc.sum(f32(x), 0)
def bias_ref(a, out, at): return [(host(out), host(a[0]).sum(0), 1e-5)]
def ln_par(dy, x, total, var):
    g = f32(dy)
    inv = kc.rsqrt(var + EPS)
    return kc.sum((g * f32(x) + g * (-(total * (1 / F)))) * inv, 0), kc.sum(g, 0)
def ln_par_ref(a, out, at):
    dy, x, total, var = map(host, a)
    return [(host(out[0]), (dy * (x - total / F) / np.sqrt(var + EPS)).sum(0), 1e-5), (host(out[1]), dy.sum(0), 1e-5)]
def ce(logits, target):
    f, place, t = f32(logits), kc.arange(CEP), kc.reshape(target, (-1, 1))
    inside = place < CEC
    m = kc.max(kc.where(inside, f, -np.inf), -1, keepdims=True)
    z = f - m
    total = kc.sum(kc.where(inside, kc.exp(z), 0.0), -1, keepdims=True)
    picked = (kc.take_along_axis(f, t, -1) - m if NEW else
              kc.sum(kc.where(inside, kc.where(place == t, z, 0.0), 0.0), -1, keepdims=True))
    slope = (kc.exp(z) * (1.0 / total) - f32(place == t)) * (1 / CER)
    return total, picked, slope.astype("bfloat16")
def ce_ref(a, out, at):
    x, t = host(a[0], at), a[1].numpy()[at]
    z = x - x[:, :CEC].max(1, keepdims=True)
    e = np.exp(z)
    total = e[:, :CEC].sum(1, keepdims=True)
    p = e / total
    p[np.arange(len(t)), t] -= 1
    return [(host(out[0], at), total, 1e-5), (host(out[1], at), z[np.arange(len(t)), t][:, None], 1e-5), (host(out[2], at)[:, :CEC], p[:, :CEC] / CER, 4e-3)]
def stat(): return kc.array(rng.standard_normal((R, 1), np.float32) * 20), kc.array(rng.random((R, 1), np.float32) + 0.5)
def ln_in(): return [kc.random.key(int(rng.integers(1 << 30))) if hasattr(kc.random, "key") else kc.array(rng.integers(0, 2**31, 2).astype(np.uint32)), draws((R, F)), draws((R, F)), *(kc.array(rng.standard_normal(F, np.float32)) for _ in range(3))]
def lb_in(): return [draws((R, F)), draws((R, F)), draws((R, F)), kc.array(rng.random((R, F)) < LIM), *stat(), kc.array(rng.standard_normal(F, np.float32))]
CASES = {  # function, inputs, reference
    "ln_fwd": (ln_fwd, ln_in, ln_fwd_ref), "ln_bwd": (ln_bwd, lb_in, ln_bwd_ref),
    "ln_plain": (ln_sum, lambda: [draws((R, F))], ln_sum_ref),
    "att": (att, lambda: [draws((B, T, H, 64)), draws((B, T, H, 64))], att_ref),
    "bias768": (bias, lambda: [draws((R, F))], bias_ref),
    "bias3072": (bias, lambda: [draws((R, 4 * F))], bias_ref),
    "bias_gpt": (bias, lambda: [draws((R // 3, F))], bias_ref),
    "ln_par": (ln_par, lambda: [draws((R, F)), draws((R, F)), *stat()], ln_par_ref),
    "ce": (ce, lambda: [draws((CER, CEP), scale=2.0), kc.array(rng.integers(0, CEC, CER).astype(np.int32))], ce_ref),
}

# -- variants: what is overridden in modules --------------------------------------------------------
NOT = {(held, "vectors"): lambda *a: None} if NEW else {}
ROWS = {"near4": {(neighbours, "MOST"): 4}, "64 items": {(rows, "HELD_EACH"): 12}, "group256": {(rows, "HELD_GROUP"): 256},
        "group64": {(rows, "HELD_GROUP"): 64}, "late reads": {(held, "early"): lambda *a: []}, "no held": NOT} if NEW else {}
ATT = {"1 row": {(held, "UNDER_WAY"): 32}, "2 rows": {(held, "UNDER_WAY"): 64}, "8 rows": {(held, "UNDER_WAY"): 256, (held, "SEVERAL_GROUPS"): 4},
       "group256": {(rows, "HELD_GROUP"): 256}, "no held": NOT} if NEW else {}
COLS = {"busy 1": {(columns, "BUSY"): 1.0}, "busy .25": {(columns, "BUSY"): 0.25}, "half in flight": {(held, "UNDER_WAY"): 64},
        "line 256": {(columns, "LINE"): 256}, "line 64": {(columns, "LINE"): 64}, "group 256": {(columns, "GROUP"): 256},
        "single": {(columns, "count"): lambda *a: 1}} if NEW else {}
CEV = {"three passes": {(online, "found"): lambda *a: None}, "two vectors": {(reductions, "LARGE_GROUP"): 4096}, "512": {(rows, "MOST_AGAIN"): 512}, "512 one vector": {(rows, "MOST_AGAIN"): 512, (reductions, "LARGE_GROUP"): 256}, "256": {(rows, "MOST_AGAIN"): 256}, "near4": {(neighbours, "MOST"): 4}} if NEW else {}
VARIANTS = {"ln_fwd": ROWS, "ln_bwd": ROWS, "ln_plain": ROWS, "att": ATT, "bias768": COLS, "bias3072": COLS, "bias_gpt": COLS, "ln_par": COLS, "ce": CEV}
WANTED = [c for c in os.environ.get("CARD_CASES", "").split(",") if c] or list(CASES)
ONLY = [v for v in os.environ.get("CARD_VARIANTS", "").split(",") if v]

def parts(out): return list(out) if isinstance(out, (tuple, list)) else [out]
def spans(function, sets, calls):
    """Microseconds of each call."""
    for a in sets[:2]: function(*a)
    d.queue.wait() if hasattr(d.queue, "wait") else None
    with profile(d, show=False) as p:
        for k in range(calls): function(*sets[k % len(sets)])
    found = [(s.end - s.start) / 1e3 for s in p.spans if s.note.nbytes or s.name.startswith(("reduction", "map", "multi"))]
    each = len(found) // calls
    return [sum(found[k * each : (k + 1) * each]) for k in range(calls)], each, p.spans
CALLS = 40 if not DRY else 2
copy = kc.jit(lambda x: -x)
BEST = 0.0
for mb in ((2, 8, 40, 512) if not DRY else (2,)):
    n = int(mb * 1e6 / 8)
    sets = [(kc.zeros((n,), dtype="float32"),) for _ in range(max(1, min(40, 200 // mb)) if not DRY else 1)]
    us = float(np.median(spans(copy, sets, CALLS)[0]))
    BEST = max(BEST, n * 8 / us * 1e-3) if mb == 512 or DRY else BEST
    say(f"copy {mb:4d} MB moved: {us:8.2f} us {n * 8 / us * 1e-3:7.0f} GB/s")
say(f"{'case':9} {'variant':15} {'MB':>6} {'cold us':>8} {'GB/s':>6} {'%':>4} {'hot us':>8} {'%':>4} launches error")
def table(name, labels):
    fn, make, ref = CASES[name]
    first = make()
    nbytes = sum(x.nbytes for x in first) if all(hasattr(x, "nbytes") for x in first) else 0
    count = 1 if DRY else max(1, min(8, int(160e6 / max(nbytes, 1e5)) + 1))
    sets = [first] + [make() for _ in range(count - 1)]
    n = first[min(1, len(first) - 1)].shape[0]
    at = np.sort(rng.choice(n, min(40, n), replace=False))
    for label, patch in labels.items():
        old = {k: getattr(*k) for k in patch}
        try:
            for (o, n), v in patch.items(): setattr(o, n, v)
            jitted = kc.jit(lambda *a: fn(*a))
            out = jitted(*first)
            moved = nbytes + sum(x.nbytes for x in parts(out))
            errors = []
            for got, want, bound in ref(first, out, at):
                e = float(np.linalg.norm(got - want) / np.linalg.norm(want))
                errors.append(f"{e:.0e}" + ("" if e <= bound else "WRONG"))
            cold, each, seen = spans(jitted, sets, CALLS)
            hot = spans(jitted, sets[:1], CALLS)[0]
            c, h = float(np.median(cold)), float(np.median(hot))
            say(f"{name:9} {label:15} {moved / 1e6:6.1f} {c:8.2f} {moved / c * 1e-3:6.0f} {moved / c / BEST * 1e-1:4.0f} {h:8.2f} {moved / h / BEST * 1e-1:4.0f} {each} {' '.join(errors)}")
        except Exception as x:
            say(name, label, "FAILED", type(x).__name__, str(x)[:300])
        finally:
            for (o, n), v in old.items(): setattr(o, n, v)
        out = None
        if left() < 12: return

# -- in place: two blocks of each network, device time of a step by kernel --------------------------
def networks():
    import keras
    from keras import layers
    if not DRY:  # no self-tests: they passed on this card
        from kerascl.kernels.hopper import probe
        from kerascl.kernels.units import attention, attention16, attention_fragment, known
        probe.available = lambda *a: True
        for m in (attention, attention16): m.available = lambda info, *a: info.matrix in ("mma80", "wgmma90")
        for m in (known, attention_fragment): m.available = lambda unit, info: info.matrix in unit.matrix
        d.programs.guard = None
    keras.config.set_dtype_policy("mixed_bfloat16")
    def block(x, width, heads, causal, rate=0.1):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(heads, width // heads, dropout=rate)(y, y, use_causal_mask=causal)
        x = layers.add([x, layers.Dropout(rate)(y)])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
        return layers.add([x, layers.Dropout(rate)(y)])
    def build(kind):
        if kind == "vit":
            inputs = keras.Input((224, 224, 3))
            x = layers.Reshape((-1, 768))(layers.Conv2D(768, 16, strides=16)(inputs))
            x = x + layers.Embedding(196, 768)(keras.ops.arange(196))
        else:
            inputs = keras.Input((512,), dtype="int32")
            x = layers.Embedding(50257, 768)(inputs) + layers.Embedding(512, 768)(keras.ops.arange(512))
        for _ in range(2): x = block(x, 768, 12, kind != "vit")
        x = layers.LayerNormalization()(x)
        x = layers.Dense(1000)(layers.GlobalAveragePooling1D()(x)) if kind == "vit" else layers.Dense(50257, use_bias=False)(x)
        model = keras.Model(inputs, x)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model
    for kind in ("vit", "gpt2"):
        if left() < 25: return
        model = build(kind)
        n = 2 if DRY else 64 if kind == "vit" else 8
        x = rng.standard_normal((n, 224, 224, 3), np.float32) if kind == "vit" else rng.integers(1, 50257, (n, 512)).astype("int32")
        y = rng.integers(0, 1000, (n,) if kind == "vit" else (n, 512)).astype("int32")
        for _ in range(2): loss = model.train_on_batch(x, y)
        with profile(d, show=False) as p:
            for _ in range(5): model.train_on_batch(x, y)
        table = {}
        for s in p.spans:
            if s.name.startswith(("reduction", "multi_reduction")):
                key = re.sub(r"_\d+$", "", s.name)
                table.setdefault((key, s.note.nbytes), []).append((s.end - s.start) / 1e3)
        every = sum(s.end - s.start for s in p.spans) / 5e3
        say(f"{kind} loss {float(np.asarray(loss)):.3f} two blocks, all launches {every:.0f} us a step, reductions {sum(map(sum, table.values())) / 5:.0f} us")
        for (key, nb), ts in sorted(table.items(), key=lambda t: -sum(t[1]))[:11]:
            say(f"  {key[:44]:44} x{len(ts) / 5:3.0f} {nb / 1e6:7.1f} MB {np.median(ts):7.1f} us {nb / np.median(ts) * 1e-3:6.0f} GB/s {nb / np.median(ts) / BEST * 1e-1:4.0f} %")
CASE_TIME = 12
for name in WANTED:
    if left() > CASE_TIME: table(name, {"default" if NEW else "base": {}})
if os.environ.get("CARD_NETS", "1") != "0" and left() > 25:
    try: networks()
    except Exception as x: say("networks FAILED", type(x).__name__, str(x)[:400])
for name in WANTED:
    labels = {k: v for k, v in VARIANTS[name].items() if not ONLY or k in ONLY}
    if labels and left() > CASE_TIME: table(name, labels)
say("done", f"{time.time() - START:.0f} s")
os._exit(0)
