"""Self-tests of matrix units plan what they say: one that fails for Python's reasons tells of no
device, and would leave its kernels unused in silence."""

import dataclasses
import functools
import importlib
import io
import json
import sys
import time

import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import AttentionProblem, Dropout, Tensor
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.hopper.selftests.convolutions import problem as problem_of_conv
from kerascl.kernels.hopper.selftests.dense import problem as dense_gradients
from kerascl.kernels.hopper.selftests.sums import problem as sum_of_products
from kerascl.kernels.matmul import dense, sums
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import (
    DenseGradProblem,
    MatmulProblem,
    SumProblem,
    normalise_matmul,
)
from kerascl.kernels.selftests import asked, child, trial
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_fragment, known, selftests, tile
from kerascl.runtime import device
from kerascl.runtime.errors import CompileError, DeviceError, OutOfDeviceMemory
from kerascl.runtime.selftest import FULL

F32, BF16, F16 = dtypes.float32, dtypes.bfloat16, dtypes.float16
STORE = store_epilogue(F32)
FACTS = dataclasses.replace(
    next(found.info for found in device.find_devices() if found.info), name="a card", kind="gpu",
    compute_units=132, local_mem_bytes=65536, max_work_group_size=1024,
)  # fmt: skip
ON_UNITS = (
    tile.FragmentSolver, unit_attention._FragmentSolver, attention16._Solver16,
    attention_fragment._FragmentSolver,
)  # fmt: skip
ALL = {
    matrix: dataclasses.replace(FACTS, matrix=matrix, nvidia_capability=capability)
    for matrix, capability in {
        "wgmma90": (9, 0), "mma80": (8, 0),
        **dict.fromkeys(("wmma11", "wmma12", "mfma90a", "mfma942", "xmx8", "xmx16")),
    }.items()
}  # fmt: skip
TESTS = [(matrix, test) for matrix, info in ALL.items() for test in selftests.tests(info)]


@pytest.fixture
def waiting(monkeypatch):
    """A self-test that waits for self-tests never ends."""

    def waits(*_):
        raise AssertionError("a self-test that waits for self-tests never ends")

    monkeypatch.setattr(asked, "passed", waits)
    monkeypatch.setattr(asked, "results", waits)


@pytest.mark.parametrize(("matrix", "test"), [
    pytest.param(matrix, test, id=f"{matrix}, {test.title}")
    for matrix, test in TESTS if matrix != "mma80"  # has what wgmma90 has, too
])  # fmt: skip
def test_self_tests_plan_what_they_say(matrix, test, waiting):
    found = list(importlib.import_module(test.module).trials(ALL[matrix], test.part))
    assert found
    for one in found:
        assert one.plan.launches and one.times > 0
    texts = trial.programs(found)
    assert len(texts) == len(set(texts)) and set(texts) == {
        (x.source, x.options) for one in found for x in one.plan.launches
    }


@pytest.mark.every(12)
@pytest.mark.parametrize(("matrix", "test"), [
    pytest.param(matrix, test, id=f"{matrix}, {test.title}")
    for matrix, test in TESTS if matrix != "mma80"
])  # fmt: skip
def test_self_tests_reach_their_end(matrix, test, waiting, monkeypatch):
    checks = []

    def check(name, got, want, bound):
        checks.append(name)
        assert got.shape == want.shape and np.isfinite(want).all()
        assert 0 < bound < 0.1 or (bound == 0 and want.dtype.kind == "i")

    loaded = importlib.import_module(test.module)
    real = trial.check
    for place in list(sys.modules.values()):  # whoever imported it
        if place.__dict__.get("check") is real:
            monkeypatch.setattr(place, "check", check)
    for one in loaded.trials(ALL[matrix], test.part):
        before, data = len(checks), one.data()
        assert all(array.size for array in (*data.inputs.values(), *data.outs.values()))
        for array in data.outs.values():
            array.fill(0)
        data.verdict()
        assert len(checks) > before  # each tells something of what it computed


def test_names_are_told_apart():
    for info in ALL.values():
        tests = selftests.tests(info)
        assert len({test.title for test in tests}) == len({test.place for test in tests})
        assert len(set(tests)) == len(tests)
    assert not selftests.tests(dataclasses.replace(FACTS, matrix=""))


