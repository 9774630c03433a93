"""What is in an ONNX file, whether kerascl computes it rightly, and how fast.

Prints inputs, outputs, weights and operators, and which of those run on the device and which, being
arithmetic of shapes, on the host. Needs the extra `onnx`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", help="the file")
    parser.add_argument("--check", action="store_true", help="compare with onnx's reference")
    parser.add_argument("--compare", action="store_true", help="compare with onnxruntime (CPU)")
    parser.add_argument("--bench", action="store_true", help="time and memory for each batch size")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="for --bench (1 8)")
    parser.add_argument("--size", type=int, default=32, help="of dimensions left open (32)")


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status: 1 where something differs, 2 for a wrong file."""
    # in a process of its own: it imports Keras and onnx, which the other commands do without
    command = [sys.executable, "-m", "kerascl.onnx", options.model, "--size", str(options.size)]
    command += [f"--{name}" for name in ("check", "compare", "bench") if getattr(options, name)]
    command += ["--batches", *map(str, options.batches)]
    environment = {**os.environ, "KERAS_BACKEND": "kerascl"}
    return subprocess.run(command, env=environment, check=False).returncode
