"""Finds OpenCL drivers before pyopencl's loader looks for them.

The loader reads a folder of `.icd` files, each naming one driver library.  A
driver installed by pip lies where no loader looks, so `prepare` makes a folder
of ours with the system's `.icd` files and one for the pip-installed driver, and
points OCL_ICD_VENDORS at it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import importlib.metadata
import os
import shutil
import site
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kerascl.runtime import trust

VENDORS = "OCL_ICD_VENDORS"
FILENAMES = "OCL_ICD_FILENAMES"
_MARK = "kerascl-icd"
_SYSTEM_FOLDER = "/etc/OpenCL/vendors"
# Containers often have NVIDIA's library without the .icd file that would name it.
_NVIDIA = (
    "libnvidia-opencl.so.1",
    "/usr/local/nvidia/lib64/libnvidia-opencl.so.1",
    "/usr/lib/wsl/lib/libnvidia-opencl.so.1",
)
# These link the system's LLVM. TensorFlow puts an LLVM of its own in the process' global scope, and
# a driver that finds its functions there crashes, whichever was loaded first.
_SHARED_LLVM = ("libpocl", "libRusticlOpenCL", "libMesaOpenCL")
_INTEL = ("libintelocl.so", "intelocl64.dll", "intelocl.dll")


@dataclass(frozen=True)
class Driver:
    """One `.icd` line: where it is from, the library it names, and what is wrong ("": nothing)."""

    origin: str
    library: str
    problem: str = ""


@dataclass(frozen=True)
class Setup:
    """What `prepare` did: the drivers offered to the loader, and remarks for the user."""

    drivers: tuple[Driver, ...]
    remarks: tuple[str, ...] = ()


_setup: Setup | None = None


def intel_cpu_library() -> Path | None:
    """The Intel CPU runtime that pip installed, or None."""
    try:
        files = importlib.metadata.distribution("intel-opencl-rt").files or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name in _INTEL:
            path = Path(os.path.realpath(file.locate()))
            if path.exists():
                return path
    prefixes = [sys.prefix, sys.base_prefix, site.getuserbase()]
    for prefix in filter(None, prefixes):
        for folder in ("lib", "Library/bin", "bin"):
            for name in _INTEL:
                path = Path(prefix, folder, name)
                if path.exists():
                    return path.resolve()
    return None


def read_folder(folder: str | Path) -> list[Driver]:
    """The drivers named by a folder of .icd files, with what is visibly wrong with each."""
    try:
        files = sorted(Path(folder).glob("*.icd"))
    except OSError:
        return []
    return [_read(file) for file in files]


def _read(file: Path) -> Driver:
    try:
        lines = file.read_text(errors="replace").split("\n")
    except OSError as error:
        return Driver(str(file), "", f"cannot be read: {error.strerror}")
    library = next((line.strip() for line in lines if line.strip()), "")
    problem = "" if library else "the file is empty"
    if os.path.isabs(library) and not os.path.exists(library):
        problem = f"it names {library}, which does not exist"
    return Driver(str(file), library, problem)


def load_problem(library: str) -> str:
    """Why the dynamic linker refuses a driver library, or ""; the linker's own words."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        text = str(error)
        if any(name in text for name in ("libimf", "libsvml", "libirng", "libintlc")):
            text += " (pip install intel-cmplr-lib-rt)"
        return text
    return ""


