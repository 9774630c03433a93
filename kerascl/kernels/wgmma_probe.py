"""Whether warpgroup matrix instructions work here: asked once for a device and driver.

The route relies on what OpenCL does not promise, and a kernel that faults takes the context with
it.  So a child process computes some products and convolutions; its verdict is kept on disk.
"""

from __future__ import annotations

import functools
import subprocess
import sys

from kerascl import config
from kerascl.runtime import device as devices
from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.diskcache import DiskCache

OK = "kerascl-wgmma-ok"
#: Part of the verdict's key: raise it when the kernels change in what they rely on.
VERSION = "2"
SECONDS = 120
FULL = 3  # the self-test's exit status where it found no memory


def capable(info: DeviceInfo) -> bool:
    """Whether the device has the instructions at all (sm_90a code runs on 9.0 only)."""
    return info.matrix == "wgmma90" and config.wgmma()


@functools.cache
def verdict(info: DeviceInfo) -> str:
    """ "" when the self-test passed, else why it did not; runs it where no verdict is kept."""
    cache = DiskCache.open("probes", info.cache_key)
    key = cache.key("wgmma", VERSION) if cache else ""
    known = cache.get(key) if cache else None
    if known is not None:
        return known.decode()
    text, lasting = _test(info)
    if cache and lasting:
        cache.put(key, text.encode())
    return text


def available(info: DeviceInfo) -> bool:
    """Whether the kernels of wgmma.cl may be used."""
    return capable(info) and verdict(info) == ""


def _test(info: DeviceInfo) -> tuple[str, bool]:
    """The verdict, and whether it says something about the device and not about this moment."""
    found = [f.device for f in devices.find_devices() if f.device]
    index = next((k for k, d in enumerate(found) if d.info.cache_key == info.cache_key), None)
    if index is None:
        return "the device is not listed", False
    command = [sys.executable, "-m", "kerascl.kernels.wgmma_selftest", str(index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"the self-test did not end: {type(failure).__name__}", False
    if done.returncode == 0 and done.stdout.strip().endswith(OK):
        return "", True
    if done.returncode == FULL:
        return "the device's memory was full at the self-test", False
    lines = (done.stdout + done.stderr).strip().splitlines()
    return (lines[-1][:200] if lines else f"the self-test ended with {done.returncode}"), True
