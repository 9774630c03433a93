"""GEMM solvers against NumPy in float64."""

import contextlib
import dataclasses
import re

import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.contract.solver import joining
from kerascl.kernels.hopper import probe
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.cpu import Micro
from kerascl.kernels.matmul.panels import PanelMatmul
from kerascl.kernels.matmul.portable import TiledMatmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.matmul.skinny import SkinnyMatmul
from kerascl.kernels.matmul.skinny_dots import SkinnyDots
from kerascl.kernels.matmul.streamed import StreamedMatmul
from kerascl.kernels.matmul.tiles import LONG, TILES
from kerascl.kernels.selftests import asked
from kerascl.kernels.units.matmul import FragmentMatmul
from kerascl.kernels.units.skinny import SkinnyMma
from tests import profiles
from tests.kernels import ptx
from tests.kernels.harness import assert_close, poisoned, random_array, run_plan


def operand(rng, batch, rows, cols, dtype, order):
    """Data, strides and offset of an operand whose memory has the given order."""
    n = len(batch)
    if order == "normal":
        data = random_array(rng, (*batch, rows, cols), dtype)
        view, offset = data, 0
    elif order == "transposed":
        data = random_array(rng, (*batch, cols, rows), dtype)
        view, offset = data.swapaxes(-1, -2), 0
    elif order == "broadcast":
        data = random_array(rng, (rows, cols), dtype)
        view, offset = np.broadcast_to(data, (*batch, rows, cols)), 0
    elif order == "heads":  # (batch.., rows, cols) as a view of (rows, batch.., cols)
        data = random_array(rng, (rows, *batch, cols), dtype)
        view, offset = np.moveaxis(data, 0, n), 0
    else:  # every second row and third column, from an odd offset, rows backwards
        data = random_array(rng, (*batch, 2 * rows + 1, 3 * cols + 1), dtype)
        view = data[..., 1::2, 1::3][..., ::-1, :]
        offset = (view.__array_interface__["data"][0] - data.ctypes.data) // data.itemsize
    strides = tuple(s // data.itemsize for s in view.strides)
    return data, view, strides, int(offset)


def make(rng, m, n, k, batch=(), a="normal", b="normal", dtype="float32", acc=None):
    dtype = dtypes.as_dtype(dtype)
    a_data, a_view, a_strides, a_offset = operand(rng, batch, m, k, dtype, a)
    b_data, b_view, b_strides, b_offset = operand(rng, batch, k, n, dtype, b)
    acc = dtypes.as_dtype(acc) if acc else dtype.accumulator
    problem = MatmulProblem(
        m, n, k, batch, a_strides, b_strides, dtype, dtype, acc, a_offset, b_offset
    )
    wide = np.float64 if dtype.is_float else np.int64
    want = a_view.astype(wide) @ b_view.astype(wide)
    return problem, {"a": a_data, "b": b_data}, want


def check(plan_of, problem, inputs, want, dev, out=None, sizes=None):
    out = out or (
        problem.acc if problem.acc.name in ("float64",) or problem.acc.is_integer else problem.a
    )
    got = run_plan(
        plan_of(problem, dev.info, store_epilogue(out)), inputs, poisoned(want.shape, out), dev
    )
    assert_close(got, want, problem.acc, problem.k, sizes)


def force(solver):
    """A planner that uses one solver, and skips the test where it does not apply."""

    def plan_of(problem, info, epilogue):
        problem = normalise_matmul(problem)
        if not solver.applies(problem, info):
            pytest.skip(f"{solver.name} does not apply")
        return solver.plan(problem, info, epilogue)

    return plan_of


F32 = dtypes.float32
TILE = {tile.name: tile for tile in TILES}
FORCED = [
    # test_mma.py, test_skinny_mma.py, test_skinny_dots.py, test_streamed.py
    *(
        s for s in matmul.SOLVERS
        if not isinstance(s, (FragmentMatmul, SkinnyDots, SkinnyMma, StreamedMatmul))
    ),
    SkinnyMatmul(split=3),
    PanelMatmul(pack=True),
    PanelMatmul(pack=False),
    PanelMatmul(Micro(4, 2, 4)),
    TiledMatmul(TILE["tiled128x32"], split=3),
]
# One of each source: building a program for every tile shape and dtype would take minutes.
BUILT = TILE["tiled128x32"], TILE["tiled32x128"]
KINDS = [s for s in FORCED if not (isinstance(s, TiledMatmul) and s.tile not in BUILT)]
SHAPES = [
    (1, 1, 1), (3, 5, 7), (129, 33, 65), (64, 64, 32), (1, 129, 70), (130, 1, 333), (2, 40, 1),
    (32, 36, 48), (65, 132, 260),
]  # fmt: skip
SKINNY = [
    (1, 1, 1), (1, 129, 70), (130, 1, 333), (5, 40, 65), (37, 8, 600), (2, 33, 9),
    (1, 768, 256), (100, 1, 2052), (3, 36, 1300), (8, 64, 516),  # four neighbours at once
]  # fmt: skip


def rows(solver, m):
    """`m`, or as many rows as the solver takes."""
    return min(m, 5) if isinstance(solver, SkinnyMatmul) else m


@pytest.mark.parametrize("solver", FORCED, ids=lambda s: s.name)
def test_each_solver(dev, solver, rng):
    if solver not in KINDS and "Portable" in dev.info.platform:
        pytest.skip("PoCL takes seconds to build each of these; the other tile shapes cover it")
    if isinstance(solver, SkinnyMatmul):
        for shape in SKINNY:
            for order in ("normal", "transposed"):
                check(force(solver), *make(rng, *shape, a=order, b=order), dev)
        return
    for shape in SHAPES[1:4] if "Portable" in dev.info.platform else SHAPES:
        check(force(solver), *make(rng, *shape), dev)


@pytest.mark.parametrize("solver", KINDS, ids=lambda s: s.name)
@pytest.mark.parametrize("b", ["normal", "transposed"])
@pytest.mark.parametrize("a", ["normal", "transposed"])
def test_each_solver_transposed(dev, solver, a, b, rng):
    for m, n, k in ((36, 40, 44), (33, 70, 29)):
        check(force(solver), *make(rng, rows(solver, m), n, k, a=a, b=b), dev)


@pytest.mark.parametrize("solver", KINDS, ids=lambda s: s.name)
def test_each_solver_batched(dev, solver, rng):
    m = rows(solver, 9)
    check(force(solver), *make(rng, m, 20, 12, batch=(2, 3)), dev)
    check(force(solver), *make(rng, m, 20, 12, batch=(2, 3), a="broadcast"), dev)
    check(force(solver), *make(rng, m, 20, 12, batch=(2, 1, 3), a="heads", b="heads"), dev)
    check(force(solver), *make(rng, 7, 5, 6, batch=(2, 2, 2), a="strided", b="strided"), dev)
    # Last, because the rows then merge with the batch and may become too many for a solver.
    check(force(solver), *make(rng, m, 20, 12, batch=(2, 3), b="broadcast"), dev)


@pytest.mark.every(5)
@pytest.mark.parametrize("solver", KINDS, ids=lambda s: s.name)
@pytest.mark.parametrize(
    "dtype, acc",
    [
        ("float16", None), ("bfloat16", None), ("float64", None), ("int8", "int32"),
        ("uint8", "int32"), ("int16", None), ("int32", None), ("int64", None), ("uint64", None),
        ("int8", None), ("uint16", None), ("uint32", None), ("bool", "int32"),
    ],
)  # fmt: skip
def test_each_solver_dtypes(dev, solver, dtype, acc, rng):
    if "Portable" in dev.info.platform and dtype not in ("float16", "bfloat16", "int8", "float64"):
        pytest.skip("PoCL's slow builds: the rest runs on the other devices")
    for a, b, (m, n, k) in (
        ("normal", "normal", (36, 40, 44)),
        ("transposed", "transposed", (5, 21, 34)),
    ):
        check(force(solver), *make(rng, rows(solver, m), n, k, a=a, b=b, dtype=dtype, acc=acc), dev)


def adding(work):
    """The epilogue that adds another array, which counts as so much work."""
    params = ", __global float* restrict out, __global const float* restrict more"
    return Epilogue(
        params, (Ref("out"), Ref("c")), "out[i] = acc + more[i];", work=work,
        loads=(VectorLoad("more", dtypes.float32, "more_"),),
        compute="const float value = acc + more_;",
        stores=(VectorStore("out", dtypes.float32, "value"),),
    )  # fmt: skip


@pytest.mark.parametrize("tile", ["tiled128x128", "tiled128x128x16", "tiled64x64x8", "tiled128x32",
                                  "tiled32x128", "tiled32x32"])
@pytest.mark.parametrize("columns", [33, 132], ids=["one by one", "vectors"])
def test_long_epilogues_go_round_in_a_loop(dev, tile, columns, rng):
    """Where registers are few; results are those of epilogues that are written out."""
    few = dataclasses.replace(dev.info, registers=255, sub_group_sizes=())
    problem, inputs, product = make(rng, 131, columns, 21, batch=(2,), b="transposed")
    inputs["c"] = rng.standard_normal(product.shape, np.float32)
    tile = TILE[tile]
    solver, want = TiledMatmul(tile, split=1), product + inputs["c"].astype(np.float64)
    if tile.threads > dev.info.max_work_group_size:
        pytest.skip("the device has no such work-groups")
    for info, work, in_turn in ((few, LONG, 1), (few, LONG - 1, 0), (dev.info, LONG, 0)):
        plan = solver.plan(normalise_matmul(problem), info, adding(work))
        source = plan.launches[0].source
        assert f"#define IN_TURN {in_turn}\n" in source
        assert f"#define VECTOR_OUT {int(columns == 132)}\n" in source
        got = run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), dev)
        assert_close(got, want, problem.acc, problem.k)


