"""Device traces for the TensorBoard callback."""

import gzip
import json

import keras
import numpy as np
import pytest
from keras.src.backend import tensorboard


def model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def test_a_trace_of_two_batches(tmp_path):
    x = np.ones((4, 3), "f")
    trained = model()
    tensorboard.start_trace(str(tmp_path))
    for batch in range(2):
        mark = tensorboard.start_batch_trace(batch)
        trained.train_on_batch(x, x[:, :2])
        tensorboard.stop_batch_trace(mark)
    tensorboard.stop_trace(save=True)
    (file,) = tmp_path.glob("plugins/profile/*/*.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    marks = {e["name"]: e for e in events if e.get("tid") == 1}
    assert set(marks) == {"Profiled batch 0", "Profiled batch 1"}
    inside = [e for e in events if e.get("tid") == 0]
    first = marks["Profiled batch 0"]
    assert [e for e in inside if first["ts"] <= e["ts"] <= first["ts"] + first["dur"]]
    assert len({e["name"] for e in inside} - {"write", "read"}) > 2


def test_nothing_is_written_unless_asked(tmp_path):
    tensorboard.start_trace(None)
    assert tensorboard.start_batch_trace(0) is None
    tensorboard.stop_batch_trace(None)
    tensorboard.stop_trace(save=True)
    tensorboard.start_trace(str(tmp_path))
    tensorboard.stop_trace(save=False)
    assert not list(tmp_path.iterdir())


def test_the_callback_may_profile(tmp_path):
    # its summaries need TensorFlow: test_what_the_callback_writes
    callback = keras.callbacks.TensorBoard(str(tmp_path), profile_batch=(2, 3))
    callback._start_profiler(str(tmp_path))
    assert callback._profiler_started
    keras.ops.convert_to_numpy(keras.ops.ones((4,)) + 1)
    callback._stop_profiler(save=True)
    assert list(tmp_path.glob("plugins/profile/*/*.trace.json.gz"))


def test_what_the_callback_writes(tmp_path):
    """Scalars are those of the history, histograms count the weights as they are."""
    tensorflow = pytest.importorskip("tensorflow", reason="Keras writes summaries with TensorFlow")
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("f")
    trained = model()
    callback = keras.callbacks.TensorBoard(
        str(tmp_path), histogram_freq=1, write_images=True, update_freq=2, profile_batch=(1, 2)
    )
    history = trained.fit(
        x, x[:, :2], batch_size=8, epochs=2, verbose=0, callbacks=[callback],
        validation_data=(x, x[:, 1:]),
    ).history  # fmt: skip
    scalars, histograms = {}, {}
    for file in sorted(tmp_path.glob("*/events*")):
        for event in tensorflow.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                array = tensorflow.make_ndarray(value.tensor)
                name = f"{file.parent.name}/{value.tag}"
                if array.dtype.kind == "f" and array.size == 1:
                    scalars.setdefault(name, {})[event.step] = float(array)
                elif "histogram" in name:
                    histograms[name, event.step] = array
    for name, folder, prefix in (("loss", "train", ""), ("loss", "validation", "val_")):
        expected = dict(enumerate(history[prefix + name]))
        np.testing.assert_allclose(
            list(scalars[f"{folder}/epoch_{name}"].items()), list(expected.items()), rtol=1e-6
        )
    assert list(scalars["train/batch_loss"]) == [2, 4, 6, 8]
    assert list(scalars["validation/evaluation_loss_vs_iterations"]) == [4, 8]
    ((_, kernel),) = [(k, v) for k, v in histograms.items() if "kernel" in k[0] and k[1] == 1]
    weights = trained.layers[0].get_weights()[0]
    assert kernel[:, 2].sum() == weights.size
    np.testing.assert_allclose(
        [kernel[0, 0], kernel[-1, 1]], [weights.min(), weights.max()], rtol=1e-6
    )
    assert list(tmp_path.glob("train/plugins/profile/*/*.trace.json.gz"))
