"""Resident launches on an H200: self-test, cost of a wait, values, and tokens of GPT-2.

    python card_resid.py                run it from the repository's root (PYTHONPATH is set here);
                                        needs keras-hub for the last part
    CARD_DRY=1 python card_resid.py     tiny, by one work-group on whatever device, to try this file

Prints each result at once; ends by itself after LIMIT seconds, whatever hangs (each part is a child).
 1 the self-test that decides whether launches stay (exact integers against NumPy)
 2 microseconds of a part that does nothing, with and without a wait of all groups
 3 a loop of normalisation, products, attention over a cache against NumPy float64
 4 ms a token of GPT-2 small and medium, float32 and bfloat16, batch 1, 128 tokens (120 new), greedy;
   KERASCL_RESIDENT 0 and 1 (tokens must be equal), and for medium fetching ahead of 0, 8, 32 MiB
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

LIMIT = float(os.environ.get("CARD_LIMIT", "560"))
START = time.time()
DRY = bool(os.environ.get("CARD_DRY"))
ON = "2" if DRY else "1"
sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "benchmarks")]
os.environ["PYTHONPATH"] = os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", "")
os.environ["KERAS_BACKEND"] = "kerascl"
os.environ.setdefault("KERASCL_CHECK", "0")


def say(*text):
    print(f"[{time.time() - START:5.0f}]", *text, flush=True)


def child(what, seconds, **environment):
    """The child's last line, or what went wrong."""
    seconds = min(seconds, LIMIT - (time.time() - START) - 5)
    if seconds < 10:
        return "no time is left"
    command = [sys.executable, os.path.abspath(__file__), "--child", json.dumps(what)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=os.environ | environment
        )
    except subprocess.TimeoutExpired:
        return f"not done in {seconds:.0f} s"
    if done.returncode:
        return f"status {done.returncode}: " + " | ".join(done.stderr.strip().splitlines()[-3:])
    return done.stdout.strip().splitlines()[-1]


# -- the children's parts


def self_test():
    from kerascl.compiler.program import resident_selftest as test
    from kerascl.compiler.program import resident, staying
    from kerascl.runtime import device

    d = device.default()
    team = staying.known(d.info) or staying.Team(1, 0, False, d.info.device_atomics)
    begin = time.time()
    test.exercise(d, team, 3 if DRY else test.ROUNDS)
    end = time.time()
    said = resident.result(d.info) if not DRY else "-"
    return f"{d.info.name}: right after {end - begin:.1f} s; in a child of its own: {said or 'passed'}"


def waits():
    """Microseconds of a call, by events."""
    from kerascl.compiler.program import parts, staying
    from kerascl.compiler.program.parts import Shape
    from kerascl.compiler.program.staying import Address, Call, Launch
    from kerascl.kernels.contract import arrival
    from kerascl.runtime import device, programs
    import numpy as np

    d = device.default()
    team = staying.known(d.info) or staying.Team(1, 64, False, d.info.device_atomics)
    source = "__kernel void nothing(__global int* x) { if (get_global_id(0) == 1u << 30) *x = 1; }"
    alone = Shape((1,), (64,), 64, 64)
    options = programs.always(d.info)
    shape = staying.shape(parts.part(source, "nothing", options, alone), alone, team, team.width, d.info)
    part = parts.part(source, "nothing", options, shape)
    found = []
    for width in (0,):
        for waiting in (False, True):
            calls = [Call(part, shape, (Address(0),), waiting) for _ in range(500)]
            launch = Launch(calls, team, team.width)
            memory, flag = d.buffers.allocate(4), d.buffers.allocate(4)
            table = d.buffers.allocate(8 * (staying.HEAD + len(launch.table)))
            d.queue.write(flag, np.array([1], np.int32))
            fill = d.programs.kernel(staying.table_text(launch.table, [0], True), "resident_table")
            d.queue.launch(fill, (1,), (1,), (memory, table))
            kernel = d.programs.kernel(launch.source, Launch.NAME,
                                       arrival.options(d.info) if team.standard else ())
            best = 1e9
            for _ in range(20):
                d.queue.finish()
                begin = time.perf_counter()
                for _ in range(5):
                    d.queue.launch(kernel, (team.groups * team.width,), (team.width,), (flag, table))
                d.queue.finish()
                best = min(best, (time.perf_counter() - begin) / 5)
            found.append(1e6 * best / len(calls))
    return f"a part without a wait {found[0]:.2f} us, with a wait {found[1]:.2f} us"


