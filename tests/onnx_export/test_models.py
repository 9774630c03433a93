"""Keras models as files, run on batches of several sizes."""

import keras
import numpy as np
import onnx
import pytest

from kerascl.onnx import ExportError, load, save
from kerascl.onnx.exporter import saving
from tests.onnx_export.running import agree, run

L = keras.layers
IMAGE, FIRST, STEPS = (9, 10, 4), (4, 9, 10), (7, 5)


def resized(**options):
    return lambda: L.UpSampling2D((2, 3), **options)


# name -> (shape of an input, layers)
STACKS = {
    "dense": ((6,), lambda: [L.Dense(5, "relu"), L.Dense(3, "softmax")]),
    "activations": ((6,), lambda: [
        L.Activation(a)
        for a in ("gelu", "silu", "elu", "selu", "leaky_relu", "softplus", "hard_sigmoid", "mish")
    ]),
    "conv2d": (IMAGE, lambda: [L.Conv2D(6, 3, 2, "same"), L.Conv2D(4, (2, 3), dilation_rate=2)]),
    "conv2d channels first": (FIRST, lambda: [
        L.Conv2D(6, 3, 2, "same", data_format="channels_first"),
        L.Conv2D(4, 3, data_format="channels_first", groups=2),
    ]),
    "conv1d": (STEPS, lambda: [L.Conv1D(6, 3, padding="causal"), L.Conv1D(4, 3, 2)]),
    "conv3d": ((4, 5, 6, 2), lambda: [L.Conv3D(3, 2, 2, "same"), L.MaxPooling3D(2)]),
    "transposed": (IMAGE, lambda: [
        L.Conv2DTranspose(3, 3, 2, "same"), L.Conv2DTranspose(2, 2, 3, output_padding=1),
    ]),
    "depthwise": (IMAGE, lambda: [
        L.DepthwiseConv2D(3, 1, "same", depth_multiplier=2), L.SeparableConv2D(5, 3),
    ]),
    "depthwise channels first": (FIRST, lambda: [
        L.DepthwiseConv2D(3, 2, "same", data_format="channels_first"),
    ]),
    "normalisation": (IMAGE, lambda: [
        L.BatchNormalization(), L.LayerNormalization(), L.BatchNormalization(2),
        L.GroupNormalization(2),
        L.UnitNormalization(),
    ]),
    "batch normalisation channels first": (FIRST, lambda: [
        L.Conv2D(6, 3, data_format="channels_first"), L.BatchNormalization(axis=1), L.ReLU(),
        L.MaxPooling2D(data_format="channels_first"),
    ]),
    "pooling": (IMAGE, lambda: [
        L.MaxPooling2D(3, 2, "same"), L.AveragePooling2D(2, 1, "same"), L.GlobalMaxPooling2D(),
    ]),
    "pooling channels first": (FIRST, lambda: [
        L.AveragePooling2D(3, 2, data_format="channels_first"),
        L.GlobalAveragePooling2D(data_format="channels_first"),
    ]),
    "upsampling": (IMAGE, lambda: [
        L.UpSampling2D((2, 3)), L.UpSampling2D(2, interpolation="bilinear"), L.Resizing(7, 8),
        L.ZeroPadding2D(((1, 0), (2, 3))), L.Cropping2D(1),
    ]),
    "lstm": (STEPS, lambda: [L.LSTM(6, return_sequences=True), L.LSTM(4, go_backwards=True)]),
    "gru": (STEPS, lambda: [L.GRU(6, return_sequences=True), L.GRU(4, reset_after=False)]),
    "bidirectional": (STEPS, lambda: [
        L.Bidirectional(L.LSTM(4, return_sequences=True)), L.Bidirectional(L.SimpleRNN(3)),
    ]),
    "masked": (STEPS, lambda: [L.Masking(), L.LSTM(4, return_sequences=True), L.GRU(3)]),
    "convolutional lstm": ((3, 5, 6, 2), lambda: [L.ConvLSTM2D(3, 2)]),
    "rearranged": (IMAGE, lambda: [
        L.Permute((3, 1, 2)), L.Reshape((4, -1)), L.Flatten(), L.RepeatVector(2),
        L.Rescaling(0.5, -1),
    ]),
    "dropped": (STEPS, lambda: [L.Dropout(0.5), L.GaussianNoise(1.0), L.SpatialDropout1D(0.2)]),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_stack(name, rng, tmp_path):
    shape, layers = STACKS[name]
    model = keras.Sequential([keras.Input(shape), *layers()])
    for variable in model.variables:  # moving averages and biases too
        if "float" in variable.dtype:
            variable.assign(rng.uniform(0.1, 0.9, variable.shape).astype("float32"))
    x = rng.uniform(-1, 1, (3, *shape)).astype("float32")
    if name == "masked":
        x[1, 4:] = 0
    path = tmp_path / "m.onnx"
    save(model, path)
    again = load(path)
    for batch in (x[:1], x):
        wanted = np.asarray(model(batch, training=False))
        agree(run(path, batch)[0], wanted, 1e-5)
        agree(np.asarray(again(batch, training=False)), wanted, 1e-5)
    assert len(again.trainable_variables) == len(model.trainable_variables)


def transformer():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = L.Embedding(11, 8, mask_zero=True)(tokens)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    x = x + L.GroupQueryAttention(4, 4, 2)(x, x)
    return keras.Model(tokens, [L.Dense(8, "gelu", name="features")(x), L.LSTM(3, name="state")(x)])


def test_free_length_and_several_outputs(rng, tmp_path):
    model = transformer()
    path = tmp_path / "m.onnx"
    save(model, path, opset=20)
    graph = onnx.load(path).graph
    assert [put.name for put in graph.input] == ["tokens"]
    assert [put.name for put in graph.output] == ["features", "state"]
    for shape in ((1, 4), (3, 19)):
        tokens = rng.integers(0, 11, shape).astype("int32")
        for found, wanted in zip(run(path, tokens), model(tokens), strict=True):
            agree(found, np.asarray(wanted), 1e-5)


def test_oldest_and_newest_operators(rng, tmp_path):
    model = keras.Sequential([
        keras.Input((9, 10, 4)), L.ZeroPadding2D(1), L.Conv2D(4, 3), L.LayerNormalization(),
        L.GroupNormalization(2), L.GlobalMaxPooling2D(), L.RepeatVector(3), L.LSTM(4),
        L.Dense(3, "gelu"),
    ])  # fmt: skip
    x = rng.uniform(-1, 1, (2, 9, 10, 4)).astype("float32")
    for opset in (saving.OLDEST, min(23, onnx.defs.onnx_opset_version())):
        save(model, tmp_path / "m.onnx", opset=opset)
        assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == opset
        agree(run(tmp_path / "m.onnx", x)[0], np.asarray(model(x)), 1e-5)


def test_images_of_any_size(rng, tmp_path):
    model = keras.Sequential([
        keras.Input((None, None, 3)), L.Conv2D(4, 3, 2, "same"), L.BatchNormalization(), L.ReLU(),
        L.MaxPooling2D(3, 2, "same"), L.Conv2D(5, 3), L.GlobalAveragePooling2D(),
    ])  # fmt: skip
    path = tmp_path / "m.onnx"
    save(model, path)
    for shape in ((1, 32, 41, 3), (2, 27, 60, 3)):
        x = rng.uniform(-1, 1, shape).astype("float32")
        (found,) = run(path, x)
        agree(found, np.asarray(model(x)), 1e-5)


def test_nested_inputs_and_shared_layers(rng, tmp_path):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    dense = L.Dense(3)
    model = keras.Model({"a": a, "b": b}, {"sum": dense(a) + dense(b), "first": a})
    path = tmp_path / "m.onnx"
    save(model, path)
    x = {k: rng.uniform(-1, 1, (2, 4)).astype("float32") for k in "ab"}
    graph = onnx.load(path).graph
    assert sum("kernel" in t.name for t in graph.initializer) == 1
    found = dict(zip((o.name for o in graph.output), run(path, x["a"], x["b"]), strict=True))
    wanted = model(x)
    assert len(found) == 2
    for y, z in zip(found.values(), wanted.values(), strict=True):
        agree(y, np.asarray(z))


@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_half_precision(policy, rng, tmp_path):
    model = keras.Sequential([
        keras.Input((6,)), L.Dense(5, "silu", dtype=policy), L.Dense(3, "softmax", dtype=policy),
    ])  # fmt: skip
    x = rng.uniform(-1, 1, (2, 6)).astype("float32")
    path = tmp_path / "m.onnx"
    save(model, path)
    dtype = onnx.load(path).graph.input[0].type.tensor_type.elem_type
    (found,) = run(path, x.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype)))
    agree(found.astype("float32"), np.asarray(model(x)).astype("float32"), 2e-3)


