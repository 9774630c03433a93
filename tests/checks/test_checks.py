"""The check of a driver: right where the driver is, and what follows where it is not."""

import argparse
import dataclasses
import io
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

import kerascl as kc
from kerascl import philox
from kerascl.checks import first, guard, kinds, trial
from kerascl.checks.guard import MENDED, OK, PLAIN, Guard
from kerascl.commands import check
from kerascl.ops import threefry
from kerascl.runtime import programs, sources
from kerascl.runtime.diskcache import DiskCache
from kerascl.runtime.errors import DeviceError

# A driver whose optimiser spoils some kernels: put before a user's program, and inherited
# by the children that check. FAULT is what such a kernel does at its beginning.
FAULTY = r"""
import os, re
from kerascl.runtime import programs

right = programs.Programs._from_source
begin = r"(void (?:%s)\w*\([^{]*\{)" % os.environ["FAULT_KERNELS"]

def wrong(self, source, options):
    if "-cl-opt-disable" not in options or os.environ["FAULT_MENDS"] == "0":
        source = re.sub(begin, lambda m: m[1] + os.environ["FAULT"], source)
    return right(self, source, options)

programs.Programs._from_source = wrong
"""
NOTHING = " if (get_global_size(0) > 0) return; "
CRASH = " *(volatile __global int*)0 = 1; "
PROGRAM = """
import sys
import kerascl as kc
from kerascl import philox
try:
    print("sums", kc.sum(kc.reshape(kc.arange(40), (2, 20)), 1).numpy().tolist())
except Exception as error:
    print(type(error).__name__, error)
print("sorted", kc.sort(kc.array([3, 1, 2])).numpy().tolist())
"""


@pytest.fixture
def use(tmp_path, dev, monkeypatch):
    """Run a user's program with such a driver, of which only reductions are not checked yet."""
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path / "cache"))
    first.keep(dev.info, {kind: OK for kind in guard.KINDS if kind != "reduction"})
    (tmp_path / "sitecustomize.py").write_text(FAULTY)
    path = os.pathsep.join((str(tmp_path), str(sources.PACKAGE.parent)))

    def run(kernels: str, fault: str, mends: bool) -> subprocess.CompletedProcess:
        more = {
            "PYTHONPATH": path, "KERASCL_CHECK": "1", "FAULT": fault, "FAULT_KERNELS": kernels,
            "FAULT_MENDS": "01"[mends],
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=os.environ | more
        )

    return run


RIGHT = ["sums [190, 590]", "sorted [1, 2, 3]"]


@pytest.mark.slow
def test_a_driver_that_is_right_is_used_in_silence(use, dev):
    done = use("none_such", NOTHING, True)
    assert done.stdout.splitlines() == RIGHT and done.stderr == ""
    cache = DiskCache.open("checks", dev.info.cache_key)
    assert cache.load(first._key(cache), first._parse) == dict.fromkeys(guard.KINDS, OK)


@pytest.mark.slow
def test_what_the_optimiser_spoils_is_built_without_it(use):
    for _ in range(2):  # checked, then as kept
        done = use("reduction_", NOTHING, True)
        assert done.stdout.splitlines() == RIGHT
        assert done.stderr.count("RuntimeWarning") == 1
        assert "reduction" in done.stderr and "optimisation off" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", [NOTHING, CRASH], ids=["wrong", "crash"])
def test_what_stays_wrong_is_refused(use, fault):
    done = use("reduction_", fault, False)
    refused, rest = done.stdout.splitlines()
    assert refused.startswith("DeviceError") and "reduction" in refused
    assert "KERASCL_DEVICE" in refused and "KERASCL_CHECK=0" in refused
    assert rest == RIGHT[1]
    assert done.stderr.count("RuntimeWarning") == 1 and "(refused)" in done.stderr


@pytest.mark.slow
def test_long_loops_that_are_cut_are_told_of_and_refuse_nothing(use, dev):
    known = dict.fromkeys(guard.KINDS, OK)
    first.keep(dev.info, {kind: OK for kind in known if kind != guard.LOOP})
    done = use("loop_", " if (rounds > 65535) return; ", True)
    assert done.stdout.splitlines() == RIGHT
    assert done.stderr.count("RuntimeWarning") == 1 and "long loops" in done.stderr
    assert "refused" not in done.stderr and "optimisation" not in done.stderr
    cache = DiskCache.open("checks", dev.info.cache_key)
    kept = cache.load(first._key(cache), first._parse)
    assert "4 of 4 results" in kept.pop(guard.LOOP)
    assert set(kept.values()) == {OK}


