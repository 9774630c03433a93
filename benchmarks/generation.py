"""Tokens a second of keras-hub's GPT-2 with random weights, beside another backend.

    python benchmarks/generation.py --size 2x128 --size 4x256 --against jax

Each backend generates in a process of its own: a first call, then calls with prompts of several
lengths. The best of the calls counts.
"""

import argparse
import json
import os
import subprocess
import sys
import time


def measured(size: str, options) -> dict:
    """Seconds of the first call, of the first with another prompt length, and of the best."""
    import keras_hub
    import numpy as np

    depth, width = map(int, size.split("x"))
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=options.vocabulary, num_layers=depth, num_heads=max(1, width // 64),
        hidden_dim=width, intermediate_dim=4 * width, max_sequence_length=options.length,
    )  # fmt: skip
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(sampler=options.sampler)
    rng = np.random.default_rng(0)

    def seconds(given: int) -> float:
        mask = np.arange(options.length) < np.full((options.batch, 1), given)
        tokens = np.where(mask, rng.integers(0, options.vocabulary, mask.shape), 0).astype("int32")
        begin = time.perf_counter()
        model.generate({"token_ids": tokens, "padding_mask": mask}, stop_token_ids=None)
        return time.perf_counter() - begin

    first, second = seconds(8), seconds(9)
    new = options.length - 8
    best = min(seconds(8) for _ in range(options.calls))
    return {"first": first, "other length": second, "ms": 1e3 * best / new,
            "tokens": options.batch * new / best}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", action="append", help="layers x width; default 2x128, 4x256")
    parser.add_argument("--against", default="jax", help="backends, with commas; may be empty")
    parser.add_argument("--sampler", default="greedy")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options.only, options)))
        return
    backends = ["kerascl", *filter(None, options.against.split(","))]
    print(f"{'model':10}{'backend':10}{'first call':>12}{'another length':>16}{'a token':>10}")
    for size in options.size or ["2x128", "4x256"]:
        for backend in backends:
            environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
            command = [sys.executable, __file__, *sys.argv[1:], "--only", size]
            run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            found = json.loads(run.stdout.splitlines()[-1])
            print(
                f"{size:10}{backend:10}{found['first']:10.2f} s{found['other length']:14.3f} s"
                f"{found['ms']:7.3f} ms   {found['tokens']:,.0f} tokens a second",
                flush=True,
            )


if __name__ == "__main__":
    main()