class Answers:
    """Stands for the child process: what passes, and what was asked for."""

    def __init__(self):
        self.wrong, self.asked = set(), []

    def __call__(self, info, tests):
        self.asked.append([test.title for test in tests])
        return [("it is wrong" if test.title in self.wrong else "", False) for test in tests]


@pytest.fixture
def answers(monkeypatch, tmp_path):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    found = Answers()
    monkeypatch.setattr(asked, "_run", found)
    monkeypatch.setattr(asked, "_begin_early", lambda info: None)
    asked.forget()
    yield found
    asked.forget()


def product(dtype, precision="high", m=4096, n=4096, k=4096, turned=False):
    strides = (1, k) if turned else (n, 1)
    return normalise_matmul(
        MatmulProblem(m, n, k, (), (k, 1), strides, dtype, dtype, F32, precision=precision)
    )


def attention_of(
    dtype, features=64, causal=True, dropout=None, backward=False, rows=512
):  # fmt: skip
    batch, heads = 16, 12
    x = Tensor(dtype, (rows * heads * features, heads * features, features, 1), 0)
    return AttentionProblem(
        batch, rows, rows, heads, heads, features, features, features**-0.5, causal, dtype,
        x, x, x, grad=x if backward else None, dropout=dropout, precision="high",
    )  # fmt: skip


