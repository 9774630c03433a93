"""Runs the programs and compares what they see with the references, or with another backend.

    python -m tests.parity                        all programs in all forms, under kerascl
    python -m tests.parity fit_options clip_norm  groups or programs
    python -m tests.parity --against jax          with that backend, run beside, not the references
    KERAS_BACKEND=jax python -m tests.parity --make     the references of programs that follow JAX
    KERAS_BACKEND=torch python -m tests.parity --make   of those that follow torch, and so on
    python -m tests.parity --list                 what there is

Exits 1 when a program does not agree.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "kerascl")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
OURS = os.environ["KERAS_BACKEND"] == "kerascl"
if OURS:
    import kerascl_hook

    kerascl_hook.install()

import keras  # noqa: E402  (the environment comes first)
from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from tests.parity import compare, kit  # noqa: E402
from tests.parity.running import run  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.parity", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help="groups or programs; default all")
    parser.add_argument("--forms", default=",".join(kit.FORMS), help="default all three")
    parser.add_argument("--against", help="a backend to run beside; default the references")
    parser.add_argument("--make", action="store_true", help="write the references")
    parser.add_argument("--save", type=Path, help="only write what is seen into this file")
    parser.add_argument("--list", action="store_true", help="only list the programs")
    args = parser.parse_args()
    chosen = [
        p for p in kit.programs().values()
        if not args.names or p.name in args.names or p.group in args.names
    ]  # fmt: skip
    # this very stream: the programs print into others
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140)
    if args.list:
        for p in chosen:
            console.print(f"{p.group}: {p.name}: {(p.run.__doc__ or '').strip()}", markup=False)
        console.print(f"{len(chosen)} programs, {sum(len(p.forms) for p in chosen)} runs")
        return 0
    if OURS:
        import kerascl

        kerascl.set_precision("highest")  # true float32, on devices with matrix units too
    if args.make:
        chosen = [p for p in chosen if p.reference == keras.backend.backend()]
    forms = tuple(args.forms.split(","))
    if not OURS:
        # the reference of an eager run is the captured one; torch does one step at a time
        forms = ("captured", "several") if keras.backend.backend() == "jax" else ("captured",)
    wanted = [(p, form) for p in chosen for form in p.forms if form in forms]
    if not wanted:
        return "there is no such program"
    results, errors, seconds = {}, {}, {}
    with Progress(console=console, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task("programs", total=len(wanted))
        for p, form in wanted:
            progress.update(task, description=p.name)
            begin = time.monotonic()
            try:
                results[f"{p.name} {form}"] = run(p, form, keras)
            except Exception:
                errors[f"{p.name} {form}"] = traceback.format_exc()
            seconds[f"{p.name} {form}"] = time.monotonic() - begin
            progress.advance(task)
    if args.make or args.save:
        for name, text in errors.items():
            console.print(f"{name}\n{text}", markup=False)
        if args.save:
            compare.save(args.save, results, about())
        else:
            write(results, chosen)
        return 1 if errors else 0
    with tempfile.TemporaryDirectory() as folder:
        known, versions = against(args, folder) if args.against else references(chosen)
    return report(wanted, results, errors, seconds, known, versions, console)


def about() -> dict:
    """Facts that a reference carries."""
    return {"keras": keras.__version__}


def write(results, chosen) -> None:
    """Puts results into the references of their groups; those of other programs stay."""
    for group in sorted({p.group for p in chosen}):
        here = [p for p in kit.programs().values() if p.group == group]
        valid = {f"{p.name} captured" for p in here}
        valid |= {f"{p.name} several" for p in here if p.reference == "jax"}
        file = compare.FOLDER / f"{group}.npz"
        kept = compare.load(file)[0] if file.exists() else {}
        mine = {f"{p.name} {form}" for p in chosen if p.group == group for form in p.forms}
        merged = {k: v for k, v in kept.items() if k in valid}
        merged |= {k: v for k, v in results.items() if k in mine}
        compare.save(file, dict(sorted(merged.items())), about())


def references(chosen) -> tuple[dict, dict]:
    """(results by name, the Keras they are of by name), from the files in the tree."""
    known, versions = {}, {}
    for group in {p.group for p in chosen}:
        file = compare.FOLDER / f"{group}.npz"
        if file.exists():
            found, facts = compare.load(file)
            known |= found
            versions |= dict.fromkeys(found, facts["keras"])
    return known, versions


def against(args, folder) -> tuple[dict, dict]:
    """(results by name, the Keras they are of), from a process under another backend."""
    file = Path(folder) / "other.npz"
    subprocess.run(
        [sys.executable, "-m", "tests.parity", *args.names, "--save", str(file)],
        env=os.environ | {"KERAS_BACKEND": args.against}, check=False,
    )  # fmt: skip
    known, facts = compare.load(file)
    return known, dict.fromkeys(known, facts["keras"])


def report(wanted, results, errors, seconds, known, versions, console) -> int:
    """Prints the table; 1 when something does not agree."""
    shown = Table("program", "form", "leaves", "of the tolerance", "where", "s")
    details, right = [], 0
    for p, form in wanted:
        name = f"{p.name} {form}"
        reference = name if name in known else f"{p.name} captured"
        worst, where, wrong = 0.0, "", []
        if name in errors:
            wrong = [errors[name]]
        elif reference not in known:
            wrong = ["no reference"]
        else:
            text = versions[reference] == keras.__version__
            worst, where, wrong = compare.difference(
                results[name], known[reference], p.tolerance, text
            )
            if not text:
                where += f" (text is of Keras {versions[reference]}: not compared)"
        right += not wrong
        shown.add_row(
            p.name, form, str(len(results.get(name, ()))), f"{worst:.3f}", where,
            f"{seconds[name]:.1f}", style="red" if wrong else None,
        )  # fmt: skip
        if wrong:
            more = [f"and {len(wrong) - 4} more"] if len(wrong) > 4 else []
            details.append(name + "\n  " + "\n  ".join(wrong[:4] + more))
    console.print(shown)
    for text in details:
        console.print(text, markup=False, highlight=False)
    console.print(f"{right} of {len(wanted)} runs of {len({p for p, _ in wanted})} programs agree")
    return 0 if right == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
