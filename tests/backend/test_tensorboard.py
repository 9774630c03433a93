"""Device traces for the TensorBoard callback."""

import gzip
import json

import keras
import numpy as np
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
    # the callback itself writes its summaries with TensorFlow, so it is not run here
    callback = keras.callbacks.TensorBoard(str(tmp_path), profile_batch=(2, 3))
    callback._start_profiler(str(tmp_path))
    assert callback._profiler_started
    keras.ops.convert_to_numpy(keras.ops.ones((4,)) + 1)
    callback._stop_profiler(save=True)
    assert list(tmp_path.glob("plugins/profile/*/*.trace.json.gz"))
