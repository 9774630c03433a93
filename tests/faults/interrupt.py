"""Ctrl-C at random moments of training: `python -m tests.faults.interrupt [--count 100]`.

A child process trains; SIGINT comes at a random moment of what it does.  Each time a
KeyboardInterrupt must leave `fit` (or evaluate, or predict) soon, and what the same process
computes next must agree with NumPy.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

# What the child does when Ctrl-C comes, and how many seconds after its beginning that is at most.
PHASES = {
    "build": 1.5,
    "replay": 0.2,
    "logs": 0.2,
    "callbacks": 0.2,
    "checkpoint": 0.3,
    "evaluate": 0.2,
    "predict": 0.2,
    "eager": 0.3,
}
BOUND = 30.0  # seconds from SIGINT to KeyboardInterrupt, on a loaded machine
SIZES = (5, 16, 2)
RATE = 0.05


class Failure(Exception):
    """A Ctrl-C that was lost, came late, or left wrong numbers."""


# -- the child
def reference(weights, x, y, batch: int, steps: int):
    """Weights after SGD on the mean squared error of a network with one hidden layer."""
    k1, b1, k2, b2 = (w.astype("float64") for w in weights)
    for step in range(steps):
        at = slice(step * batch, (step + 1) * batch)
        xb, yb = x[at].astype("float64"), y[at]
        h = np.tanh(xb @ k1 + b1)
        d = 2 * (h @ k2 + b2 - yb) / yb.size
        dh = d @ k2.T * (1 - h * h)
        k2, b2 = k2 - RATE * h.T @ d, b2 - RATE * d.sum(0)
        k1, b1 = k1 - RATE * xb.T @ dh, b1 - RATE * dh.sum(0)
    return k1, b1, k2, b2


def forward(weights, x):
    """What the network gives."""
    k1, b1, k2, b2 = (w.astype("float64") for w in weights)
    return np.tanh(x @ k1 + b1) @ k2 + b2


class Child:
    """Does what it is told on standard input, and says on standard output how it went."""

    def __init__(self, folder: str):
        import keras

        self.keras = keras
        self.folder = folder
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(512, SIZES[0])).astype("float32")
        self.y = rng.normal(size=(512, SIZES[2])).astype("float32")
        self.first = [
            rng.normal(size=s).astype("float32") * 0.5
            for s in (SIZES[:2], SIZES[1:2], SIZES[1:], SIZES[2:])
        ]
        self.model = self.make()

    def make(self, built: bool = True, **arguments):
        layers = self.keras.layers
        model = self.keras.Sequential([layers.Dense(SIZES[1], "tanh"), layers.Dense(SIZES[2])])
        if built:
            model.build((None, SIZES[0]))
        optimizer = self.keras.optimizers.SGD(RATE)
        model.compile(optimizer, "mse", metrics=["mae"], **arguments)
        return model

    def check(self, model) -> None:
        """Whether the model trains and predicts as it should."""
        predicted = model.predict(self.x, batch_size=128, verbose=0)
        expected = forward(model.get_weights(), self.x)
        np.testing.assert_allclose(predicted, expected, rtol=1e-3, atol=1e-4)
        model.set_weights(self.first)
        # each epoch sees the same batches as one after the other
        history = model.fit(self.x, self.y, batch_size=64, shuffle=False, verbose=0).history
        expected = reference(self.first, self.x, self.y, 64, 8)
        for found, wanted in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
        assert np.isfinite(history["loss"]).all() and np.isfinite(history["mae"]).all()
        logs = model.evaluate(self.x, self.y, batch_size=64, verbose=0, return_dict=True)
        error = forward(expected, self.x) - self.y
        np.testing.assert_allclose(logs["loss"], (error**2).mean(), rtol=1e-3)
        np.testing.assert_allclose(logs["mae"], np.abs(error).mean(), rtol=1e-3)

    def fit(self, model, *callbacks, **arguments) -> None:
        settings = dict(batch_size=8, epochs=10**6, verbose=0, callbacks=list(callbacks))
        model.fit(self.x, self.y, **settings | arguments)

    def run(self, phase: str) -> None:
        """The phase, for ever."""
        callbacks = self.keras.callbacks
        if phase == "build":
            while True:
                self.fit(self.make(built=False), epochs=1)
        elif phase == "replay":
            self.fit(self.model, validation_data=(self.x, self.y))
        elif phase == "logs":
            reader = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: logs["loss"])
            self.fit(self.model, reader)
        elif phase == "callbacks":
            def look(batch, logs):
                assert np.isfinite(self.model.layers[0].kernel.numpy()).all()

            self.fit(self.model, callbacks.LambdaCallback(on_train_batch_end=look))
        elif phase == "checkpoint":
            path = os.path.join(self.folder, "model.weights.h5")
            saver = callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=5)
            self.fit(self.model, saver)
        elif phase == "evaluate":
            while True:
                self.model.evaluate(self.x, self.y, batch_size=8, verbose=0)
        elif phase == "predict":
            while True:
                self.model.predict(self.x, batch_size=8, verbose=0)
        elif phase == "eager":
            self.fit(self.make(run_eagerly=True))

    def serve(self) -> None:
        """One line in, one phase; until the input ends."""
        self.check(self.model)
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                print("begun", flush=True)
                self.run(line.strip())
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            self.check(self.model)
            self.check(self.make())
            print("right", flush=True)


# -- the parent
class Trainer:
    """A child process and what it says."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        environment = dict(os.environ, KERAS_BACKEND="kerascl", PYTHONUNBUFFERED="1")
        self.path = Path(self.folder.name, "log")
        with self.path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.interrupt", "--child", self.folder.name],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.lines: queue.Queue = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.expect("ready", 300)

    def _listen(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put("end")

    def expect(self, word: str, seconds: float) -> None:
        """Wait for a line.

        Raises:
            Failure: when another one comes, or none in time.
        """
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            line = f"nothing for {seconds:.0f} s"
        if line != word:
            text = self.path.read_text(errors="replace")[-4000:]
            raise Failure(f"expected {word!r}, got {line!r}\n{text}")

    def interrupt(self, phase: str, delay: float) -> float:
        """Ctrl-C so many seconds after a phase began; gives the seconds until it ended."""
        self.process.stdin.write(phase + "\n")
        self.process.stdin.flush()
        self.expect("begun", BOUND)
        time.sleep(delay)
        start = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.expect("interrupted", BOUND)
        seconds = time.monotonic() - start
        self.expect("right", 10 * BOUND)
        return seconds

    def close(self) -> None:
        """End the child."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def campaign(count: int, seed: int, report=lambda phase, seconds: None) -> list[str]:
    """`count` interrupts over all phases, in one child as long as all goes well; the failures."""
    draw = random.Random(seed)
    failures, trainer = [], None
    try:
        for k in range(count):
            phase = list(PHASES)[k % len(PHASES)]
            delay = draw.uniform(0, PHASES[phase])
            if trainer is None:
                trainer = Trainer()
            try:
                report(phase, trainer.interrupt(phase, delay))
            except Failure as error:
                failures.append(f"{phase} after {delay:.4f} s: {error}")
                report(phase, None)
                trainer.close()
                trainer = None
    finally:
        if trainer is not None:
            trainer.close()
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        Child(arguments.child).serve()
        return 0
    from rich.progress import Progress

    seconds, done = [], Counter()
    with Progress() as progress:
        task = progress.add_task("Ctrl-C", total=arguments.count)

        def report(phase, latency):
            if latency is not None:
                seconds.append(latency)
                done[phase] += 1
            progress.advance(task)

        failures = campaign(arguments.count, arguments.seed, report)
    for failure in failures:
        print(failure)
    print(f"{len(seconds)} of {arguments.count} interrupted and right afterwards:", dict(done))
    if seconds:
        middle = np.median(seconds)
        print(f"until KeyboardInterrupt: median {middle:.3f} s, most {max(seconds):.3f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
