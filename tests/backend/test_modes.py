"""The examples' models train alike captured, uncaptured and with run_eagerly."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str):
    """An example as a module; its `main` does not run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images(rng):
    model = example("fashion_mnist").build((12, 12, 1), 10)
    x = rng.standard_normal((48, 12, 12, 1)).astype("f")
    return model, "logits", x, rng.integers(0, 10, 48)


def characters(rng):
    model = example("text_model").lstm(20, 9, 16)
    x = rng.integers(0, 20, (48, 9)).astype("int32")
    return model, "logits", x, rng.integers(0, 20, (48, 9))


def attention(rng):
    model = example("text_model").transformer(20, 9, 16)
    x = rng.integers(0, 20, (48, 9)).astype("int32")
    return model, "logits", x, rng.integers(0, 20, (48, 9))


def own_step(rng):
    model = example("custom_training").Cleaner(30, width=6, clip=0.5)
    x = rng.uniform(size=(48, 30)).astype("f")
    return model, "mse", x, x**2


MODES = {"captured": {}, "uncaptured": {"jit_compile": False}, "eager": {"run_eagerly": True}}


@pytest.mark.slow
@pytest.mark.parametrize("make", [images, characters, attention, own_step])
def test_modes_agree(make):
    losses = {}
    for mode, arguments in MODES.items():
        keras.utils.set_random_seed(11)  # weights, dropout masks and the order of batches
        model, loss, x, y = make(np.random.default_rng(11))
        if loss == "logits":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=loss, **arguments)
        history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history
        losses[mode] = [*history["loss"], float(np.asarray(model.predict(x, verbose=0)).mean())]
    # six digits: the modes fuse differently, so that sums are rounded in another order
    np.testing.assert_allclose(losses["uncaptured"], losses["captured"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses["eager"], losses["captured"], rtol=1e-5, atol=1e-6)
    assert losses["captured"][2] < losses["captured"][0]
