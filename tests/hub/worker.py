"""Generates with each family and sampler under one backend, and writes the tokens into a file."""

import json
import sys
import time
import warnings

import numpy as np

from tests.hub import families


def main(target, dtype, quantize, names):
    for name in names:
        for sampler in families.SAMPLERS:
            found = {}
            try:
                made = families.model(name, dtype, quantize)
                made.compile(sampler=sampler)
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", message=".*uncaptured")
                    for length in families.PROMPTS:
                        for stop in (None, (3, 8, 11, 17, 29)):
                            begin = time.monotonic()
                            given = families.inputs(name, length)
                            tokens = families.tokens_of(made.generate(given, stop_token_ids=stop))
                            found[f"{length} {stop}"] = tokens.tolist()
                            found.setdefault("seconds", time.monotonic() - begin)
            except Exception as error:  # shown in the table
                found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            with open(target, "a") as file:
                file.write(json.dumps([name, sampler, found]) + "\n")
            print(name, sampler, np.round(found.get("seconds", 0), 1), flush=True, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
