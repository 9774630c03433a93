"""Run a Python script and show where its device time goes, by kernel and by Keras layer.

Captured steps (fit, evaluate, predict) know the layer of each kernel, its floating point operations
and the size of the memory it uses; other work is listed by kernel only.  Commands are timed on the
device, on a queue with profiling, so the host is slower than normal.  Kernels that a loop would run
in one launch whose work-groups stay (text generation on NVIDIA) are launched one by one.
"""

from __future__ import annotations

import argparse
import os

from rich.console import Console

from kerascl.commands.bench import known_peaks
from kerascl.commands.scripts import run_script
from kerascl.runtime import device as devices
from kerascl.runtime.copies import Copies
from kerascl.runtime.profile import profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--rows", type=int, default=30, help="rows of each table (30)")
    parser.add_argument(
        "--copies", action="store_true", help="compare with copies of as many bytes, too"
    )
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome trace (ui.perfetto.dev)")
    parser.add_argument("script", help="the script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the script's exit status."""
    os.environ.setdefault("KERAS_BACKEND", "kerascl")
    os.environ.setdefault("KERASCL_RESIDENT", "3")
    peaks = known_peaks(devices.default(), console)
    try:
        with profile(show=False) as recorded:
            status = run_script(options.script, options.arguments)
    except FileNotFoundError as error:
        console.print(f"profile: {error}", style="red", markup=False)
        return 2
    if not recorded.spans:
        console.print("The script ran nothing on the device.")
        return status
    copies = None
    if options.copies:
        with console.status("timing copies"):
            copies = Copies(devices.default(), [span.note.nbytes for span in recorded.spans])
    recorded.print(console, options.rows, "name", peaks, copies)
    recorded.print(console, options.rows, "layer", peaks, copies)
    if options.trace:
        recorded.chrome_trace(options.trace)
        console.print(f"Chrome trace: {options.trace} (open it in ui.perfetto.dev)", markup=False)
    return status
