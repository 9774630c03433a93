"""What OpenCL devices there are, and what is wrong with the others."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator

from rich.console import Console

from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.units import selftests
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
    if not run_probe:
        return info.matrix
    results = selftests.results(info)
    if problem := results.get(hopper_probe.BASE, ""):
        return f"mma80 (no wgmma90: {problem})"
    missing = (f"{name}: {text}" for name, text in results.items() if text)
    return ", no ".join((info.matrix, *missing))


def _description(
    index: int, info: devices.DeviceInfo, problem: str, run_probe: bool
) -> Iterator[tuple[str, str]]:
    """The lines about a device, each with its style."""
    yield f"{index}  {info.name} ({info.kind})", "bold"
    state = problem or ("works" if run_probe else "not tried")
    yield f"   {state}", "red" if problem else "green" if run_probe else ""
    version = ".".join(map(str, info.opencl_version))
    yield f"   {info.platform}, driver {info.driver_version}, OpenCL {version}", ""
    types = [name for name, has in (("fp16", info.fp16), ("fp64", info.fp64)) if has]
    facts = (
        f"{info.compute_units} compute units",
        f"{_size(info.global_mem_bytes)} of memory",
        f"{_size(info.local_mem_bytes)} of local memory",
        *types,
    )
    yield "   " + ", ".join(facts), ""
    if info.matrix:
        yield f"   matrix units: {_matrix(info, run_probe)}", ""
    if info.quirks:
        yield f"   quirks: {', '.join(sorted(info.quirks))}", ""


def list_devices(run_probe: bool, console: Console) -> int:
    """Print what there is, some lines a device; returns how many devices can be used."""
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
        if index == 0:
            console.print("OpenCL devices, best first\n")
        for line, style in _description(index, info, problem, run_probe):
            console.print(line, style=style, highlight=False, markup=False)
        console.print()
        index += 1
    if others:
        console.print("Not used\n")
        for found in others:
            console.print(f"{found.where}\n   {found.problem}\n", highlight=False, markup=False)
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
    """Declare the command's arguments."""
    parser.add_argument("--no-probe", action="store_true", help="do not build and run a kernel")


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status."""
    return 0 if list_devices(not options.no_probe, console) else 1
