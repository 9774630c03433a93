"""Tokens a second of keras-hub's language models with random weights, beside another backend.

    python benchmarks/generation.py                    GPT-2 of 2x128 and 4x256, beside JAX
    python benchmarks/generation.py --model gpt2 --model llama --size small --size 1b \\
        --dtype float32 --dtype bfloat16 --quantize none --quantize int8 --batch 1 --batch 8 \\
        --json rows.jsonl

Each case is generated in a process of its own, one after the other: a first call, one with another
prompt length, then calls as the first, of which the best counts. "read" is what a token cannot do
without, in MB: the weights once (of embeddings that are only looked up, nothing), and the cache of
each prompt, half full. "of limit" is the time that reading takes at the rate at which this device
copies (`python -m kerascl bench`), over the time of a token. "ratio" is the time of a token over
kerascl's in the same case: above 1 kerascl is faster.

A file of --json gets a line for each case as it ends; cases that it has, but for errors, are not
run again. Kernels that kerascl has compiled before come from its cache (KERASCL_CACHE_DIR).
"""

import argparse
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

# layers, width, heads, heads of keys and values, width of the MLP, vocabulary
NAMED = {
    "gpt2": {
        "small": (12, 768, 12, 12, 3072, 50257),
        "medium": (24, 1024, 16, 16, 4096, 50257),
    },
    "llama": {"1b": (16, 2048, 32, 8, 8192, 128256)},  # as Llama 3.2 1B
}
DEFAULT_SIZES = ("2x128", "4x256")
VOCABULARY = 5000  # of sizes without a name
PROMPT = 8
CASE = ("model", "size", "dtype", "quantize", "batch", "length", "sampler", "vocabulary", "backend")


