"""Images between convolutions lie with channels last, and compute what the standard says."""

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
SHAPE = (2, 6, 5, 7)  # of what the convolution gives


def _i(name, *values):
    return models.tensor(name, np.array(values, np.int64))


def _f(rng, name, *shape):
    return models.tensor(name, rng.normal(size=shape).astype(np.float32))


def _grouped(x, y):
    """GroupNorm as torch.onnx writes it, from x to y, with the weights of `_groups`."""
    return [
        node("Reshape", [x, "groups"], ["parts"]),
        node("InstanceNormalization", ["parts", "ones", "zeros"], ["normal"], epsilon=1e-3),
        node("Shape", [x], ["sizes"]), node("Reshape", ["normal", "sizes"], ["whole"]),
        node("Mul", ["whole", "gamma"], ["scaled"]), node("Add", ["scaled", "beta"], [y]),
    ]  # fmt: skip


def _groups(rng, groups):
    return [_i("groups", 0, groups, -1), _f(rng, "ones", groups), _f(rng, "zeros", groups),
            _f(rng, "gamma", 6, 1, 1), _f(rng, "beta", 6, 1, 1)]  # fmt: skip


def _cases(rng):
    """Name: nodes from "c" to "y", and initialisers."""
    return {
        "add channels": ([node("Add", ["c", "b"], ["y"])], [_f(rng, "b", 6, 1, 1)]),
        "add pixels": ([node("Mul", ["b", "c"], ["y"])], [_f(rng, "b", 5, 7)]),
        "add images": ([node("Sub", ["b", "c"], ["y"])], [_f(rng, "b", *SHAPE)]),
        "add more axes": ([node("Add", ["c", "b"], ["y"])], [_f(rng, "b", 3, 1, 6, 1, 1)]),
        "where": (
            [node("Greater", ["c", "b"], ["m"]), node("Where", ["m", "c", "b"], ["y"])],
            [_f(rng, "b", 6, 1, 7)],
        ),
        "prelu": ([node("PRelu", ["c", "b"], ["y"])], [_f(rng, "b", 6, 1, 1)]),
        "clip": ([node("Clip", ["c", "lo", "hi"], ["y"])],
                 [models.tensor("lo", np.float32(-0.5)), models.tensor("hi", np.float32(0.25))]),
        "batch normalisation": (
            [node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"])],
            [_f(rng, n, 6) for n in "sbm"]
            + [models.tensor("v", rng.uniform(0.5, 2, 6).astype(np.float32))],
        ),
        "largest": ([node("MaxPool", ["c"], ["y"], kernel_shape=[3, 2], strides=[2, 1],
                          pads=[1, 0, 1, 1])], []),
        "average": ([node("AveragePool", ["c"], ["y"], kernel_shape=[3, 2], pads=[1, 0, 1, 1],
                          count_include_pad=1)], []),
        "average within": ([node("AveragePool", ["c"], ["y"], kernel_shape=[3, 2],
                                 pads=[1, 0, 1, 1])], []),
        "global": ([node("GlobalAveragePool", ["c"], ["g"]),
                    node("GlobalMaxPool", ["c"], ["h"]), node("Add", ["g", "h"], ["y"])], []),
        "squeeze and excite": (
            [node("ReduceMean", ["c", "a"], ["g"], keepdims=1),
             node("Conv", ["g", "k"], ["h"]), node("Sigmoid", ["h"], ["s"]),
             node("Mul", ["c", "s"], ["y"])],
            [_i("a", 2, -1), _f(rng, "k", 6, 6, 1, 1)],
        ),
        "sum of pixels": ([node("ReduceSum", ["c", "a"], ["y"], keepdims=0)], [_i("a", -1, 2)]),
        "sum of channels": ([node("ReduceSum", ["c", "a"], ["y"], keepdims=0)], [_i("a", 1)]),
        "sum of rows": ([node("ReduceMax", ["c", "a"], ["y"], keepdims=0)], [_i("a", 2)]),
        "sum of all": ([node("ReduceSum", ["c"], ["y"])], []),
        "concat": ([node("Concat", ["c", "b", "c"], ["y"], axis=-3)], [_f(rng, "b", 2, 3, 5, 7)]),
        "concat rows": ([node("Concat", ["b", "c"], ["y"], axis=2)], [_f(rng, "b", 2, 6, 2, 7)]),
        "split": ([node("Split", ["c", "n"], ["p", "q"], axis=1),
                   node("Concat", ["q", "p"], ["y"], axis=1)], [_i("n", 2, 4)]),
        "slice": ([node("Slice", ["c", "f", "t", "a", "s"], ["y"])],
                  [_i("f", 1, -1), _i("t", 6, -9), _i("a", 1, 3), _i("s", 2, -1)]),
        "pad": ([node("Pad", ["c", "p", "v"], ["y"])],
                [_i("p", 0, 1, 2, -1, 0, 0, 0, 3), models.tensor("v", np.float32(1.5)),
                 _i("q", 0, 1, 2, 0, 0, 0, 0, 3), _i("first", 1), _i("width", 7), _i("axis", 3)]),
        "reflect": ([node("Pad", ["c", "p"], ["y"], mode="reflect")],
                    [_i("p", 0, 0, 2, 1, 0, 0, 0, 3)]),
        "transpose": ([node("Transpose", ["c"], ["y"], perm=[2, 0, 3, 1])], []),
        "to last": ([node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1])], []),
        "there and back": ([node("Transpose", ["c"], ["l"], perm=[0, 2, 3, 1]),
                            node("Mul", ["l", "b"], ["m"]),
                            node("Transpose", ["m"], ["n"], perm=[0, 3, 1, 2]),
                            node("Add", ["n", "c"], ["y"])], [_f(rng, "b", 6)]),
        "patches": ([node("Reshape", ["c", "n"], ["r"]),
                     node("Transpose", ["r"], ["y"], perm=[0, 2, 1])], [_i("n", 0, 0, -1)]),
        "shuffle": ([node("Reshape", ["c", "n"], ["r"]),
                     node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3, 4]),
                     node("Reshape", ["t", "m"], ["y"])],
                    [_i("n", 2, 2, 3, 5, 7), _i("m", 2, 6, 5, 7)]),
        "flatten": ([node("Flatten", ["c"], ["y"], axis=1)], []),
        "softmax": ([node("Softmax", ["c"], ["y"], axis=1)], []),
        "resize": ([node("Resize", ["c", "", "s"], ["y"], mode="nearest")],
                   [models.tensor("s", np.array([1, 1, 2, 2], np.float32))]),
        "cast": ([node("Cast", ["c"], ["d"], to=TensorProto.INT32),
                  node("Cast", ["d"], ["y"], to=TensorProto.FLOAT)], []),
        "identity": ([node("Identity", ["c"], ["i"]), node("Relu", ["i"], ["y"])], []),
        "shape": ([node("Shape", ["c"], ["s"]), node("ConstantOfShape", ["s"], ["z"]),
                   node("Add", ["z", "c"], ["y"])], []),
        "transposed convolution": (
            [node("ConvTranspose", ["c", "k", "b"], ["y"], strides=[2, 1], pads=[1, 0, 0, 1],
                  output_padding=[1, 0])], [_f(rng, "k", 6, 4, 3, 2), _f(rng, "b", 4)]),
        "transposed in groups": (
            [node("ConvTranspose", ["c", "k"], ["y"], group=2)], [_f(rng, "k", 6, 2, 2, 3)]),
        "instances": ([node("InstanceNormalization", ["c", "s", "b"], ["y"])],
                      [_f(rng, "s", 6), _f(rng, "b", 6)]),
        "groups": (_grouped("c", "y"), [*_groups(rng, 2)]),
        "groups of one": (_grouped("c", "y"), [*_groups(rng, 6)]),
        "one group": (_grouped("c", "y"), [*_groups(rng, 1)]),
        "groups of pixels in a row": (
            [node("Reshape", ["c", "n"], ["r"]), *_grouped("r", "t")[:4],
             node("Reshape", ["whole", "m"], ["y"])],
            [_i("n", 0, 6, 35), _i("m", 0, 0, 7, 5), *_groups(rng, 3)]),
        "groups for something else": (
            [node("Reshape", ["c", "groups"], ["r"]), node("Relu", ["r"], ["p"]),
             node("ReduceMax", ["r", "a"], ["m"], keepdims=1), node("Sub", ["p", "m"], ["y"])],
            [_i("a", 1), *_groups(rng, 3)]),
        "groups that stay": (_grouped("c", "y")[:2] + [node("Neg", ["normal"], ["y"])],
                             [*_groups(rng, 3)]),
        "groups in another shape": (
            [*_grouped("c", "u")[:2], node("Reshape", ["normal", "n"], ["y"])],
            [_i("n", 2, 3, 14, 5), *_groups(rng, 3)]),
        "branch": ([node("ReduceSum", ["c"], ["t"], keepdims=0), node("Greater", ["t", "z"], ["q"]),
                    node("If", ["q"], ["y"],
                         then_branch=helper.make_graph(
                             [node("Relu", ["c"], ["u"])], "t", [], [models.info("u", SHAPE)]),
                         else_branch=helper.make_graph(
                             [node("Neg", ["c"], ["u"])], "e", [], [models.info("u", SHAPE)]))],
                   [models.tensor("z", np.float32(0))]),
    }  # fmt: skip


