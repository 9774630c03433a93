"""What dies with a model, what `clear_session` frees, and what goes on."""

import gc
import weakref

import keras
import numpy as np
import pytest

import kerascl
from kerascl.runtime import device as devices

LAYERS = keras.layers


def dense():
    return [LAYERS.Dense(16, "relu"), LAYERS.Dropout(0.1), LAYERS.Dense(4)], np.ones((20, 8), "f")


def recurrent():
    return [LAYERS.LSTM(8), LAYERS.Dense(4)], np.ones((20, 5, 3), "f")


def embedding():
    stack = [LAYERS.Embedding(10, 8), LAYERS.BatchNormalization(), LAYERS.GRU(40), LAYERS.Dense(4)]
    return stack, np.ones((20, 5), "int32")


def trained(make):
    """A model that was trained, evaluated and asked, with what it was asked."""
    stack, x = make()
    model = keras.Sequential(stack)
    model.compile("adam", "mse", metrics=["mae"])
    y = np.zeros((len(x), 4), "f")
    model.fit(x, y, batch_size=8, verbose=0, validation_data=(x, y))
    model.train_on_batch(x, y)
    model.predict(x, verbose=0)
    return model, x


def built():
    programs = devices.default().programs
    return programs.built_from_source + programs.loaded_from_disk


def in_use():
    gc.collect()
    return devices.default().buffers.stats().in_use


@pytest.mark.slow
@pytest.mark.parametrize("make", [dense, recurrent, embedding])
def test_a_models_steps_and_memory_die_with_it(make):
    def pieces():
        model, _ = trained(make)
        step = model.train_function.step
        captured = [*step._jit._captured.values()]
        states = [v._value for v in (*model.variables, *model.optimizer.variables)]
        assert captured and in_use() > before
        return [weakref.ref(x) for x in (model, model.optimizer, step, *captured, *states)]

    kerascl.zeros(1).device.buffers.counters(1024)  # one buffer for all, which stays
    before = in_use()
    left = pieces()
    assert in_use() == before
    assert [ref() for ref in left] == [None] * len(left)


def test_clear_session_frees_programs_of_dead_models_and_live_ones_go_on():
    device = devices.default()
    keras.utils.clear_session()
    before = device.programs.alive()
    model, x = trained(dense)
    expected = model.predict(x, verbose=0)
    dead, _ = trained(embedding)
    both = device.programs.alive()
    del dead

    keras.utils.clear_session()
    alone = device.programs.alive()
    assert before < alone < both
    assert device.buffers.stats().cached == 0
    assert not len(kerascl.engine.programs)
    made = built()
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    assert built() == made

    del model
    keras.utils.clear_session()
    assert device.programs.alive() == before


def test_clear_session_without_freeing_is_quick():
    trained(dense)
    kept = len(kerascl.engine.programs)
    keras.utils.clear_session(free_memory=False)
    assert len(kerascl.engine.programs) == kept > 0
