"""The thread that waits where waiting helps."""

import dataclasses
import subprocess
import sys
import threading

import numpy as np
import pytest

from kerascl.runtime import device, quirks
from kerascl.runtime.opencl import cl
from kerascl.runtime.progress_thread import ProgressThread
from kerascl.runtime.replay import Replay

SECONDS = 20
ADD = "__kernel void add(__global int* x, const int n) { x[get_global_id(0)] += n; }"


class Event:
    """One whose wait ends when `over` is set; `begun` says that somebody waits."""

    def __init__(self, fails=False):
        self.begun, self.over, self.fails = threading.Event(), threading.Event(), fails

    def wait(self):
        self.begun.set()
        assert self.over.wait(SECONDS)
        if self.fails:
            raise cl.Error("the event's command failed")


def test_the_last_event_is_awaited():
    progress_thread = ProgressThread()
    first, skipped, last = Event(), Event(), Event()
    progress_thread.wait_for(first)
    assert first.begun.wait(SECONDS)
    progress_thread.wait_for(skipped)
    progress_thread.wait_for(last)
    first.over.set()
    assert last.begun.wait(SECONDS)
    assert not skipped.begun.is_set()
    last.over.set()


def test_it_goes_on_after_a_failure():
    progress_thread = ProgressThread()
    for _ in range(3):
        event = Event(fails=True)
        event.over.set()
        progress_thread.wait_for(event)
        assert event.begun.wait(SECONDS)


def test_it_ends_after_its_last_wait():
    progress_thread = ProgressThread()
    progress_thread.end()  # nothing has begun
    event = Event()
    progress_thread.wait_for(event)
    assert event.begun.wait(SECONDS)
    thread = progress_thread._thread
    ending = threading.Thread(target=progress_thread.end)
    ending.start()
    assert thread.is_alive()
    event.over.set()
    ending.join(SECONDS)
    assert not thread.is_alive()


def test_a_process_ends_with_work_under_way():
    """The interpreter's end waits for the device and for the thread that waits for it."""
    source = """
import kerascl as kc
f = kc.jit(lambda x: kc.sum(kc.matmul(x, x)))
x = kc.ones((400, 400))
for _ in range(30):
    y = f(x)
print("over", flush=True)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


@pytest.mark.parametrize("of_use", [False, True])
def test_replays_are_waited_for_where_the_driver_needs_it(dev, monkeypatch, of_use):
    waited = []
    monkeypatch.setattr(ProgressThread, "wait_for", lambda self, event: waited.append(event))
    names = {"host_must_wait"} if of_use else set()
    info = dataclasses.replace(dev.info, quirks=dev.info.quirks - {"host_must_wait"} | names)
    twin = device.Device(dev.handle, info)
    memory = twin.buffers.allocate(16)
    twin.queue.write(memory, np.arange(4, dtype=np.int32))
    kernel = twin.programs.kernel(ADD, "add")
    replay = Replay(twin, [(kernel, (4,), None, [memory, np.int32(n)]) for n in (5, 7)])
    for _ in range(3):
        replay.run()
    assert len(waited) == (3 if of_use else 0)
    for event in waited:
        event.wait()
    got = twin.queue.read(memory, np.empty(4, np.int32))
    np.testing.assert_array_equal(got, np.arange(4) + 36)


def test_who_needs_it():
    def names(**facts):
        info = dataclasses.replace(device.default().info, quirks=frozenset(), **facts)
        return quirks.apply(info).quirks

    assert "host_must_wait" in names(platform="Intel(R) OpenCL", kind="cpu")
    assert "host_must_wait" not in names(platform="Intel(R) OpenCL Graphics", kind="gpu")
    assert "host_must_wait" not in names(platform="Portable Computing Language", kind="cpu")