@pytest.mark.slow
def test_what_does_not_build_says_so_itself(use):
    """That is no wrong number, and other kernels of its kind may build."""
    done = use("reduction_", " it is no C; ", False)
    failed, rest = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert failed.startswith("CompileError") and rest == RIGHT[1] and done.stderr == ""


@pytest.mark.parametrize("end", ["time.sleep(60)", "os.kill(os.getpid(), 9)", "sys.exit(1)"])
def test_what_does_not_end_or_is_stopped_says_nothing(dev, monkeypatch, tmp_path, end):
    """Machines are busy, and run out of memory: only a crash of the driver's speaks against it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'kerascl.checks.child' in sys.orig_argv:\n"
        f"""    print('["begun", 0, "map", "a case"]', flush=True)\n    {end}\n"""
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(trial, "PATIENCE", 3)
    found = trial.run(dev.index, "few", ["map"])
    assert [(r.kind, r.problem) for r in found] == [("map", None)]


@pytest.mark.parametrize("off", ["KERASCL_CHECK", "KERASCL_CACHE_DIR"])
def test_nothing_is_checked_where_that_is_off_or_cannot_be_kept(dev, monkeypatch, off, tmp_path):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERASCL_CHECK", "1")
    monkeypatch.setenv(off, "" if off == "KERASCL_CACHE_DIR" else "0")
    monkeypatch.setattr(trial, "run", lambda *_: pytest.fail("it was checked"))
    assert first.guard_for(dev) is None


def test_what_there_was_no_time_for_is_checked_by_the_next_process(dev, monkeypatch, tmp_path):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERASCL_CHECK", "1")
    monkeypatch.setattr(first, "_children", lambda info: 1)
    asked = []

    def run(index, cases, wanted=(), plain=(), *_):
        asked.append((list(wanted), list(plain)))
        return [trial.Result(k, kind, "", "") for k, kind in enumerate(list(wanted)[:5])]

    monkeypatch.setattr(trial, "run", run)
    for _ in range(4):
        assert first.guard_for(dev)("__kernel void map_add(__global int* a) {}") == ()
    all_ = list(guard.KINDS)
    assert asked == [(all_, []), (all_[5:], []), (all_[10:], [])]


@pytest.mark.slow
def test_kernels_of_each_kind_are_known(dev, rng, monkeypatch):
    """Each case launches a kernel that its kind's guard would meet, and is right here."""
    met = set()
    right = programs.Programs.kernel

    def kernel(self, source, name, options=()):
        met.update(guard.kinds_of(source))
        return right(self, source, name, options)

    monkeypatch.setattr(programs.Programs, "kernel", kernel)
    for case, captured in kinds.few():
        met.clear()
        # What other tests have evaluated is not built again.
        monkeypatch.setattr(kc.engine, "programs", {})
        assert case.problem(rng, captured) == "", case.name
        assert case.kind in met, case.name


@pytest.mark.parametrize("generator", [philox.SOURCE, threefry.SOURCE], ids=["philox", "threefry"])
def test_programs_that_draw_are_known(generator):
    kernel = "__kernel void attention_x(__global float* out) {}"
    assert guard.kinds_of(kernel) == {"attention"}
    assert guard.kinds_of(generator + kernel) == {"attention", "random"}


@pytest.mark.slow
def test_cases_see_wrong_results(rng):
    def spoilt(case):
        def run(*inputs):
            first, *rest = case.run(*inputs)
            return first * 1.05 + 1 if first.dtype.is_float else first + 1, *rest

        return dataclasses.replace(case, run=run)

    for case, captured in kinds.few():
        if not captured:
            assert spoilt(case).problem(rng, False), case.name


def test_a_guard_s_options():
    found = Guard(None, {"map": MENDED, "sort": "wrong", "scan": OK, "pooling": "unknown"})
    assert found("__kernel void multi_map_add_0(int a) {}") == (PLAIN,)
    assert found("__kernel void scan_rows_serial(int a) {}") == ()
    assert found("__kernel void pool_max(int a) {}") == ()
    # One unit may hold kernels of several kinds.
    both = "__kernel void reduction_sum(int a) {}\n__kernel void map_add(int a) {}"
    assert found(both) == (PLAIN,)