def load_apart(drivers: tuple[Driver, ...]) -> list[str]:
    """Loads the drivers that use a shared LLVM so that they find their own symbols first.

    To be called before the loader opens them. Returns the libraries loaded. Does nothing where
    another malloc is preloaded, which a driver bound in this way would bypass.
    """
    if not hasattr(os, "RTLD_DEEPBIND") or os.environ.get("LD_PRELOAD"):
        return []
    loaded = []
    for driver in drivers:
        if not driver.problem and _stem(driver.library) in _SHARED_LLVM:
            with contextlib.suppress(OSError):  # the loader will find the same, and say so
                ctypes.CDLL(driver.library, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
                loaded.append(driver.library)
    return loaded


def prepare() -> Setup:
    """Set the loader's environment once per process; safe to call again."""
    global _setup
    if _setup is None:
        _setup = _prepare_windows() if os.name == "nt" else _prepare()
    return _setup


def _prepare_windows() -> Setup:
    # Khronos' loader finds system drivers in the registry and adds the list in OCL_ICD_FILENAMES.
    library = intel_cpu_library()
    if library is None:
        return Setup(())
    driver = Driver("pip: intel-opencl-rt", str(library))
    listed = os.environ.get(FILENAMES, "")
    if str(library) not in listed:
        os.environ[FILENAMES] = os.pathsep.join(filter(None, (listed, str(library))))
    os.add_dll_directory(str(library.parent))  # type: ignore[attr-defined]  # Windows has it
    return Setup((driver,))


def _prepare() -> Setup:
    library = intel_cpu_library()
    asked = os.environ.get(VENDORS, "")
    ours = _MARK in asked
    if asked and not ours:
        remarks: tuple[str, ...] = ()
        if os.path.isdir(asked):
            drivers = read_folder(asked)
        elif asked.endswith(".icd"):  # one file of such a folder, as ocl-icd takes it, too
            drivers = [_read(Path(asked))]
        else:
            drivers = [Driver(VENDORS, asked)]
        if library is not None and not any(_same(d.library, library) for d in drivers):
            remarks = (
                f"{VENDORS}={asked} is set, so the pip-installed driver {library} is not offered",
            )
        return Setup(tuple(drivers), remarks)
    system = os.environ.get("OPENCL_VENDOR_PATH") or _SYSTEM_FOLDER
    drivers = read_folder(system)
    listed = len(drivers)
    remarks = ()
    # Of the loaders only Khronos' reads this variable; pyopencl's wheels bring another.
    for name in filter(None, os.environ.get(FILENAMES, "").split(os.pathsep)):
        if not any(_stem(d.library) == _stem(name) for d in drivers):
            drivers.append(Driver(FILENAMES, name))
    if not any("nvidia" in d.library and not d.problem for d in drivers):
        found = next((name for name in _NVIDIA if not load_problem(name)), None)
        if found is not None:
            drivers.append(Driver("NVIDIA's library, named by no .icd file", found))
    if library is not None:
        # Two copies of one runtime in one process fight over their global state.
        if any("libintelocl.so" in d.library and not d.problem for d in drivers):
            remarks = (f"a system driver is used instead of {library}",)
        else:
            drivers.append(Driver("pip: intel-opencl-rt", str(library)))
    if len(drivers) == listed:
        if ours:
            del os.environ[VENDORS]
        return Setup(tuple(drivers), remarks)
    try:
        os.environ[VENDORS] = str(_write_folder(drivers))
    except OSError as error:
        return Setup(tuple(drivers), (f"no folder for .icd files could be written: {error}",))
    return Setup(tuple(drivers), remarks)


def _stem(library: str) -> str:
    # "libpocl.so.2" and "/usr/lib/libpocl.so.2.10.0" are one driver; loading both lists it twice.
    return Path(library).name.split(".so")[0]


def _same(text: str, library: Path) -> bool:
    return bool(text) and os.path.realpath(text) == os.path.realpath(library)


def _write_folder(drivers: list[Driver]) -> Path:
    texts = {}
    for driver in drivers:
        if driver.library and not driver.problem:
            digest = hashlib.sha256(driver.library.encode()).hexdigest()[:8]
            texts[f"{Path(driver.library).name.split('.')[0]}-{digest}.icd"] = driver.library
    # Named by its content: processes of other environments write other folders.
    name = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    kept = trust.subfolder(_MARK)
    if kept is not None:
        with contextlib.suppress(OSError):
            return _fill(kept / name, texts)
    folder = Path(tempfile.mkdtemp(prefix=_MARK + "-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _fill(folder, texts)


def _fill(folder: Path, texts: dict[str, str]) -> Path:
    """Make a folder with these files and no other `.icd`: the loader loads whatever one names.

    Raises:
        OSError: that cannot be had.
    """
    trust.make(folder)
    if problem := trust.danger(folder):
        raise PermissionError(problem)
    for file in folder.glob("*.icd"):
        if file.name not in texts:
            file.unlink(missing_ok=True)
    for name, library in texts.items():
        wanted = f"{library}\n".encode()
        if trust.read(folder / name) != wanted:
            trust.write(folder / name, wanted)
    return folder