def conv_of(kind, dtype, precision, taps=3, channels=64, stride=1):
    return dataclasses.replace(
        problem_of_conv(kind, (64, 56, 56, channels, 128, taps, stride, taps // 2, 1), dtype),
        precision=precision,
    )


def test_a_program_asks_only_for_its_parts(answers):
    """float32 forward asks for no 16-bit kernel and no gradient, and all at once."""
    info = ALL["wgmma90"]

    def program():
        kept.append(attention.plan(attention_of(F32), info, STORE))
        for p in (product(F32), product(F32, turned=True), product(F32, m=12)):
            kept.append(matmul.plan(p, info, STORE))
        return kept

    kept = []
    asked.settled(info, program)
    assert len(answers.asked) == 1 and len(kept) == 4  # made once, as all passed
    titles = answers.asked[0]
    assert "wgmma (float32)" in titles and "attention_mma (float32 causal forward)" in titles
    for title in titles:
        assert "float32" in title and "highest" not in title
        assert "gradient" not in title and "grad" not in title
    tests = [test for matrix, test in TESTS if matrix == "wgmma90" and test.title in titles]
    programs = asked.programs_of(info, tests)
    assert len(programs) <= 30
    asked.settled(info, program)
    assert len(answers.asked) == 1  # known by now


def test_nothing_is_asked_for_what_needs_nothing(answers):
    info = ALL["wgmma90"]
    asked.settled(info, lambda: matmul.plan(product(F32, m=4, n=4, k=4), info, STORE))
    asked.settled(info, lambda: matmul.plan(product(dtypes.int32), info, STORE))
    assert not answers.asked


def test_costs_rely_on_nothing(answers):
    info = ALL["wgmma90"]

    def compare():
        matmul.cost(product(F32), info)
        matmul.computes(product(F32, m=4), info)
        assert attention.preferred(attention_of(BF16), info)

    asked.settled(info, compare)
    compare()  # nor outside
    assert not answers.asked
    assert conv.plan(conv_of(FORWARD, BF16, "high"), info, STORE).launches
    assert answers.asked  # who plans outside of `settled` waits


# A part, a problem of which a solver is chosen that it proves, and others that stay as they were.
FAILING = {
    "wgmma (float32)": (product(F32, turned=True), [product(BF16)]),
    "wgmma (bfloat16)": (product(BF16), [product(F32, turned=True), product(F16)]),
    "wgmma_pingpong (bfloat16)": (product(BF16, k=768), [product(F16, k=768)]),
    "wgmma_sum (bfloat16)": (
        sum_of_products(4096, 768, 768, 3, BF16), [sum_of_products(4096, 768, 768, 3, F16)]
    ),
    "wgmma_dense (bfloat16)": (
        dense_gradients(768, 768, 4096, BF16), [dense_gradients(768, 768, 4096, F16)]
    ),
    "attention_mma (float32 causal forward)": (
        attention_of(F32), [attention_of(F32, causal=False), attention_of(F32, backward=True)],
    ),
    "wgmma_attention (bfloat16 64 causal)": (
        attention_of(BF16),
        [attention_of(BF16, 128), attention_of(F16), attention_of(BF16, backward=True)],
    ),
    "wgmma_attention_gradient (bfloat16 64 causal)": (
        attention_of(BF16, backward=True), [attention_of(BF16), attention_of(F16, backward=True)],
    ),
    "wgmma_attention_whole (bfloat16 64 causal)": (
        attention_of(BF16, backward=True, rows=200),
        [attention_of(BF16, backward=True), attention_of(F16, backward=True, rows=200)],
    ),
    "wgmma_attention_stored (bfloat16 128 causal)": (
        attention_of(BF16, 128, backward=True),
        [attention_of(BF16, backward=True), attention_of(F16, 128, backward=True)],
    ),
}  # fmt: skip
PLANNING_PRODUCTS = conv.PointwiseConv, sums.SeparateProducts, dense.SeparateSums
ROOMS = {
    MatmulProblem: matmul, SumProblem: sums, DenseGradProblem: dense, AttentionProblem: attention,
    ConvProblem: conv,
}  # fmt: skip


def plan_of(p, info):
    return asked.settled(info, lambda: ROOMS[type(p)].plan(p, info, STORE))


def facts(plan):
    return [(launch.name, launch.source) for launch in plan.launches]


@pytest.mark.parametrize("title", FAILING)
def test_a_part_that_fails_switches_off_what_it_proves(title, answers):
    info, (p, others) = ALL["wgmma90"], FAILING[title]
    before = facts(plan_of(p, info)), [facts(plan_of(x, info)) for x in others]
    assert any(title in together for together in answers.asked)
    asked.forget()
    answers.asked.clear()
    answers.wrong = {title}
    after = plan_of(p, info)
    assert facts(after) != before[0] and after.launches
    assert [facts(plan_of(x, info)) for x in others] == before[1]
    asked_for = [x for together in answers.asked for x in together]
    assert len(asked_for) == len(set(asked_for))  # each once
    assert [x.launches for x in [plan_of(p, info)]] == [after.launches]


def test_a_program_is_made_anew_where_a_part_fails(answers):
    info, made = ALL["wgmma90"], []
    answers.wrong = {"wgmma_attention (bfloat16 64 causal)"}

    def make():
        made.append(attention.plan(attention_of(BF16), info, STORE))
        return made[-1]

    begun, beside = [], []

    def meanwhile(plan, programs, done):
        begun.append(plan)
        beside.append(programs)
        done()

    plan = asked.settled(info, make, meanwhile)
    assert begun == made and plan is made[-1] and len(made) == 2
    for (launch,), programs, together in zip(
        (x.launches for x in made), beside, answers.asked, strict=True
    ):
        assert launch.name.partition("_")[2] in " ".join(together)
        assert set(programs) == {
            text for _, test in TESTS if test.title in together
            for text in trial.programs(asked.trials(info, test.place))
        }  # fmt: skip
    assert [x.launches[0].name for x in made] == ["wgmma_attention", "attention_mma16"]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_programs_whose_self_tests_fail_are_right(captured, answers, monkeypatch, rng):
    """On a device that claims to have the instructions, which its compiler does not know."""
    dev = device.default()
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, matrix="wgmma90", clock_mhz=7))
    monkeypatch.setattr(known, "available", lambda *_: False)  # mma.sync has no self-test
    monkeypatch.setenv("KERASCL_SOLVERS", "wgmma")
    answers.wrong = {test.title for test in selftests.tests(dev.info)}
    size = int(rng.integers(260, 300))
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))

    def twice(a, b):
        return kc.matmul(kc.matmul(a, b), b)

    out = np.asarray((kc.jit(twice) if captured else twice)(kc.array(a), kc.array(b)))
    want = a.astype(np.float64) @ b.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(out - want) <= 1e-5 * np.linalg.norm(want)
    assert answers.asked and all(len(set(x)) == len(x) for x in answers.asked)


