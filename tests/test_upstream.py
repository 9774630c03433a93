"""The runner of Keras' own tests: nothing that goes wrong in a test may get lost."""

import argparse
import textwrap

import pytest
from rich.console import Console

from tests.upstream import __main__ as runner
from tests.upstream import pool
from tests.upstream import results as res


def filled(**statuses) -> res.Results:
    results = res.Results()
    for name, status in statuses.items():
        results.outcomes[f"ops/some_test.py::T::test_{name}"] = res.Outcome(status, 1.0, "E: x", "")
    return results


def test_a_failure_is_expected_only_with_an_exclusion():
    results = filled(a="passed", b="failed")
    assert not res.judge(results, {}).good
    verdict = res.judge(results, {"ops/some_test.py::T::test_b": "because"})
    assert verdict.good and verdict.excused == 1


@pytest.mark.parametrize("status", ["passed", "skipped"])
def test_an_excluded_test_that_does_not_fail_is_a_fault(status):
    verdict = res.judge(filled(a=status), {"ops/some_test.py::*a": "because"})
    assert not verdict.good and verdict.passing == ["ops/some_test.py::T::test_a"]


def test_an_exclusion_must_name_a_test_of_a_file_that_ran():
    assert res.judge(filled(a="passed"), {"ops/some_test.py::T::gone": "because"}).stale
    assert res.judge(filled(a="passed"), {"nn/other_test.py::T::gone": "because"}).good


def test_brackets_in_names_are_themselves():
    results = res.Results()
    results.outcomes["a_test.py::t[x-1]"] = res.Outcome("failed")
    assert res.judge(results, {"a_test.py::t[x-1]": "because"}).good


def test_the_exclusion_file_gives_reasons_and_stays_short():
    exclusions = res.read_exclusions(res.HERE / "exclusions.txt")
    assert len(exclusions) <= 60 and all(exclusions.values())


def test_an_exclusion_without_a_reason_is_refused(tmp_path):
    (tmp_path / "list").write_text("a_test.py::t\n")
    with pytest.raises(ValueError, match="list:1"):
        res.read_exclusions(tmp_path / "list")


def test_causes_join_what_differs_in_numbers_only():
    results = filled(a="failed", b="failed", c="failed")
    for name, message in zip(results.outcomes, ("shape (3, 4)", "shape (30, 1)", "other")):
        results.outcomes[name].message = message
    assert [len(tests) for _, tests in res.by_cause(results.failures)] == [2, 1]


def test_crashes_hangs_and_broken_files_are_failures(tmp_path, monkeypatch):
    folder = tmp_path / "keras" / "src" / "fake"
    folder.mkdir(parents=True)
    (folder / "good_test.py").write_text(textwrap.dedent("""
        import random
        def test_a(): pass
        def test_seeded(): assert random.random() == random.Random(7).random()
    """))
    (folder / "broken_test.py").write_text("import no_such_module\n")
    (folder / "bad_test.py").write_text(textwrap.dedent("""
        import os, signal, socket, time
        import pytest
        def test_fine(): pass
        def test_wrong(): assert 1 == 2
        def test_crash(): os.abort()
        def test_slow(): time.sleep(1000)
        def test_stuck():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(1000)
        def test_skipped(): pytest.skip("no")
        def test_offline():
            with pytest.raises(OSError, match="do not reach the network"):
                socket.create_connection(("example.org", 80))
        def test_after(): pass
    """))
    monkeypatch.setattr(pool, "GRACE", 3)
    monkeypatch.setattr(runner, "PART", 300)  # bad_test.py in three parts
    arguments = argparse.Namespace(
        backend="kerascl", n=2, timeout=3, k="", seed=7, slowest=0, skips=True, paths=[],
        folder=["fake"], part=slice(0, None, 1),
    )
    console = Console(quiet=True)
    results = runner.run(tmp_path, arguments, console)
    statuses = {name.split("::")[-1]: outcome.status for name, outcome in results.outcomes.items()}
    assert statuses == {
        "test_a": "passed", "test_seeded": "passed", "fake/broken_test.py": "failed",
        "test_fine": "passed",
        "test_wrong": "failed", "test_crash": "failed", "test_slow": "failed",
        "test_stuck": "failed", "test_skipped": "skipped", "test_offline": "passed",
        "test_after": "passed",
    }  # fmt: skip
    messages = {name.split("::")[-1]: outcome.message for name, outcome in results.outcomes.items()}
    assert "signal 6" in messages["test_crash"] and "hung" in messages["test_stuck"]
    assert "Timeout" in messages["test_slow"]
    assert "no_such_module" in messages["fake/broken_test.py"]
    assert runner.report(results, arguments, 1.0, console) == 1

    monkeypatch.setattr(runner, "PART", 100_000)
    (folder / "bad_test.py").unlink()
    (folder / "many_test.py").write_text("".join(f"def test_{k}(): pass\n" for k in range(7)))
    arguments.part, arguments.n = slice(1, None, 3), 1
    ran = runner.run(tmp_path, arguments, console).outcomes
    places = [int(name.rpartition("_")[2]) for name in ran if "many_test" in name]
    assert places in ([0, 3, 6], [1, 4], [2, 5])
