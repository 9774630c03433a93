"""Loaded models: what they compute, train, and save."""

import keras
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import kerascl as kc
import kerascl.onnx
from tests.onnx import models

node = helper.make_node


def close(a, b, limit=1e-5):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    assert np.linalg.norm(a - b) <= limit * max(np.linalg.norm(b), 1e-30)


def graph_of(model):
    return model.get_layer("graph")


@pytest.mark.parametrize("batch", [1, 5])
def test_predictions_are_the_references(rng, tmp_path, batch):
    made = models.classifier(rng)
    onnx.save(made, tmp_path / "net.onnx")
    model = kerascl.onnx.load(tmp_path / "net.onnx")
    x = rng.normal(size=(batch, 3, 8, 8)).astype(np.float32)
    wanted = ReferenceEvaluator(made).run(None, {"x": x})[0]
    assert model.name == "net" and model.input_shape == (None, 3, 8, 8)
    close(model.predict(x, verbose=0), wanted)
    close(model(x), wanted)


def test_weights_are_variables_by_their_names(rng):
    model = kerascl.onnx.load(models.classifier(rng))
    trainable = {v.name for v in model.trainable_variables}
    assert trainable == {"conv.weight", "conv.bias", "bn.weight", "bn.bias", "fc.weight", "fc.bias"}
    assert {"bn.mean", "bn.var"} <= {v.name for v in model.non_trainable_variables}
    model.trainable = False
    assert not model.trainable_variables


def test_batch_normalization_trains_with_the_model(rng):
    made = models.classifier(rng)
    model = kerascl.onnx.load(made)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    x = rng.normal(size=(16, 3, 8, 8)).astype(np.float32)
    model(x, training=False)
    held = graph_of(model).weight_by_name
    close(held["bn.mean"], weights["bn.mean"], 0)
    model(x, training=True)
    # a convolution by its definition, in float64
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    c = np.einsum("nchwij,kcij->nkhw", patches, weights["conv.weight"])
    c += weights["conv.bias"][:, None, None]
    close(held["bn.mean"], 0.8 * weights["bn.mean"] + 0.2 * c.mean((0, 2, 3)))
    close(held["bn.var"], 0.8 * weights["bn.var"] + 0.2 * c.var((0, 2, 3)))


def test_dropout_drops_in_training_only(rng):
    made = models.model(
        [node("Dropout", ["x"], ["y"])], [models.info("x", ["n", 1000])],
        [models.info("y", ["n", 1000])], opset=12,
    )  # fmt: skip
    model = kerascl.onnx.load(made)
    x = np.ones((4, 1000), np.float32)
    close(model(x, training=False), x, 0)
    close(model.predict(x, verbose=0), x, 0)
    first, second = (np.asarray(model(x, training=True)) for _ in range(2))
    assert set(np.unique(first)) == {0.0, 2.0} and 0.4 < (first == 0).mean() < 0.6
    assert (first != second).any()


STEP = 1e-7  # of weights in float64: small, as between two of its ends ReLU may begin or end


def test_gradients_are_finite_differences(rng):
    made = models.classifier(rng)
    model = kerascl.onnx.load(made)
    x = rng.normal(size=(3, 3, 8, 8)).astype(np.float32)
    share = rng.normal(size=(3, 4)).astype(np.float32)
    variables = model.trainable_variables
    with kc.GradientTape() as tape:
        loss = kc.sum(model(x, training=False) * share)
    gradients = tape.gradient(loss, [v.value for v in variables])
    for variable, gradient in zip(variables, gradients):
        changed = models_with(made, variable.name, rng)
        direction, (low, high) = changed
        slope = sum(
            sign * (ReferenceEvaluator(m).run(None, {"x": x.astype(np.float64)})[0] * share).sum()
            for sign, m in ((-1, low), (1, high))
        )
        gradient = graph_of(model).as_in_file(variable.name, gradient)
        found = (np.asarray(gradient, np.float64) * direction).sum()
        assert abs(found - slope / (2 * STEP)) <= 1e-3 * max(abs(found), 1e-2)


def models_with(made, name, rng):
    """A direction of a weight, and the model in float64 a little back and forth along it."""
    shape = next(tuple(t.dims) for t in made.graph.initializer if t.name == name)
    direction = rng.normal(size=shape)
    both = []
    for step in (-STEP, STEP):
        copied = onnx.ModelProto()
        copied.CopyFrom(made)
        for t in copied.graph.initializer:
            value = onnx.numpy_helper.to_array(t)
            if value.dtype == np.float32:
                value = value.astype(np.float64)
                value = value + step * direction if t.name == name else value
                t.CopyFrom(models.tensor(t.name, value))
        both.append(copied)
    return direction, both