def test_what_does_not_build_is_made_anew_if_its_self_test_fails(answers):
    info = ALL["wgmma90"]

    def build(plan, programs, done):
        if plan.launches[0].name == "wgmma_attention":
            raise CompileError("no such instruction")

    def make():
        return attention.plan(attention_of(BF16), info, STORE)

    with pytest.raises(CompileError):
        asked.settled(info, make, build)
    asked.forget()
    answers.wrong = {"wgmma_attention (bfloat16 64 causal)"}
    assert asked.settled(info, make, build).launches[0].name == "attention_mma16"


PROBLEMS = [
    *(product(dtype, precision, turned=turned, m=m, k=k)
      for dtype, precision in ((F32, "high"), (F32, "highest"), (BF16, "high"), (F16, "high"))
      for turned in (False, True) for m, k in ((128, 768), (4096, 4096), (20000, 64))),
    *(sum_of_products(4096, 768, 768, 3, dtype) for dtype in (F32, BF16, F16)),
    *(dense_gradients(768, 768, 4096, dtype) for dtype in (F32, BF16, F16)),
    *(attention_of(dtype, features, causal, dropout, backward)
      for dtype in (F32, BF16, F16) for features in (40, 64, 128) for causal in (False, True)
      for dropout in (None, Dropout(2**31, 2.0), Dropout(2**31 + 1, 2.0))
      for backward in (False, True)),
    *(attention_of(dtype, 64, causal, dropout, True, rows=200)
      for dtype in (BF16, F16) for causal in (False, True)
      for dropout in (None, Dropout(2**31, 2.0))),
    *(conv_of(kind, dtype, precision, taps, channels, stride)
      for kind in (FORWARD, DATA_GRAD, FILTER_GRAD)
      for dtype, precision in ((F32, "high"), (F32, "highest"), (BF16, "high"), (F16, "high"))
      for taps, channels, stride in ((3, 64, 1), (3, 64, 2), (7, 3, 2), (1, 256, 1))),
]  # fmt: skip
def proven_by(solver, p):
    """Words that a part must have which proves a solver's kernel for a problem."""
    nvidia = "wgmma" in solver.name or isinstance(solver, (ON_UNITS[1], ON_UNITS[2]))
    if isinstance(p, AttentionProblem):
        words = {p.q.dtype.name}
        if nvidia:  # the others' cases have everything
            words |= {"causal"} if p.causal else set()
            words |= {"dropout"} if p.dropout else set()
        if "wgmma" not in solver.name:  # whose name is that of the direction
            words.add("forward" if p.grad is None else "gradient")
        return words
    words = {p.a.name}
    if nvidia and p.precision == "highest" and p.a is F32:
        words.add("highest")
    if not nvidia:
        words.add(getattr(p, "kind", "product"))
    elif isinstance(p, ConvProblem) and not solver.name.startswith(
        ("wgmma_channel_major", "wgmma_register_blocked16")  # of filters' gradients alone
    ):
        words.add(p.kind)
    return words