def in_order(info):
    """Facts of a device whose compiler keeps an unrolled loop's loads within the registers."""
    return dataclasses.replace(info, quirks=info.quirks | {"schedules_for_registers"})


@pytest.mark.parametrize("shape", [(131, 132, 76), (300, 33, 16), (5, 140, 4)], ids=str)
@pytest.mark.parametrize("tile", ["tiled128x128x16", "tiled64x128"])
def test_the_last_tile_is_stored_again(dev, tile, shape, rng):
    """By compilers that take sixteen rows a work-item, too; others do not."""
    problem, inputs, want = make(rng, *shape, batch=(2,), b="transposed")
    problem, solver = normalise_matmul(problem), TiledMatmul(TILE[tile])
    if TILE[tile].threads > dev.info.max_work_group_size:
        pytest.skip("the device has no such work-groups")
    assert solver.applies(problem, in_order(dev.info))
    assert solver.applies(problem, dev.info) == (tile == "tiled64x128")
    plan = solver.plan(problem, in_order(dev.info), store_epilogue(dtypes.float32))
    assert "#define STORES_ALWAYS 1\n" in plan.launches[0].source
    got = run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), dev)
    assert_close(got, want, problem.acc, problem.k)


@pytest.mark.skipif(
    not ptx.available() or not ptx.disassembler(),
    reason="needs clang-15, ptxas and nvdisasm (of the package nvidia-cuda-nvdisasm)",
)
@pytest.mark.parametrize("tile", ["tiled128x128x16", "tiled128x32"])
def test_loads_stay_before_products(tile):
    """ptxas moves them behind all products unless it is told where they belong."""
    found = profiles.load()["rtx4090"].info
    problem = MatmulProblem(512, 512, 512, (), (512, 1), (512, 1), F32, F32, F32)
    solver = TiledMatmul(TILE[tile], split=1)
    launch = solver.plan(normalise_matmul(problem), found, store_epilogue(F32)).launches[0]
    text = "#define KCL_PTX\n" + launch.source
    threads = TILE[tile].threads
    used = ptx.resources(text, "sm_90", threads)
    assert used["spills"] == 0
    lines = ptx.disassembly(text, "sm_90", threads).splitlines()
    kinds = [m[0] for line in lines if (m := re.search(r"\b(FFMA|LDG)\b", line))]
    products = kinds.count("FFMA")
    before = kinds[: len(kinds) - kinds[::-1].index("LDG")].count("FFMA")
    assert products > 500 and before < products / 10


