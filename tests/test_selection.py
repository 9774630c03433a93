"""Which tests run when: the parts, by what their marks and numbers of cases say."""

import itertools
from types import SimpleNamespace

import pytest

from tests.selection import SHARE, chosen, one_part, part_of


def cases(name: str, count: int, **marks):
    """Items of one test as pytest makes them, as far as the selection looks at them."""
    parent = SimpleNamespace(nodeid="tests/test_it.py")

    def mark(wanted):
        return SimpleNamespace(args=(marks[wanted],)) if wanted in marks else None

    return [
        Item(
            name=f"{name}[{k}]",
            originalname=name,
            nodeid=f"{parent.nodeid}::{name}[{k}]",
            parent=parent,
            get_closest_marker=mark,
        )
        for k in range(count)
    ]


class Item(SimpleNamespace):
    __hash__ = object.__hash__


ITEMS = [
    *cases("many", 23), *cases("few", 3), *cases("one", 1), *cases("other", 1),
    *cases("slow", 2, slow=None),
    *cases("long", 2, long=None), *cases("dozens", 40, every=3),
]  # fmt: skip


def names(part, seed):
    return [item.name for item in chosen(ITEMS, part, seed)]


def test_whole():
    wanted = [f"many[{k}]" for k in range(23)] + [f"few[{k}]" for k in range(3)] + ["one[0]"]
    wanted += ["other[0]", "slow[0]", "slow[1]"] + [f"dozens[{k}]" for k in range(0, 40, 3)]
    assert names("whole", 9) == wanted


def test_each_nth_is_others_for_other_seeds():
    kept = [[item.name for item in chosen(cases("few", 4, every=7), "whole", s)] for s in range(4)]
    assert kept == [[f"few[{k}]"] for k in range(4)]
    whole = [name for seed in range(3) for name in names("whole", seed) if "dozens" in name]
    assert sorted(whole) == sorted(f"dozens[{k}]" for k in range(40))


@pytest.mark.parametrize("seed", range(16))
def test_quick_and_rest_are_the_whole(seed):
    quick, rest = names("quick", seed), names("rest", seed)
    assert sorted(quick + rest) == sorted(names("whole", seed))
    assert not set(quick) & set(rest)
    counts = [
        sum(name.startswith(test) for name in quick) for test in ("many", "few", "one", "slow")
    ]
    assert counts[0] in (2, 3) and counts[1:] == [1, names("quick", seed + 2).count("one[0]"), 0]


def test_single_cases_take_turns():
    for name in ("one[0]", "other[0]"):
        turns = [name in names("quick", seed) for seed in range(6)]
        assert turns in ([True, False] * 3, [False, True] * 3)


def test_all_cases_are_quick_for_some_seed():
    met = {name for seed in range(60) for name in names("quick", seed)}
    alike = [item.name for item in ITEMS if item.name.startswith("dozens")]
    assert met - set(alike) == set(names("whole", 0)) - {"slow[0]", "slow[1]", *alike}


def test_ci_meets_all_cases_in_turn():
    """Of a seed's quick cases and the part of the rest that .ci/run takes of it."""
    items = [item for n in range(2, 12) for item in cases(f"each{n}", 80, every=n)] + ITEMS[:29]
    met = set()
    for seed in range(400):
        half = one_part(chosen(items, "whole", seed), part_of(f"{seed // SHARE % 2 + 1}/2"))
        met |= {x.name for x in chosen(items, "quick", seed)} | {x.name for x in half}
    assert met == {item.name for item in items if item.get_closest_marker("long") is None}


def test_marks_of_a_case_are_its_own():
    items = [*cases("some", 3), *cases("some", 4, long=None)[3:], *cases("some", 5, slow=None)[4:]]
    whole = [item.name for item in chosen(items, "whole", 0)]
    assert whole == ["some[0]", "some[1]", "some[2]", "some[4]"]
    quick = {item.name for seed in range(12) for item in chosen(items, "quick", seed)}
    assert quick == {"some[0]", "some[1]", "some[2]"}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_parts_of_items_are_the_whole(count):
    parts = [
        [item.name for item in one_part(ITEMS, part_of(f"{k}/{count}"))]
        for k in range(1, count + 1)
    ]
    assert sorted(itertools.chain(*parts)) == sorted(item.name for item in ITEMS)
    for part in parts:  # each has its share of the cases of each test, and what any period shows
        many = [int(name[5:-1]) for name in part if name.startswith("many")]
        assert 23 // count - 1 <= len(many) <= 23 // count + 1
        assert {k % count for k in many} == set(range(count))


def test_parts_share_out_tests_of_one_case():
    items = [item for k in range(40) for item in cases(f"single{k}", 1)]
    assert 10 <= len(one_part(items, part_of("1/2"))) <= 30


def test_parts_are_the_whole():
    numbers = list(range(11))
    assert sorted(n for k in (1, 2, 3) for n in numbers[part_of(f"{k}/3")]) == numbers
    assert numbers[part_of("1/1")] == numbers
    for wrong in ("0/3", "4/3", "2", "a/b", "1/2/3"):
        with pytest.raises(ValueError):
            part_of(wrong)
