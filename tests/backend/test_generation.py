"""What generates text and images with keras-hub: captured whole, beside loops in Python."""

import types
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import kerascl
from kerascl.backend import generation


class Counter(keras.layers.Layer):
    """Adds its weight to the last number of a row, again and again."""

    def __init__(self):
        super().__init__()
        self.generate_function = None
        self.run_eagerly = False
        self.traced = 0
        self.weight = self.add_weight(shape=(), initializer="ones")
        self.needs_host = False

    def generate_step(self, inputs, stop_token_ids=None):
        self.traced += 1
        tokens, mask = inputs["token_ids"], inputs["padding_mask"]
        index = ops.min(ops.sum(ops.cast(mask, "int32"), axis=-1))
        if self.needs_host:
            int(index)

        def cond(tokens, index):
            if stop_token_ids is None:
                return ops.convert_to_tensor(True)
            ends = ops.any(ops.equal(ops.expand_dims(tokens, -1), stop_token_ids), axis=-1)
            return ops.logical_not(ops.all(ops.any(ends & ~mask, axis=-1)))

        def body(tokens, index):
            last = ops.take(tokens, index - 1, axis=1)
            new = ops.where(
                ops.take(mask, index, axis=1), ops.take(tokens, index, axis=1), last + self.weight
            )
            return ops.slice_update(tokens, (0, index), ops.expand_dims(new, 1)), index + 1

        length = ops.cast(ops.shape(tokens)[1], "int32")
        return ops.while_loop(cond, body, (tokens, index), maximum_iterations=length - index)[0]

    def make_generate_function(self):
        if self.generate_function is None:
            self.generate_function = self.generate_step
        return self.generate_function

    def generate(self, inputs, stop=None):
        return self.make_generate_function()(inputs, stop_token_ids=stop)


def taught(**members):
    """A Counter of a module of which kerascl has heard."""
    module = types.ModuleType("hub_module")
    module.Task = type("Task", (Counter,), {"__module__": "hub_module", **members})
    generation.teach(module)
    return module.Task()


def given(rng, length, total=12, batch=3):
    mask = np.arange(total) < length + np.arange(batch)[:, None] % 2
    tokens = np.where(mask, rng.integers(0, 5, (batch, total)), 0).astype("float32")
    return {"token_ids": tokens, "padding_mask": mask}


def expected(inputs, weight, stop=None):
    tokens, mask = inputs["token_ids"].copy(), inputs["padding_mask"]
    for i in range(int(mask.sum(1).min()), tokens.shape[1]):
        if stop and (np.isin(tokens, stop) & ~mask).any(1).all():
            break
        tokens[:, i] = np.where(mask[:, i], tokens[:, i], tokens[:, i - 1] + weight)
    return tokens


def test_prompts_of_any_length_are_one_program(rng):
    task = taught(make_generate_function=Counter.make_generate_function)
    for weight in (1.0, 3.0):
        task.weight.assign(weight)
        for length in (2, 7, 11):
            for stop in (None, [8.0, 9.0, 10.0]):
                inputs = given(rng, length)
                found = task.generate(inputs, stop and tuple(stop))
                np.testing.assert_array_equal(found.numpy(), expected(inputs, weight, stop))
    assert task.traced == 2  # with and without tokens to stop at


def test_many_calls_take_no_more_memory(rng):
    task = taught(make_generate_function=Counter.make_generate_function)
    buffers = kerascl.zeros(1).device.buffers
    used = []
    for k in range(60):
        inputs = given(rng, 1 + k % 10)
        np.testing.assert_array_equal(task.generate(inputs).numpy(), expected(inputs, 1))
        used.append(buffers.stats().in_use)
    assert task.traced == 1
    assert max(used[5:]) <= max(used[:5])


def test_a_step_that_needs_the_host_runs_uncaptured(rng):
    task = taught(make_generate_function=Counter.make_generate_function)
    task.needs_host = True
    inputs = given(rng, 4)
    with pytest.warns(UserWarning, match="runs uncaptured, which is much slower"):
        found = task.generate(inputs)
    np.testing.assert_array_equal(found.numpy(), expected(inputs, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(task.generate(inputs).numpy(), expected(inputs, 1))


def test_an_unknown_form_of_keras_hub_is_named():
    with pytest.warns(UserWarning, match="does not know the form of hub_module"):
        generation.teach(types.ModuleType("hub_module"))


@pytest.fixture(scope="module")
def gpt():
    """A tiny GPT-2 of keras-hub, whose tokens differ clearly in probability."""
    families = pytest.importorskip("tests.hub.families")
    pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    return families.model("GPT-2")


def test_greedy_tokens_are_those_of_the_whole_model(gpt):
    from tests.hub import families

    gpt.compile(sampler="greedy")
    built = []
    for length in (3, 5, 9, 17):
        inputs = families.inputs("GPT-2", length)
        found = families.tokens_of(gpt.generate(dict(inputs), stop_token_ids=None))
        tokens, mask = inputs["token_ids"].copy(), inputs["padding_mask"]
        for i in range(int(mask.sum(1).min()), families.LENGTH):
            whole = {"token_ids": tokens, "padding_mask": np.ones_like(mask)}
            best = ops.convert_to_numpy(gpt(whole))[:, i - 1].argmax(-1)
            tokens[:, i] = np.where(mask[:, i], tokens[:, i], best)
        np.testing.assert_array_equal(found, tokens)
        built.append(len(gpt.generate_function._captured._captured))
    assert built == [1] * 4


def test_tokens_of_resident_launches_are_those_of_single_ones(gpt, monkeypatch):
    from tests.hub import families

    found = []
    for setting in ("0", "2"):
        monkeypatch.setenv("KERASCL_RESIDENT", setting)
        monkeypatch.setattr(kerascl.engine, "programs", {})
        gpt.compile(sampler="greedy")
        given = [dict(families.inputs("GPT-2", length)) for length in (3, 9)]
        found.append([families.tokens_of(gpt.generate(x, stop_token_ids=None)) for x in given])
        (captured,) = gpt.generate_function._captured._captured.values()
        names = {step.name for step in captured.program.launches}
        assert ("resident" in names) == (setting == "2")
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("sampler", ["random", "top_k", "top_p"])
def test_drawn_tokens_come_from_the_seed(gpt, sampler):
    import keras_hub

    from tests.hub import families

    kind = {"random": "RandomSampler", "top_k": "TopKSampler", "top_p": "TopPSampler"}[sampler]
    more = {"p": 0.7} if sampler == "top_p" else {}
    runs = []
    for seed in (3, 3, 4):
        gpt.compile(sampler=getattr(keras_hub.samplers, kind)(seed=seed, **more))
        inputs = families.inputs("GPT-2", 4)
        runs.append([families.tokens_of(gpt.generate(dict(inputs), stop_token_ids=None))
                     for _ in range(2)])  # fmt: skip
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0][0] != runs[0][1]).any() and (runs[0][0] != runs[2][0]).any()
