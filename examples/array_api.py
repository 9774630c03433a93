"""kerascl without Keras: a small network fitted to medical data with hand-written momentum.

    python examples/array_api.py

Uses arrays, the tape, states and capture alone. The data, 442 patients with ten measurements each
and the progress of their diabetes a year later, comes with scikit-learn.
"""

import argparse

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sklearn.datasets import load_diabetes

import kerascl as kc


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test inputs (n, 10) and targets (n, 1), float32, in units of their spread."""
    data = load_diabetes()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    y = ((data.target - data.target.mean()) / data.target.std())[:, None]
    order = np.random.default_rng(1).permutation(len(x))
    x, y = (a[order].astype("float32") for a in (x, y))
    return x[:350], y[:350], x[350:], y[350:]


def initial(generator, *shape: int) -> kc.State:
    """A weight with the spread that keeps activations at theirs, or a bias of zeros."""
    scale = shape[0] ** -0.5 if len(shape) > 1 else 0.0
    return kc.State(kc.array((generator.normal(size=shape) * scale).astype("float32")))


def predict(weights, x):
    """(n, 10) -> (n, 1): one hidden layer of tanh."""
    w1, b1, w2, b2 = (w.value for w in weights)
    return kc.matmul(kc.tanh(kc.matmul(x, w1) + b1), w2) + b2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=32, help="hidden units")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate")
    parser.add_argument("--decay", type=float, default=0.02, help="weight decay")
    parser.add_argument("--picture", default="array_api.png", help='"" saves none')
    options = parser.parse_args()

    x_train, y_train, x_test, y_test = (kc.array(a) for a in load())
    generator = np.random.default_rng(1)
    shapes = (10, options.width), (options.width,), (options.width, 1), (1,)
    weights = [initial(generator, *shape) for shape in shapes]
    speeds = [kc.State(kc.zeros(shape)) for shape in shapes]

    @kc.jit
    def step(x, y):
        """One step of gradient descent with momentum; the loss before it."""
        with kc.GradientTape() as tape:
            loss = kc.mean((predict(weights, x) - y) ** 2)
        for weight, speed, gradient in zip(
            weights, speeds, tape.gradient(loss, weights), strict=True
        ):
            speed.assign(
                0.9 * speed.value - options.rate * (gradient + options.decay * weight.value)
            )
            weight.assign(weight.value + speed.value)
        return loss

    history = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.4f}")) as progress:
        task = progress.add_task("fitting", total=options.steps, loss=float("nan"))
        for _ in range(options.steps):
            history.append(step(x_train, y_train))  # not read: the device runs ahead
            if len(history) % 50 == 0 or len(history) == options.steps:
                progress.update(task, completed=len(history), loss=float(history[-1].numpy()))
    losses = [float(loss.numpy()) for loss in history]

    guesses, truth = predict(weights, x_test).numpy(), y_test.numpy()
    explained = 1 - np.square(guesses - truth).sum() / np.square(truth - truth.mean()).sum()
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; on unseen patients R² = {explained:.3f}")

    if options.picture:
        picture(options.picture, losses, truth, guesses)


def picture(file: str, losses, truth, guesses) -> None:
    """Saves the loss over time and the guesses against the truth, if matplotlib is there."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4))
    left.semilogy(losses)
    left.set(xlabel="step", ylabel="mean squared error")
    right.scatter(truth, guesses, s=10)
    right.axline((0, 0), slope=1, color="gray", linewidth=1)
    right.set(xlabel="progress, in standard deviations", ylabel="as guessed")
    figure.tight_layout()
    figure.savefig(file)
    print(f"{file} shows the fit")


if __name__ == "__main__":
    main()