# The same by other operators, where onnx's reference does not have a case.
_REFERENCE = {
    "pad": [node("Slice", ["c", "first", "width", "axis"], ["cut"]),
            node("Pad", ["cut", "q", "v"], ["y"])],
    "transposed in groups": [
        node("Split", ["c"], ["c0", "c1"], axis=1, num_outputs=2),
        node("Split", ["k"], ["k0", "k1"], axis=0, num_outputs=2),
        node("ConvTranspose", ["c0", "k0"], ["y0"]), node("ConvTranspose", ["c1", "k1"], ["y1"]),
        node("Concat", ["y0", "y1"], ["y"], axis=1)],
}  # fmt: skip


@pytest.mark.parametrize("case", list(_cases(np.random.default_rng(0))))
def test_what_follows_a_convolution_is_the_references(rng, case):
    nodes, weights = _cases(rng)[case]
    weights = [_f(rng, "w", 6, 3, 3, 3), _f(rng, "bias", 6), *weights]

    def model(nodes, shape):
        return models.model(
            [node("Conv", ["x", "w", "bias"], ["c"], pads=[1, 1, 1, 1]), *nodes],
            [models.info("x", [2, 3, 5, 7])], [models.info("y", shape)], weights, opset=18,
        )  # fmt: skip

    x = rng.normal(size=(2, 3, 5, 7)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model(_REFERENCE.get(case, nodes), None)).run(None, {"x": x})
    made = model(nodes, wanted.shape)
    found = np.asarray(kerascl.onnx.load(made)(x))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def _pattern(rng, dtype=np.float32):
    """A convolution, GroupNorm as torch.onnx writes it and another convolution; batch is free."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = [_f(rng, "w", 6, 3, 3, 3), *_groups(rng, 3), _f(rng, "v", 4, 6, 1, 1)]
    for place, given in enumerate(weights):
        value = onnx.numpy_helper.to_array(given)
        if value.dtype == np.float32:
            weights[place] = models.tensor(given.name, value.astype(dtype))
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), *_grouped("c", "g"),
             node("Conv", ["g", "v"], ["y"])]  # fmt: skip
    return models.model(nodes, [models.info("x", ["n", 3, 5, 7], code)],
                        [models.info("y", ["n", 4, 5, 7], code)], weights, opset=18)  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3])
def test_group_norm_is_not_moved(rng, batch):
    """No launch but those of a layout at the ends: pixels in, and the result out."""
    model = kerascl.onnx.load(_pattern(rng))
    x = kc.array(rng.normal(size=(batch, 3, 5, 7)).astype(np.float32))
    assert sum("permute" in name for name in _launches(model, x)) <= 2


def test_gradients_through_group_norm(rng):
    """Of all weights, against differences of onnx's reference in float64."""
    seed = int(rng.integers(1 << 30))
    model = kerascl.onnx.load(_pattern(np.random.default_rng(seed)))
    wide = _pattern(np.random.default_rng(seed), np.float64)
    x = rng.normal(1, 1, size=(2, 3, 5, 7)).astype(np.float32)
    factor = rng.normal(size=(2, 4, 5, 7)).astype(np.float32)
    graph = model.get_layer("graph")
    names = [name for name, held in graph.weight_by_name.items() if held.trainable]
    assert {"w", "gamma", "beta", "v"} <= set(names)
    with kc.GradientTape() as tape:
        loss = kc.sum(model(x, training=True) * factor)
    found = tape.gradient(loss, [graph.weight_by_name[name].value for name in names])

    def value(name, change):
        moved = onnx.ModelProto.FromString(wide.SerializeToString())
        for given in moved.graph.initializer:
            if given.name == name:
                given.CopyFrom(models.tensor(name, onnx.numpy_helper.to_array(given) + change))
        (y,) = ReferenceEvaluator(moved).run(None, {"x": x.astype(np.float64)})
        return float(np.sum(y * factor))

    for name, gradient in zip(names, found):
        gradient = np.asarray(graph.as_in_file(name, gradient), np.float64)
        way = rng.normal(size=gradient.shape)
        wanted = (value(name, 1e-4 * way) - value(name, -1e-4 * way)) / 2e-4
        size = np.linalg.norm(gradient) * np.linalg.norm(way)
        assert abs(np.sum(gradient * way) - wanted) <= 1e-5 * max(size, 1), name