def test_export_of_an_unmodified_keras(rng, tmp_path, capsys):
    model = keras.Sequential([keras.Input((4,)), L.Dense(3, "tanh")])
    x = rng.uniform(-1, 1, (5, 4)).astype("float32")
    wanted = model.predict(x, verbose=0)
    path = tmp_path / "m.onnx"
    model.export(path, format="onnx", opset_version=19)
    assert "Saved artifact" in capsys.readouterr().out
    assert onnx.load(path).opset_import[0].version == 19
    agree(run(path, x)[0], wanted)
    fixed = [keras.InputSpec(shape=(5, 4), dtype="float32", name="x")]
    model.export(path, format="onnx", input_signature=fixed, dynamic_batch=False, verbose=False)
    sizes = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in sizes] == [5, 4]
    agree(run(path, x)[0], wanted)


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantised(mode, rng, tmp_path):
    model = keras.Sequential([keras.Input((6,)), L.Dense(5, "relu"), L.Dense(3)])
    model.quantize(mode)
    x = rng.uniform(-1, 1, (3, 6)).astype("float32")
    save(model, tmp_path / "m.onnx", opset=19)
    (found,) = run(tmp_path / "m.onnx", x)
    agree(found, np.asarray(model(x)))


class Noisy(L.Layer):
    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x), seed=3)


def test_random_numbers_are_refused_by_name(tmp_path):
    model = keras.Sequential([keras.Input((4,)), L.Dense(3), Noisy(name="noisy")])
    with pytest.raises(ExportError, match=r"random_normal \(layer .*noisy"):
        save(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_stateful_layers_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((3, 2), batch_size=2), L.LSTM(3, stateful=True)])
    with pytest.raises(ExportError, match="keeps no state"):
        save(model, tmp_path / "m.onnx", dynamic_batch=False)