def test_fits_and_saves(rng, tmp_path):
    model = kerascl.onnx.load(models.classifier(rng, 0.2))
    x = rng.normal(size=(64, 3, 8, 8)).astype(np.float32)
    y = rng.integers(0, 4, 64)
    x += rng.normal(0, 2, (4, 3, 1, 1)).astype(np.float32)[y]
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    losses = model.fit(x, y, epochs=25, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    close(again.predict(x, verbose=0), model.predict(x, verbose=0), 0)
    paths = [[v.path for v in m.trainable_variables] for m in (again, model)]
    assert paths[0] == paths[1]
    again.fit(x, y, verbose=0)


def test_a_loaded_model_is_part_of_another(rng):
    body = kerascl.onnx.load(models.classifier(rng))
    body.trainable = False
    x = keras.Input((3, 8, 8))
    model = keras.Model(x, keras.layers.Dense(2)(body(x)))
    model.compile("sgd", "mse")
    before = [np.array(v) for v in body.variables]
    model.fit(rng.normal(size=(8, 3, 8, 8)).astype(np.float32), np.zeros((8, 2)), verbose=0)
    for variable, value in zip(body.variables, before):
        close(variable, value, 0)


def test_inputs_by_name_and_several_outputs(rng):
    made = models.model(
        [node("Sub", ["a", "b"], ["d"]), node("Mul", ["a", "b"], ["p"])],
        [models.info("a", ["n", 3]), models.info("b", ["n", 3])],
        [models.info("d", ["n", 3]), models.info("p", ["n", 3])],
    )
    model = kerascl.onnx.load(made)
    a, b = rng.normal(size=(2, 4, 3)).astype(np.float32)
    for given in ([a, b], {"b": b, "a": a}):
        difference, product = model(given)
        close(difference, a - b, 1e-7)
        close(product, a * b, 1e-7)


def test_external_data_in_the_same_folder(rng, tmp_path):
    made = models.classifier(rng)
    path = tmp_path / "net.onnx"
    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    wanted = ReferenceEvaluator(made).run(None, {"x": x})[0]
    onnx.save(made, path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert (tmp_path / "net.data").stat().st_size > 0
    close(kerascl.onnx.load(path)(x), wanted)


def test_a_loop_is_captured_and_trains(rng):
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], ["z"]), node("Tanh", ["z"], ["h2"]),
         node("Identity", ["go"], ["go2"]), node("Identity", ["h2"], ["out"])],
        "body",
        [models.info("i", [], TensorProto.INT64), models.info("go", [], TensorProto.BOOL),
         models.info("h", ["n", 5])],
        [models.info("go2", [], TensorProto.BOOL), models.info("h2", ["n", 5]),
         models.info("out", ["n", 5])],
    )  # fmt: skip
    made = models.model(
        [node("Loop", ["count", "", "x"], ["last", "all"], body=body)],
        [models.info("x", ["n", 5])], [models.info("last", ["n", 5])],
        [models.tensor("count", np.int64(7)),
         models.tensor("w", rng.normal(0, 0.5, (5, 5)).astype(np.float32))],
    )  # fmt: skip
    model = kerascl.onnx.load(made)
    x = rng.normal(size=(3, 5)).astype(np.float32)
    w = np.asarray(model.trainable_variables[0], np.float64)
    wanted = x
    for _ in range(7):
        wanted = np.tanh(wanted @ w)
    close(model.predict(x, verbose=0), wanted)
    model.compile("sgd", "mse")
    first = model.evaluate(x, np.ones_like(x), verbose=0)
    model.fit(x, np.ones_like(x), epochs=20, verbose=0)
    assert model.evaluate(x, np.ones_like(x), verbose=0) < first


@pytest.mark.parametrize("positive", [True, False])
def test_a_condition_on_the_device_is_selected_in_a_captured_step(rng, positive):
    branches = {
        f"{name}_branch": helper.make_graph([node(op, ["x", "x"], [name])], name, [],
                                            [models.info(name, ["n", 3])])
        for name, op in (("then", "Mul"), ("else", "Add"))
    }  # fmt: skip
    made = models.model(
        [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"]),
         node("If", ["c"], ["y"], **branches)],
        [models.info("x", ["n", 3])], [models.info("y", ["n", 3])],
        [models.tensor("zero", np.float32(0))],
    )  # fmt: skip
    x = np.abs(rng.normal(size=(4, 3)).astype(np.float32)) * (1 if positive else -1)
    model = kerascl.onnx.load(made)
    for found in (model(x), model.predict(x, verbose=0)):
        close(found, x * x if positive else x + x, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_element_types(rng, dtype):
    kind = kc.dtypes.as_dtype(dtype).numpy
    code = helper.np_dtype_to_tensor_dtype(kind)
    w = rng.normal(size=(4, 3)).astype(kind)
    made = models.model(
        [node("MatMul", ["x", "w"], ["y"])], [models.info("x", ["n", 4], code)],
        [models.info("y", ["n", 3], code)], [models.tensor("w", w)],
    )  # fmt: skip
    model = kerascl.onnx.load(made)
    x = rng.normal(size=(5, 4)).astype(kind)
    y = np.asarray(model(x))
    assert y.dtype == kind and model.weights[0].dtype == dtype
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-14}[dtype]
    close(y.astype(np.float64), x.astype(np.float64) @ w.astype(np.float64), limit)


def test_needs_the_backend(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="KERAS_BACKEND=kerascl"):
        kerascl.onnx.load("m.onnx")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_gathered_on_the_host_along_many(rng, axis):
    """torch.onnx writes BERT's token types so; onnx's reference fails along more than 64."""
    kinds = rng.integers(0, 9, (70, 90))
    count = kinds.shape[axis]
    indices = rng.integers(-count, count, (70, 8) if axis else (8, 90))
    # each by its definition
    at = [(r, i) if axis else (i, c) for (r, c), i in np.ndenumerate(indices)]
    wanted = np.array([kinds[place] for place in at]).reshape(indices.shape)
    held = [("kinds", kinds), ("at", indices)]
    graph = helper.make_graph(
        [*(node("Constant", [], [n], value=onnx.numpy_helper.from_array(v, n)) for n, v in held),
         node("GatherElements", ["kinds", "at"], ["found"], axis=axis),
         node("Cast", ["found"], ["cast"], to=TensorProto.FLOAT),
         node("Add", ["x", "cast"], ["y"])],
        "gather",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, indices.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, indices.shape)],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    x = rng.normal(size=indices.shape).astype(np.float32)
    found = kerascl.onnx.load(made)(x)
    close(found, x.astype(np.float64) + wanted, 1e-6)