def test_a_network_with_group_norm_trains_and_is_saved(rng, tmp_path):
    model = kerascl.onnx.load(_pattern(rng))
    x = rng.normal(size=(4, 3, 5, 7)).astype(np.float32)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(x, np.zeros((4, 4, 5, 7), np.float32), batch_size=2, epochs=5, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    before = model.predict(x, verbose=0)
    model.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("after", ["convolution", "input"])
def test_group_normalisation(rng, after):
    scale, bias = rng.normal(size=(2, 6)).astype(np.float32)
    weights = [_f(rng, "w", 6, 6, 1, 1), models.tensor("s", scale), models.tensor("b", bias)]
    nodes = [node("Conv", ["x", "w"], ["c"]),
             node("GroupNormalization", ["c" if after == "convolution" else "x", "s", "b"], ["y"],
                  num_groups=3, epsilon=1e-3)]  # fmt: skip
    shape = [2, 6, 5, 7]
    made = models.model(nodes, [models.info("x", shape)], [models.info("y", shape)], weights, 21)
    x = rng.normal(3, 1, size=(2, 6, 5, 7)).astype(np.float32)
    c = x.astype(np.float64)
    if after == "convolution":
        c = np.einsum("nchw,kc->nkhw", c, onnx.numpy_helper.to_array(weights[0])[:, :, 0, 0])
    parts = c.reshape(2, 3, -1)
    parts = parts - parts.mean(2, keepdims=True)
    parts /= np.sqrt(np.square(parts).mean(2, keepdims=True) + 1e-3)
    wanted = parts.reshape(c.shape) * scale[:, None, None] + bias[:, None, None]
    found = np.asarray(kerascl.onnx.load(made)(x))
    assert np.linalg.norm(found - wanted) <= 2e-6 * np.linalg.norm(wanted)


def test_quantised_images(rng):
    """Scales for all of an image, and for each channel, by NumPy."""
    one, each = np.float32(0.1), rng.uniform(0.05, 0.2, 6).astype(np.float32)
    zero = rng.integers(100, 150, 6).astype(np.uint8)
    weights = [_f(rng, "w", 6, 3, 1, 1), models.tensor("s", one), models.tensor("t", each),
               models.tensor("z", np.uint8(120)), models.tensor("zs", zero)]  # fmt: skip
    made = models.model(
        [node("Conv", ["x", "w"], ["c"]), node("QuantizeLinear", ["c", "s", "z"], ["q"]),
         node("DequantizeLinear", ["q", "s", "z"], ["d"]),
         node("QuantizeLinear", ["d", "t", "zs"], ["r"], axis=1),
         node("DequantizeLinear", ["r", "t", "zs"], ["y"], axis=1)],
        [models.info("x", [2, 3, 5, 7])], [models.info("y", [2, 6, 5, 7])], weights, opset=18,
    )  # fmt: skip
    x = rng.normal(size=(2, 3, 5, 7)).astype(np.float32)
    w = onnx.numpy_helper.to_array(weights[0])[:, :, 0, 0]
    c = np.einsum("nchw,kc->nkhw", x.astype(np.float64), w)
    d = (np.clip(np.round(c / one) + 120, 0, 255) - 120) * one
    t, zs = each[:, None, None], zero[:, None, None].astype(float)
    wanted = (np.clip(np.round(d / t) + zs, 0, 255) - zs) * t
    found = np.asarray(kerascl.onnx.load(made)(x))
    # a number in the middle of two steps may go to either
    assert (np.abs(found - wanted) > 1e-4).mean() < 0.01


def _launches(model, x):
    function = kc.jit(lambda x: model(x, training=False))
    function(x)
    return [step.name for step in function.captured(x).program.steps]


def test_a_file_runs_in_as_many_launches_as_its_keras_model(rng, tmp_path):
    layers = keras.layers
    x = inputs = keras.Input((16, 16, 3), batch_size=1)
    x = layers.Conv2D(8, 3, 2, "same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU(6.0)(x)
    y = layers.Conv2D(24, 1, use_bias=False)(x)
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(y)
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(8, 1, use_bias=False)(y))
    x = layers.Add()([x, y])
    x = layers.DepthwiseConv2D(3, 2, use_bias=False)(layers.ZeroPadding2D(((0, 1), (0, 1)))(x))
    x = layers.Dense(4)(layers.GlobalAveragePooling2D()(layers.ReLU()(x)))
    model = keras.Model(inputs, x)
    for variable in model.variables:
        variable.assign(rng.uniform(0.1, 1, variable.shape))
    kerascl.onnx.save(model, tmp_path / "net.onnx")
    loaded = kerascl.onnx.load(tmp_path / "net.onnx")
    given = kc.array(rng.normal(size=(1, 16, 16, 3)).astype(np.float32))
    np.testing.assert_allclose(loaded(given), model(given), rtol=1e-4, atol=1e-4)
    assert sorted(_launches(loaded, given)) == sorted(_launches(model, given))


def test_kernels_have_filters_last_and_are_saved(rng, tmp_path):
    made = models.classifier(rng)
    given = next(t for t in made.graph.initializer if t.name == "conv.weight")
    wanted = onnx.numpy_helper.to_array(given)
    model = kerascl.onnx.load(made)
    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    before = np.asarray(model(x))
    model.save(tmp_path / "net.keras")
    model = keras.models.load_model(tmp_path / "net.keras")
    np.testing.assert_allclose(model(x), before, rtol=1e-6)
    graph = model.get_layer("graph")
    held = graph.weight_by_name["conv.weight"]
    assert held.shape == (3, 3, 3, 6)
    np.testing.assert_array_equal(graph.as_in_file("conv.weight", held.value), wanted)


def test_a_layer_that_was_saved_with_kernels_as_in_the_file(rng):
    model = kerascl.onnx.load(models.classifier(rng))
    graph = model.get_layer("graph")
    config = graph.get_config()
    for described in config["weights"].values():
        shape, axes = described[0], described.pop()
        described[0] = [shape[a] for a in axes] if axes else shape
    older = type(graph).from_config(config)
    for name, variable in graph.weight_by_name.items():
        older.weight_by_name[name].assign(graph.as_in_file(name, variable.value))
    assert older.weight_by_name["conv.weight"].shape == (6, 3, 3, 3)
    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(older(x), model(x), rtol=1e-5, atol=1e-6)
