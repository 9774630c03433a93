"""`keras.distribution` on one device."""

import keras
import numpy as np
import pytest
from keras.src.backend import distribution_lib


def device_name():
    (name,) = distribution_lib.list_devices()
    return name


def train():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x = np.linspace(-1, 1, 24, dtype="f").reshape(8, 3)
    model.fit(x, x[:, :2], epochs=2, verbose=0)
    return model


def test_devices():
    name = device_name()
    kind = name.split(":")[0]
    assert name in distribution_lib.list_devices(kind)
    assert distribution_lib.get_device_count(kind) == len(distribution_lib.list_devices(kind))
    assert distribution_lib.get_device_count() == 1
    assert distribution_lib.list_devices("tpu") == []
    assert (distribution_lib.num_processes(), distribution_lib.process_id()) == (1, 0)


def test_distributions_on_one_device_change_nothing():
    plain = train()
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], [device_name()])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"] = (None, "model")
    for distribution in (
        keras.distribution.DataParallel(),
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"),
    ):
        with distribution.scope():
            model = train()
            assert model.weights[0]._layout is not None
        for w, v in zip(model.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(w, v)


def test_distribute_tensor():
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], [device_name()])
    layout = keras.distribution.TensorLayout(["batch", None], mesh)
    x = keras.ops.ones((2, 3))
    assert keras.distribution.distribute_tensor(x, layout) is x
    with pytest.raises(ValueError, match="device mesh is not set"):
        distribution_lib._to_backend_layout(keras.distribution.TensorLayout(["batch"]))


def test_more_devices_are_refused():
    mesh = keras.distribution.DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:1"])
    with (
        keras.distribution.DataParallel(mesh).scope(),
        pytest.raises(NotImplementedError, match="needs 2 devices"),
    ):
        keras.layers.Dense(2).build((1, 3))
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], ["cpu:99"])
    with pytest.raises(NotImplementedError, match="not the device in use"):
        _ = mesh.backend_mesh


def test_one_process_only():
    keras.distribution.initialize()
    keras.distribution.initialize(num_processes=1, process_id=0)
    assert keras.src.utils.rng_utils.get_random_seed() is not None
    for arguments in (("10.0.0.1:1,10.0.0.2:1", 2, 0), (None, 4, 1), ("10.0.0.1:1", None, 1)):
        with pytest.raises(NotImplementedError, match="one process"):
            keras.distribution.initialize(*arguments)
