"""Runs forms of kernels over lengths, eagerly and captured, and compares them with NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import kerascl as kc
from tests.canaries.forms import LIBRARY, Form, expected, inputs, wrong

TOGETHER = 24  # forms in one captured function


def mismatches(
    chosen: list[Form], dtype: str, n: int, rng: np.random.Generator, captured: bool
) -> Iterator[tuple[Form, str]]:
    """The forms that are wrong at a length, and what is wrong."""
    cases = []
    for form in chosen:
        hosts = inputs(form, dtype, n, rng)
        right = expected(form, hosts, dtype)
        if right is not None:
            cases.append((form, hosts, right))
    for start in range(0, len(cases), TOGETHER):
        some = cases[start : start + TOGETHER]
        results = _results(some, captured)
        for (form, _, right), found in zip(some, results, strict=True):
            if isinstance(found, Exception):
                yield form, f"{type(found).__name__}: {found}"
            elif text := wrong(found, right, n):
                yield form, text


def _results(cases: list, captured: bool) -> list:
    if captured:
        run = kc.jit(lambda arrays: [f.run(LIBRARY, *xs) for (f, _, _), xs in zip(cases, arrays)])
        try:
            arrays = [[kc.array(x) for x in hosts] for _, hosts, _ in cases]
            return [array.numpy() for array in run(arrays)]
        except Exception as error:
            if len(cases) == 1:
                return [error]
            return [_results([case], True)[0] for case in cases]
    results = []
    for form, hosts, _ in cases:
        try:
            results.append(form.run(LIBRARY, *map(kc.array, hosts)).numpy())
        except Exception as error:
            results.append(error)
    return results
