"""Compares every form of generated kernel with NumPy at every length that its loops may end at.

    python -m tests.canaries                     KERASCL_DEVICE chooses the device
    python -m tests.canaries -n 16 --share 0.05
    python -m tests.canaries --dtypes int32 float32 --lengths 16 17 31 --share 1

Forms are reductions over any axis, kernels with several stages over rows, scans, sorts, movements,
gathers, scatters and products, each of several shapes, with an operation before and one after; of
all pairs of these a share is drawn for each dtype and length, eagerly and captured by turns.  Sums
of small integers are exact, so little is allowed for.  Exits 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from kerascl.runtime import device
from tests.canaries import check
from tests.canaries.forms import DTYPES, LENGTHS, forms
from tests.fuzz.workers import Workers, serve


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.canaries", description=__doc__.split("\n")[0]
    )
    parser.add_argument("-n", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes")
    parser.add_argument("--share", type=float, default=0.002, help="of all pairs of operations")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, help="begin nothing after so long")
    parser.add_argument("--kept", type=Path, help="a file that says what is done; needs --seed")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()

    def work(batch: list, found) -> dict:
        dtype, n, seed, captured = batch
        rng = np.random.default_rng(seed)
        chosen = forms(dtype, args.share, rng)
        for form, text in check.mismatches(chosen, dtype, n, rng, captured):
            again = f"--dtypes {dtype} --lengths {n} --seed {args.seed} --share {args.share}"
            way = "captured" if captured else "eagerly"
            found(
                f"{form}, {dtype}",
                f"n = {n}",
                f"# {form}, {dtype}, n = {n}, {way}: {text}\n# {again}",
            )
        return {"forms": len(chosen)}

    if args.seed is None:
        if args.kept:
            parser.error("--kept needs --seed: another run has to draw the same forms")
        args.seed = int(os.environ.get("KERASCL_TEST_SEED", int.from_bytes(os.urandom(4))))
    if args.work:
        serve(work)
        return 0
    batches = [
        [dtype, n, args.seed + 5000 * DTYPES.index(dtype) + n, (n + DTYPES.index(dtype)) % 2 == 0]
        for n in args.lengths
        for dtype in args.dtypes
    ]
    workers = Workers(
        "tests.canaries", batches, size=lambda batch: 1, split=lambda batch: [],
        label="dtypes and lengths", count=args.n, seconds=args.seconds,
        more=["--share", str(args.share), "--seed", str(args.seed)], kept=args.kept,
    )  # fmt: skip
    info = device.default().info
    workers.console.print(f"{info.name} ({info.platform} {info.driver_version}), seed {args.seed}")
    return workers.run()


if __name__ == "__main__":
    sys.exit(main())
