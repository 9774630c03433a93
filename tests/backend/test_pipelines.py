"""Preprocessing layers by themselves, in models, and inside tf.data and grain pipelines."""

import importlib.util

import keras
import numpy as np
import pytest
from keras import layers

import kerascl as kc

SHAPE = (12, 10, 3)
# Layers without chance, each with the same in NumPy for a batch of float32 images.
EXACT = {
    "rescaling": (lambda: layers.Rescaling(0.5, 1.0), lambda x: x * 0.5 + 1),
    "center_crop": (lambda: layers.CenterCrop(8, 6), lambda x: x[:, 2:10, 2:8]),
    "normalization": (
        lambda: layers.Normalization(mean=[1.0, 2.0, 3.0], variance=[4.0, 1.0, 0.25]),
        lambda x: (x - [1, 2, 3]) / np.array([2, 1, 0.5]),
    ),
    "resizing": (
        lambda: layers.Resizing(6, 5, interpolation="nearest"), lambda x: x[:, 1::2, 1::2]
    ),
}  # fmt: skip
RANDOM = {
    "flip": lambda: layers.RandomFlip(seed=1),
    "brightness": lambda: layers.RandomBrightness(0.3, seed=1),
    "contrast": lambda: layers.RandomContrast(0.3, seed=1),
    "rotation": lambda: layers.RandomRotation(0.2, seed=1),
    "zoom": lambda: layers.RandomZoom(0.2, seed=1),
    "translation": lambda: layers.RandomTranslation(0.2, 0.2, seed=1),
    "crop": lambda: layers.RandomCrop(8, 7, seed=1),
    "shear": lambda: layers.RandomShear(0.2, 0.2, seed=1),
    "hue": lambda: layers.RandomHue(0.2, seed=1),
    "saturation": lambda: layers.RandomSaturation(0.5, seed=1),
    "erasing": lambda: layers.RandomErasing(seed=1),
    "blur": lambda: layers.RandomGaussianBlur(seed=1),
    "perspective": lambda: layers.RandomPerspective(seed=1),
}


def _batches(kind, x, function):
    """`function` mapped over batches of 4 by a pipeline: NumPy arrays."""
    if kind == "tf":
        tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
        data = tf.data.Dataset.from_tensor_slices(x).batch(4).map(function)
        return [np.asarray(batch) for batch in data]
    grain = pytest.importorskip("grain", reason="grain is not installed")
    data = grain.MapDataset.source(x).batch(4).map(function)
    return [np.asarray(data[i]) for i in range(len(data))]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", ["alone", "model", "tf", "grain"])
def test_layers_without_chance(kind, name, rng):
    make, reference = EXACT[name]
    x = rng.uniform(0, 255, (8, *SHAPE)).astype("float32")
    layer = make()
    layer.build(x.shape)  # as under other backends, no layer can build itself in a pipeline
    if kind == "alone":
        found = layer(x)
        assert isinstance(found, kc.Array)
        found = found.numpy()
    elif kind == "model":
        found = keras.Sequential([keras.Input(SHAPE), layer]).predict(x, verbose=0)
    else:
        found = np.concatenate(_batches(kind, x, layer))
    np.testing.assert_allclose(found, reference(x), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("kind", ["alone", "model", "tf", "grain"])
def test_augmentations(kind, name, rng):
    """Values in range that differ from the input when training; the input (or a crop) when not."""
    x = rng.uniform(0, 255, (8, *SHAPE)).astype("float32")
    layer = RANDOM[name]()
    if kind == "alone":
        found = layer(x, training=True).numpy()
    elif kind == "model":
        found = keras.Sequential([keras.Input(SHAPE), layer])(x, training=True).numpy()
    else:
        found = np.concatenate(_batches(kind, x, layer))
    size = (8, 7, 3) if name == "crop" else SHAPE
    assert found.shape == (8, *size)
    assert np.isfinite(found).all()
    assert found.min() >= -1e-3 and found.max() <= 255.01
    if name == "crop":
        windows = [x[:, i : i + 8, j : j + 7] for i in range(5) for j in range(4)]
        same = [(np.abs(w - found).max((1, 2, 3)) < 1e-4) for w in windows]
        assert np.any(same, 0).all()
        return
    assert np.abs(found - x).max() > 1
    np.testing.assert_allclose(layer(x, training=False).numpy(), x, rtol=1e-5)


def test_a_model_learns_from_a_pipeline_of_layers(rng):
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    y = rng.integers(0, 2, 32)
    x = rng.uniform(0, 100, (32, *SHAPE)).astype("float32") + 100 * y[:, None, None, None]
    augment = layers.Pipeline([layers.RandomFlip(seed=1), layers.Rescaling(1 / 255)])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(32, seed=1).batch(8)
    data = data.map(lambda a, b: (augment(a, training=True), b)).prefetch(2)
    model = keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
    losses = model.fit(data, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)
def test_lookups_and_text(rng):
    words = layers.StringLookup(vocabulary=["a", "b", "c"])
    np.testing.assert_array_equal(np.asarray(words(["b", "z", "a"])), [2, 0, 1])
    numbers = layers.IntegerLookup(vocabulary=[5, 7], output_mode="multi_hot")
    np.testing.assert_array_equal(np.asarray(numbers(np.array([[7, 7, 9]]))), [[1, 0, 1]])
    text = layers.TextVectorization(output_sequence_length=4)
    text.adapt(["one two two", "two three"])
    found = np.asarray(text(["two four one"]))
    vocabulary = text.get_vocabulary()
    assert found.tolist() == [[vocabulary.index("two"), 1, vocabulary.index("one"), 0]]
    model = keras.Sequential([keras.Input((4,), dtype="int64"), layers.Embedding(6, 3)])
    assert model(text(["two four one"])).shape == (1, 4, 3)
    buckets = layers.Discretization([0.0, 1.0])
    np.testing.assert_array_equal(np.asarray(buckets(np.array([-1.0, 0.5, 3.0]))), [0, 1, 2])
    crossed = layers.HashedCrossing(10)((np.array([1, 2]), np.array([3, 4])))
    assert crossed.shape == (2,)