@pytest.mark.parametrize("order", ["normal", "transposed", "broadcast", "heads", "strided"])
def test_plan_orders(dev, order, rng):
    for batch in ((), (3,), (2, 1, 3)):
        check(matmul.plan, *make(rng, 17, 23, 19, batch=batch, a=order), dev)
        check(matmul.plan, *make(rng, 17, 23, 19, batch=batch, b=order), dev)


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (4, 5, 0)])
def test_empty(dev, shape, rng):
    check(matmul.plan, *make(rng, *shape), dev)
    check(matmul.plan, *make(rng, *shape, batch=(2,)), dev)


def test_plan_random_shapes(dev, rng):
    for _ in range(12):
        m, n, k = (int(rng.choice([1, 2, 3, 8, 17, 64, 129, 200])) for _ in range(3))
        problem, inputs, want = make(rng, m, n, k)
        a, b = (np.square(inputs[name], dtype=np.float64) for name in "ab")
        sizes = np.sqrt(a.reshape(m, k) @ b.reshape(k, n))  # one result's terms may cancel
        check(matmul.plan, problem, inputs, want, dev, sizes=sizes)


@pytest.mark.parametrize(
    "micro, m, n, k, batch, a, b",
    [
        (None, 70, 330, 300, (), "normal", "normal"),  # columns where they lie, a ragged panel
        (None, 70, 330, 300, (3,), "transposed", "normal"),
        (None, 70, 100, 300, (2,), "normal", "transposed"),  # a panel for each work-item
        (None, 300, 7, 300, (), "normal", "normal"),
        (None, 260, 40, 3100, (), "strided", "transposed"),  # all panels packed before
        (Micro(8, 3, 16), 24, 48, 5001, (), "normal", "normal"),  # slices, for an odd tile
        (None, 300, 75, 100, (2,), "normal", "transposed"),  # shallow
        (None, 1100, 503, 33, (), "transposed", "normal"),  # row by row
    ],
)
def test_panels_in_the_order_of_what_is_cached(dev, micro, m, n, k, batch, a, b, rng):
    check(force(PanelMatmul(micro)), *make(rng, m, n, k, batch=batch, a=a, b=b), dev)


