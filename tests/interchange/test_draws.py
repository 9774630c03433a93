"""What comes and goes with validate.py's draws is shown, what differs from run to run fails."""

import math

import pytest

from benchmarks.draws import COLUMNS, earlier_text, judged, not_rounding, too_large, wrong_text

FINE = dict.fromkeys(COLUMNS, 1e-6)


def draw(unsteady=None, **found):
    found = FINE | found
    return {
        "found": found, "known": FINE, "bad": too_large(found, FINE), "unsteady": unsteady or {},
    }  # fmt: skip


def test_what_is_right():
    row = judged([draw()])
    assert (row["bad"], row["unsteady"], row["earlier"], row["draws"]) == ([], {}, {}, 1)
    assert earlier_text(row) == wrong_text(row) == ""


def test_bad_each_time():
    row = judged([draw(gradient=1e-2, loss=1e-3), draw(gradient=2e-2), draw(gradient=1e-3)])
    assert row["bad"] == ["gradient"] and wrong_text(row) == "gradient"
    assert row["earlier"] == {"loss": [1e-3, 1e-6], "gradient": [2e-2, 1e-6]}


def test_what_comes_and_goes_is_shown():
    row = judged([draw(worst=3e-3), draw(worst=math.nan), draw()])
    assert wrong_text(row) == "" and row["draws"] == 3
    assert earlier_text(row) == "worst nan (1.0e-06)"


@pytest.mark.parametrize("first", [True, False])
def test_what_differs_from_run_to_run_fails(first):
    unsteady, steady = draw({"gradient": 5e-4}, gradient=1e-2), draw(gradient=1e-2)
    row = judged([*((unsteady, steady) if first else (steady, unsteady)), draw()])
    assert row["bad"] == []
    assert wrong_text(row) == "differs from run to run: gradient by 5.0e-04"


def test_sums_in_another_order_are_no_difference():
    assert not_rounding(FINE, FINE) == []
    assert not_rounding(FINE | {"steps": 3e-6, "loss": math.nan}, FINE) == ["loss", "steps"]
