"""Products of a few rows as GPUs compute them: a CPU passes for one."""

import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, store_epilogue
from kerascl.kernels.contract.solver import joining
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.matmul.skinny import STAYING_BYTES, THREADS, SkinnyMatmul
from tests import profiles
from tests.kernels.test_gemm import SKINNY, check, force, make

# Loads of a work-item: all first, some of them, and of a last slice that ends early.
DEPTHS = [700, 6000]
MEMORY = "SHORT", "STAGE", "SPAN", "BLOCKS", "TOGETHER", "V"


@pytest.fixture
def card(dev, monkeypatch):
    """The device with the schedules of a GPU."""
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, profiles.load()["rtx4090"].info))
    return dev


@pytest.mark.parametrize("b", ["normal", "transposed"])
@pytest.mark.parametrize("split", [None, 3])
def test_loads_come_first(card, split, b, rng):
    solver = SkinnyMatmul(split)
    for shape in SKINNY[3:]:
        check(force(solver), *make(rng, *shape, b=b), card)
    for k in DEPTHS:
        for m in (1, 5):
            check(force(solver), *make(rng, m, 132, k, b=b), card)
    check(force(solver), *make(rng, 3, 132, 260, batch=(2, 3), b=b), card)


@pytest.mark.parametrize("b", ["normal", "transposed", "strided"])
@pytest.mark.parametrize(
    "dtype, acc",
    [("float16", None), ("bfloat16", None), ("float64", None), ("int8", "int32"), ("bool", "int32"),
     ("int64", None), ("uint16", None)],
)  # fmt: skip
def test_of_any_dtype(card, dtype, acc, b, rng):
    for shape in (1, 132, 700), (3, 33, 260):
        check(force(SkinnyMatmul()), *make(rng, *shape, b=b, dtype=dtype, acc=acc), card)


def test_how_many_loads_and_how_much_is_copied(card, rng):
    def found(m, n, k):
        problem = normalise_matmul(make(rng, m, n, k)[0])
        (launch,) = SkinnyMatmul(1).plan(problem, card.info, store_epilogue(problem.a)).launches
        lines = [line.split() for line in launch.source.splitlines() if line.startswith("#define")]
        values = {line[1]: line[2] for line in lines if len(line) == 3}
        return [int(values[name]) for name in ("EARLY", "BLOCKS", "WHOLE", "STAGE", "SPAN")]

    assert found(1, 768, 768) == [12, 1, 1, 768, 1]
    assert found(1, 768, 770) == [13, 1, 0, 772, 1]
    most = SkinnyMatmul.EARLY, SkinnyMatmul.EARLY_ROWS
    assert found(1, 768, 4096) == [most[0], 4, 1, 4096, 4]
    assert found(1, 768, 4160) == [13, 5, 1, 4160, 5]  # no load more than there are
    assert found(8, 768, 4096) == [most[1], 8, 1, 512, 1]  # more than can be copied at once
    with joining():
        assert found(1, 768, 4096) == [most[0], 8, 1, 3584, 7]


@pytest.mark.parametrize("b", ["normal", "transposed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_where_launches_stay(card, dtype, b, rng):
    """Less local memory for each group; what is copied comes in pieces."""
    pieces = set()
    for m, n, k in (1, 132, 700), (1, 68, 9000), (3, 2052, 516), (8, 260, 5004), (5, 33, 2999):
        case = make(rng, m, n, k, b=b, dtype=dtype, acc="int32" if dtype == "int8" else None)
        with joining():
            for solver in SkinnyMatmul(), SkinnyMatmul(1):
                check(force(solver), *case, card)
                problem = normalise_matmul(case[0])
                plan = solver.plan(problem, card.info, store_epilogue(problem.acc))
                text = plan.launches[0].source
                found = {x: int(re.search(rf"#define {x} (\d+)", text)[1]) for x in MEMORY}
                sums = 4 * THREADS * found["TOGETHER"] * (1 if b == "transposed" else found["V"])
                staged = found["SHORT"] * found["STAGE"] * problem.a.itemsize
                assert max(sums, staged) <= STAYING_BYTES
                pieces.add(found["STAGE"] and found["BLOCKS"] > found["SPAN"])
    assert pieces == {False, True}


@pytest.mark.parametrize("rows", [1, 4])
def test_what_follows_is_read_before(card, rows, rng, monkeypatch):
    """A bias, a residual that is replaced, and a column of the row."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    shapes = (rows, 768), (768, 260), (260,), (rows, 260), (rows, 1)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    state = kc.State(kc.array(values[3]))

    def step(x, w, bias, factor):
        state.assign(state.value * factor + (x @ w + bias))

    function = kc.jit(step)
    x, w, bias, wanted, factor = (v.astype(np.float64) for v in values)
    for _ in range(3):
        function(*(kc.array(values[k]) for k in (0, 1, 2, 4)))
        wanted = wanted * factor + (x @ w + bias)
        found = state.value.numpy()
        assert np.linalg.norm(found - wanted) < 3e-6 * np.linalg.norm(wanted)
    (step_,) = function.captured(*(kc.array(values[k]) for k in (0, 1, 2, 4))).program.steps
    assert ("#define EPILOGUE_KEPT" in step_.source) == (rows == 1)


def test_only_what_is_a_line_of_its_own_is_read_early():
    load = VectorLoad("buf0", kc.float32, "val1")
    body = "const int x0 = i;\nconst float val1 = buf0[i];\nout[i] = acc + val1;"
    early = Epilogue("", (), body, loads=(load,)).early.splitlines()
    assert early[0] == "#define EPILOGUE_KEPT float kept0_; "
    assert "const int x0 = i; kept0_ = buf0[i];" in early[1]
    assert "buf0" not in early[2] and "const float val1 = kept0_; const int x0 = i;" in early[2]
    for other in (Epilogue("", (), body), Epilogue("", (), "out[i] = acc;", loads=(load,))):
        assert other.early == other.macro


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_loads_keep_to_a_card_s_registers(dtype, rng):
    """What is loaded ahead, in words of each work-item, and the sums; the last two are few enough
    for any card but where no load has room."""
    words = {"float16": 2, "float32": 4, "float64": 8}[dtype]
    sums = 8 if dtype == "float64" else 4
    for m in (1, 8):
        problem = normalise_matmul(make(rng, m, 768, 4096, b="transposed", dtype=dtype)[0])
        for name, profile in profiles.load().items():
            info = profile.info
            if dtype == "float64" and not info.fp64:
                continue
            plan = SkinnyMatmul(1).plan(problem, info, store_epilogue(problem.acc))
            text = plan.launches[0].source
            early = int(re.search(r"#define EARLY (\d+)", text)[1])
            factors = m * sums // 2  # of half the loads
            assert early * (words + factors) + m * sums <= 0.85 * (info.registers or 192), name
            if not info.registers and m == 1:
                assert early == (4 if dtype == "float64" else SkinnyMatmul.EARLY)
            narrow = min(info.sub_group_sizes, default=0) if info.registers else 0
            assert (f"sub_group_size({narrow})" in text) == (narrow > 0), name
