"""Replays: equal to eager launches, independent of them, careful with errors."""

import numpy as np
import pytest

from kerascl.runtime import launch
from kerascl.runtime import replay as replays
from kerascl.runtime.errors import LaunchError
from kerascl.runtime.launch import LocalMemory
from kerascl.runtime.profile import profile
from kerascl.runtime.replay import Replay

SOURCE = """
__kernel void scale(__global float* a, __global const float* b, int n, float s) {
    const int i = (int)get_global_id(0);
    if (i < n) a[i] = b[i] * s;
}
__kernel void reverse(__global float* a, __local float* t) {
    const int l = (int)get_local_id(0);
    t[l] = a[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    a[get_global_id(0)] = t[get_local_size(0) - 1 - l];
}
"""


def test_launch_and_replay(dev, rng):
    n = 1000
    x = rng.standard_normal(n).astype(np.float32)
    a, b = dev.buffers.allocate(4 * n), dev.buffers.allocate(4 * n)
    dev.queue.write(b, x)
    dev.queue.fill(a, b"\xff")
    scale = dev.programs.kernel(SOURCE, "scale")
    reverse = dev.programs.kernel(SOURCE, "reverse")
    launches = [
        (scale, (1024,), None, (a, b, np.int32(n), np.float32(2))),
        (reverse, (n,), (8,), (a, LocalMemory(32))),
    ]
    for one in launches:
        dev.queue.launch(*one)
    want = (2 * x).reshape(-1, 8)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(dev.queue.read(a, np.empty(n, np.float32)), want)
    replay = Replay(dev, launches)
    assert len(replay) == 2
    dev.queue.fill(a, b"\xff")
    replay.run()
    np.testing.assert_array_equal(dev.queue.read(a, np.empty(n, np.float32)), want)


STEPS = """
__kernel void step1(__global float* out, __global const float* in, float s, __local float* t) {
    const int i = get_global_id(0), l = get_local_id(0);
    t[l] = in[i] * s;
    barrier(CLK_LOCAL_MEM_FENCE);
    out[i] = t[get_local_size(0) - 1 - l];
}
__kernel void step2(__global float* out, __global const float* a, __global const float* b) {
    const int i = get_global_id(0);
    out[i] = a[i] + b[i];
}
"""


def steps(dev, n, a, b, c, count):
    one, two = (dev.programs.kernel(STEPS, name) for name in ("step1", "step2"))
    launches = []
    for k in range(count):
        s = np.float32(1 + 0.01 * (k % 7))
        launches.append((one, (n,), (16,), (b, a, s, LocalMemory(64))))
        launches.append((two, (n,), None, (c, b, a)))
        launches.append((one, (n,), (8,), (a, c, np.float32(0.5), LocalMemory(32))))
    return launches


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("count", [1, 5, 300])
def test_replay_equals_eager(dev, rng, count, raw, monkeypatch):
    if not raw:
        if dev.addresses is not None:
            pytest.skip("kernels were built to take addresses, which go by ctypes alone")
        monkeypatch.setattr(replays, "RAW", None)
        monkeypatch.setattr(launch, "RAW", None)
    n = 64
    x = rng.standard_normal(n).astype(np.float32)
    results = []
    for replayed in (False, True):
        a, b, c = (dev.buffers.allocate(4 * n) for _ in range(3))
        dev.queue.write(a, x)
        launches = steps(dev, n, a, b, c, count)
        if replayed:
            replay = Replay(dev, launches)
            assert len(replay) == 3 * count
            # Eager launches of the same kernels in between must not disturb it.
            other = dev.buffers.allocate(4 * n)
            dev.queue.fill(other, b"\0")
            for launched in steps(dev, n, other, other, other, 1):
                dev.queue.launch(*launched)
            del launches, b
            replay.run()
        else:
            for launched in launches:
                dev.queue.launch(*launched)
        results.append(dev.queue.read(c, np.empty(n, np.float32)))
    np.testing.assert_array_equal(*results)


def test_replay_keeps_its_buffers(dev):
    n = 64
    a, b, c = (dev.buffers.allocate(4 * n) for _ in range(3))
    dev.queue.write(a, np.ones(n, np.float32))
    replay = Replay(dev, steps(dev, n, a, b, c, 1))
    keys = {a.key, b.key, c.key}
    del b
    assert not keys & {dev.buffers.allocate(4 * n).key for _ in range(5)}
    replay.run()
    np.testing.assert_array_equal(dev.queue.read(c, np.empty(n, np.float32)), np.full(n, 2.0))


def test_rebind(dev):
    n = 64
    a, b, c, d = (dev.buffers.allocate(4 * n) for _ in range(4))
    dev.queue.write(a, np.ones(n, np.float32))
    dev.queue.write(d, np.full(n, 10, np.float32))
    one = dev.programs.kernel(STEPS, "step1")
    args = (b, a, np.float32(3), LocalMemory(64))
    replay = Replay(dev, [(one, (n,), (16,), args)])

    def result():
        replay.run()
        return dev.queue.read(b, np.empty(n, np.float32))[0]

    assert result() == 3
    replay.rebind(0, 1, d)
    del d
    assert result() == 30
    replay.rebind(0, 2, np.float32(5))
    assert result() == 50
    with pytest.raises(LaunchError):
        replay.rebind(0, 2, np.float64(5))
    replay.rebind(0, 2, np.float32(7))
    assert result() == 70
    assert c.nbytes


def test_a_wrong_replay_is_refused_before_it_runs(dev):
    one = dev.programs.kernel(STEPS, "step1")
    a = dev.buffers.allocate(256)
    args = (a, a, np.float32(3), LocalMemory(64))
    for sizes in (((0,), None), ((64,), (8, 8))):
        with pytest.raises(ValueError):
            Replay(dev, [(one, *sizes, args)])
    with pytest.raises(TypeError):
        Replay(dev, [(one, (64,), (16,), args[:3])])


def test_a_launch_that_fails_inside_a_replay_is_named(dev):
    n = 64
    a, b, c = (dev.buffers.allocate(4 * n) for _ in range(3))
    launches = steps(dev, n, a, b, c, 1)
    kernel, _, _, args = launches[1]
    launches[1] = (kernel, (1 << 20,), (1 << 20,), args)
    replay = Replay(dev, launches)
    with pytest.raises(LaunchError, match="step2"):
        replay.run()
    dev.queue.finish()


def test_debug_and_profile_run_the_same_launches(dev, monkeypatch, rng):
    n = 64
    x = rng.standard_normal(n).astype(np.float32)
    a, b, c = (dev.buffers.allocate(4 * n) for _ in range(3))
    replay = Replay(dev, steps(dev, n, a, b, c, 2))
    results = []
    for mode in ("plain", "debug", "profile", "plain"):
        dev.queue.write(a, x)
        if mode == "debug":
            monkeypatch.setattr(dev.queue, "wait_each", True)
            replay.run()
            monkeypatch.undo()
        elif mode == "profile":
            with profile(dev, show=False) as recorded:
                replay.run()
            assert [span.name for span in recorded.spans] == ["step1", "step2", "step1"] * 2
        else:
            replay.run()
        results.append(dev.queue.read(c, np.empty(n, np.float32)))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
