"""Random programs over every dtype: how they are drawn, followed, written out and made smaller."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

import kerascl as kc
from tests.fuzz import library, rules
from tests.fuzz.values import EPS, FLOATS, INTEGERS, Draw, Unfit, Value, numpy_dtype

MOST_ELEMENTS = 2500


@dataclass(frozen=True)
class Step:
    """One call: `rule` with the parameters that `seed` draws, of the values named `operands`."""

    name: str
    rule: str
    seed: int
    operands: tuple[str, ...]
    text: str

    @cached_property
    def call(self) -> Callable:
        """The text as a function of `xp` and the operands."""
        names = [f"v{k}" for k in range(len(self.operands))]
        text = f"lambda xp, {', '.join(names)}: {self.text.format(*names)}"
        return eval(text, {"kc": kc, "np": np})

    def __str__(self) -> str:
        return f"{self.name} = {self.text.format(*self.operands)}".replace("xp.", "kc.")


@dataclass
class Program:
    """Host inputs and steps by name, what NumPy gives for each, and which of them are results."""

    seed: int
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def arrays(self) -> dict[str, kc.Array]:
        return {name: kc.array(x) for name, x in self.inputs.items()}

    def run(self, arrays: dict, after: Callable = lambda name, value: None) -> dict:
        """All values, computed by kerascl from its arrays of the inputs."""
        values = dict(arrays)
        for step in self.steps:
            values[step.name] = step.call(kc, *(values[name] for name in step.operands))
            after(step.name, values[step.name])
        return values

    def check(self, name: str, found) -> str:
        """What is wrong with `found`, an Array, in words, or ""."""
        return self.values[name].wrong(found.numpy(), found.dtype.name)

    def follow(self, inputs: dict[str, np.ndarray]) -> dict[str, Value]:
        """NumPy's values from other inputs of the same shapes and dtypes.

        Raises:
            Unfit: a step does not fit them.
        """
        values = {}
        for name, x in inputs.items():
            dtype = self.values[name].dtype
            values[name] = Value(dtype, x.astype(np.float64) if dtype in EPS else x)
        for step in self.steps:
            operands = [values[name] for name in step.operands]
            value, text = rules.apply(step.rule, Draw(step.seed), *operands)
            if text != step.text:
                raise Unfit
            values[step.name] = value
        return values

    def reaching(self, outputs: list[str]) -> Program:
        """Only these outputs and what they are computed from."""
        needed = set(outputs)
        steps = []
        for step in reversed(self.steps):
            if step.name in needed:
                needed |= set(step.operands)
                steps.insert(0, step)
        inputs = {name: x for name, x in self.inputs.items() if name in needed}
        return replace(self, inputs=inputs, steps=steps, outputs=outputs)

    def beginning_at(self, name: str) -> Program:
        """With the value of a step as an input, so that it is not computed.

        Raises:
            Unfit: its value is not known exactly enough for the steps that follow.
        """
        steps = [step for step in self.steps if step.name != name]
        inputs = self.inputs | {name: self.values[name].held()}
        made = replace(self, inputs=inputs, steps=steps).reaching(self.outputs)
        return replace(made, values=made.follow(made.inputs))

    def with_input(self, name: str, array: np.ndarray) -> Program:
        """With another input; raises Unfit."""
        made = replace(self, inputs=self.inputs | {name: array})
        return replace(made, values=made.follow(made.inputs))

    def __str__(self) -> str:
        lines = ["import numpy as np", "import kerascl as kc"]
        for name, x in self.inputs.items():
            dtype = self.values[name].dtype
            if not x.size:
                host = f"np.zeros({x.shape})"
            elif np.all(x == x.flat[0]):
                host = f"np.full({x.shape}, {x.flat[0]!s})"
            elif x.size <= 300:
                host = f"np.array({x.tolist()}).reshape({x.shape})".replace("nan", "np.nan")
                host = host.replace("inf", "np.inf")
            else:
                host = f"...  # {x.dtype}{list(x.shape)} of the program with this seed"
            lines.append(f"{name} = kc.array({host}, '{dtype}')")
        lines += [str(step) for step in self.steps]
        lines += [f"print({name})" for name in self.outputs]
        return "\n".join(lines)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What tells this program from those that fail for other reasons."""
        return tuple(f"{step.rule} {self.values[step.name].dtype}" for step in self.steps)


