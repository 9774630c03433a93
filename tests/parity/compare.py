"""What a program saw, as a flat list of leaves; how leaves are kept in files and compared."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).with_name("references")
_WHOLE = 48  # elements of an array that are kept as they are
_SAMPLES, _SUMS = 24, 6  # of a larger one: elements, and sums with random signs
_SMALL = 1e-6  # differences are relative to an array's norm, or to elements of this size
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|nan\b|inf\b)", re.IGNORECASE)

# (path, kind, content): kind is a dtype and shape for arrays, else a Python type's name; content is
# a float32 vector for floats and else something exact.
Leaf = tuple[str, str, object]


def leaves(value, keras, path: str = "") -> list[Leaf]:
    """Everything in a nested result, in its order."""
    if isinstance(value, dict):
        return [x for k, v in value.items() for x in leaves(v, keras, f"{path}/{k}")]
    if isinstance(value, list | tuple):
        if value and all(type(v) is float for v in value):
            return [(path, f"{len(value)} floats", _digest(np.asarray(value)))]
        if all(isinstance(v, str | int) for v in value):
            return [(path, "list", list(value))]
        return [x for i, v in enumerate(value) for x in leaves(v, keras, f"{path}[{i}]")]
    if value is None or isinstance(value, str | bool | int):
        return [(path, type(value).__name__, value)]
    if type(value) is float:
        return [(path, "float", _digest(np.asarray(value)))]
    dtype = keras.backend.standardize_dtype(value.dtype)
    array = value if isinstance(value, np.ndarray | np.generic) else (
        keras.ops.convert_to_numpy(value)
    )  # fmt: skip
    array = np.asarray(array)
    kind = f"{dtype}{list(array.shape)}"
    if "float" in dtype:
        return [(path, kind, _digest(array.astype("float64")))]
    if array.size <= _WHOLE:
        return [(path, kind, array.tolist())]
    return [(path, kind, zlib.crc32(np.ascontiguousarray(array).tobytes()))]


def _digest(array: np.ndarray) -> np.ndarray:
    """A few float32 numbers of the size of the array's, that together tell of each element."""
    flat = array.ravel()
    if flat.size <= _WHOLE:
        return flat.astype("float32")
    samples = flat[np.linspace(0, flat.size - 1, _SAMPLES).astype(int)]
    rng = np.random.default_rng(flat.size)
    with np.errstate(invalid="ignore"):
        sums = [flat @ rng.choice([-1.0, 1.0], flat.size) for _ in range(_SUMS)]
    return np.concatenate([samples, np.asarray(sums) / np.sqrt(flat.size)]).astype("float32")


def difference(ours: list[Leaf], theirs: list[Leaf], tolerance: float, text: bool = True):
    """How far two results are apart.

    Args:
        tolerance: greatest relative difference of float32; of smaller floats in proportion.
        text: whether what is printed counts.

    Returns:
        (the largest difference over tolerance, its path, a list of what does not agree)
    """
    wrong, worst, where = [], 0.0, ""
    names, expected = [x[0] for x in ours], [x[0] for x in theirs]
    if names != expected:
        missing = [n for n in expected if n not in names]
        extra = [n for n in names if n not in expected]
        wrong.append(f"missing {missing}, unexpected {extra}" if missing or extra
                     else f"other order: {names} for {expected}")  # fmt: skip
    known = {path: (kind, content) for path, kind, content in theirs}
    for path, kind, content in ours:
        if path not in known:
            continue
        other_kind, other = known[path]
        if kind != other_kind:
            wrong.append(f"{path}: {kind} for {other_kind}")
        elif isinstance(content, np.ndarray):
            share = _distance(content, other) / (tolerance * _coarseness(kind))
            if not share <= 1:
                wrong.append(f"{path}: {share:.3g} of the tolerance; {content[:6]} for {other[:6]}")
            if not share <= worst:
                worst, where = share, path
        elif kind == "str":
            if text and not same_text(content, other, tolerance):
                wrong.append(f"{path}: text\n{content}\nfor\n{other}")
        elif content != other:
            wrong.append(f"{path}: {content} for {other}")
    return worst, where, wrong


def _coarseness(kind: str) -> float:
    return {"float16": 2.0**13, "bfloat16": 2.0**16}.get(kind.split("[")[0], 1.0)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of the difference of two digests over the norm of the second."""
    finite = np.isfinite(b)
    if a.shape != b.shape or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf
    a, b = a[finite].astype("float64"), b[finite].astype("float64")
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), _SMALL * np.sqrt(b.size), 1e-30))


def same_text(a: str, b: str, tolerance: float) -> bool:
    """Equal but for the last digits of numbers with a point or an exponent."""
    if _NUMBER.split(a) != _NUMBER.split(b):
        return False
    for m, n in zip(_NUMBER.findall(a), _NUMBER.findall(b)):
        mantissa, _, exponent = n.lower().partition("e")
        last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        if m.lower() != n.lower() and not (
            abs(float(m) - float(n)) <= 1.01 * last + tolerance * abs(float(n))
        ):
            return False
    return True


# -- files
def save(file: Path, results: dict[str, list[Leaf]], about: dict) -> None:
    """Writes results by name, with facts about where they come from."""
    numbers, index = [], {"about": about, "results": {}}
    for name, result in results.items():
        index["results"][name] = rows = []
        for path, kind, content in result:
            if isinstance(content, np.ndarray):
                numbers.append(content)
                rows.append([path, kind, content.size])
            else:
                rows.append([path, kind, {"is": content}])
    text = np.frombuffer(json.dumps(index).encode(), "uint8")
    floats = np.concatenate(numbers) if numbers else np.zeros(0, "float32")
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, index=text, floats=floats)


def load(file: Path) -> tuple[dict[str, list[Leaf]], dict]:
    """(results by name, facts about where they come from)"""
    with np.load(file) as stored:
        index, floats = json.loads(stored["index"].tobytes()), stored["floats"]
    results, at = {}, 0
    for name, rows in index["results"].items():
        results[name] = result = []
        for path, kind, content in rows:
            if isinstance(content, int):
                result.append((path, kind, floats[at : at + content]))
                at += content
            else:
                result.append((path, kind, content["is"]))
    return results, index["about"]
