"""Batches that travel beside the step before: the same numbers, bit for bit, as in order."""

import keras
import numpy as np
import pytest
from keras import layers

import kerascl as kc
from kerascl.runtime.launch import WRITE_BESIDE
from kerascl.runtime.profile import profile
from tests.queues import Delay, opened

SHAPE = (96, 96, 3)  # 16 of them are more than the least size, 8 are less


@pytest.fixture
def apart():
    """A device that copies beside its other commands."""
    return opened(copies_beside=True)


class Disturbed(keras.callbacks.Callback):
    """Before some batches the queue is held up, and freed memory is overwritten with NaN."""

    def __init__(self, device, seed):
        super().__init__()
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.delay = Delay(device)

    def disturb(self, batch, logs=None):
        if self.rng.random() < 0.5:
            self.delay(self.rng.random() * 10)
        for count in (16, 32):
            nbytes = count * int(np.prod(SHAPE)) * 4
            self.device.queue.fill(self.device.buffers.allocate(nbytes), b"\xff")

    on_train_batch_begin = on_test_batch_begin = on_predict_batch_begin = disturb


def two_inputs():
    images, numbers = keras.Input(SHAPE), keras.Input((5,))
    x = layers.Dropout(0.3)(layers.Flatten()(images))
    x = layers.Dense(4, activation="tanh")(x)
    model = keras.Model([images, numbers], layers.Dense(3)(layers.concatenate([x, numbers])))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def work(device, data, seed):
    """All that a model gives and ends with, and how many batches travelled beside others."""
    x, y, weights, batches = data
    counts = []

    def count():
        counts.append(device.queue.batches_beside)

    with kc.device_scope(device):
        keras.utils.set_random_seed(seed)
        model = two_inputs()
        disturbed = Disturbed(device, seed)
        usual = dict(verbose=0, callbacks=[disturbed])
        history = model.fit(
            x, y, sample_weight=weights, batch_size=16, epochs=3,
            validation_data=([a[:40] for a in x], y[:40], weights[:40]), **usual,
        ).history  # fmt: skip
        count()
        found = [model.evaluate(x, y, batch_size=16, **usual)]
        count()
        found.append(model.predict(x, batch_size=16, **usual))
        count()

        def generated():
            yield from batches[:2]  # Keras looks at these first
            place = np.empty((32, *SHAPE), "float32")
            for (images, numbers), labels in batches[2:]:
                place[: len(images)] = images
                yield (place[: len(images)], numbers), labels
                place[:] = np.nan

        again = model.fit(
            generated(), steps_per_epoch=len(batches), shuffle=False, **usual
        ).history  # fmt: skip
        count()
        found += [*history.values(), *again.values(), *model.get_weights()]
        found += [np.asarray(v) for v in model.optimizer.variables]
    return [np.asarray(f) for f in found], counts


def test_training_is_the_same_bit_for_bit(apart, rng, seeds):
    count = 104  # the last batch of 16 is short
    x = [rng.standard_normal((count, *SHAPE), np.float32), rng.standard_normal((count, 5))]
    y, weights = rng.integers(0, 3, count), rng.random(count)
    batches = [
        ((rng.standard_normal((n, *SHAPE), np.float32), rng.standard_normal((n, 5))), y[:n])
        for n in (16, 32, 32, 16, 2, 32, 16, 32, 32)
    ]
    data = (x, y, weights, batches)
    found, beside = work(apart, data, seeds[0])
    wanted, none = work(opened(copies_beside=False), data, seeds[0])
    assert none == [0, 0, 0, 0]
    # 6 of 7 batches of training and 2 of 3 of validation, three times; 6 of evaluation and of
    # prediction; those of the generator that have more than 2 images
    assert beside == [3 * (6 + 2), 30, 36, 36 + 8]
    for f, w in zip(found, wanted, strict=True):
        assert np.isfinite(f).all()
        np.testing.assert_array_equal(f, w)


def test_memory_does_not_grow_with_epochs(apart, rng):
    x = rng.standard_normal((32, 128, 128, 3), np.float32)
    with kc.device_scope(apart):
        model = keras.Sequential([keras.Input(x.shape[1:]), layers.Flatten(), layers.Dense(2)])
        model.compile("sgd", "mse")
        y = rng.standard_normal((32, 2), np.float32)
        reserved = []
        for _ in range(4):
            model.fit(x, y, batch_size=8, epochs=5, verbose=0)
            model.predict(x, batch_size=8, verbose=0)
            reserved.append(apart.buffers.stats().reserved)
        assert apart.queue.batches_beside == 4 * (5 * 4 + 4)
    assert reserved[1:] == reserved[1:2] * 3


def test_a_profile_sees_the_way_of_batches(apart, rng):
    x = rng.standard_normal((32, 128, 128, 3), np.float32)
    with kc.device_scope(apart):
        model = keras.Sequential([keras.Input(x.shape[1:]), layers.Flatten(), layers.Dense(2)])
        model.compile("sgd", "mse")
        with profile(apart, show=False) as recorded:
            model.fit(x, np.zeros((32, 2), "float32"), batch_size=8, verbose=0)
    assert sum(span.name == WRITE_BESIDE for span in recorded.spans) == 4 * 2  # images, labels