@pytest.mark.parametrize("text", ["[]", "3", '{"map": 1}', '{"nothing": "ok"}', "{", ""])
def test_statuses_that_make_no_sense_are_made_anew(dev, monkeypatch, tmp_path, text):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERASCL_CHECK", "1")
    cache = DiskCache.open("checks", dev.info.cache_key)
    cache.put(first._key(cache), text.encode())
    asked, right = [], dict.fromkeys(guard.KINDS, OK)
    monkeypatch.setattr(first, "judge", lambda *a: asked.append(a) or right)
    for _ in range(2):
        first.guard_for(dev)
    assert len(asked) == 1


@pytest.mark.slow
def test_the_command(dev, monkeypatch, tmp_path):
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "kerascl", "check", "--few", "--json", str(report)],
        capture_output=True, text=True,
        env=os.environ | {"KERASCL_CACHE_DIR": str(tmp_path / "cache"), "COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[1:])
    found = json.loads(report.read_text())
    assert found["statuses"] == dict.fromkeys(found["statuses"], OK)
    assert set(found["statuses"]) == set(guard.KINDS)
    assert all(kind in done.stdout for kind in guard.KINDS)


def test_ctrl_c_shows_what_there_is_and_keeps_nothing(dev, monkeypatch, tmp_path):
    def judge(index, cases, told):
        told(trial.Result(0, "map", "x + 1", ""))
        told(trial.Result(1, "sort", "of 7", "3, not 4"))
        raise KeyboardInterrupt

    kept = []
    monkeypatch.setattr(first, "judge", judge)
    monkeypatch.setattr(first, "keep", lambda *given: kept.append(given))
    console, file = Console(file=io.StringIO(), width=200), tmp_path / "check.json"
    status = check.run(argparse.Namespace(few=False, json=str(file)), console)
    printed = console.file.getvalue()
    assert status == 130 and not kept and "Interrupted after 2 of " in printed
    assert "0 s  map" in printed and "sort, of 7: 3, not 4" in printed  # as through a pipe
    assert json.loads(file.read_text())["statuses"] == {"map": OK, "sort": "3, not 4"}


def test_ctrl_c_ends_the_process_and_its_clock(monkeypatch):
    done = []

    class Process:
        stdout = property(lambda self: self)

        def readline(self):
            raise KeyboardInterrupt

        def kill(self):
            done.append("killed")

        def wait(self):
            done.append("waited for")

    monkeypatch.setattr(trial.subprocess, "Popen", lambda *_, **__: Process())
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        trial.run(0, "few")
    for clock in set(threading.enumerate()) - before:
        clock.join(5)
        assert not clock.is_alive()
    assert done == ["killed", "waited for"]


@pytest.mark.parametrize(("cases", "units"), [("few", "0"), ("many", None)])
def test_a_first_use_waits_for_no_self_tests_of_matrix_units(cases, units, monkeypatch):
    monkeypatch.delenv("KERASCL_MATRIX", raising=False)
    given = []

    def popen(command, **options):
        given.append(options["env"])
        raise OSError("none is begun here")

    monkeypatch.setattr(trial.subprocess, "Popen", popen)
    assert trial.run(0, cases) == []
    assert [env.get("KERASCL_MATRIX") for env in given] == [units]
    assert given[0]["KERASCL_CHECK"] == "2"


@pytest.mark.parametrize("wrong", ["", "product"])
def test_programs_wait_for_their_own_kinds(dev, monkeypatch, tmp_path, wrong):
    """Several processes check at once; what one has found holds while the others still look."""
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERASCL_CHECK", "1")
    monkeypatch.setattr(first, "_children", lambda info: 4)
    go, judged = threading.Event(), []

    def judge(index, cases, kinds, budget):
        judged.append(kinds)
        if "map" not in kinds:
            assert go.wait(30)
        return {kind: "a wrong number" if kind == wrong else OK for kind in kinds}

    monkeypatch.setattr(first, "judge", judge)
    asking = first.guard_for(dev)
    assert asking("__kernel void map_add(__global int* a) {}") == () and asking.asking
    source = "__kernel void gemm_tile(__global int* a) {}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asking, source)
        time.sleep(0.2)
        assert not waiting.done()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            go.set()
            if wrong:
                with pytest.raises(DeviceError, match="a wrong number"):
                    waiting.result()
            else:
                assert waiting.result() == ()
    end = time.monotonic() + 30
    while asking.asking and time.monotonic() < end:
        time.sleep(0.01)
    assert sorted(kind for kinds in judged for kind in kinds) == sorted(guard.KINDS)
    monkeypatch.setattr(first, "judge", lambda *_: pytest.fail("it was kept"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = first.guard_for(dev)
    assert not again.asking and set(again.refused) == ({wrong} if wrong else set())
