"""The API reference: one page for each group of public names, from signatures and docstrings.

Many functions are made from a line of a table (`sin = pointwise("sin", …)`), so names are looked up
in the imported package; griffe reads the docstrings.
"""

import importlib
import inspect
import os
import re
from collections.abc import Iterator
from typing import Any

import griffe
import numpy as np

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import kerascl as kc
import kerascl.onnx

# page -> title; modules of kerascl.ops whose names it lists; further names, "nn.": a whole module.
PAGES = {
    "arrays": ("Array and State", "", "Array State"),
    "creation": ("Making arrays", "creation dlpack grids files", "from_pyopencl"),
    "dtypes": ("Dtypes", "dtype_functions", ""),
    "elementwise": ("Elementwise", "pointwise bits parts nn", ""),
    "reductions": ("Sums, means, cumulative", "reduction scan", ""),
    "shapes": ("Shapes, joining, indexing", "movement pieces indexing choosing", ""),
    "sorting": ("Sorting, counting, sets", "sorting histograms sets", ""),
    "products": ("Products", "contraction", ""),
    "calculus": ("Numerical calculus, polynomials", "calculus polynomials", ""),
    "transforms": (
        "Gradients, capture, loops", "batching branches repeat",
        "jit grad value_and_grad jacobian hessian vjp jvp GradientTape custom_gradient "
        "stop_gradient remat loop scan",
    ),
    "own": ("Kernels of one's own", "", "elementwise reduction kernel solver"),
    "networks": ("Convolution, pooling, attention", "convolution pooling attention", ""),
    "nn": ("kerascl.nn", "", "nn."),
    "linalg": ("kerascl.linalg", "", "linalg."),
    "fft": ("kerascl.fft", "", "fft."),
    "random": ("kerascl.random", "", "random."),
    "onnx": ("kerascl.onnx", "", "onnx."),
    "devices": (
        "Devices, precision, errors", "", "current_device device_scope set_precision "
        "precision_scope KerasclError CaptureError CompileError DeviceMismatchError",
    ),
}  # fmt: skip
PUBLIC = {
    name: getattr(kc, name)
    for name in dir(kc)
    if not name.startswith("__") and callable(getattr(kc, name))
}


def pages() -> Iterator[tuple[str, str, str]]:
    """(file, title, Markdown) of each page.

    Raises:
        LookupError: when a public name is on no page.
    """
    left = dict(PUBLIC)
    for page, (title, rooms, further) in PAGES.items():
        names = dict.fromkeys(further.split())
        for room in rooms.split():
            owner = importlib.import_module(f"kerascl.ops.{room}")
            own = (n for n in owner.__all__ if _same(PUBLIC.get(n), getattr(owner, n)))
            names |= dict.fromkeys(own)
        for name in list(names):
            if name.endswith("."):
                del names[name]
                owner = getattr(kc, name[:-1])
                names |= dict.fromkeys(f"{name}{n}" for n in sorted(owner.__all__))
        found = {name: _lookup(name) for name in names}
        aliases: dict[str, list[str]] = {}
        for name, value in list(left.items()):
            target = next((n for n, v in found.items() if _same(v, value)), None)
            if target is not None and "." not in target:
                del left[name]
                if name != target:
                    aliases.setdefault(target, []).append(name)
        text = [f"# {title}\n"]
        if page == "dtypes":
            text.append(_dtypes())
            left = {n: v for n, v in left.items() if not _is_dtype(v)}
        for name, value in found.items():
            text += _entry(f"kerascl.{name}", value, aliases.get(name, []))
        yield f"{page}.md", title, "\n".join(text)
    if left:
        raise LookupError(f"names that no page of the reference lists: {', '.join(sorted(left))}")


def _same(one: Any, other: Any) -> bool:
    """Whether both are one function, wrapped or not."""
    return inspect.unwrap(one) is inspect.unwrap(other)


def _is_dtype(value: Any) -> bool:
    """Whether a name is a dtype, or a group of dtypes for `issubdtype`."""
    group = inspect.isclass(value) and issubclass(value, np.generic)
    return group or isinstance(value, kc.dtypes.DType)


def _lookup(name: str) -> Any:
    value: Any = kc
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _dtypes() -> str:
    """A table of the dtypes."""
    found = {v: n for n, v in vars(kc).items() if isinstance(v, kc.dtypes.DType) and n != "bool_"}
    rows = [f"| `kerascl.{n}` | {v.numpy.itemsize} | {v.kind} |" for v, n in found.items()]
    intro = "Each is also a function: `kerascl.float32(3.5)`. Kinds are those of NumPy.\n\n"
    return intro + "| dtype | bytes | kind |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _entry(name: str, value: Any, aliases: list[str], level: int = 2) -> Iterator[str]:
    """One name: its heading, signature, other names and docstring; a class's methods below."""
    short = name.removeprefix("kerascl.")
    yield f"{'#' * level} `{short}` {{ #{name} }}\n"
    signature = _signature(value)
    if signature and value is not kc.Array:  # nobody makes one from a node
        yield f"```python {{ .signature }}\n{name}{signature}\n```\n"
    if aliases:
        yield f"Also {', '.join(f'`{alias}`' for alias in sorted(aliases))}.\n"
    yield from _docstring(inspect.getdoc(value) or "")
    if inspect.isclass(value) and not issubclass(value, Exception) and not issubclass(value, tuple):
        for member in _members(value):
            static = inspect.getattr_static(value, member)
            if isinstance(static, property):
                yield f"{'#' * (level + 1)} `{short}.{member}` {{ #{name}.{member} }}\n"
                yield from _docstring(inspect.getdoc(static) or "")
            else:
                yield from _entry(f"{name}.{member}", getattr(value, member), [], level + 1)


def _members(value: type) -> list[str]:
    """The names of a class that tab completion offers; all public ones where it has no say."""
    offered = dir(kc.ones(1)) if value is kc.Array else dir(value)
    return [
        name
        for name in offered
        if name[0] != "_"
        and (callable(static := inspect.getattr_static(value, name, None))
             or isinstance(static, property | classmethod | staticmethod))
    ]  # fmt: skip


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"'([^'()\s]+(?: \| [^'()]+|\[[^']*\])?)'(?=[,)= ]|$)", r"\1", text)
    text = re.sub(r"\b(self)(: \w+)?(, )?", "", text, count=1)
    if len(text) <= 88:
        return text
    return re.sub(r"^\((.*)\)( -> .*)?$", _wrapped, text, flags=re.DOTALL)


def _wrapped(match: re.Match[str]) -> str:
    """A signature with one parameter a line."""
    parts, depth, start = [], 0, 0
    inside = match[1]
    for k, letter in enumerate(inside):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(inside[start:k].strip())
            start = k + 1
    parts.append(inside[start:].strip())
    lines = "".join(f"    {part},\n" for part in parts if part)
    return f"(\n{lines}){match[2] or ''}"


def _docstring(text: str) -> Iterator[str]:
    for section in griffe.Docstring(text).parse("google", warnings=False):
        if section.kind.value in ("text", "admonition"):
            value = section.value
            yield f"{value if isinstance(value, str) else value.description}\n"
            continue
        if section.kind.value == "examples":
            yield from (f"```python\n{code}\n```\n" for _, code in section.value)
            continue
        yield f"**{(section.title or section.kind.value).capitalize()}**\n"
        for item in section.value:
            head = getattr(item, "name", None)
            if section.kind.value in ("raises", "warns"):
                head = str(item.annotation)
            said = " ".join(item.description.split())
            yield f"- `{head}`: {said}" if head else f"- {said}"
        yield ""


__all__ = ["PUBLIC", "pages"]
