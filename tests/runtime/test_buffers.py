"""The allocator: reuse, figures, limits, recovery, views, threads."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerascl.runtime import buffers
from kerascl.runtime.errors import OutOfDeviceMemory


@pytest.fixture
def pool(dev):
    gc.collect()
    dev.buffers.trim()
    before = dev.buffers.limit
    yield dev.buffers
    dev.buffers.limit = before


@given(st.integers(0, 2**40))
def test_size_classes_waste_at_most_an_eighth(nbytes):
    size = buffers.size_class(nbytes)
    assert size >= max(nbytes, 1)
    assert size <= max(buffers.MINIMUM, nbytes * 1.125 + 32)
    assert buffers.size_class(size) == size


@given(st.integers(0, 2**36), st.integers(0, 2**36))
def test_size_classes_are_ordered(a, b):
    low, high = sorted((a, b))
    assert buffers.size_class(low) <= buffers.size_class(high)


def test_dropped_memory_is_handed_out_again(pool):
    a = pool.allocate(5000)
    key = a.key
    before = pool.stats()
    del a
    middle = pool.stats()
    assert middle.in_use == before.in_use - buffers.size_class(5000)
    assert middle.cached == before.cached + buffers.size_class(5000)
    b = pool.allocate(4990)
    after = pool.stats()
    assert b.key == key and b.nbytes == 4990
    assert after.driver_allocations == before.driver_allocations
    assert after.in_use == before.in_use and after.reserved == before.reserved


def test_peak_and_trim(pool):
    pool.reset_peak()
    base = pool.stats().in_use
    held = [pool.allocate(1 << 20) for _ in range(4)]
    assert pool.stats().peak == base + (4 << 20)
    del held
    assert pool.stats().in_use == base
    assert pool.stats().peak == base + (4 << 20)
    assert pool.trim() >= 4 << 20
    assert pool.stats().cached == 0


def test_a_limit_trims_first_and_then_refuses(dev, pool):
    one = 4 << 20
    pool.limit = pool.stats().reserved + 2 * one
    a = pool.allocate(one)
    b = pool.allocate(one)
    with pytest.raises(OutOfDeviceMemory, match=r"4\.0 MiB asked for.*limit") as error:
        pool.allocate(one)
    assert isinstance(error.value, MemoryError)
    del a
    # The cached 4 MiB do not fit the class, so they must be given back for this to succeed.
    c = pool.allocate(one - (1 << 20))
    assert pool.stats().reserved <= pool.limit
    x = np.arange(10, dtype=np.float32)
    dev.queue.write(c, x)
    np.testing.assert_array_equal(dev.queue.read(c, np.empty_like(x)), x)
    del b


def test_garbage_in_cycles_is_found_before_giving_up(pool):
    one = 4 << 20
    pool.limit = pool.stats().reserved + one
    cycle = [pool.allocate(one)]
    cycle.append(cycle)
    del cycle
    assert pool.allocate(one).nbytes == one


def test_too_large_a_request_then_a_working_one(dev, pool):
    with pytest.raises(OutOfDeviceMemory, match="at most"):
        pool.allocate(dev.info.max_alloc_bytes + 1)
    assert pool.allocate(1000).nbytes == 1000


def test_a_failing_driver_is_asked_twice(dev, pool, monkeypatch):
    calls = []

    class Error(buffers.cl.Error):
        code = buffers.cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE

    def fail(size):
        calls.append(size)
        raise Error

    monkeypatch.setattr(pool, "_create", fail)
    trims = pool.stats().trims
    with pytest.raises(OutOfDeviceMemory, match="in use"):
        pool.allocate(3 << 20)
    assert len(calls) == 2
    assert pool.stats().trims == trims + 1
    monkeypatch.undo()
    assert pool.allocate(3 << 20).nbytes == 3 << 20


def test_nothing_and_nonsense(dev, pool):
    empty = pool.allocate(0)
    assert empty.nbytes == 0
    dev.queue.write(empty, np.empty(0, np.float32))
    assert dev.queue.read(empty, np.empty(0, np.float32)).size == 0
    assert empty.view(0, 0).nbytes == 0
    with pytest.raises(ValueError, match="-1"):
        pool.allocate(-1)


def test_views_share_memory_and_keep_it(dev, pool, rng):
    align = dev.info.mem_align_bytes
    n = 4 * align
    whole = pool.allocate(n)
    data = rng.integers(0, 256, n, np.uint8)
    dev.queue.write(whole, data)
    part = whole.view(align, 3 * align)
    inner = part.view(align, align - 3)
    in_use = pool.stats().in_use
    del whole, part
    gc.collect()
    assert pool.stats().in_use == in_use
    got = dev.queue.read(inner, np.empty(align - 3, np.uint8))
    np.testing.assert_array_equal(got, data[2 * align : 3 * align - 3])
    del inner
    gc.collect()
    assert pool.stats().in_use < in_use


def test_views_out_of_bounds(pool):
    buffer = pool.allocate(1000)
    for offset, nbytes in ((0, 1001), (-128, 10), (896, 128), (0, -1)):
        with pytest.raises(ValueError, match="leaves a buffer"):
            buffer.view(offset, nbytes)


def test_many_threads(dev, pool):
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            x = rng.integers(0, 1 << 30, int(rng.integers(1, 5000)), np.int32)
            buffer = pool.allocate(x.nbytes)
            dev.queue.write(buffer, x)
            if not np.array_equal(dev.queue.read(buffer, np.zeros_like(x)), x):
                wrong.append(seed)

    in_use = pool.stats().in_use
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.stats().in_use == in_use
