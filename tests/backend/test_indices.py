"""Ids that an embedding does not have, and host arrays of the other byte order, in models."""

import keras
import numpy as np
import pytest

import kerascl as kc

IDS = np.array([[0, 1], [2, 9], [3, -1], [4, 0]])


def _model(**options):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(5, 3, name="words"), keras.layers.Flatten(),
              keras.layers.Dense(1)]  # fmt: skip
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", **options)
    return model


def test_ids_out_of_range_give_nan():
    """As Keras on JAX: a loss of NaN instead of another word's vector."""
    model = _model()
    found = model.predict(IDS, verbose=0)[:, 0]
    np.testing.assert_array_equal(np.isnan(found), [False, True, False, False])
    assert np.isnan(model.fit(IDS, np.ones((4, 1)), verbose=0).history["loss"][0])
    table = keras.ops.convert_to_tensor(np.eye(3, dtype="float32"))
    found = keras.ops.convert_to_numpy(keras.ops.take(table, [3, -1, -4], axis=0))
    np.testing.assert_array_equal(found, [[np.nan] * 3, [0, 0, 1], [np.nan] * 3])


def test_eager_steps_name_ids_out_of_range():
    model = _model(run_eagerly=True)
    for call in (lambda: model.fit(IDS, np.ones((4, 1)), verbose=0), lambda: model.predict(IDS)):
        with pytest.raises(IndexError, match=r"indices from -1 to 9 .* size 5"):
            call()
    model.fit(IDS % 5, np.ones((4, 1)), verbose=0)


def test_captured_steps_name_ids_out_of_range_when_debugging(monkeypatch):
    monkeypatch.setenv("KERASCL_DEBUG", "1")
    model = _model(steps_per_execution=2)
    for call in (lambda: model.fit(IDS, np.ones((4, 1)), verbose=0), lambda: model.predict(IDS)):
        with pytest.raises(IndexError, match=r"from -1 to 9 .* size 5 in layer \S*words"):
            call()
    model = _model()
    model.fit(IDS % 5, np.ones((4, 1)), verbose=0)
    loss = model.evaluate(IDS % 5, np.ones((4, 1)), verbose=0)
    with pytest.raises(IndexError, match="from -1 to 9"):
        model.evaluate(IDS, np.ones((4, 1)), verbose=0)
    assert model.evaluate(IDS % 5, np.ones((4, 1)), verbose=0) == loss


def test_captured_functions_name_indices_out_of_range_when_debugging(monkeypatch):
    table = kc.array(np.arange(6.0, dtype="f4").reshape(3, 2))
    row = kc.remat(lambda ids: kc.sum(kc.take(table, ids, axis=0)))
    run = kc.jit(kc.grad(lambda x: kc.sum(x) * row(kc.array([1, 2])) + kc.sum(kc.take(x, ids()))))
    ids = lambda: kc.array([0, 4])  # noqa: E731
    x = kc.array(np.ones(3, "f4"))
    run(x)  # nobody looks
    monkeypatch.setenv("KERASCL_DEBUG", "1")
    run.clear()
    with pytest.raises(IndexError, match=r"take: indices from 0 to 4 .* size 3$"):
        run(x)


def test_batches_of_the_other_byte_order():
    model = _model()
    x, y = (IDS % 5).astype("i4"), np.arange(4, dtype="f4")[:, None]
    expected = model.predict(x, verbose=0)
    swapped = x.astype(">i4"), y.astype(">f4")
    np.testing.assert_array_equal(model.predict(swapped[0], verbose=0), expected)
    assert model.evaluate(*swapped, verbose=0) == model.evaluate(x, y, verbose=0)
    variable = keras.Variable(np.zeros(3, "float32"))
    variable.assign(np.arange(3, dtype=">f4"))
    np.testing.assert_array_equal(variable.numpy(), [0, 1, 2])
    dense = keras.Sequential([keras.layers.Dense(2)])
    data = np.arange(12, dtype="f8").reshape(4, 3)
    expected = dense.predict(data, verbose=0)
    np.testing.assert_array_equal(dense.predict(data.astype(">f8"), verbose=0), expected)
    np.testing.assert_array_equal(dense.predict_on_batch(data.astype(">f4")), expected)
