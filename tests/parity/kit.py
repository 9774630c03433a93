"""What the programs are written with: the list of them, data, small models, and what is seen.

A program is a function of `keras` that does what a user's script does, with data drawn by NumPy
and first weights from `draw`, and gives all that the user could look at. It works in a folder of
its own.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

FORMS = ("captured", "eager", "several")


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: the function's name.
        group: the module it lies in.
        run: `run(keras) -> dict` of everything seen.
        reference: the backend it is compared with.
        several: steps per execution in the form of that name; None where the program sets them.
        eager: whether it also runs with `run_eagerly=True`.
        tolerance: greatest relative difference of a float32 array, from the arithmetic.
    """

    name: str
    group: str
    run: Callable
    reference: str = "jax"
    several: int | None = None
    eager: bool = True
    tolerance: float = 1e-5

    @property
    def forms(self) -> tuple[str, ...]:
        """The ways in which the program runs under kerascl."""
        return ("captured", *["eager"] * self.eager, *["several"] * (self.several is not None))


_PROGRAMS: dict[str, Program] = {}


def program(function: Callable | None = None, **options):
    """Adds a function to the list of programs; `options` are fields of `Program`."""

    def add(function):
        name, group = function.__name__, function.__module__.rpartition(".")[2]
        if name in _PROGRAMS:
            raise ValueError(f"two programs are called {name}")
        _PROGRAMS[name] = Program(name, group, function, **options)
        return function

    return add if function is None else add(function)


def programs() -> dict[str, Program]:
    """All programs by name."""
    from tests.parity import programs as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _PROGRAMS


# -- data
def regression(n=40, features=8, outputs=1, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """(n, features) inputs and (n, outputs) smooth targets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype("float32")
    w = rng.normal(size=(features, outputs)) / np.sqrt(features)
    return x, (np.sin(x @ w) + 0.1 * rng.normal(size=(n, outputs))).astype("float32")


def classes(n=40, features=8, kinds=3, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """(n, features) inputs and (n,) int32 labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype("float32")
    return x, np.argmax(x @ rng.normal(size=(features, kinds)), -1).astype("int32")


def binary(n=40, features=8, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """(n, features) inputs and (n, 1) float32 labels of 0 and 1."""
    x, labels = classes(n, features, 2, seed)
    return x, labels[:, None].astype("float32")


def one_hot(labels, kinds=3) -> np.ndarray:
    """(n, kinds) float32."""
    return np.eye(kinds, dtype="float32")[labels]


def images(n=16, side=8, channels=3, kinds=3, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """(n, side, side, channels) pictures and (n,) labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, side, side, channels)).astype("float32")
    return x, rng.integers(0, kinds, n).astype("int32")


def series(n=16, steps=6, features=4, outputs=1, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """(n, steps, features) series and (n, outputs) targets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, steps, features)).astype("float32")
    w = rng.normal(size=(features, outputs))
    return x, np.tanh(x.mean(1) @ w).astype("float32")


def tokens(n=16, steps=6, words=20, kinds=2, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """(n, steps) int32 words, 0 behind each text's end, and (n,) labels."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, words, (n, steps))
    lengths = rng.integers(1, steps + 1, n)
    x[np.arange(steps)[None] >= lengths[:, None]] = 0
    return x.astype("int32"), rng.integers(0, kinds, n).astype("int32")


# -- models
def draw(model, seed=0):
    """Gives a built model its first weights, from NumPy; returns it."""
    if not all(layer.built for layer in model._flatten_layers()):
        raise ValueError("a model without weights yet would draw its own")
    rng = np.random.default_rng(seed)
    values = []
    for weight, value in zip(model.weights, model.get_weights()):
        noise = rng.normal(size=weight.shape)
        if not np.issubdtype(value.dtype, np.floating) and "float" not in str(value.dtype):
            values.append(value)
        elif weight.path.endswith(("gamma", "variance", "scale")):
            values.append(1 + 0.1 * np.abs(noise))
        elif len(weight.shape) > 1:
            values.append(noise / np.sqrt(np.prod(weight.shape[:-1])))
        else:
            values.append(0.1 * noise)
    model.set_weights([np.asarray(v, "float32") if v.dtype == "float64" else v for v in values])
    return model


def mlp(keras, outputs=1, activation=None, features=8, seed=0):
    """Two dense layers with given weights."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((features,)),
            layers.Dense(8, "tanh", name="hidden"),
            layers.Dense(outputs, activation, name="out"),
        ]
    )
    return draw(model, seed)


def stack(keras, shape, *parts, dtype="float32", seed=0):
    """A Sequential of the given layers on inputs of a shape, with given weights."""
    return draw(keras.Sequential([keras.Input(shape, dtype=dtype), *parts]), seed)


# -- what is seen
def seen(model, x=None, **more) -> dict:
    """Weights, optimizer and metrics of a model, its predictions of x, and what else is given."""
    found = {"weights": {w.path: w for w in model.weights}}
    found["trainable"] = [w.path for w in model.trainable_weights]
    if getattr(model, "optimizer", None) is not None:
        found["optimizer"] = {v.path: v for v in model.optimizer.variables}
        found["learning_rate"] = model.optimizer.learning_rate
    if model.compiled:
        found["metrics"] = model.get_metrics_result()
    if x is not None:
        found["predictions"] = model.predict(x, batch_size=16, verbose=0)
    return found | more


@contextlib.contextmanager
def printed() -> Iterator[Callable[[], str]]:
    """What is printed in the block, as normalised text."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        yield lambda: tidy(stream.getvalue())


_TIMES = re.compile(r"\b\d+(\.\d+)?(ms|us|s|m|h|:\d\d)(/(step|epoch))?\b")
_STEP = re.compile(r"^\s*(\d+/\d+|\d+/Unknown) ")


def tidy(text: str) -> str:
    """Text without times, terminal codes and the passing states of progress bars."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"\x08+|\r", "\n", text)
    lines = []
    for line in (line.rstrip() for line in text.split("\n")):
        line = re.sub(r"\s*\bETA\b.*?(?=  |$)|[━=>.\[\]]{3,}", "", _TIMES.sub("TIME", line))
        if not line:
            continue
        # of a bar, what it says last
        if _STEP.match(line) and lines and _STEP.match(lines[-1]):
            lines.pop()
        lines.append(re.sub(r"\s+", " ", line).strip())
    return "\n".join(lines)


def table(path: str) -> list[list]:
    """A CSV file's rows, numbers as floats."""

    def cell(text):
        try:
            return float(text)
        except ValueError:
            return text

    with open(path, newline="") as file:
        return [[cell(text) for text in row] for row in csv.reader(file)]


def h5_content(path: str) -> dict:
    """Every data set of an HDF5 file by its name."""
    import h5py

    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()] if item.dtype.kind in "biuf" else str(item[()])

    with h5py.File(path) as file:
        file.visititems(visit)
    return dict(sorted(found.items()))
