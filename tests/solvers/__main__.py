"""Runs tests under every applicable solver of products, convolutions and attention, forced in turn.

    python -m tests.solvers                  all of the device's; KERASCL_DEVICE chooses the device
    python -m tests.solvers wgmma mma -n 8   those whose names begin so
    python -m tests.solvers --list           their names
    python -m tests.solvers --attention      attention's alone
    python -m tests.solvers --paths tests/ops/test_table.py tests/backend/test_nn.py
    python -m tests.solvers --keras layers/convolutional ops/nn_test.py     of Keras' own tests
    python -m tests.solvers --emulated       of matrix units, on a CPU; see emulated.py

Where a solver does not apply, one whose name begins with its name or the usual one does the work;
the table says how many problems it was itself, and is yellow where that was none: the tests then
say nothing of it.  Attention's solvers have tests of their own.  float32 is true float32
("highest"), which the tests' tolerances are for, unless KERASCL_PRECISION says otherwise; emulated
TF32 ("high") is as exact.  Exits 1 when a test fails.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kerascl import dtypes
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import AttentionProblem, Tensor
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.runtime import device
from tests.solvers import counting, emulated

PATHS = tuple(
    f"tests/ops/test_{name}.py"
    for name in ("table", "products", "convolution", "einsum", "linalg", "nn")
)
ATTENTION_PATHS = ("tests/ops/test_nn.py", "tests/backend/test_attention.py")
# 2048 queries, of which an emulator would make minutes.
LARGE = "tests/ops/test_nn.py::test_attention_keeps_no_logits"
TYPES = (("float32", "high"), ("float32", "highest"), ("bfloat16", "high"), ("float64", "high"))


def names(info) -> dict[str, tuple[str, ...]]:
    """Of the solvers that apply to some problem here, each with the tests of what it solves; those
    of one name count once."""
    found: dict[str, tuple[str, ...]] = {}
    for problem in problems():
        of, paths = conv.SOLVERS, PATHS
        if isinstance(problem, AttentionProblem):
            of, paths = attention.SOLVERS, ATTENTION_PATHS
        elif isinstance(problem, MatmulProblem):
            of = matmul.SOLVERS
        for solver in of:
            if solver.applies(problem, info):
                given = (*found.get(solver.name, ()), *paths)
                found[solver.name] = tuple(dict.fromkeys(given))
    return found


def problems():
    """Products and convolutions large and small, with few and many channels; attention of few and
    many queries and features."""
    for name, precision in TYPES:
        t = dtypes.as_dtype(name)
        types = (t, t, t.accumulator, 0, 0, precision)
        for m, n, k in ((256, 256, 256), (2, 300, 400), (7, 5, 9)):
            yield normalise_matmul(MatmulProblem(m, n, k, (), (k, 1), (n, 1), *types))
        yield normalise_matmul(MatmulProblem(256, 128, 256, (), (1, 256), (128, 1), *types))
        kinds = (FORWARD, DATA_GRAD, FILTER_GRAD)
        for kind, channels, side, depthwise in itertools.product(kinds, (3, 64), (1, 3), (0, 1)):
            groups, filters = (channels, channels) if depthwise else (1, 64)
            x_shape, y_shape = (2, 16, 16, channels), (2, 16, 16, filters)
            pads = ((side // 2, side // 2),) * 2
            yield ConvProblem(
                kind, x_shape, (side, side, channels // groups, filters), y_shape, (1, 1),
                pads, (1, 1), groups, False, t, t, t.accumulator, precision,
            )  # fmt: skip
        for length, n, backward in itertools.product((4, 64), (16, 80), (False, True)):
            x = Tensor(t, (length * 4 * n, 2 * n, n, 1))
            yield AttentionProblem(
                2, length, length, 2, 2, n, n, 0.25, False, t, x, x, x,
                grad=x if backward else None, precision=precision,
            )  # fmt: skip


def run(name: str, paths: Sequence[str], args: argparse.Namespace) -> dict:
    """The outcome of the tests, those of pytest in `paths`, under a solver."""
    python, commands = [sys.executable, "-m"], []
    if paths:
        without = ["--deselect", LARGE] if args.emulated else []
        commands.append([*python, "pytest", "-q", *paths, *without])
    if args.keras:
        commands.append([*python, "tests.upstream", "-n", "1", *args.keras])
    plugins = ["tests.solvers.counting", *(["tests.solvers.emulated"] if args.emulated else [])]
    begin, text, status = time.monotonic(), "", 0
    with tempfile.TemporaryDirectory(prefix="kerascl-solvers-") as folder:
        known = {"KERASCL_PRECISION": "high" if args.emulated else "highest"} | os.environ
        environment = known | {
            "KERASCL_SOLVERS": name, "SOLVERS_COUNTED": folder, "PYTEST_PLUGINS": ",".join(plugins),
        }  # fmt: skip
        for command in commands:
            left = max(1.0, args.timeout + begin - time.monotonic())
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=left, env=environment
                )
                text += done.stdout + done.stderr
                status = status or done.returncode
            except subprocess.TimeoutExpired as late:
                text += (late.stdout or b"").decode()
                status = "too long"
        outcomes, decided = counting.read(folder)
    return dict(
        status=status, passed=outcomes["passed"], failed=outcomes["failed"], decided=decided,
        seconds=time.monotonic() - begin, text=text,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.solvers", description=__doc__.split("\n")[0]
    )
    parser.add_argument("parts", nargs="*", help="beginnings of solvers' names; default all")
    parser.add_argument("--list", action="store_true", help="only list the solvers")
    parser.add_argument("--attention", action="store_true", help="only attention's solvers")
    parser.add_argument("--paths", nargs="+", help="what pytest runs, for all solvers alike")
    parser.add_argument("--keras", nargs="+", help="Keras' tests: paths below keras/src")
    parser.add_argument("--emulated", action="store_true", help="solvers of matrix units, on a CPU")
    parser.add_argument("-n", type=int, default=2, help="solvers at a time")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a solver may take")
    args = parser.parse_args()
    info = device.default().info
    found = names(info)
    if args.emulated:
        emulated.install()
        found = {name: paths for name, paths in names(info).items() if name not in found}
    if args.attention:
        found = {name: paths for name, paths in found.items() if set(ATTENTION_PATHS) <= set(paths)}
    chosen = [n for n in found if not args.parts or any(part in n for part in args.parts)]
    console = Console(width=None if sys.stdout.isatty() else 120)
    if args.list or not chosen:
        console.print(", ".join(found))
        return 0 if args.list else "no solver of these names applies here"
    table = Table("solver", "passed", "failed", "solved", "s")
    failures = []
    with Progress(console=console) as progress, ThreadPoolExecutor(args.n) as pool:
        task = progress.add_task("solvers", total=len(chosen))
        own = args.paths or args.keras
        paths = {name: (args.paths or ()) if own else found[name] for name in chosen}
        runs = {pool.submit(run, name, paths[name], args): name for name in chosen}
        for done in as_completed(runs):
            name, r = runs[done], done.result()
            progress.advance(task)
            right = r["status"] == 0
            table.add_row(
                name, str(r["passed"]), str(r["failed"]), str(r["decided"]), f"{r['seconds']:.0f}",
                style="red" if not right else "" if r["decided"] else "yellow",
            )  # fmt: skip
            if not right:
                failures.append((name, r))
    console.print(table)
    for name, r in failures:
        console.print(f"{name}: {r['status']}\n{r['text'][-2000:]}", markup=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
