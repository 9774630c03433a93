"""What OpenCL does not promise is tried in a child process first; the result is kept on disk.

A kernel that faults takes the context with it, so the trial cannot run in the process that asks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from kerascl.runtime import children
from kerascl.runtime.diskcache import DiskCache

if TYPE_CHECKING:
    from kerascl.runtime.device import DeviceInfo

BEGUN = "kerascl-selftest-begun"
OK = "kerascl-selftest-ok"
FULL = 3  # a self-test's exit status where it found no memory
FULL_TEXT = "the device's memory was full at the self-test"
SECONDS = 120

#: "" or what failed, and whether that is kept: it may tell of this moment (a full memory) and not
#: of the device.
Outcome = tuple[str, bool]


def load(info: DeviceInfo, name: str, digest: str) -> str | None:
    """The kept result of a self-test on a device and driver: "" or what failed; None: none is.

    Args:
        digest: of the sources that it tries (see sources.py).
    """
    cache = DiskCache.open("probes", info.cache_key)
    return cache.load(cache.key(name, digest), bytes.decode) if cache else None


def keep(info: DeviceInfo, name: str, digest: str, text: str) -> None:
    """Keep the result of a self-test, where that can be."""
    cache = DiskCache.open("probes", info.cache_key)
    if cache:
        cache.put(cache.key(name, digest), text.encode())


def kept(info: DeviceInfo, name: str, digest: str, test: Callable[[], Outcome]) -> str:
    """The result that is kept, or that of `test` on a device and driver.

    Args: as of `load`.
    """
    known = load(info, name, digest)
    if known is not None:
        return known
    text, lasting = test()
    if lasting:
        keep(info, name, digest, text)
    return text


def in_child(
    module: str, index: int | None, seconds: float = SECONDS, light: bool = False,
    **environment: str,
) -> Outcome:  # fmt: skip
    """Run `python -m module index`; gives what `kept` wants of a test.

    Args: as of `begin` and `ended`; an index of None: the device is not listed.
    """
    if index is None:
        return "the device is not listed", False
    try:
        process = begin(module, index, light, **environment)
    except OSError as failure:
        return _not_ended(failure)
    return ended(process, seconds)


def begin(
    module: str, index: int, light: bool = False, **environment: str
) -> subprocess.Popen[str]:
    """Start `python -m module index`.

    Args:
        index: of the device in the order of `find_devices`.
        light: see `children.light`.
        environment: variables that the child has besides this process'.

    Raises:
        OSError: it cannot be started.
    """
    command = [sys.executable, "-m", module, str(index)]
    if light:
        command = children.light(module, str(index))
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=children.testing(**environment),
    )  # fmt: skip


def ended(process: subprocess.Popen[str], seconds: float) -> Outcome:
    """What a process found that `begin` started; it is ended after so many seconds from now."""
    try:
        with process:
            try:
                out, errors = process.communicate(timeout=seconds)
            except BaseException:
                process.kill()
                raise
    except (OSError, subprocess.TimeoutExpired) as failure:
        return _not_ended(failure)
    if process.returncode == 0 and out.strip().endswith(OK):
        return "", True
    if process.returncode == FULL:
        return FULL_TEXT, False
    lines = (out + errors).strip().splitlines()
    if BEGUN not in out:  # Python or a package failed, not the device
        return f"the self-test did not begin: {lines[-1][:200] if lines else ''}", False
    found = [line for line in lines if line != BEGUN]
    text = found[-1][:200] if found else f"the self-test ended with {process.returncode}"
    return text, True


def _not_ended(failure: Exception) -> Outcome:
    return f"the self-test did not end: {type(failure).__name__}", False
