"""Runs random programs in every way there is, compares, and makes those that fail smaller."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

import kerascl as kc
from tests.fuzz.program import Program
from tests.fuzz.rehearsal import Rehearsal
from tests.fuzz.values import Draw, Unfit, Value, inexactly, require

CALLS = 3  # of a captured function: traced, bound and replayed


@dataclass
class Mismatch:
    """A program that kerascl gives a wrong result for, run in the way named."""

    program: Program
    way: str
    what: str

    @property
    def key(self) -> str:
        return f"{self.way}: {', '.join(self.program.kinds)}"

    def __str__(self) -> str:
        what = self.what.replace("\n", "\n# ")
        return f"# seed {self.program.seed}, {self.way}: {what}\n{self.program}"


def _in_steps(program: Program) -> dict:
    """The values, each evaluated before the next."""
    return program.run(program.arrays(), lambda name, value: value.evaluate())


def in_steps(program: Program) -> str:
    found = _in_steps(program)
    return _first_wrong(program, {step.name: found[step.name] for step in program.steps})


def _at_once(program: Program) -> dict:
    """The results, and a few values that somebody holds: no others exist."""
    draw = Draw(program.seed)
    held = {}

    def after(name, value):
        if draw.boolean(0.2):
            held[name] = value
            if draw.boolean(0.3):
                value.evaluate()

    values = program.run(program.arrays(), after)
    held |= {name: values[name] for name in program.outputs}
    del values
    return {name: held[name] for name in reversed(held)}


def at_once(program: Program) -> str:
    return _first_wrong(program, _at_once(program))


def _first_wrong(program: Program, found: dict) -> str:
    wrongs = ((name, program.check(name, value)) for name, value in found.items())
    return next((f"{name} {wrong}" for name, wrong in wrongs if wrong), "")


def captured(programs: list[Program]) -> list[str]:
    """All in one captured function; what is wrong with each, or ""."""

    @kc.jit
    def run(inputs):
        found = []
        for program, arrays in zip(programs, inputs, strict=True):
            values = program.run(arrays)
            found.append({name: values[name] for name in program.outputs})
        return found

    wrongs = [""] * len(programs)
    for call in range(CALLS):
        found = run([program.arrays() for program in programs])
        for k, program in enumerate(programs):
            wrong = _first_wrong(program, found[k])
            if wrong and not wrongs[k]:
                wrongs[k] = f"call {call + 1}: {wrong}"
    return wrongs


def _choices(program: Program, values: dict[str, Value]) -> list[bytes]:
    """What is decided on the way: where that holds at one point only, differences do not see it."""
    chosen = [v.array for v in values.values() if not v.is_float]
    for step in program.steps:
        if step.rule in ("sign", "floor", "ceil", "trunc", "round"):
            chosen.append(values[step.name].array)
        elif step.rule == "choose":
            x, y = (values[name].array for name in step.operands)
            chosen += [x < y, x == y]
    return [np.asarray(array).tobytes() for array in chosen]


@dataclass
class _Slope:
    """Along a random direction: of which inputs and weighted results, and what is expected."""

    along: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    expected: float

    def gradients(self, program: Program) -> list:
        arrays = program.arrays()

        def loss(variables):
            values = program.run(arrays | dict(zip(self.along, variables, strict=True)))
            return sum(
                kc.sum(kc.cast(values[n], "float32") * w.astype("f4"))
                for n, w in self.weights.items()
            )

        return kc.grad(loss)([arrays[n] for n in self.along])


def _slope(program: Program) -> _Slope | None:
    """From differences of NumPy's float64 values.

    Left out are programs with 16-bit floats, those that amplify errors, and steps or kinks nearby.
    """
    inputs = [n for n, x in program.inputs.items() if x.dtype.name in ("float32", "float64")]
    outputs = [n for n in program.outputs if program.values[n].dtype in ("float32", "float64")]
    known = all(
        v.finite and v.dtype not in ("float16", "bfloat16") and np.all(v.error < 1e-3)
        for v in program.values.values()
    )
    if not (known and inputs and outputs):
        return None
    rng = np.random.default_rng(program.seed)
    weights = {n: rng.uniform(-1, 1, program.values[n].shape) for n in outputs}
    along = {n: rng.uniform(-1, 1, program.inputs[n].shape) for n in inputs}

    choices: dict[str, list[bytes]] = {}

    def value(distance: float) -> float:
        moved = {n: program.inputs[n] + distance * along[n] for n in inputs}
        values = program.follow(program.inputs | moved)
        chosen = _choices(program, values)
        require(chosen == choices.setdefault("here", chosen))
        return sum(float(np.sum(values[n].array * weights[n])) for n in outputs)

    try:
        with inexactly():
            middle = value(0.0)
            near, far = 1e-5, 3e-5
            sides = [(value(d) - middle) / d for d in (near, -near, far, -far)]
    except Unfit:
        return None
    expected = (sides[0] + sides[1]) / 2
    if not np.isfinite(expected) or np.ptp(sides) > 1e-3 * (1 + abs(expected)):
        return None
    return _Slope(along, weights, expected)


def slopes(program: Program) -> str:
    """The gradient along a random direction against differences.

    What is wrong must be so at a point nearby as well: at equal elements, or where a condition
    holds at one point only, there is no slope, and differences may not tell.
    """
    wrong = _wrong_slope(program)
    return wrong if wrong and any(map(_wrong_slope, _nearby(program))) else ""


def _nearby(program: Program) -> Iterator[Program]:
    """The program with inputs that are slightly others."""
    rng = np.random.default_rng(program.seed)
    for distance in (1e-4, 1e-3, 3e-3, 1e-2):
        inputs = {
            n: (x + distance * rng.uniform(-1, 1, x.shape)).astype(x.dtype)
            if x.dtype.name in ("float32", "float64")
            else x
            for n, x in program.inputs.items()
        }
        with contextlib.suppress(Unfit), inexactly():
            yield replace(program, inputs=inputs, values=program.follow(inputs))


def _wrong_slope(program: Program) -> str:
    slope = _slope(program)
    if slope is None:
        return ""
    gradients, along, expected = slope.gradients(program), slope.along, slope.expected
    terms = [
        g.numpy().astype(np.float64) * along[n]
        for n, g in zip(along, gradients, strict=True)
        if g is not None
    ]
    found = sum(float(np.sum(t)) for t in terms)
    scale = 1 + abs(expected) + sum(float(np.sum(np.abs(t))) for t in terms)
    if abs(found - expected) <= 3e-3 * scale:
        return ""
    return f"the slope is {found:.6g} instead of {expected:.6g}"


ALONE: dict[str, Callable[[Program], str]] = {
    "step by step": in_steps,
    "at once": at_once,
    "captured": lambda program: captured([program])[0],
    "gradient": slopes,
}


def _safely(way: str, program: Program) -> str:
    try:
        return ALONE[way](program)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"


# The share of programs that run so besides being captured.
SHARES = {"at once": 0.5, "step by step": 0.25, "gradient": 0.25}


def _rehearsed(way: str, program: Program) -> None:
    """Evaluate what `way` evaluates, and look at nothing."""
    if way == "gradient":
        slope = _slope(program)
        found = dict(enumerate(slope.gradients(program))) if slope else {}
    else:
        found = (_at_once if way == "at once" else _in_steps)(program)
    for value in found.values():
        if value is not None:
            value.evaluate()


def _eager_ways(program: Program, every_way: bool) -> list[str]:
    draw = Draw(program.seed)
    return [way for way, share in SHARES.items() if draw.boolean(share) or every_way]


def mismatches(programs: list[Program], every_way: bool = False) -> Iterator[Mismatch]:
    """What is wrong with programs, in one way each, not made smaller."""
    try:
        wrongs = captured(programs)
    except Exception:  # one of them: found alone
        wrongs = [_safely("captured", program) for program in programs]
    chosen = [_eager_ways(program, every_way) for program in programs]
    rehearsal = Rehearsal()
    with rehearsal():
        for program, ways in zip(programs, chosen, strict=True):
            for way in ways:
                with contextlib.suppress(Exception):  # it will be told of below
                    _rehearsed(way, program)
    rehearsal.build()
    for program, ways, wrong in zip(programs, chosen, wrongs, strict=True):
        if wrong:
            alone = _safely("captured", program)
            more = "" if alone else f" (only together with those of {programs[0].seed} on)"
            yield Mismatch(program, "captured", (alone or wrong) + more)
            continue
        for way in ways:
            if wrong := _safely(way, program):
                yield Mismatch(program, way, wrong)
                break


def smaller(found: Mismatch) -> Mismatch:
    """The same mismatch with fewer results, fewer steps and plainer inputs, as far as it goes."""

    best = [found]

    def kind(what: str) -> str:
        """An error's name: another error would be another mismatch."""
        head = what.split(":")[0]
        return head if head.endswith("Error") else ""

    def still(program: Program) -> bool:
        wrong = _safely(found.way, program)
        if not wrong or kind(wrong) != kind(found.what):
            return False
        best.append(Mismatch(program, found.way, wrong))
        return True

    def attempt(make: Callable[[], Program]) -> bool:
        with contextlib.suppress(Unfit):
            return still(make())
        return False

    names = [step.name for step in found.program.steps]
    for name in names if found.way != "gradient" else found.program.outputs:
        if attempt(lambda: best[-1].program.reaching([name])):  # noqa: B023
            break
    progress = True
    while progress:
        progress = False
        for step in reversed(best[-1].program.steps[:-1]):
            if step in best[-1].program.steps:
                progress |= attempt(lambda: best[-1].program.beginning_at(step.name))  # noqa: B023
    for name, x in best[-1].program.inputs.items():
        for plain in (np.ones(x.shape), np.arange(x.size).reshape(x.shape) % 7 - 3.0):
            if attempt(lambda: best[-1].program.with_input(name, plain.astype(x.dtype))):  # noqa: B023
                break
    program = best[-1].program
    names = [*program.inputs, *(step.name for step in program.steps)]
    used = {name: program.values[name] for name in names}
    return replace(best[-1], program=replace(program, values=used))
