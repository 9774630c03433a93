"""Runs random programs of public functions and compares them with NumPy.

    python -m tests.fuzz                        2,000 programs; KERASCL_DEVICE chooses the device
    python -m tests.fuzz -n 16 --programs 20000
    python -m tests.fuzz --seed 1234 --programs 1          one program again
    python -m tests.fuzz --seconds 600 --programs 1000000  what is possible in ten minutes
    python -m tests.fuzz --seed 1 --programs 20000 --kept far.json   goes on where it was ended

A program has 5 to 15 steps of any dtypes.  All run captured (traced, bound and replayed), half of
them also at once, a quarter step by step, and of a quarter gradients are compared with differences;
with --every-way, all in every way.  Integers must be exact, floats within a bound that is followed
through the steps.  What is wrong is made as small as it goes and printed with its seed; where a
process dies another goes on.  Exits 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from kerascl.runtime import device
from tests.fuzz import check
from tests.fuzz.program import draw_program
from tests.fuzz.workers import Workers, serve

TOGETHER = 16  # programs in one captured function


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("-n", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument(
        "--seed", type=int, help="of the first program; the next have the next ones"
    )
    parser.add_argument("--seconds", type=float, help="begin nothing after so long")
    parser.add_argument("--kept", type=Path, help="a file that says what is done; needs --seed")
    parser.add_argument("--every-way", action="store_true", help="all programs, eagerly as well")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()

    def work(batch: list, found) -> dict:
        first, count = batch
        programs = [draw_program(seed) for seed in range(first, first + count)]
        for wrong in check.mismatches(programs, args.every_way):
            small = check.smaller(wrong)
            found(small.key, f"seed {wrong.program.seed}", str(small))
        steps = [step.rule for program in programs for step in program.steps]
        return {"steps": len(steps), "covered": Counter(steps)}

    if args.work:
        serve(work)
        return 0
    if args.seed is None:
        if args.kept:
            parser.error("--kept needs --seed: another run has to draw the same programs")
        args.seed = int(os.environ.get("KERASCL_TEST_SEED", int.from_bytes(os.urandom(4))))
    starts = range(0, args.programs, TOGETHER)
    workers = Workers(
        "tests.fuzz",
        [[args.seed + start, min(TOGETHER, args.programs - start)] for start in starts],
        size=lambda batch: batch[1],
        split=lambda batch: [[batch[0] + k, 1] for k in range(batch[1])] if batch[1] > 1 else [],
        label="programs", count=args.n, seconds=args.seconds,
        more=["--every-way"] * args.every_way, kept=args.kept,
    )  # fmt: skip
    info = device.default().info
    workers.console.print(f"{info.name} ({info.platform} {info.driver_version}), from {args.seed}")
    return workers.run()


if __name__ == "__main__":
    sys.exit(main())
