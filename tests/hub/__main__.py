"""Compares the tokens that keras-hub's models generate with those of another backend.

    python -m tests.hub                  all families
    python -m tests.hub GPT-2 "Llama 3"  some
    python -m tests.hub --against torch  default jax
    python -m tests.hub --dtype bfloat16 --quantize int8

The models are tiny, of equal random weights. Exits 1 when tokens differ in float32 without
quantisation; else how many do is only told, as two tokens may be equally probable when rounded. It
needs keras-hub (extra `hub`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.hub import families


def generated(backend, names, dtype, quantize):
    """What a backend generates, by family and sampler."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "found.jsonl"
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-m", "tests.hub.worker", str(target), dtype, quantize, *names]
        subprocess.run(command, env=environment, check=True)
        found = [json.loads(line) for line in target.read_text().splitlines()]
    return {(name, sampler): result for name, sampler, result in found}


def compared(ours, theirs):
    """The table's words for one family and sampler, and whether it is as it should be."""
    if "error" in ours:
        return ours["error"], "error" in theirs
    if "error" in theirs:
        return f"theirs: {theirs['error']}", True
    keys = [key for key in ours if key != "seconds"]
    wrong = sum(int(np.sum(np.array(ours[k]) != np.array(theirs[k]))) for k in keys)
    count = sum(np.size(ours[k]) for k in keys)
    return f"{'equal' if not wrong else f'{wrong} differ'} of {count}", not wrong


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(families.FAMILIES)}")
    parser.add_argument("--against", default="jax", help="the other backend")
    parser.add_argument("--dtype", default="float32", help="Keras' policy of dtypes")
    parser.add_argument("--quantize", default="none", choices=("none", "int8", "int4"))
    args = parser.parse_args()
    names = args.names or list(families.FAMILIES)
    unknown = set(names) - set(families.FAMILIES)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    kind = args.dtype, args.quantize
    ours, theirs = (generated(b, names, *kind) for b in ("kerascl", args.against))
    exact = kind == ("float32", "none")
    table = Table("family", "sampler", "tokens", "first call (s)", f"{args.against} (s)")
    good = True
    for key, found in ours.items():
        words, fine = compared(found, theirs[key])
        good &= fine or (not exact and "error" not in found)
        seconds = [f"{x.get('seconds', float('nan')):.1f}" for x in (found, theirs[key])]
        table.add_row(*key, words, *seconds)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
