"""Host arguments of captured functions that travel beside the previous step."""

import dataclasses

import numpy as np
import pytest

import kerascl as kc
from kerascl.runtime import device as devices
from kerascl.runtime import quirks
from kerascl.runtime.errors import OutOfDeviceMemory
from kerascl.runtime.launch import WRITE_BESIDE
from kerascl.runtime.opencl import cl
from kerascl.runtime.profile import profile
from kerascl.runtime.uploads import SMALLEST, Uploads
from tests.queues import Delay, opened


@pytest.fixture
def apart():
    """A device that copies beside its other commands."""
    return opened(copies_beside=True)


@pytest.fixture
def delay(apart):
    return Delay(apart)


@pytest.mark.parametrize("count", [10, SMALLEST // 4 + 3, 3 * 2**20])
def test_every_step_sees_its_own_argument(apart, count, rng):
    with kc.device_scope(apart):
        total = kc.State(kc.zeros(4))

        @kc.jit
        def step(x):
            # slow enough that the next copy begins before it ends
            y = x
            for _ in range(20):
                y = kc.sin(y) + x
            total.assign(total.value + kc.sum(y) * 1e-3)
            return kc.sum(x * 2), x[-1]

        x = np.empty(count, np.float32)
        for _ in range(12):
            x[:] = rng.standard_normal(count)
            wanted, last = x.astype(np.float64).sum() * 2, x[-1]
            found, tail = step(x)
            x[:] = np.nan  # the caller may do so as soon as the step is enqueued
            scale = np.sqrt(count)
            assert abs(float(found) - wanted) < 1e-4 * scale
            assert float(tail) == last
        assert np.isfinite(np.asarray(total.value)).all()
    assert apart.queue.batches_beside == (12 if count * 4 >= SMALLEST else 0)


def test_steps_that_nobody_waits_for(apart, delay, rng):
    """Steps run ahead, held up at random, with several arguments, some of which come from the
    device now and then; staging is short, and freed memory is overwritten on the way."""
    shape = (2**18,)
    staging = apart.queue.staging
    staging.CHUNK, staging.SLOTS = 2**18, 3
    xs = [rng.integers(0, 100, shape).astype(np.float32) for _ in range(40)]
    small = [rng.integers(0, 9, 3).astype(np.float32) for _ in xs]
    steps = 0
    with kc.device_scope(apart):
        total = kc.State(kc.zeros(shape))
        step = kc.jit(lambda x, y: total.assign(total.value * 0.5 + x + kc.sum(y)))
        wanted = np.zeros(shape)
        given = np.empty(shape, np.float32)
        for x, y in zip(xs, small, strict=True):
            if rng.random() < 0.5:
                delay(rng.random() * 5)
            given[:] = x
            own = y.copy()
            on_device = rng.random() < 0.2
            step(kc.array(given) if on_device else given, own)
            steps += not on_device
            given[:] = own[:] = np.nan
            apart.queue.fill(apart.buffers.allocate(x.nbytes), b"\xff")
            wanted = wanted * 0.5 + x + y.sum(dtype=np.float64)
        np.testing.assert_allclose(np.asarray(total.value), wanted, rtol=1e-6)
    assert apart.queue.batches_beside == steps > 0


def test_memory_does_not_grow(apart, rng):
    x = rng.standard_normal(SMALLEST).astype(np.float32)
    with kc.device_scope(apart):
        step = kc.jit(lambda x: kc.sum(x))
        for k in range(60):
            step(x)
            if k == 5:
                before = apart.buffers.stats(), apart.queue.staging._made
        stats = apart.buffers.stats()
    assert (stats.reserved, stats.driver_allocations) == (
        before[0].reserved, before[0].driver_allocations,
    )  # fmt: skip
    assert before[1] <= apart.queue.staging._made <= apart.queue.staging.SLOTS


def places(uploads, *nbytes):
    """In how many places the arguments of four batches are."""
    found = [uploads.send(dict(enumerate(np.ones(n, np.uint8) for n in nbytes))) for _ in range(4)]
    uploads.used()
    return [len({id(sent[k]) for sent in found}) for k in range(len(nbytes))]


def test_two_rooms_only_where_copies_can_overlap(apart):
    assert places(Uploads(apart, [SMALLEST]), SMALLEST) == [2]
    assert places(Uploads(apart, [100]), 100) == [1]
    assert places(Uploads(apart, [SMALLEST - 1, 100]), SMALLEST - 1, 100) == [2, 2]
    apart.queue.copies_beside = False
    assert places(Uploads(apart, [SMALLEST]), SMALLEST) == [1]


def test_which_devices_copy_beside(dev, monkeypatch):
    def beside(**facts):
        info = dataclasses.replace(dev.info, **facts)
        return devices.Device(dev.handle, info).queue.copies_beside

    none = frozenset()
    assert beside(staged_copies=True, quirks=none)
    assert not beside(staged_copies=False, quirks=none)
    mesa = dataclasses.replace(dev.info, platform="rusticl", kind="gpu")
    assert not beside(staged_copies=True, quirks=quirks.apply(mesa).quirks)
    monkeypatch.setenv("KERASCL_COPY_QUEUE", "0")
    assert not beside(staged_copies=True, quirks=none)


def test_an_interrupt_while_a_batch_is_copied(apart, delay, monkeypatch):
    """Who gets the memory next may write there at once: no copy is still to come."""
    queue, count = apart.queue, 3 * apart.queue.staging.CHUNK
    uploads = Uploads(apart, [count])
    uploads.send({0: np.zeros(count, np.uint8)})
    queue.finish()
    barrier = cl.enqueue_barrier

    def interrupted(handle, **arguments):
        if handle is queue.handle:
            raise KeyboardInterrupt
        delay(500, handle)  # the copies wait for it
        return barrier(handle, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_barrier", interrupted)
        try:  # pytest.raises would keep the frames, and with them the memory
            uploads.send({0: np.full(count, 7, np.uint8)})
            pytest.fail("not interrupted")
        except KeyboardInterrupt:
            pass
    del uploads
    assert apart.buffers.stats().cached >= 2 * count
    held = [apart.buffers.allocate(count) for _ in range(3)]
    for again in held:
        queue.fill(again, b"\x05")
    queue.finish()
    if queue._beside is not None:
        queue._beside.finish()
    for again in held:
        assert (queue.read(again, np.empty(count, np.uint8)) == 5).all()
    assert len(queue.staging._slots) == queue.staging._made  # the ring has its slots again


@pytest.mark.parametrize("where", ["send", "used"])
def test_an_interrupted_step_leaves_the_others_right(apart, delay, monkeypatch, rng, where):
    """Ctrl-C between the copy and the step, and between the step and the note of its end."""
    xs = [rng.integers(0, 9, SMALLEST // 4).astype(np.float32) for _ in range(8)]
    original = getattr(Uploads, where)

    def interrupted(self, *args):
        if where == "send":
            original(self, *args)
        raise KeyboardInterrupt

    with kc.device_scope(apart):
        total = kc.State(kc.zeros(SMALLEST // 4))
        step = kc.jit(lambda x: total.assign(total.value * 0.5 + x))
        wanted = np.zeros(SMALLEST // 4)
        for k, x in enumerate(xs):
            if k == 3:
                delay(300)
                with monkeypatch.context() as patch:
                    patch.setattr(Uploads, where, interrupted)
                    with pytest.raises(KeyboardInterrupt):
                        step(x)
                if where == "send":
                    continue
            else:
                step(x)
            wanted = wanted * 0.5 + x
        np.testing.assert_allclose(np.asarray(total.value), wanted, rtol=1e-6)


def test_a_failed_copy_is_an_error_of_ours(apart, monkeypatch, rng):
    x = rng.integers(0, 9, SMALLEST).astype(np.float32)
    with kc.device_scope(apart):
        step = kc.jit(lambda x: kc.sum(x))
        step(x)

        def refuse(*args, **kwargs):
            code = cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE
            raise cl.MemoryError(cl._cl._ErrorRecord("copy", code, ""))

        with monkeypatch.context() as patch:
            patch.setattr(cl, "enqueue_copy", refuse)
            with pytest.raises(OutOfDeviceMemory):
                step(x)
        assert float(step(x)) == x.sum(dtype=np.float64)


def test_several_devices(apart, rng):
    other = opened(copies_beside=True)
    xs = [rng.integers(0, 9, SMALLEST).astype(np.float32) for _ in range(8)]
    step = kc.jit(lambda x: kc.sum(x))
    found = []
    for k, x in enumerate(xs):
        with kc.device_scope((apart, other)[k % 2]):
            found.append(step(x))
    assert [float(f) for f in found] == [x.sum(dtype=np.float64) for x in xs]
    assert apart.queue.batches_beside == other.queue.batches_beside == 4


def test_profiles_see_copies_beside(apart, rng):
    xs = [rng.integers(0, 9, SMALLEST).astype(np.float32) for _ in range(6)]
    with kc.device_scope(apart):
        step = kc.jit(lambda x: kc.sum(x))
        step(xs[0])
        with profile(apart, show=False) as recorded:
            found = [step(x) for x in xs]
        found.append(step(xs[0]))
        assert [float(f) for f in found] == [x.sum(dtype=np.float64) for x in (*xs, xs[0])]
    beside = [span for span in recorded.spans if span.beside]
    assert {span.name for span in beside} == {WRITE_BESIDE} and len(beside) == 6
    assert all(span.end >= span.start > 0 for span in beside)
    assert 0 <= recorded.alone() <= sum(span.end - span.start for span in beside)
    assert WRITE_BESIDE not in [total.name for total in recorded.totals("layer")]


def test_waiting_after_each_launch(apart, rng):
    apart.queue.wait_each = True
    with kc.device_scope(apart):
        step = kc.jit(lambda x: kc.sum(x))
        for _ in range(4):
            x = rng.integers(0, 9, SMALLEST).astype(np.float32)
            assert float(step(x)) == x.sum(dtype=np.float64)
