"""Models to disk and back."""

import keras
import numpy as np
import pytest
from keras import layers


@pytest.fixture
def trained(rng):
    model = keras.Sequential([
        keras.Input((4,)), layers.Dense(8, "relu"), layers.BatchNormalization(),
        layers.Dense(2),
    ])  # fmt: skip
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x, y = rng.normal(size=(16, 4)).astype("float32"), rng.normal(size=(16, 2)).astype("float32")
    model.fit(x, y, epochs=2, batch_size=8, verbose=0)
    return model, x, y


def test_whole_model(trained, tmp_path):
    model, x, y = trained
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    history = [m.fit(x, y, batch_size=8, shuffle=False, verbose=0).history for m in (model, loaded)]
    np.testing.assert_allclose(history[0]["loss"], history[1]["loss"], rtol=1e-5)


def test_weights(trained, tmp_path):
    model, x, _ = trained
    model.save_weights(tmp_path / "model.weights.h5")
    expected = model.predict(x, verbose=0)
    model.set_weights([w * 0 for w in model.get_weights()])
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_weights(rng, tmp_path, dtype):
    x = rng.normal(size=(3, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2, dtype=dtype)])
    model.save(tmp_path / "half.keras")
    loaded = keras.models.load_model(tmp_path / "half.keras")
    assert loaded.weights[0].dtype == dtype
    np.testing.assert_array_equal(loaded.weights[0].numpy(), model.weights[0].numpy())
    np.testing.assert_array_equal(loaded(x).numpy(), model(x).numpy())


def test_checkpoint_and_restore(trained, tmp_path):
    model, x, y = trained
    file = tmp_path / "best.keras"
    keep = keras.callbacks.ModelCheckpoint(file, save_best_only=True, monitor="loss")
    model.fit(x, y, epochs=2, verbose=0, callbacks=[keep])
    assert keras.models.load_model(file).predict(x, verbose=0).shape == (16, 2)


def test_clone_has_weights_of_its_own(trained):
    model, x, _ = trained
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    expected = model.predict(x, verbose=0)
    clone.set_weights([w * 0 for w in clone.get_weights()])
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)


def test_saved_model_export_says_what_to_do(trained, tmp_path):
    model, _, _ = trained
    with pytest.raises(NotImplementedError, match=r"model\.keras"):
        model.export(tmp_path / "exported")


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Nadam", "RMSprop", "SGD", "Lion", "Adagrad"])
def test_optimizers_that_torch_saved_are_the_plain_ones(name):
    """Keras under torch writes the module of its own subclass and needs torch to find it again."""
    config = {
        "module": f"keras.src.backend.torch.optimizers.torch_{name.lower()}",
        "class_name": name,
        "config": {"learning_rate": 0.25, "name": "mine"},
        "registered_name": name,
    }
    found = keras.saving.deserialize_keras_object(config)
    assert type(found) is getattr(keras.optimizers, name)
    assert float(found.learning_rate) == 0.25
