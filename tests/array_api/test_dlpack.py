"""Arrays handed over by DLPack, and taken."""

import gc

import numpy as np
import pytest

import kerascl as kc

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "complex64"]


def on_cpu():
    return kc.ones(1).device.info.kind == "cpu"


def test_device():
    kind, index = kc.ones(2).__dlpack_device__()
    assert (int(kind), index)[0] == (1 if on_cpu() else 4)
    assert type(index) is int


@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back(dtype, rng):
    x = (rng.normal(size=(3, 4)) * 3).astype(dtype)
    a = kc.asarray(x)
    for copy in (None, True):
        capsule = a.__dlpack__(dl_device=(1, 0), max_version=(1, 0), copy=copy)
        assert "dltensor" in repr(capsule)
    back = kc.from_dlpack(x)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back.numpy(), x)


def test_numpy_reads_shared_memory(rng):
    if not on_cpu():
        pytest.skip("the device has memory of its own")
    x = rng.normal(size=(64, 5)).astype("float32")
    a = kc.asarray(x) * 2
    seen = np.from_dlpack(a)
    again = np.from_dlpack(a)
    assert np.shares_memory(seen, again) and not seen.flags.writeable
    own = np.from_dlpack(a, copy=True)
    assert not np.shares_memory(seen, own) and own.flags.writeable
    del a
    gc.collect()
    others = [(kc.asarray(x) + k).evaluate() for k in range(8)]  # would take memory given back
    np.testing.assert_array_equal(seen, x * 2)
    del others


def test_a_shared_value_outlives_the_state_that_took_it(rng):
    if not on_cpu():
        pytest.skip("the device has memory of its own")
    x = rng.normal(size=100).astype("float32")
    state = kc.State(kc.asarray(x) + 0)
    seen = np.from_dlpack(state.value)

    @kc.jit
    def double():
        state.assign(state.value * 2)

    double()
    double()
    np.testing.assert_array_equal(seen, x)
    np.testing.assert_array_equal(state.value.numpy(), x * 4)


def test_own_arrays_are_given_back():
    a = kc.arange(3)
    assert kc.from_dlpack(a) is a
    other = kc.from_dlpack(a, copy=True)
    other[0] = 5
    assert a[0].item() == 0


def test_refused(rng):
    with pytest.raises(BufferError, match="copy=False"):
        kc.from_dlpack(np.ones(3), copy=False)
    with pytest.raises(TypeError, match="list"):
        kc.from_dlpack([1, 2])
    with pytest.raises(BufferError, match="stream"):
        kc.ones(2).__dlpack__(stream=1)
    with pytest.raises(BufferError, match="host memory"):
        kc.ones(2).__dlpack__(dl_device=(2, 0))
