"""Some hundred random programs, new in each run; `python -m tests.fuzz` runs thousands."""

import numpy as np
import pytest
from hypothesis import settings

import kerascl as kc
from tests.fuzz import check
from tests.fuzz.program import draw_program
from tests.fuzz.values import Value

TOGETHER = 16
COUNT = settings.default.max_examples  # of the profile, see tests/conftest.py


@pytest.mark.parametrize("batch", range(COUNT // TOGETHER))
def test_random_programs(batch, rng):
    first = int(rng.integers(2**31))
    programs = [draw_program(seed) for seed in range(first, first + TOGETHER)]
    for found in check.mismatches(programs):
        pytest.fail(str(check.smaller(found)), pytrace=False)


def test_a_seed_draws_a_program_again():
    assert str(draw_program(7)) == str(draw_program(7)) != str(draw_program(8))


def test_a_mismatch_is_found_and_made_smaller(monkeypatch):
    """Were every maximum one too large, one step would tell."""
    right = kc.maximum
    monkeypatch.setattr(kc, "maximum", lambda x, y: right(x, y) + 1)
    numbers = (draw_program(seed) for seed in range(10**4))
    program = next(p for p in numbers if any(s.rule == "maximum" for s in p.steps[:3]))
    found = next(check.mismatches([program], every_way=True))
    small = check.smaller(found)
    assert len(small.program.steps) < len(program.steps)
    assert small.program.steps[-1].rule == "maximum"
    assert f"seed {program.seed}" in str(small)


def test_a_bound_is_kept():
    value = Value("float32", np.array([1.0, np.nan]), np.array([1e-6, 0.0]))
    assert not value.wrong(np.array([1 + 1e-6, np.nan], "f4"), "float32")
    assert value.wrong(np.array([1 + 3e-6, np.nan], "f4"), "float32").startswith("1 of 2")
    assert value.wrong(np.array([1.0, 0.0], "f4"), "float32")
    assert value.wrong(np.array([1.0], "f4"), "float32")


def test_differences_across_a_choice_are_left_out():
    """x * (x == 0) is zero everywhere, yet its derivative where x is 0 is taken to be 1."""
    program = draw_program(3000297)  # multiplies by what a float with exact zeros decides
    assert any(step.rule == "logical_xor" for step in program.steps)
    assert check.slopes(program) == ""
