"""Which of the tests collected run: a quick part, the rest, or the whole."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

SHARE = 8  # of a test's cases one in so many is quick
ALONE = 2  # of tests of one case one in so many


def chosen(items: Iterable[Any], part: str, seed: int) -> list[Any]:
    """Of pytest's items those of a part: "quick", "rest" (the whole without it) or "whole".

    The whole leaves out tests marked `long` and, of those marked `every(n)`, all cases but each
    nth. Quick are a share of each test's cases and of the tests that have but one, and no test
    marked `slow`. Both take others for other seeds. Cases count through their parameters as
    through the digits of a number: where n shares no factor with the numbers of values, each nth
    meets all values of all of them.
    """
    whole, quick = [], []
    for cases in _by_test(items):
        every = cases[0].get_closest_marker("every")
        if every is not None:
            cases = cases[seed % min(every.args[0], len(cases)) :: every.args[0]]
        cases = [case for case in cases if case.get_closest_marker("long") is None]
        whole += cases
        cases = [case for case in cases if case.get_closest_marker("slow") is None]
        if len(cases) == 1:
            first = seed + zlib.crc32(cases[0].nodeid.encode())
            quick += cases if first % ALONE == 0 else []
        elif cases:
            quick += cases[seed % min(SHARE, len(cases)) :: SHARE]
    if part == "whole":
        return whole
    return quick if part == "quick" else [item for item in whole if item not in set(quick)]


def one_part(items: Iterable[Any], part: slice) -> list[Any]:
    """Of pytest's items the i-th of n parts (as of `part_of`): of each test about one case in n.

    Rounds of n cases each begin with another part than the round before, so that a part meets all
    values of a parameter that has n; and tests begin with different parts, which shares out those
    of one case.
    """
    kept = []
    for cases in _by_test(items):
        first = zlib.crc32(cases[0].nodeid.split("[")[0].encode())
        kept += [
            case
            for k, case in enumerate(cases, first)
            if (k + (k - first) // part.step) % part.step == part.start
        ]
    return kept


def part_of(text: str) -> slice:
    """The i-th of n parts of a list, as i/n: "2/3" -> slice(1, None, 3).

    Raises:
        ValueError: it is no such text, or there is no such part.
    """
    first, count = map(int, text.split("/"))
    if not 1 <= first <= count:
        raise ValueError(f"{text} is no part i/n with 1 <= i <= n")
    return slice(first - 1, None, count)


def _by_test(items: Iterable[Any]) -> Iterable[list[Any]]:
    """Items in their order, those of one test in a list."""
    tests: dict[tuple, list] = {}
    for item in items:
        name = getattr(item, "originalname", item.name)
        tests.setdefault((item.parent.nodeid, name), []).append(item)
    return tests.values()