# -- drawing
def _length(draw: Draw) -> int:
    if draw.boolean(0.75):
        return draw.randint(1, 70)
    width = draw.choice([4, 8, 16, 32, 64])
    return max(0, width * draw.randint(1, 12) + draw.randint(-1, 1))


def _shape(draw: Draw) -> list[int]:
    rank = draw.choice([0, 1, 1, 1, 2, 2, 2, 3, 3, 4])
    few = [0, 1, 1, 2, 3, 3, 4, 5, 17]
    shape = [draw.choice(few) for _ in range(rank)]
    for _ in range(2):  # one or two long axes
        if shape:
            shape[draw.randrange(rank)] = _length(draw)
    while math.prod(shape) > MOST_ELEMENTS:
        shape[shape.index(max(shape))] = draw.choice(few)
    return shape


def _host(draw: Draw, shape: tuple[int, ...]) -> tuple[np.ndarray, Value]:
    """An input array, sometimes strided, sometimes with infinities and NaN, and its reference."""
    rng = np.random.default_rng(draw.getrandbits(32))
    dtype = draw.choice(["bool", *INTEGERS, "int32", *FLOATS, *FLOATS, "float32"])
    wide = tuple(2 * n + 1 for n in shape) if draw.boolean(0.2) else None
    whole = wide or shape
    if dtype == "bool":
        array = rng.integers(0, 2, whole).astype(bool)
    elif dtype in EPS:
        array = rng.integers(-16, 17, whole) / 4 if draw.boolean() else rng.uniform(-3, 3, whole)
        array = np.asarray(array).astype(numpy_dtype(dtype))
        if draw.boolean(0.08) and array.size:
            special = np.array([np.nan, np.inf, -np.inf, -0.0]).astype(array.dtype)
            at = rng.integers(0, array.size, 1 + array.size // 4)
            array.reshape(-1)[at] = rng.choice(special, at.shape)
    else:
        info = np.iinfo(dtype)
        low, high = draw.choice([(0, 5), (-9, 9), (info.min, info.max)])
        array = rng.integers(max(low, info.min), high, whole, dtype, endpoint=True)
    array = np.asarray(array)
    if wide:
        array = array[tuple(slice(2 * n - 1 if n else 0, None if n else 0, -2) for n in shape)]
    return array, Value(dtype, array.astype(np.float64) if dtype in EPS else array)


def _partners(rule: str, values: dict[str, Value], chosen: list[str]) -> list[str]:
    """Names of the values whose shapes go with the operands chosen so far."""

    def fits(value):
        shapes = [values[name].shape for name in chosen] + [value.shape]
        if rule == "matmul":
            return value.shape and shapes[0] and value.shape[-1] == shapes[0][-1]
        if rule == "concatenate":
            return len(value.shape) == len(shapes[0])
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            return False
        return True

    return [name for name, value in values.items() if fits(value)] or chosen


_NAMES = [name for name, rule in sorted(library.RULES.items()) for _ in range(rule.weight)]


def draw_program(seed: int) -> Program:
    """Inputs of related shapes and 5 to 15 steps over them, fewer where little fits."""
    draw = Draw(seed)
    made = Program(seed)
    base = _shape(draw)
    for _ in range(draw.randint(1, 3)):
        # broadcasts against the others: fewer leading axes, some of size 1
        shape = tuple(1 if draw.boolean(0.15) else n for n in base)
        shape = shape[draw.randint(0, len(shape)) :] if draw.boolean(0.3) else tuple(base)
        name = f"x{len(made.inputs)}"
        made.inputs[name], made.values[name] = _host(draw, shape)
    wanted = draw.randint(5, 15)
    for _ in range(6 * wanted):
        if len(made.steps) == wanted:
            break
        rule = draw.choice(_NAMES)
        names = list(made.values)
        operands = [draw.choice([names[-1], names[-1], draw.choice(names)])]
        for _ in range(rules.RULES[rule].count - 1):
            operands.append(draw.choice(_partners(rule, made.values, operands)))
        draw.shuffle(operands)
        seed = draw.getrandbits(32)
        try:
            value, text = rules.apply(rule, Draw(seed), *(made.values[n] for n in operands))
        except Unfit:
            continue
        if value.array.size > MOST_ELEMENTS or value.array.ndim > 6:
            continue
        name = f"y{len(made.steps)}"
        made.steps.append(Step(name, rule, seed, tuple(operands), text))
        made.values[name] = value
    names = [*made.inputs, *(step.name for step in made.steps)]
    more = draw.several(names, 2)
    made.outputs = [name for name in names if name == names[-1] or name in more]
    return made