def test_deep_sum_is_split_and_repeats(dev, rng):
    problem, inputs, want = make(rng, 20, 24, 20000, a="transposed")
    check(matmul.plan, problem, inputs, want, dev)
    plan = matmul.plan(problem, dev.info, store_epilogue(dtypes.float32))
    results = [
        run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), dev).tobytes()
        for _ in range(3)
    ]
    assert len(set(results)) == 1


@pytest.mark.parametrize("a", ["normal", "transposed"])
def test_long_sums_on_cpus_are_sums_of_sums(a, dev, rng):
    """One running sum of so many products would be off by twice as much, or more."""
    if dev.info.kind != "cpu":
        pytest.skip("of the kernels for CPUs")
    problem, inputs, want = make(rng, 40, 64, 3000, a=a)
    plan = PanelMatmul().plan(normalise_matmul(problem), dev.info, store_epilogue(dtypes.float32))
    got = run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), dev)
    assert np.linalg.norm(got - want) < 4e-7 * np.linalg.norm(want)


def test_long_indices(dev, rng):
    """Forcing 64-bit indices gives the same results (a far row is only addressed, never read)."""
    problem, inputs, want = make(rng, 1, 24, 20)
    far = dataclasses.replace(problem, a_strides=(2**40, 1))
    for solver in KINDS:
        if solver.applies(normalise_matmul(far), dev.info):
            check(force(solver), far, inputs, want, dev)


