"""Launches that are known but for their memory."""

import numpy as np
import pytest

from kerascl.runtime import device
from kerascl.runtime.errors import LaunchError
from kerascl.runtime.launch import LocalMemory
from kerascl.runtime.opencl import RAW, cl
from kerascl.runtime.profile import Profile
from kerascl.runtime.ready import ReadyLaunch

SOURCE = """
__kernel void add(__global const int* in, int n, __global int* out, int value, __local int* part) {
  const int i = (int)get_global_id(0), l = (int)get_local_id(0);
  part[l] = i < n ? in[i] : 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < n) out[i] = part[l] + value;
}
"""
N = 50


@pytest.fixture
def dev():
    return device.default()


def kernel_of(dev):
    return dev.programs.kernel(SOURCE, "add")


def filled(dev, value):
    buffer = dev.buffers.allocate(4 * N)
    dev.queue.write(buffer, np.full(N, value, np.int32))
    return buffer


def launch_of(dev, count, value):
    args = [None, np.int32(count), None, np.int32(value), LocalMemory(64)]
    return ReadyLaunch(dev.queue, kernel_of(dev), (64,), (16,), args)


def result(dev, buffer):
    return dev.queue.read(buffer, np.empty(N, np.int32))


def test_launches_of_one_kernel_take_turns(dev):
    """Each has its own numbers and memory, whatever the kernel was launched with in between."""
    launches = [launch_of(dev, count, value) for count, value in ((N, 3), (7, -5), (N, 100))]
    given, out = filled(dev, 20), filled(dev, -1)
    for turn in range(2):
        for launch, (count, value) in zip(launches, ((N, 3), (7, -5), (N, 100)), strict=True):
            dev.queue.fill(out, np.int32(-1))
            launch.run([given, out])
            expected = np.where(np.arange(N) < count, 20 + value, -1)
            np.testing.assert_array_equal(result(dev, out), expected)
        args = (given, np.int32(N), out, np.int32(turn), LocalMemory(64))
        dev.queue.launch(kernel_of(dev), (64,), (16,), args)
        np.testing.assert_array_equal(result(dev, out), 20 + turn)


def test_profiles_see_it(dev, capsys):
    launch, given, out = launch_of(dev, N, 1), filled(dev, 4), filled(dev, 0)
    with Profile(dev):
        launch.run([given, out])
    assert " add " in capsys.readouterr().out
    np.testing.assert_array_equal(result(dev, out), 5)


@pytest.mark.skipif(RAW is None, reason="pyopencl launches, which has no status to change")
def test_it_tries_again_once_memory_is_free(dev, monkeypatch):
    launch, given, out = launch_of(dev, N, 1), filled(dev, 4), filled(dev, 0)
    real, relieved, calls = RAW.enqueue, [], []

    def enqueue(*args):
        calls.append(args)
        full = len(calls) <= 2  # its own try, and that of the careful way before it makes room
        return cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE if full else real(*args)

    monkeypatch.setattr(RAW, "enqueue", enqueue)
    monkeypatch.setattr(dev.buffers, "relieve", lambda: relieved.append(1))
    launch.run([given, out])
    monkeypatch.undo()
    assert relieved and len(calls) == 3
    np.testing.assert_array_equal(result(dev, out), 5)


def test_errors(dev):
    with pytest.raises(TypeError, match="5 arguments, got 2"):
        ReadyLaunch(dev.queue, kernel_of(dev), (64,), (16,), [None, np.int32(1)])
    args = [None, np.int32(N), None, np.int32(1), LocalMemory(64)]
    with pytest.raises(ValueError, match="differ in dimensions"):
        ReadyLaunch(dev.queue, kernel_of(dev), (64, 1), (16,), args)
    with pytest.raises(ValueError, match="positive"):
        ReadyLaunch(dev.queue, kernel_of(dev), (0,), (16,), args)
    launch = ReadyLaunch(dev.queue, kernel_of(dev), (64,), (48,), args)  # no divisor of 64
    with pytest.raises(LaunchError, match="add"):
        launch.run([filled(dev, 1), filled(dev, 1)])
