"""What OpenCL devices there are, and what is wrong with the others."""

from __future__ import annotations

import argparse
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.runtime import children, probe
from kerascl.runtime import device as devices


def _probe(index: int, seconds: float) -> str:
    """Build and run a kernel on one device in a child process, which may die; "" when it worked."""
    command = [sys.executable, "-m", "kerascl.runtime.probe", str(index)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=children.environment()
        )
    except subprocess.TimeoutExpired:
        return f"the build probe took more than {seconds:g} s"
    if done.returncode == 0 and done.stdout.strip().endswith(probe.OK):
        return ""
    if done.returncode < 0:
        return f"the build probe was killed by signal {-done.returncode}"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return "the build probe failed: " + (lines[-1] if lines else f"exit {done.returncode}")


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**10:.0f} KiB"


def _matrix(info: devices.DeviceInfo, run_probe: bool) -> str:
    """What of the device's matrix units is used, or why not."""
    if not info.matrix:
        return ""
    if not hopper_probe.capable(info) or not run_probe:
        return info.matrix
    verdicts = hopper_probe.verdicts(info)
    problem = verdicts[hopper_probe.BASE]
    if problem:
        return f"mma80 (no wgmma90: {problem})"
    missing = (f"{family}: {text}" for family, text in verdicts.items() if text)
    return ", no ".join((info.matrix, *missing))


def list_devices(run_probe: bool, console: Console) -> int:
    """Print the table; returns how many devices can be used."""
    table = Table(title="OpenCL devices, best first")
    for name in ("", "kind", "device", "platform, driver", "OpenCL", "units", "memory", "types"):
        table.add_column(name, overflow="fold")
    table.add_column("state", overflow="fold")
    usable = 0
    others = []
    index = 0
    for found in devices.find_devices():
        if found.device is None:
            others.append(found)
            continue
        info = found.device.info
        problem = _probe(index, 60) if run_probe else ""
        usable += not problem
        types = [name for name, has in (("fp16", info.fp16), ("fp64", info.fp64)) if has]
        state = f"[red]{problem}[/]" if problem else "[green]works[/]" if run_probe else "found"
        table.add_row(
            str(index),
            info.kind,
            info.name,
            f"{info.platform}, {info.driver_version}",
            f"{info.opencl_version[0]}.{info.opencl_version[1]}",
            str(info.compute_units),
            f"{_size(info.global_mem_bytes)}, {_size(info.local_mem_bytes)} local",
            " ".join(filter(None, (*types, _matrix(info, run_probe)))),
            state + (f" ({', '.join(sorted(info.quirks))})" if info.quirks else ""),
        )
        index += 1
    if index:
        console.print(table)
    if others:
        table = Table(title="Not used")
        table.add_column("where", overflow="fold")
        table.add_column("why", overflow="fold")
        for found in others:
            table.add_row(found.where, found.problem)
        console.print(table)
    if not usable:
        console.print(f"No device can be used: {devices.HINT}.")
        return usable
    try:
        chosen = devices.choose()
        console.print(f"In use: {chosen.info.name} ({chosen.info.platform})", highlight=False)
    except devices.DeviceError as error:
        console.print(str(error), style="red", markup=False)
    return usable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-probe", action="store_true", help="do not build and run a kernel")


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status."""
    return 0 if list_devices(not options.no_probe, console) else 1
