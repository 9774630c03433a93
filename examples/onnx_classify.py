"""Classify a picture with an ONNX model: the first five classes, and the picture with their names.

    KERAS_BACKEND=kerascl python examples/onnx_classify.py IMAGE MODEL [--classes NAMES.txt]

The model takes pictures as networks of torchvision do: (n, 3, height, width), less ImageNet's mean
and by its deviation. NAMES.txt has a class on each line. Without arguments a small network learns
handwritten digits, is written as ONNX, loaded again, and classifies one of them.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
import matplotlib
import numpy as np
from sklearn.datasets import load_digits

import kerascl.onnx

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture_of(path: Path, height: int, width: int) -> np.ndarray:
    """The middle of a picture at a size, (height, width, 3) in 0 to 1."""
    image = keras.utils.load_img(
        path, target_size=(height, width), interpolation="bilinear", keep_aspect_ratio=True
    )
    return keras.utils.img_to_array(image) / 255


def normalised(picture: np.ndarray) -> np.ndarray:
    """(1, 3, height, width) as networks of torchvision expect it."""
    x = (picture - np.array(MEAN)) / np.array(DEVIATION)
    return x.transpose(2, 0, 1)[None].astype(np.float32)


def digits(folder: Path, steps: int) -> tuple[Path, np.ndarray, np.ndarray]:
    """A model file that knows digits, a picture (8, 8, 3) and what the model takes for it."""
    found = load_digits()
    x = (found.images[..., None] / 16).astype(np.float32)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((8, 8, 1)), layers.Conv2D(16, 3, activation="relu"), layers.Flatten(),
        layers.Dense(10),
    ])  # fmt: skip
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    count = min(len(x) - 1, 32 * steps)
    model.fit(x[:count], found.target[:count], epochs=max(1, steps // 50), verbose=0)
    path = folder / "digits.onnx"
    kerascl.onnx.save(model, path)
    return path, np.repeat(x[-1], 3, -1), x[-1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image", type=Path, nargs="?")
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--classes", type=Path, help="a file with a name on each line")
    parser.add_argument("--out", type=Path, help="the annotated picture (IMAGE.classes.png)")
    parser.add_argument("--steps", type=int, default=200, help="of learning digits")
    options = parser.parse_args()
    if options.image is not None and options.model is None:
        parser.error("a MODEL is needed with an IMAGE")
    with tempfile.TemporaryDirectory() as folder:
        if options.image is None:
            path, picture, x = digits(Path(folder), options.steps)
            out = options.out or Path(folder) / "digit.png"
            model = kerascl.onnx.load(path)
        else:
            out = options.out or options.image.with_suffix(".classes.png")
            model = kerascl.onnx.load(options.model)
            _, _, height, width = model.input_shape
            picture = picture_of(options.image, height or 224, width or 224)
            x = normalised(picture)
        outputs = model.predict(x, verbose=0)[0].reshape(-1)
        shares = np.exp(outputs - outputs.max())
        shares /= shares.sum()
        names = [str(k) for k in range(len(shares))]
        if options.classes is not None:
            names = options.classes.read_text(encoding="utf-8").splitlines()
        best = np.argsort(-shares)[:5]
        lines = [f"{shares[k]:6.1%}  {names[k]}" for k in best]
        print("\n".join(lines))
        figure, axes = plt.subplots()
        axes.imshow(picture)
        axes.set_title("\n".join(lines), loc="left", family="monospace")
        axes.axis("off")
        figure.savefig(out, bbox_inches="tight")
        if options.image is not None or options.out is not None:
            print(f"written: {out}")


if __name__ == "__main__":
    main()
