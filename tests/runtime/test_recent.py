"""Values kept up to a weight; those in use are found for as long as somebody holds them."""

import pytest

from kerascl.runtime.recent import Recent


class Thing:
    def __init__(self, weight=1):
        self.weight = weight


def test_what_was_unused_for_longest_makes_room():
    kept = Recent(2)
    for key in "ab":
        kept.setdefault(key, Thing())
    kept.get("a")
    kept.setdefault("c", Thing())
    assert [key for key in "abc" if key in kept] == ["a", "c"]
    assert len(kept) == kept.alive() == 2


def test_weights_are_added_up_and_the_last_one_stays():
    kept = Recent(10, lambda thing: thing.weight)
    for key, weight in dict(a=4, b=5, c=3).items():
        kept.setdefault(key, Thing(weight))
    assert [key for key in "abc" if key in kept] == ["b", "c"]
    kept.pop("b")
    kept.setdefault("d", Thing(7))
    assert [key for key in "cd" if key in kept] == ["c", "d"]
    kept.setdefault("e", Thing(99))
    assert [key for key in "cde" if key in kept] == ["e"]


def test_what_made_room_is_found_while_it_is_held_and_then_never_again():
    kept = Recent(1)
    held = kept.setdefault("a", Thing())
    kept.setdefault("b", Thing())
    assert len(kept) == 1 and kept.alive() == 2
    assert kept.get("a") is held  # and counts as used now
    assert "b" not in kept and kept.alive() == 1
    kept.setdefault("c", Thing())
    assert kept.setdefault("a", Thing()) is held
    kept.setdefault("c", Thing())
    del held
    assert kept.get("a") is None and kept.alive() == 1


@pytest.mark.parametrize("method", ["let_go", "clear"])
def test_letting_go_keeps_what_is_in_use_and_clearing_nothing(method):
    kept = Recent(3)
    held = kept.setdefault("a", Thing())
    kept.setdefault("b", Thing())
    getattr(kept, method)()
    assert len(kept) == 0 and kept.alive() == (method == "let_go")
    assert kept.get("a") is (held if method == "let_go" else None)
    for key in "cdef":  # what is forgotten weighs no longer
        kept.setdefault(key, Thing())
    assert [key for key in "cdef" if key in kept] == ["d", "e", "f"]


def test_keys_of_dead_values_are_swept_out():
    kept = Recent(1)
    for key in range(1000):
        kept.setdefault(key, Thing())
    assert len(kept._others) <= 200
