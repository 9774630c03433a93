"""What Keras' TensorBoard callback asks for when `profile_batch` is set: a trace of the device.

The trace is a Chrome trace (`kerascl.runtime.profile`) at the place where TensorBoard's profile
plugin looks, and can be opened with chrome://tracing or ui.perfetto.dev.
"""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

from kerascl.runtime.profile import Profile

_running: list[tuple[Profile, Path]] = []


def start_trace(logdir) -> None:
    """Begin to record the device in use; nothing without `logdir`.

    Raises:
        DeviceError: when it is being recorded already.
    """
    if not logdir:
        return
    profile = Profile(show=False)
    profile.__enter__()
    _running.append((profile, Path(logdir)))


def stop_trace(save) -> None:
    """End the recording.

    Args:
        save: whether to write `LOGDIR/plugins/profile/TIME/HOST.trace.json.gz`.
    """
    if not _running:
        return
    profile, logdir = _running.pop()
    profile.__exit__(None, None, None)
    if save:
        time = datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S")
        folder = logdir / "plugins" / "profile" / time
        folder.mkdir(parents=True, exist_ok=True)
        profile.chrome_trace(folder / f"{platform.node() or 'host'}.trace.json.gz")


def start_batch_trace(batch):
    """Mark where a batch begins; gives what `stop_batch_trace` takes."""
    if not _running:
        return None
    profile, _ = _running[-1]
    return profile, profile.begin(f"Profiled batch {batch}")


def stop_batch_trace(batch_trace_context) -> None:
    """Mark where a batch ends."""
    if batch_trace_context is not None:
        profile, region = batch_trace_context
        profile.end(region)
