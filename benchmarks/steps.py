"""What a captured train step consists of: launches, host time, memory.

    KERAS_BACKEND=kerascl python benchmarks/steps.py --batch 16 --size 64

Prints for cnn, resnet20 and resnet50 (the networks of Keras' examples): kernel
launches, seconds until the first step is done, host time of a replay alone,
time of a step, planned memory against the sum of all intermediates, and the
peak of device memory.
"""

import argparse
import gc
import statistics
import time

import keras
import numpy as np
from keras import layers
from rich.console import Console
from rich.table import Table

from kerascl.compiler.run.capture import Captured
from kerascl.runtime import device


def cnn(size):
    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(32, 3, activation="relu")(inputs)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(64, 3, activation="relu")(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def conv_bn(x, filters, kernel, stride=1, relu=True):
    x = layers.Conv2D(filters, kernel, strides=stride, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if relu else x


def resnet20(size):
    inputs = keras.Input((32, 32, 3))
    x = conv_bn(inputs, 16, 3)
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            skip = conv_bn(x, filters, 1, stride, relu=False) if stride == 2 else x
            y = conv_bn(conv_bn(x, filters, 3, stride), filters, 3, relu=False)
            x = layers.ReLU()(layers.add([y, skip]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def resnet50(size):
    return keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=1000, classifier_activation=None
    )


def measure(build, batch, size, repeats):
    keras.utils.clear_session()
    gc.collect()
    model = build(size)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, *model.input_shape[1:])).astype("float32")
    y = rng.integers(0, model.output_shape[-1], batch).astype("int32")
    known = {id(o) for o in gc.get_objects() if isinstance(o, Captured)}
    start = time.perf_counter()
    float(np.asarray(model.train_on_batch(x, y)))
    first = time.perf_counter() - start
    (step,) = [o for o in gc.get_objects() if isinstance(o, Captured) and id(o) not in known]
    queue = step.device.queue
    host, whole = [], []
    for _ in range(repeats):
        queue.finish()
        start = time.perf_counter()
        step.replay.run()
        host.append(time.perf_counter() - start)
        queue.finish()
        whole.append(time.perf_counter() - start)
    return step, first, statistics.median(host), statistics.median(whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64, help="image size of resnet50")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    table = Table(title=f"captured train steps, batch {args.batch}, {device.default().info.name}")
    for column in (
        "network", "launches", "state copies", "first step s", "host ms", "step ms", "planned MiB",
        "sum MiB", "peak MiB",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for build in (cnn, resnet20, resnet50):
        device.default().buffers.reset_peak()
        step, first, host, whole = measure(build, args.batch, args.size, args.repeats)
        mib = [
            step.planned_bytes,
            step.program.intermediate_bytes,
            device.default().buffers.stats().peak,
        ]
        table.add_row(
            build.__name__, str(len(step.replay)), str(step.copies), f"{first:.2f}",
            f"{host * 1e3:.2f}", f"{whole * 1e3:.2f}", *(f"{n / 2**20:.1f}" for n in mib),
        )  # fmt: skip
        del step
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
