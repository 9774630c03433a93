"""What is lowered: networks, the table of operations, random programs, and single problems.

A suite is a list of jobs, each for a process of its own, which pretends to be the first of the
profiles: what tests ask of the device at hand (doubles, mostly) is then true of all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import numpy as np

from kerascl.runtime import device
from tests import profiles
from tests.offline.texts import Text, Texts, units_work

SUITES = ("small", "imagenet", "half", "table", "random", "problems")
PROGRAMS = 64  # random ones
TOGETHER = 8  # random programs, or rows of the table, in one captured function

Job = tuple[str, str, tuple[str, ...]]  # suite, part of it, profiles


def jobs(suites: Iterable[str], names: Iterable[str]) -> list[Job]:
    """The jobs of suites for profiles, the longest first."""
    from tests.offline import networks

    everyone = tuple(names)
    small = networks.SMALL
    large = tuple(name for name in networks.NETWORKS if name not in small)
    parts = {
        "small": small, "imagenet": large, "half": ("cnn", "transformer", "resnet20"),
        "problems": ("matmul", "conv", "fft", "attention"), "table": ("",), "random": ("",),
    }  # fmt: skip
    found: list[Job] = []
    for suite in suites:
        for part in parts[suite]:
            for group in _by_doubles(everyone) if suite in ("table", "random") else (everyone,):
                found.append((suite, part, group))
    return sorted(found, key=lambda job: job[1] not in large)


def _by_doubles(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The profiles with doubles, and those without."""
    with_doubles = tuple(name for name in names if profiles.load()[name].info.fp64)
    without = tuple(name for name in names if name not in with_doubles)
    return [group for group in (with_doubles, without) if group]


def collect(job: Job) -> tuple[list[Text], list[tuple[str, str, str]]]:
    """The texts of a job, and what was refused; for a process that has done nothing before."""
    os.environ |= {"KERAS_BACKEND": "kerascl", "KERASCL_CHECK": "0"}
    suite, part, names = job
    profiles.pretend(names[0])
    device.default()
    units_work()
    texts = Texts({name: profiles.load()[name].info for name in names})
    if suite in ("small", "imagenet"):
        _network(texts, part)
    elif suite == "half":
        _network(texts, part, "mixed_float16")
        _network(texts, part, "mixed_bfloat16")
    else:
        {"table": _table, "random": _random, "problems": _problems}[suite](texts, part)
    return list(texts.by_text.values()), sorted(texts.refused)


def _network(texts: Texts, name: str, policy: str = "float32") -> None:
    """Training and prediction."""
    import keras

    from tests.offline import networks

    keras.config.set_dtype_policy(policy)
    model = networks.NETWORKS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    x, y = networks.samples(model, networks.BATCHES.get(name, 16), np.random.default_rng(0))
    label = name if policy == "float32" else f"{name} {policy}"
    with texts.collecting(f"{label} fit"):
        model.train_on_batch(x, y)
    with texts.collecting(f"{label} predict"):
        model.predict_on_batch(x)


def _table(texts: Texts, _: str) -> None:
    """Each row by itself at once, and rows together in captured functions with their slopes."""
    import kerascl as kc
    from tests.ops import table

    rng = np.random.default_rng(0)
    wide = "float64" if device.default().info.fp64 else "float32"

    def arrays(case, dtype: str) -> list:
        given = map(np.asarray, case.inputs(rng))
        return [kc.array(x.astype(dtype) if x.dtype.kind == "f" else x) for x in given]

    for case in table.CASES:
        xs = arrays(case, "float32")
        with texts.collecting(f"{case.label} at once", eager=True):
            _evaluate(case.call(*xs))
    plain = [case for case in table.CASES if case.name not in table.READ_THE_HOST]
    for start in range(0, len(plain), TOGETHER):
        cases = plain[start : start + TOGETHER]
        for dtype in dict.fromkeys((wide, "float32", "bfloat16", "float16")):
            given = [arrays(case, dtype) for case in cases]

            def values(given, cases=cases):
                return [case.call(*xs) for case, xs in zip(cases, given, strict=True)]

            def slopes(given, cases=cases):
                found = []
                for case, xs in zip(cases, given, strict=True):
                    floats = [x for x in xs if x.dtype.is_float]
                    with kc.GradientTape() as tape:
                        tape.watch(floats)
                        y = case.call(*xs)
                    if case.slopes and floats and y.dtype.is_float:
                        found.append(tape.gradient(y, floats))
                return found

            with texts.collecting(f"table {cases[0].label} {dtype}"):
                kc.jit(values)(given)
            if dtype != wide or wide == "float32":
                with texts.collecting(f"table {cases[0].label} {dtype} slopes"):
                    kc.jit(slopes)(given)


def _evaluate(found) -> None:
    import kerascl as kc

    for x in found if isinstance(found, (list, tuple)) else (found,):
        if isinstance(x, kc.Array):
            x.evaluate()


def _random(texts: Texts, _: str) -> None:
    """Programs of tests.fuzz with fixed seeds."""
    import kerascl as kc
    from tests.fuzz.program import draw_program

    for first in range(0, PROGRAMS, TOGETHER):
        programs = [draw_program(seed) for seed in range(first, first + TOGETHER)]

        def run(inputs, programs=programs):
            found = []
            for program, arrays in zip(programs, inputs, strict=True):
                values = program.run(arrays)
                found.append([values[name] for name in program.outputs])
            return found

        given = [program.arrays() for program in programs]
        with texts.collecting(f"random {first}"):
            kc.jit(run)(given)


def _problems(texts: Texts, kind: str) -> None:
    """Problems of a kind, of many shapes, dtypes and strides, by the solver that is chosen."""
    from kerascl.kernels.contract.epilogue import store_epilogue
    from tests.offline import problems

    for problem, plan in problems.of(kind):
        dtype = problem.dtype if kind == "attention" else problem.acc
        for name, info in texts.ways():
            if dtype.is_double and not info.fp64:
                continue
            with contextlib.suppress(NotImplementedError):
                for launch in plan(problem, info, store_epilogue(dtype)).launches:
                    texts.add(f"{kind} {problem}", name, launch.source, launch.options, launch)
