"""The CPU drivers that anybody can install: where each is found, and how it is asked for."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kerascl.runtime import icd

SYSTEM = Path(os.environ.get("OPENCL_VENDOR_PATH") or "/etc/OpenCL/vendors")
# Where pip put a driver that is not to be seen by all other tests: tests.drivers --help.
FOLDER = Path(".drivers")


@dataclass(frozen=True)
class Driver:
    """One driver.

    Attributes:
        install: the command that installs it.
        find: what OCL_ICD_VENDORS is to name for it alone, a library or a file; None: not here.
        device: the value of KERASCL_DEVICE.
        environment: further variables it needs.
        part: the share of the table of operations, as pytest's --part.
        train: options of examples/fashion_mnist.py.
        accuracy: the least accuracy of the trained network on images that it was not trained on.
        reports: the variable that names a file into which it writes what is wrong with kernels.
    """

    install: str
    find: Callable[[], str | None]
    device: str
    environment: dict[str, str] = field(default_factory=dict)
    part: str = "1/1"
    train: tuple[str, ...] = ("--steps", "100")
    accuracy: float = 0.65
    reports: str = ""


def _intel() -> str | None:
    library = icd.intel_cpu_library()
    return str(library) if library else None


def _system(file: str) -> Callable[[], str | None]:
    return lambda: str(SYSTEM / file) if (SYSTEM / file).exists() else None


def _wheel(name: str, library: str) -> Callable[[], str | None]:
    def find() -> str | None:
        for found in importlib.metadata.distributions(name=name, path=[str(FOLDER)]):
            for file in found.files or ():
                if file.match(library):
                    return str(Path(str(found.locate_file(file))).resolve())
        return None

    return find


def _oclgrind() -> str | None:
    places = (Path("/usr/lib/oclgrind"), FOLDER.resolve())
    found = next((p for place in places for p in place.rglob("liboclgrind-rt-icd.so")), None)
    return str(found) if found else ctypes.util.find_library("oclgrind-rt-icd")


DRIVERS = {
    "intel": Driver("pip install -e '.[cpu]'", _intel, "intel"),
    "pocl": Driver("apt-get install pocl-opencl-icd", _system("pocl.icd"), "portable"),
    "pocl-wheel": Driver(
        f"pip install --no-deps --target {FOLDER} pocl-binary-distribution",
        _wheel("pocl-binary-distribution", "libpocl*.so"),
        "portable",
    ),
    "rusticl": Driver(
        "apt-get install mesa-opencl-icd", _system("rusticl.icd"), "llvmpipe",
        {"RUSTICL_ENABLE": "llvmpipe"}, train=("--steps", "20"), accuracy=0.5,
    ),
    # A simulator: thousands of times slower, and it sees races and what lies out of bounds.
    "oclgrind": Driver(
        "apt-get install oclgrind", _oclgrind, "oclgrind",
        {"OCLGRIND_DATA_RACES": "1"}, part="1/40",
        train=("--steps", "1", "--batch-size", "4"), accuracy=0.0, reports="OCLGRIND_LOG",
    ),
}  # fmt: skip
