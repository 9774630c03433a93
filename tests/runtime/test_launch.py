"""Launches and copies: arguments, sizes, errors, threads."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from kerascl.runtime import launch
from kerascl.runtime.errors import DeviceError, LaunchError
from kerascl.runtime.launch import LocalMemory
from kerascl.runtime.staging import Staging

SOURCE = """
typedef struct { int a, b, c, d; } four;
__kernel void fill(__global int* out, int n, int value) {
    const int i = (int)get_global_id(0);
    if (i < n) out[i] = value;
}
__kernel void where(__global int* out) {
    const int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    const int i = (z * (int)get_global_size(1) + y) * (int)get_global_size(0) + x;
    out[i] = x + 100 * y + 10000 * z + 1000000 * (int)get_local_size(0);
}
__kernel void sum(__global int* out, __global const int* in, __local int* part) {
    const int l = get_local_id(0);
    part[l] = in[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l == 0) {
        int total = 0;
        for (int i = 0; i < (int)get_local_size(0); ++i) total += part[i];
        out[get_group_id(0)] = total;
    }
}
__kernel void types(__global float* out, char a, short b, int c, long d, float e, four f) {
    out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f.d;
}
__kernel void slow(__global int* out, int rounds) {
    int x = out[get_global_id(0)];
    for (int i = 0; i < rounds; ++i) x = x * 1664525 + 1013904223;
    out[get_global_id(0)] = x;
}
"""


@pytest.fixture(params=["ctypes", "pyopencl"])
def path(request, monkeypatch, dev):
    """Both ways to the driver: ctypes, and pyopencl where that is impossible."""
    if request.param == "ctypes":
        if launch.RAW is None:
            pytest.skip("no entry points")
    else:
        if dev.addresses is not None:
            pytest.skip("kernels were built to take addresses, which go by ctypes alone")
        monkeypatch.setattr(launch, "RAW", None)


def kernel(dev, name):
    return dev.programs.kernel(SOURCE, name).clone()


def ints(dev, values):
    values = np.asarray(values, np.int32)
    buffer = dev.buffers.allocate(values.nbytes)
    dev.queue.write(buffer, values)
    return buffer


def get(dev, buffer, n, dtype=np.int32):
    return dev.queue.read(buffer, np.zeros(n, dtype))


def test_sizes_in_one_to_three_dimensions(dev, path):
    where = kernel(dev, "where")
    for size, local in (((12,), (4,)), ((6, 4), (3, 2)), ((4, 3, 2), (2, 1, 1))):
        n = int(np.prod(size))
        out = ints(dev, np.full(n, -1))
        dev.queue.launch(where, size, local, (out,))
        x, y, z = (np.arange(s) for s in (*size, 1, 1)[:3])
        want = x + 100 * y[:, None] + 10000 * z[:, None, None] + 1000000 * local[0]
        np.testing.assert_array_equal(get(dev, out, n), want.reshape(-1))


def test_arguments_of_every_kind(dev, path):
    out = dev.buffers.allocate(24)
    args = (
        out,
        np.int8(-3),
        np.int16(300),
        np.int32(70000),
        np.int64(1 << 33),
        np.float32(0.5),
        np.array([1, 2, 3, 4], np.int32).tobytes(),
    )
    dev.queue.launch(kernel(dev, "types"), (1,), None, args)
    want = [-3, 300, 70000, 2.0**33, 0.5, 4]
    np.testing.assert_array_equal(get(dev, out, 6, np.float32), want)


def test_local_memory_of_changing_size(dev, path):
    total = kernel(dev, "sum")
    data = np.arange(64, dtype=np.int32)
    source = ints(dev, data)
    for group in (8, 16, 4, 16):
        out = ints(dev, np.zeros(64 // group))
        dev.queue.launch(total, (64,), (group,), (out, source, LocalMemory(4 * group)))
        want = data.reshape(-1, group).sum(1)
        np.testing.assert_array_equal(get(dev, out, want.size), want)


def test_changed_arguments_are_noticed(dev, path):
    fill = kernel(dev, "fill")
    a, b = ints(dev, np.zeros(8)), ints(dev, np.zeros(8))
    for out, n, value in ((a, 8, 1), (b, 8, 1), (b, 4, 2), (a, 2, 3), (a, 1, 3)):
        dev.queue.launch(fill, (8,), None, (out, np.int32(n), np.int32(value)))
    np.testing.assert_array_equal(get(dev, a, 8), [3, 3, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(get(dev, b, 8), [2, 2, 2, 2, 1, 1, 1, 1])


def test_negative_zero_is_not_zero(dev, path):
    types = kernel(dev, "types")
    out = dev.buffers.allocate(24)
    rest = (np.int8(0), np.int16(0), np.int32(0), np.int64(0))
    for value in (0.0, -0.0):
        dev.queue.launch(types, (1,), None, (out, *rest, np.float32(value), bytes(16)))
        assert np.signbit(get(dev, out, 6, np.float32)[4]) == np.signbit(value)


def test_reused_memory_at_the_same_address_is_noticed(dev, path):
    fill = kernel(dev, "fill")
    for n in range(20):
        out = dev.buffers.allocate(1 << 16)
        dev.queue.launch(fill, (4,), None, (out, np.int32(4), np.int32(n)))
        np.testing.assert_array_equal(get(dev, out, 4), [n] * 4)
        del out
        dev.buffers.trim()


def test_wrong_arguments(dev, path):
    fill = kernel(dev, "fill")
    out = ints(dev, np.zeros(4))
    with pytest.raises(TypeError, match="3 arguments, got 2"):
        dev.queue.launch(fill, (4,), None, (out, np.int32(4)))
    with pytest.raises(TypeError, match="argument 1 of fill is a int"):
        dev.queue.launch(fill, (4,), None, (out, 4, np.int32(1)))
    with pytest.raises(LaunchError, match="argument 1 of fill"):
        dev.queue.launch(fill, (4,), None, (out, np.int64(4), np.int32(1)))
    dev.queue.launch(fill, (4,), None, (out, np.int32(4), np.int32(9)))
    np.testing.assert_array_equal(get(dev, out, 4), [9] * 4)


def test_wrong_sizes(dev, path):
    fill = kernel(dev, "fill")
    out = ints(dev, np.zeros(4))
    args = (out, np.int32(4), np.int32(1))
    for size in ((0,), (4, 0), (-1,), (), (1, 1, 1, 1)):
        with pytest.raises(ValueError, match=r"dimensions|positive"):
            dev.queue.launch(fill, size, None, args)
    with pytest.raises(ValueError, match="differ in dimensions"):
        dev.queue.launch(fill, (4, 4), (4,), args)
    huge = 1 << 20
    with pytest.raises(LaunchError, match=r"fill could not be launched.*local size"):
        dev.queue.launch(fill, (huge,), (huge,), args)
    dev.queue.launch(fill, (4,), None, args)
    np.testing.assert_array_equal(get(dev, out, 4), [1] * 4)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "complex64", "bool"])
def test_copies_of_dtypes(dev, dtype, rng):
    for shape in ((), (1,), (3, 5), (0, 4), (2, 3, 4)):
        x = (rng.standard_normal(shape) * 10).astype(dtype)
        x = np.asarray(x)
        buffer = dev.buffers.allocate(x.nbytes)
        dev.queue.write(buffer, x)
        got = dev.queue.read(buffer, np.zeros(shape, dtype))
        assert got.tobytes() == x.tobytes()


def test_copies_of_bfloat16_and_strided_arrays(dev, rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = rng.standard_normal((6, 8)).astype(ml_dtypes.bfloat16)[::2, 1::3].T
    buffer = dev.buffers.allocate(x.nbytes)
    dev.queue.write(buffer, x)
    whole = np.zeros((x.shape[0], 2 * x.shape[1]), x.dtype)
    dev.queue.read(buffer, whole[:, ::2])
    np.testing.assert_array_equal(whole[:, ::2], x)
    assert not whole[:, 1::2].any()


@pytest.fixture(params=["as the device likes", "staged", "direct"])
def staging(request, dev, monkeypatch):
    """Every way of copying, with a ring small enough to go around."""
    if request.param == "staged":
        ring = Staging(dev)
        monkeypatch.setattr(Staging, "CHUNK", 1 << 18)
        monkeypatch.setattr(Staging, "SLOTS", 8)
        monkeypatch.setattr(dev.queue, "staging", ring)
    elif request.param == "direct":
        monkeypatch.setattr(dev.queue, "staging", None)
    yield
    dev.queue.finish()


@pytest.mark.parametrize("nbytes", [1 << 10, (1 << 20) + 4, (9 << 20) + 12])
def test_large_copies_and_reuse_of_the_source(dev, staging, nbytes, rng):
    x = rng.integers(0, 1 << 30, nbytes // 4, np.int32)
    keep = x.copy()
    buffer = dev.buffers.allocate(x.nbytes)
    dev.queue.write(buffer, x)
    x[:] = -1
    other = dev.buffers.allocate(x.nbytes)
    dev.queue.copy(buffer, other)
    dev.queue.fill(buffer, b"\xff")
    np.testing.assert_array_equal(dev.queue.read(other, x), keep)


def test_offsets_and_bounds_of_copies(dev):
    buffer = ints(dev, np.arange(16))
    other = ints(dev, np.zeros(16))
    dev.queue.write(buffer, np.array([70, 80], np.int32), offset=8)
    np.testing.assert_array_equal(
        dev.queue.read(buffer, np.zeros(4, np.int32), offset=4), [1, 70, 80, 4]
    )
    dev.queue.copy(buffer, other, 8, src_offset=8, dst_offset=16)
    np.testing.assert_array_equal(get(dev, other, 8), [0, 0, 0, 0, 70, 80, 0, 0])
    dev.queue.fill(other, np.int32(5), offset=4, nbytes=8)
    np.testing.assert_array_equal(get(dev, other, 4), [0, 5, 5, 0])
    big = np.zeros(17, np.int32)
    for call in (
        lambda: dev.queue.write(buffer, big),
        lambda: dev.queue.read(buffer, big),
        lambda: dev.queue.copy(buffer, other, 68),
        lambda: dev.queue.fill(buffer, b"\0", nbytes=65),
    ):
        with pytest.raises(ValueError, match="do not lie in a buffer of 64"):
            call()
    with pytest.raises(ValueError, match="pattern"):
        dev.queue.fill(buffer, b"abc")
    frozen = np.zeros(4, np.int32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        dev.queue.read(buffer, frozen)


def test_reads_keep_their_place_in_the_queue(dev):
    slow, fill = kernel(dev, "slow"), kernel(dev, "fill")
    n = 256
    buffer = ints(dev, np.arange(n))
    rounds = 200000
    dev.queue.launch(slow, (n,), None, (buffer, np.int32(rounds)))
    got = np.zeros(n, np.int32)
    pending = dev.queue.read_async(buffer, got)
    dev.queue.launch(fill, (n,), None, (buffer, np.int32(n), np.int32(-7)))
    del buffer
    recycled = dev.buffers.allocate(4 * n)
    dev.queue.fill(recycled, b"\x55")
    box = []

    def wait():
        pending.wait()
        box.append(got.copy())

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pending.wait()
    assert pending.done()
    want = np.arange(n, dtype=np.uint32)
    # x -> a x + c repeated is x -> a**r x + s; a power by squaring in modulo 2**32.
    mul, add, a, c = 1, 0, 1664525, 1013904223
    r = rounds
    while r:
        if r & 1:
            mul, add = mul * a % 2**32, (add * a + c) % 2**32
        a, c = a * a % 2**32, (c * a + c) % 2**32
        r >>= 1
    want = (want * np.uint32(mul) + np.uint32(add)).view(np.int32)
    assert len(box) == 3
    for result in box:
        np.testing.assert_array_equal(result, want)


def test_many_reads_under_way(dev, staging):
    buffers = [ints(dev, np.full(1000, n)) for n in range(40)]
    arrays = [np.zeros(1000, np.int32) for _ in buffers]
    pending = [dev.queue.read_async(b, a) for b, a in zip(buffers, arrays, strict=True)]
    pending[7] = None
    for n, one in enumerate(pending):
        if one is not None:
            one.wait()
            assert (arrays[n] == n).all()


def test_threads_share_a_kernel(dev, path):
    fill = kernel(dev, "fill")
    wrong = []

    def work(value):
        out = dev.buffers.allocate(400)
        for n in range(50):
            mark = value * 1000 + n
            dev.queue.launch(fill, (100,), None, (out, np.int32(100), np.int32(mark)))
            if n % 10 == 9 and not (get(dev, out, 100) == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_thousands_of_launches_without_a_wait(dev):
    fill = kernel(dev, "fill")
    out = ints(dev, np.zeros(4))
    for n in range(3000):
        dev.queue.launch(fill, (4,), None, (out, np.int32(4), np.int32(n)))
    assert len(dev.queue._marks) <= 3
    np.testing.assert_array_equal(get(dev, out, 4), [2999] * 4)


def test_debug_waits_after_each_launch(dev, monkeypatch):
    waits = []
    monkeypatch.setattr(dev.queue, "wait_each", True)
    finish = dev.queue.finish_after
    monkeypatch.setattr(dev.queue, "finish_after", lambda what: (waits.append(what), finish(what)))
    out = ints(dev, np.zeros(4))
    dev.queue.launch(kernel(dev, "fill"), (4,), None, (out, np.int32(4), np.int32(1)))
    assert waits == ["fill"]


def test_failures_say_what_happened(dev):
    queue = dev.queue
    assert "KERASCL_DEBUG=3" in str(queue.failure(-36, "a read"))
    assert isinstance(queue.failure(-4, "k"), MemoryError)
    assert isinstance(queue.failure(-59, "a copy"), DeviceError)


FORK = """
import os, sys, numpy as np
from kerascl.runtime import device
dev = device.default()
buffer = dev.buffers.allocate(64)
dev.queue.fill(buffer, b"\\0")
dev.queue.finish()
child = os.fork()
if child == 0:
    try:
        dev.queue.fill(buffer, b"\\1")
    except device.DeviceError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
_, status = os.waitpid(child, 0)
dev.queue.fill(buffer, b"\\2")
assert (dev.queue.read(buffer, np.zeros(64, np.uint8)) == 2).all()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
def test_a_forked_child_is_told_so():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr


EXIT = """
import numpy as np
from kerascl.runtime import device
from kerascl.runtime.replay import Replay
dev = device.default()
keep = [dev.buffers.allocate(1000) for _ in range(20)]
view = keep[3].view(0, 100)
source = "__kernel void f(__global int* a, int n) { for (int i = 0; i < n; ++i) a[0] += i; }"
kernel = dev.programs.kernel(source, "f")
for _ in range(100):
    dev.queue.launch(kernel, (1,), None, (keep[0], np.int32(100000)))
replay = Replay(dev, [(kernel, (1,), None, (keep[0], np.int32(10)))])
replay.run()
pending = dev.queue.read_async(keep[0], np.zeros(10))
cycle = [keep]
cycle.append(cycle)
"""


def test_leaving_with_work_under_way_is_clean():
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