def shape(model: str, size: str, vocabulary: int | None) -> tuple[int, ...]:
    """What NAMED holds, of a name or of layers x width, whose heads are 64 wide."""
    found = NAMED[model].get(size)
    if found is None:
        depth, width = map(int, size.split("x"))
        heads = max(1, width // 64)
        few, inner = (heads, 4) if model == "gpt2" else (max(1, heads // 4), 3)
        found = (depth, width, heads, few, inner * width, VOCABULARY)
    return (*found[:-1], vocabulary or found[-1])


def built(case: dict):
    """The model of a case, compiled."""
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    depth, width, heads, few, inner, vocabulary = shape(
        case["model"], case["size"], case["vocabulary"]
    )
    same = {
        "vocabulary_size": vocabulary, "num_layers": depth, "hidden_dim": width,
        "intermediate_dim": inner, "dtype": case["dtype"],
    }  # fmt: skip
    if case["model"] == "gpt2":
        backbone = keras_hub.models.GPT2Backbone(
            num_heads=heads, max_sequence_length=case["length"], **same
        )
        model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    else:
        backbone = keras_hub.models.Llama3Backbone(
            num_query_heads=heads, num_key_value_heads=few, tie_word_embeddings=True,
            rope_max_wavelength=500000, **same,
        )  # fmt: skip
        model = keras_hub.models.Llama3CausalLM(backbone=backbone, preprocessor=None)
    if case["quantize"] != "none":
        gc.freeze()  # Keras collects garbage after each layer: of all that is not frozen
        model.quantize(case["quantize"])
    model.compile(sampler=case["sampler"])
    return model


def bytes_read(model, case: dict) -> tuple[int, int]:
    """Bytes of weights that each token needs, and of the caches, half full."""
    weights = 0
    for weight in model.weights:
        if "position_embedding" not in weight.path:  # a row
            weights += math.prod(weight.shape) * _item(weight.dtype)
    depth, width, heads, few, *_ = shape(case["model"], case["size"], case["vocabulary"])
    position = 2 * depth * few * (width // heads) * _item(case["dtype"])
    return weights, position * case["batch"] * (PROMPT + case["length"]) // 2


def _item(dtype: str) -> int:
    return {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1}.get(dtype, 4)


def measured(case: dict, calls: int) -> dict:
    """Seconds of the first call, of the first with another prompt length, and of the best."""
    import numpy as np

    begin = time.perf_counter()
    model = built(case)
    seconds_built = time.perf_counter() - begin
    length, batch = case["length"], case["batch"]
    vocabulary = shape(case["model"], case["size"], case["vocabulary"])[-1]
    rng = np.random.default_rng(0)

    def seconds(given: int) -> float:
        mask = np.arange(length) < np.full((batch, 1), given)
        tokens = np.where(mask, rng.integers(0, vocabulary, mask.shape), 0).astype("int32")
        begin = time.perf_counter()
        found = model.generate({"token_ids": tokens, "padding_mask": mask}, stop_token_ids=None)
        taken = time.perf_counter() - begin
        found = np.asarray(found["token_ids"])
        if not np.array_equal(found[mask], tokens[mask]) or not np.all(found < vocabulary):
            raise ValueError("what was generated does not continue its prompt")
        return taken

    first, second = seconds(PROMPT), seconds(PROMPT + 1)
    new = length - PROMPT
    best = min(seconds(PROMPT) for _ in range(calls))
    weights, cache = bytes_read(model, case)
    row = {
        "built": seconds_built, "first": first, "other length": second, "ms": 1e3 * best / new,
        "tokens": batch * new / best, "weights": weights, "cache": cache,
    }  # fmt: skip
    if case["backend"] == "kerascl":
        row |= device_facts()
    return row


def device_facts() -> dict:
    """The device's name, and bytes a second that it copies."""
    from kerascl.runtime import device, peaks

    used = device.default()
    return {"device": used.info.name, "bandwidth": peaks.known(used).bandwidth}


def run_case(case: dict, options) -> dict:
    """A row: the case and what a process found, or its error."""
    environment = {
        **os.environ, "KERAS_BACKEND": case["backend"], "TF_CPP_MIN_LOG_LEVEL": "3",
    }  # fmt: skip
    command = [sys.executable, __file__, "--calls", str(options.calls), "--only", json.dumps(case)]
    try:
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=options.limit
        )
    except subprocess.TimeoutExpired:
        return case | {"error": f"not done in {options.limit} s"}
    lines = run.stdout.splitlines()
    if run.returncode == 0 and lines:
        return case | json.loads(lines[-1])
    said = [line for line in run.stderr.splitlines() if line.strip()]
    return case | {"error": said[-1][:200] if said else f"exit status {run.returncode}"}


def same_case(one: dict, other: dict, apart: tuple[str, ...] = ()) -> bool:
    """Whether two rows are of one case, but for what may differ."""
    return all(one.get(k) == other.get(k) for k in CASE if k not in apart)


def completed(row: dict, rows: list[dict]) -> dict:
    """A row with its share of the limit and its ratio to kerascl's in the same case."""
    ours = next((r for r in rows if r["backend"] == "kerascl" and "ms" in r
                 and same_case(r, row, ("backend",))), None)  # fmt: skip
    rates = [r["bandwidth"] for r in [ours or {}, *rows] if r.get("bandwidth")]
    if "ms" in row:
        if rates:
            least = 1e3 * (row["weights"] + row["cache"]) / rates[0]
            row["of limit"] = least / row["ms"]
        if ours is not None:
            row["ratio"] = row["ms"] / ours["ms"]
    return row


def line(row: dict) -> str:
    """The table's line of a row."""
    kind = row["dtype"] if row["quantize"] == "none" else f"{row['dtype']} {row['quantize']}"
    start = f"{row['model'] + ' ' + row['size']:14}{kind:15}{row['batch']:>5}  {row['backend']:9}"
    if "error" in row:
        return f"{start}{row['error']}"
    of_limit = f"{100 * row['of limit']:8.1f}%" if "of limit" in row else " " * 9
    ratio = f"{row['ratio']:7.2f}" if "ratio" in row else ""
    return (
        f"{start}{row['first']:8.2f} s{row['other length']:9.3f} s{row['ms']:10.3f}"
        f"{row['tokens']:12,.0f}{(row['weights'] + row['cache']) / 1e6:10,.1f}{of_limit}{ratio}"
    )


HEAD = (f"{'model':14}{'weights':15}{'batch':>5}  {'backend':9}{'first':>10}{'other len':>11}"
        f"{'ms/token':>10}{'tokens/s':>12}{'read MB':>10}{'of limit':>9}{'ratio':>7}")  # fmt: skip


def cases(options, fail) -> list[dict]:
    """All cases that the options ask for."""
    models = options.model or ["gpt2"]
    sizes = options.size or list(DEFAULT_SIZES)
    backends = ["kerascl", *filter(None, options.against.split(","))]
    known = {name for model in models for name in NAMED[model]}
    for size in sizes:
        if size not in known and not all(part.isdigit() for part in size.split("x", 1)):
            fail(f"{size} is neither LAYERSxWIDTH nor one of {', '.join(sorted(known))}")
    found = []
    for model, size, dtype, quantize, batch in itertools.product(
        models, sizes, options.dtype or ["float32"], options.quantize or ["none"],
        options.batch or [1],
    ):  # fmt: skip
        if size in NAMED[model] or size not in known:
            values = (model, size, dtype, quantize, batch, options.length, options.sampler,
                      options.vocabulary)  # fmt: skip
            found += [dict(zip(CASE, (*values, backend))) for backend in backends]
    return found


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(f"{n} ({m})" for m, found in NAMED.items() for n in found)
    parser.add_argument("--model", action="append", choices=tuple(NAMED), help="default gpt2")
    parser.add_argument(
        "--size", action="append", help=f"{names}, or layers x width; default 2x128, 4x256"
    )
    parser.add_argument("--dtype", action="append", help="default float32")
    parser.add_argument(
        "--quantize", action="append", choices=("none", "int8", "int4"),
        help="as Keras' model.quantize does; default none",
    )  # fmt: skip
    parser.add_argument("--batch", action="append", type=int, help="default 1")
    parser.add_argument("--against", default="jax", help="backends, with commas; may be empty")
    parser.add_argument("--sampler", default="greedy")
    parser.add_argument("--length", type=int, default=128, help=f"tokens, {PROMPT} of them given")
    parser.add_argument("--vocabulary", type=int, help=f"default {VOCABULARY}, or that of the name")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--limit", type=float, default=600, help="seconds that a case may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows, a line each")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(json.loads(options.only), options.calls)))
        return 0
    kept = []
    if options.json and options.json.exists():
        kept = [json.loads(text) for text in options.json.read_text().splitlines() if text.strip()]
    rows = [row for row in kept if "error" not in row]
    failed = False
    print(HEAD)
    for case in cases(options, parser.error):
        row = next((r for r in rows if same_case(r, case)), None)
        if row is None:
            row = completed(run_case(case, options), rows)
            if row["backend"] == "kerascl":
                row = completed(row, [*rows, row])
            rows.append(row)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        failed |= "error" in row
        print(line(row), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