def test_mixed_dtypes(dev, rng):
    problem, inputs, want = make(rng, 5, 40, 36)
    half = inputs["b"].astype(np.float16)
    problem = dataclasses.replace(problem, b=dtypes.float16)
    want = inputs["a"].astype(np.float64) @ half.astype(np.float64)
    for solver in KINDS:
        check(force(solver), problem, {"a": inputs["a"], "b": half}, want, dev)


@pytest.mark.parametrize("depth, widths", [(96, (64, 64, 64)), (4096, (64, 32, 32))])
def test_products_of_a_few_rows_share_a_launch(depth, widths, rng, monkeypatch):
    """As queries, keys and values of one token do; also where slices are added up."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    x = rng.standard_normal((1, depth), np.float32)
    weights = [rng.standard_normal((depth, n), np.float32) for n in widths]
    biases = [rng.standard_normal(n).astype(np.float32) for n in widths]
    function = kc.jit(lambda x, w, b: [x @ w + b for w, b in zip(w, b)])
    args = kc.array(x), [kc.array(w) for w in weights], [kc.array(b) for b in biases]
    for _ in range(2):  # counters are zero again for the second call
        for found, w, b in zip(function(*args), weights, biases):
            wanted = x.astype(np.float64) @ w + b
            assert np.linalg.norm(found.numpy() - wanted) < 2e-6 * np.linalg.norm(wanted)
    names = [step.name for step in function.captured(*args).program.steps]
    products = [name for name in names if "skinny" in name]
    assert len(products) == len(set(widths))
    assert sum("multi_gemm_skinny" in name for name in products) == 1
    # Where work-groups have no atomics for each other, what adds slices is shared as well.
    assert all("multi_gemm_reduce" in name for name in names if name not in products)


@pytest.mark.parametrize(
    "card", ["rtx4090", "h100", "rx7900xtx", "rx9070xt", "mi300x", "a770", "b580"]
)
def test_who_applies_has_a_plan(card, rng, monkeypatch):
    """Whatever the sizes are, and whoever is taken."""
    monkeypatch.setattr(asked, "passed", lambda *_: True)
    monkeypatch.setattr(probe, "available", lambda *_: True)
    info = profiles.load()[card.replace("h100", "rtx4090")].info
    if card == "h100":
        info = dataclasses.replace(info, matrix="wgmma90", nvidia_capability=(9, 0))
    planned = set()
    for _ in range(150):
        m, n, k = (int(rng.choice([1, 2, 3, 5, 8, 24, 63, 64, 130, 1000])) for _ in range(3))
        name = str(rng.choice(["float32", "bfloat16", "float16", "int8"]))
        dtype, acc = dtypes.as_dtype(name), dtypes.int32 if name == "int8" else dtypes.float32
        turned = (1, k) if rng.random() < 0.5 else (n, 1)
        precision = str(rng.choice(["high", "highest"]))
        problem = normalise_matmul(
            MatmulProblem(m, n, k, (), (k, 1), turned, dtype, dtype, acc, precision=precision)
        )
        for solver in matmul.SOLVERS:
            with joining() if rng.random() < 0.5 else contextlib.nullcontext():
                if solver.applies(problem, info):
                    assert solver.plan(problem, info, store_epilogue(acc)).launches
                    planned.add(solver.name)
    assert len(planned) > 8