def values():
    import numpy as np
    import kerascl as kc

    worst, names = 0, None
    for width, rows in ((768, 33), (1024, 12)):
        rng = np.random.default_rng()
        x, w, u = (rng.standard_normal(s) / 30 for s in ((1, width), (width, width), (width, width)))
        cache = np.zeros((rows, width))

        def layer(x, k, w, u, cache, lib):
            y = (x - lib.mean(x, axis=-1, keepdims=True))
            y = y / lib.sqrt(lib.mean(y * y, axis=-1, keepdims=True) + 1e-5)
            cache = cache.copy() if lib is np else cache
            cache[k] = (y @ u)[0]
            logits = lib.where(lib.arange(len(cache)) > k, -1e9, y @ cache.T)
            e = lib.exp(logits - lib.max(logits, axis=-1, keepdims=True))
            e = e / lib.sum(e, axis=-1, keepdims=True)
            return x + lib.tanh(e @ cache @ w), cache

        def function(x, w, u, cache, n):
            def body(k, x, cache):
                return (k + 1, *layer(x, k, w, u, cache, kc))
            return kc.while_loop(lambda k, *_: k < n, body, (kc.array(0), x, cache))[1:]

        run = kc.jit(function)
        for n in (rows, 3):
            args = [kc.array(a.astype(np.float32)) for a in (x, w, u, cache)] + [kc.array(np.int32(n))]
            for _ in range(3):
                found = [a.numpy() for a in run(*args)]
            a, c = x, cache
            for k in range(n):
                a, c = layer(a, k, w, u, c, np)
            for f, t in zip(found, (a, c)):
                worst = max(worst, np.linalg.norm(f - t) / np.linalg.norm(t))
        steps = run.captured(*args).program.steps
        names = [leaf.name for step in steps for leaf in step.leaves if step.label == "loop"]
    return f"worst relative error against float64 {worst:.1e}; launches {names}"


def tokens(case, ahead):
    import numpy as np
    from kerascl.compiler.program import staying
    import generation

    if ahead is not None:
        staying.AHEAD = ahead << 20
    model = generation.built(case)
    length = case["length"]
    vocabulary = generation.shape(case["model"], case["size"], case["vocabulary"])[-1]
    rng = np.random.default_rng(0)
    mask = np.arange(length) < np.full((1, 1), generation.PROMPT)
    given = np.where(mask, rng.integers(0, vocabulary, mask.shape), 0).astype("int32")
    seconds = []
    for _ in range(2 if DRY else 6):
        begin = time.perf_counter()
        out = model.generate({"token_ids": given, "padding_mask": mask}, stop_token_ids=None)
        out = np.asarray(out["token_ids"])
        seconds.append(time.perf_counter() - begin)
    captured = model.generate_function._captured._captured.values()
    count = [len(list(p.program.launches)) for p in captured]
    digest = hashlib.sha1(out.tobytes()).hexdigest()[:10]
    ms = 1e3 * min(seconds[1:]) / (length - generation.PROMPT)
    return f"{ms:.3f} ms a token, tokens {digest}, first call {seconds[0]:.1f} s, launches {count}"


def main():
    threading.Timer(LIMIT, lambda: (say("time is over"), os._exit(0))).start()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("KERASCL_CACHE_DIR", cache)
        say("self-test:", child(["self_test"], 120))
        say("waits:", child(["waits"], 60))
        say("values, 0:", child(["values"], 90, KERASCL_RESIDENT="0"))
        say("values, 1:", child(["values"], 90, KERASCL_RESIDENT=ON))
        sizes = ["2x128"] if DRY else ["small", "medium"]
        for size in sizes[::-1]:
            for dtype in ("float32", "bfloat16"):
                case = dict(model="gpt2", size=size, dtype=dtype, quantize="none", batch=1,
                            length=32 if DRY else 128, sampler="greedy", vocabulary=None,
                            backend="kerascl")
                for on, ahead in (("0", None), (ON, None), (ON, 0), (ON, 8), (ON, 32)):
                    if ahead is not None and size != sizes[-1]:
                        continue
                    text = child(["tokens", case, ahead], 150, KERASCL_RESIDENT=on)
                    say(f"gpt2 {size} {dtype} resident {on} ahead {ahead}:", text)
    say("done")
    os._exit(0)


if __name__ == "__main__":
    if "--child" in sys.argv:
        name, *rest = json.loads(sys.argv[-1])
        print(globals()[name](*rest))
    else:
        main()
