"""Arrays shared with pyopencl."""

import gc

import numpy as np
import pyopencl as cl
import pyopencl.array
import pyopencl.tools
import pytest

import kerascl as kc

DTYPES = ["int8", "uint16", "int64", "float32", "complex64"]
DOUBLE = "__kernel void twice(__global float* a) { a[get_global_id(0)] *= 2; }"


def queue():
    return kc.current_device().queue.handle


@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back(dtype, rng):
    x = (rng.normal(size=(3, 4)) * 3).astype(dtype)
    theirs = (kc.array(x) + kc.array(x)).to_pyopencl()
    assert isinstance(theirs, pyopencl.array.Array) and theirs.dtype == dtype
    np.testing.assert_array_equal(theirs.get(), x + x)
    back = kc.from_pyopencl(theirs)
    assert back.dtype == dtype and back.shape == (3, 4)
    np.testing.assert_array_equal((back + 1).numpy(), x + x + x.dtype.type(1))


def test_memory_is_shared(rng):
    x = rng.normal(size=(5, 60)).astype("f4")
    theirs = pyopencl.array.to_device(queue(), x)
    ours = kc.from_pyopencl(theirs)
    copied = kc.from_pyopencl(theirs, copy=True)
    twice = cl.Kernel(cl.Program(theirs.context, DOUBLE).build(), "twice")
    twice(queue(), (300,), None, theirs.data)
    np.testing.assert_array_equal(ours.numpy(), 2 * x)
    np.testing.assert_array_equal(copied.numpy(), x)
    again = ours.to_pyopencl()
    assert again.base_data == theirs.base_data
    twice(queue(), (300,), None, again.data)
    np.testing.assert_array_equal(theirs.get(), 4 * x)


def test_memory_stays_while_either_is_in_use(rng):
    x = rng.normal(size=1000).astype("f4")
    theirs = (kc.array(x) * 2).to_pyopencl()
    ours = kc.from_pyopencl(pyopencl.array.to_device(queue(), x)) + 0
    lent = kc.from_pyopencl(pyopencl.array.to_device(queue(), x * 3))
    pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(queue()))
    pooled = kc.from_pyopencl(pyopencl.array.to_device(queue(), x * 4, allocator=pool))
    there_and_back = kc.from_pyopencl((kc.array(x) * 5).to_pyopencl())
    gc.collect()
    also = [pyopencl.array.to_device(queue(), x + k, allocator=pool) for k in range(8)]
    others = [(kc.array(x) + k).evaluate() for k in range(8)]  # would take memory given back
    np.testing.assert_array_equal(theirs.get(), x * 2)
    np.testing.assert_array_equal(ours.numpy(), x)
    np.testing.assert_array_equal(lent.numpy(), x * 3)
    np.testing.assert_array_equal(pooled.numpy(), x * 4)
    np.testing.assert_array_equal(there_and_back.numpy(), x * 5)
    del others, also


def test_memory_is_given_back(rng):
    theirs = pyopencl.array.to_device(queue(), rng.normal(size=1000).astype("f4"))
    buffers = kc.current_device().buffers
    before = theirs.base_data.reference_count
    for _ in range(3):
        (kc.from_pyopencl(theirs)[:10] * 2).numpy()
    in_use = buffers.stats().in_use
    gc.collect()
    buffers.trim()
    assert theirs.base_data.reference_count == before
    kc.from_pyopencl(theirs)
    assert buffers.stats().in_use <= in_use


def test_a_lent_value_outlives_the_state_that_took_it(rng):
    x = rng.normal(size=100).astype("f4")
    state = kc.State(kc.array(x) + 0)

    @kc.jit
    def double():
        state.assign(state.value * 2)

    theirs = state.value.to_pyopencl()
    for _ in range(3):
        double()
    np.testing.assert_array_equal(theirs.get(), x)
    np.testing.assert_array_equal(state.value.to_pyopencl().get(), x * 8)
    # A state that begins with memory of somebody else does not write to it.
    mine = pyopencl.array.to_device(queue(), x)
    other = kc.State(kc.from_pyopencl(mine))
    other.assign(other.value + 1)
    kc.jit(lambda: other.assign(other.value + 1))()
    np.testing.assert_allclose(other.value.numpy(), x + 2, 1e-6)
    np.testing.assert_array_equal(mine.get(), x)


def test_buffers_and_parts_of_them(rng):
    x = rng.normal(size=(6, 64)).astype("f4")
    buffer = cl.Buffer(
        kc.current_device().context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=x
    )
    np.testing.assert_array_equal(kc.from_pyopencl(buffer, (6, 64), "float32").numpy(), x)
    first = kc.from_pyopencl(buffer, 3, "int32")
    np.testing.assert_array_equal(first.numpy(), x.ravel()[:3].view("i4"))
    theirs = pyopencl.array.to_device(queue(), x)
    np.testing.assert_array_equal((kc.from_pyopencl(theirs[2:4]) + 0).numpy(), x[2:4])
    with pytest.raises(BufferError, match="begins inside"):
        kc.from_pyopencl(theirs[2:4], copy=False)
    with pytest.raises(ValueError, match="contiguous"):
        kc.from_pyopencl(theirs[:, 2:4])
    with pytest.raises(ValueError, match="needs shape= and dtype="):
        kc.from_pyopencl(buffer)
    with pytest.raises(ValueError, match="takes 1600 bytes, x has 1536"):
        kc.from_pyopencl(buffer, 400, "float32")
    with pytest.raises(TypeError, match="not ndarray"):
        kc.from_pyopencl(x)
    with pytest.raises(TypeError):
        kc.from_pyopencl(buffer, 3, "U7")


def test_other_queues_and_contexts(rng):
    x = rng.normal(size=200).astype("f4")
    other = cl.CommandQueue(kc.current_device().context)
    theirs = pyopencl.array.to_device(other, x) * 2
    np.testing.assert_array_equal((kc.from_pyopencl(theirs) + 0).numpy(), x * 2)
    given = (kc.array(x) * 3).to_pyopencl(other)
    assert given.queue == other
    np.testing.assert_array_equal((given + given).get(), x * 6)
    context = cl.Context([kc.current_device().handle])  # which its queue does not keep everywhere
    apart = cl.CommandQueue(context)
    theirs = pyopencl.array.to_device(apart, x)
    np.testing.assert_array_equal(kc.from_pyopencl(theirs).numpy(), x)
    with pytest.raises(BufferError, match="another OpenCL context"):
        kc.from_pyopencl(theirs, copy=False)
    with pytest.raises(ValueError, match="another context"):
        kc.array(x).to_pyopencl(apart)


def test_empty_scalars_and_captured():
    assert kc.zeros((0, 3)).to_pyopencl().shape == (0, 3)
    empty = pyopencl.array.Array(queue(), (0, 3), "f4")
    assert kc.from_pyopencl(empty).shape == (0, 3)
    assert kc.array(2.5).to_pyopencl().get() == 2.5
    assert float(kc.from_pyopencl(kc.array(2.5).to_pyopencl())) == 2.5
    with pytest.raises(kc.CaptureError):
        kc.jit(lambda x: x.to_pyopencl())(kc.ones(3))
    with pytest.raises(TypeError, match="bfloat16"):
        kc.ones(3, "bfloat16").to_pyopencl()