@pytest.mark.parametrize("matrix", ["wgmma90", "mma80", "wmma11", "wmma12", "mfma942", "xmx16"])
def test_every_solver_names_a_part_for_its_dtype_and_direction(matrix, answers):
    """Whatever applies on matrix units relies on a part of that dtype and direction, which exists;
    and if it fails, does not apply."""
    info = ALL[matrix]
    exist = {test.title for test in selftests.tests(info)}
    seen = set()
    for p in PROBLEMS:
        room = ROOMS[type(p)]
        for solver in dict.fromkeys((*room.SOLVERS, *getattr(room, "VARIANTS", ()))):
            if isinstance(solver, PLANNING_PRODUCTS) or solver.name.startswith("winograd"):
                continue  # which plan products
            if getattr(solver, "splits", getattr(solver, "split", None)) not in (None, 1):
                continue  # the same kernels
            with asked.comparing():
                if not solver.applies(p, info):
                    continue
            noted = relied_on(info, functools.partial(_use, solver, p, info))
            on_units = solver.name.startswith("wgmma") or isinstance(solver, ON_UNITS)
            if not on_units or getattr(getattr(solver, "unit", None), "tried", True) is False:
                assert not noted, (solver.name, p)
                continue
            assert noted and {test.title for test in noted} <= exist, (solver.name, p)
            words = proven_by(solver, p)
            assert any(words <= set(test.part.split()) for test in noted), (solver.name, noted)
            assert all(test.part.split()[0] in words for test in noted), (solver.name, noted)
            with asked.comparing():
                moments = solver.takes_moments(p, info)
            if moments:
                more = relied_on(info, functools.partial(solver.takes_moments, p, info))
                (own,) = (test for test in more if test.name == "wgmma_moments")
                assert words & {"highest", p.a.name} == set(own.part.split())
                noted += more
            seen |= {test.title for test in noted}
    names = {test.name for test in selftests.tests(info)}
    assert {title.split(" (")[0] for title in seen} >= names


def _use(solver, p, info):
    assert solver.applies(p, info)
    plan = solver.plan(p, info, STORE)
    for launch in plan.launches:  # as a program asks that has several
        assert launch.several is None or launch.several.proven()
    return plan


def relied_on(info, make):
    """The self-tests that `make` relies on."""
    found = []

    def results(info, tests):
        found.extend(tests)
        return dict.fromkeys((test.title for test in tests), "")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asked, "results", results)
        asked.settled(info, make)
    return found


CHILD = """
import os
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.selftests.trial import Data, Trial
from kerascl.runtime.errors import DeviceError, OutOfDeviceMemory

def verdict():
    {}

def trials(info):
    assert info.name
    yield Trial(Plan([]), lambda: Data({{}}, {{}}, verdict))
"""
VERDICTS = {
    "good": "pass",
    "wrong": "raise DeviceError('it is wrong\\nand more')",
    "dead": "os._exit(9)",
    "full": "raise OutOfDeviceMemory('none left')",
    "late": "import time; time.sleep(60)",
}
WRONG, DEAD = ("it is wrong", True), ("the self-test ended with 9", True)
FULL_MEMORY = ("the device's memory was full at the self-test", False)


