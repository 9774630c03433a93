"""Some hundred random programs, new in each run; `python -m tests.fuzz` runs thousands."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import settings

import kerascl as kc
from kerascl.runtime import device
from tests.fuzz import check, program
from tests.fuzz.library import RULES
from tests.fuzz.program import draw_program
from tests.fuzz.rehearsal import Rehearsal
from tests.fuzz.values import Value
from tests.fuzz.workers import Workers

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
    program = draw_program(3009085)  # multiplies by what a float with exact zeros decides
    assert any(step.rule == "logical_xor" for step in program.steps)
    assert check.slopes(program) == ""


def test_a_rehearsal_builds_what_evaluations_want():
    programs = device.default().programs
    programs.let_go()
    host = np.arange(23, dtype="f4") / 7

    def evaluated():
        x = kc.array(host)
        return [
            kc.sin(x * 3).evaluate(),
            kc.sum(x - 1.25).evaluate(),
            kc.cumsum(x[::-2]).evaluate(),
        ]

    rehearsal = Rehearsal()
    before = programs.built_from_source + programs.loaded_from_disk
    with rehearsal():
        evaluated()
    assert programs.built_from_source + programs.loaded_from_disk == before
    assert len(rehearsal.wanted) >= 2
    rehearsal.build()
    assert programs.built_from_source + programs.loaded_from_disk == before + 1
    found = [x.numpy() for x in evaluated()]
    expected = [np.sin(host * 3), np.sum(host - 1.25), np.cumsum(host[::-2])]
    for right, value in zip(expected, found, strict=True):
        np.testing.assert_allclose(value, right, 1e-5)


ANSWERS = """
import json, sys
for line in sys.stdin:
    with open("asked", "a") as asked:
        asked.write(line)
    if json.loads(line) == [17, 16]:
        print(json.dumps({"key": "a", "title": "seed 20", "text": "# seed 20"}))
    print(json.dumps({"counts": {"steps": 100, "covered": {"add": 60, "sum": 40}}}), flush=True)
"""


def test_what_is_done_is_not_run_again(tmp_path, monkeypatch, capsys):
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.chdir(tmp_path)
    batches = [[1, 16], [17, 16], [33, 8]]
    for some in (batches[:2], batches, batches):
        workers = Workers(
            "answers", some, size=lambda batch: batch[1], split=lambda batch: [],
            label="programs", count=1, seconds=None, kept=tmp_path / "far.json",
        )  # fmt: skip
        assert workers.run() == 1
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [json.loads(line) for line in asked] == batches
    assert workers.counts == {"steps": 300} and workers.covered == {"add": 180, "sum": 120}
    assert workers.mismatches == {"a": ["seed 20"]}
    assert "│ 40       │ 300   │ 2          │" in capsys.readouterr().out


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_is_drawn_and_gives_what_kerascl_does(rule, monkeypatch):
    """Programs of one step, drawn until one fits."""
    monkeypatch.setattr(program, "_NAMES", [rule])
    drawn = (draw_program(seed) for seed in range(300))
    some = list(itertools.islice((p for p in drawn if p.steps), 2))
    assert some
    assert [str(check.smaller(found)) for found in check.mismatches(some)] == []