def outcomes(names, folder, monkeypatch, info):
    for name in names:
        text = CHILD.format(VERDICTS[name]) if name in VERDICTS else "import no_such_package"
        (folder / f"{name}_of_selftests.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return asked._run(info, [SelfTest(name, f"{name}_of_selftests") for name in names])


@pytest.mark.parametrize(("names", "found"), [
    (("good", "wrong", "good2"), [("", True), WRONG, None]),
    (("dead", "good", "wrong"), [DEAD, ("", True), WRONG]),  # those after it in another process
    (("good", "full", "wrong"), [("", True), FULL_MEMORY, FULL_MEMORY]),
])  # fmt: skip
def test_results_of_a_child(names, found, dev, tmp_path, monkeypatch):
    monkeypatch.setitem(VERDICTS, "good2", "pass")
    got = outcomes(names, tmp_path, monkeypatch, dev.info)
    assert got == [("", True) if want is None else want for want in found]


@pytest.mark.parametrize(("said", "found"), [
    (("", True), ("", True)),
    (("it computed a wrong result", True), ("it computed a wrong result", True)),
    (("TimeoutExpired: 60 s", False), ("TimeoutExpired: 60 s", True)),  # it would hang again
    (("no memory was left", False), ("no memory was left", False)),
])  # fmt: skip
def test_one_that_has_a_process_of_its_own(said, found, dev, tmp_path, monkeypatch):
    """Beside the others, whose child it leaves alone."""
    asked_of = []

    def begin(module, index, light, **environment):
        asked_of.append((module, environment))

    monkeypatch.setattr(asked.selftest, "begin", begin)
    monkeypatch.setattr(asked.selftest, "ended", lambda process, seconds: said)
    (tmp_path / "good_of_selftests.py").write_text(CHILD.format(VERDICTS["good"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    own = SelfTest("own", "own_of_selftests", alone=True, environment=(("KERASCL_X", "1"),))
    other = SelfTest("good", "good_of_selftests")
    assert asked._run(dev.info, [own, other]) == [found, ("", True)]
    assert asked_of == [("own_of_selftests", {"KERASCL_X": "1"})]


def test_a_program_notes_one_that_has_a_process_of_its_own(answers, monkeypatch):
    monkeypatch.setattr(asked, "_begin_early", lambda info: pytest.fail("it needs no child"))
    own = SelfTest("own", "kerascl.compiler.program.resident_selftest", alone=True)
    info, made = ALL["wgmma90"], []

    def make():
        made.append(asked.passed(info, own))
        return made[-1]

    answers.wrong = {"own"}
    assert asked.settled(info, make) is False and made == [True, False]


OWN = """
import sys, time
from pathlib import Path
from kerascl.runtime import selftest_child

def run(dev):
    Path({begun!r}).touch()
    time.sleep({seconds})

selftest_child.main(run)
"""


@pytest.fixture
def own_process(dev, tmp_path, monkeypatch):
    """A self-test with a process of its own, and the file that it makes when it has begun."""
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(asked, "_digest", lambda test: "own")
    begun = tmp_path / "begun"

    def make(seconds):
        text = OWN.format(begun=str(begun), seconds=seconds)
        (tmp_path / "own_of_selftests.py").write_text(text)
        return SelfTest("own", "own_of_selftests", alone=True), begun

    asked.forget()
    yield make
    assert not asked._begun_alone
    asked.forget()


def wait_for(file):
    end = time.monotonic() + 60
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert file.exists()


def test_one_that_has_a_process_of_its_own_runs_while_a_program_is_made(dev, own_process):
    test, begun = own_process(0)

    def make():
        found = asked.passed(dev.info, test)
        wait_for(begun)
        begun.unlink()
        return found

    assert asked.settled(dev.info, make)
    assert not begun.exists()  # it ran once


def test_what_a_program_that_fails_began_ends(dev, own_process):
    test, begun = own_process(300)
    children = []

    def make():
        asked.passed(dev.info, test)
        wait_for(begun)
        children.extend(asked._begun_alone.values())
        raise ValueError("no program")

    with pytest.raises(ValueError, match="no program"):
        asked.settled(dev.info, make)
    assert [child.returncode is not None for child in children] == [True]


def test_a_child_that_cannot_begin_says_nothing_of_the_device(dev, tmp_path, monkeypatch):
    got = outcomes(("good", "absent"), tmp_path, monkeypatch, dev.info)
    for text, lasting in got:
        assert not lasting and "did not begin" in text and "no_such_package" in text


def test_a_child_that_does_not_end(dev, tmp_path, monkeypatch):
    monkeypatch.setattr(asked, "SECONDS", 15)
    got = outcomes(("good", "late"), tmp_path, monkeypatch, dev.info)
    assert got == [("", True), ("the self-test did not end: TimeoutExpired", False)]


def test_a_child_builds_before_it_runs(dev, tmp_path, monkeypatch, capsys):
    (tmp_path / "built_of_selftests.py").write_text(CHILD.format("raise DeviceError('no')"))
    monkeypatch.syspath_prepend(str(tmp_path))
    order = []
    monkeypatch.setattr(type(dev.programs), "build", lambda *_: order.append("build"))
    monkeypatch.setattr(trial, "run", lambda *_: order.append("run"))
    place = "built_of_selftests:"

    def run():
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps([place]) + "\n\n"))
        child.main(str(dev.index), "0")

    run()
    assert order == ["build", "run"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [["begun", place], ["ended", place, ""]]

    def full(*_):
        raise OutOfDeviceMemory("none left")

    monkeypatch.setattr(trial, "run", full)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == FULL


def test_an_error_names_what_is_wrong():
    want = np.ones(5)
    trial.check("it", want + 1e-4, want, 1e-3)
    with pytest.raises(DeviceError, match=r"it is wrong: relative error 1\.0"):
        trial.check("it", want * 2, want, 1e-3)
    with pytest.raises(DeviceError, match="nan"):
        trial.check("it", want * np.nan, want, 1e-3)
