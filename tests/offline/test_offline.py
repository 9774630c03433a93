"""The tool that compiles for devices that are not there, and what it must find."""

import dataclasses

import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FORWARD
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.tiles import TILES
from kerascl.kernels.units import attention_fragment
from kerascl.runtime import device
from kerascl.runtime.programs import always
from tests import profiles
from tests.offline import compilers, problems, report, work
from tests.offline.compilers import AMD, INTEL, STANDARD, Kernel, Outcome
from tests.offline.texts import Text, Texts

CARDS = profiles.load()
ASSEMBLY = """
	.amdhsa_kernel first
; Occupancy: 5
	.amdhsa_kernel second
; Occupancy: 10
amdhsa.kernels:
  - .args:
      - .name:           x
        .size:           8
    .group_segment_fixed_size: 1024
    .name:           first
    .private_segment_fixed_size: 520
    .vgpr_count:     256
    .vgpr_spill_count: 249
    .wavefront_size: 64
  - .args:
    .group_segment_fixed_size: 0
    .name:           second
    .private_segment_fixed_size: 0
    .vgpr_count:     12
    .vgpr_spill_count: 0
    .wavefront_size: 32
amdhsa.version:
  - 1
  - 2
"""
BINARY = b"""\0.ze_info\0
kernels:
  - name:            wide
    execution_env:
      grf_count:       128
      simd_size:       16
      slm_size:        4096
    per_thread_memory_buffers:
      - type:            scratch
        usage:           private_space
        size:            512
      - type:            scratch
        usage:           spill_fill_space
        size:            1024
kernels_misc_info:
  - name:            wide
\0more"""


def test_what_amds_compiler_says():
    found = compilers.amd_kernels(ASSEMBLY)
    assert found == {
        "first": Kernel(256, 249, 520, 1024, 64, 5), "second": Kernel(12, 0, 0, 0, 32, 10),
    }  # fmt: skip


def test_what_intels_compiler_says():
    log = "warning: kernel wide  compiled SIMD16 allocated 128 regs and spilled around 7\n"
    assert compilers.intel_kernels(BINARY, log) == {"wide": Kernel(128, 7, 32, 4096, 16)}


def texts_of(function, *names):
    """What a captured function becomes on the profiles' devices."""
    texts = Texts({name: CARDS[name].info for name in names})
    with texts.collecting("test"):
        kc.jit(function)()
    return texts


def test_texts_are_lowered_and_not_run(rng):
    x = kc.array(rng.standard_normal((64, 64), np.float32))
    texts = texts_of(lambda: kc.exp(x @ x), "rx580", "a770", "rx6700xt")
    found = list(texts.by_text.values())
    assert {name for text in found for name in text.profiles} == {"rx580", "a770", "rx6700xt"}
    assert len({text.key for text in found}) == len(found)
    for text in found:
        assert text.origins == {"test"} and set(text.arguments) == set(text.labels)
        assert "double" not in text.source
    # and the same program runs on the device at hand
    x64 = x.numpy().astype(np.float64)
    expected = np.exp(x64 @ x64)
    error = np.linalg.norm(kc.exp(x @ x).numpy() - expected) / np.linalg.norm(expected)
    assert error < 1e-4


@pytest.mark.parametrize("profile", ["rx580", "a770", "gtx1080"])
def test_kernels_take_no_more_arguments_than_fit(profile, rng):
    xs = [kc.array(rng.standard_normal((2, 3), np.float32)) for _ in range(600)]
    info = CARDS[profile].info
    for function in (
        lambda: sum(xs[1:], xs[0]),
        lambda: kc.sum(kc.stack(xs) * 2, 0),
        lambda: [x * 2 for x in xs],
    ):
        texts = texts_of(function, profile)
        most = max(max(text.arguments.values()) for text in texts.by_text.values())
        assert 8 * 32 < most <= info.max_parameter_bytes


def test_many_values_that_are_stored_first_keep_their_sum(dev, rng, monkeypatch):
    """What would be one kernel of 300 arguments, on a device that takes 128."""
    from kerascl.compiler.program import lower

    few = lower.SIZES_BYTES + dev.info.max_parameter_bytes - 1024
    monkeypatch.setattr(lower, "SIZES_BYTES", few)
    xs = [rng.integers(-99, 99, (5, 7)).astype(np.float32) for _ in range(300)]
    given = [kc.array(x) for x in xs]
    total, joined = kc.jit(lambda: (sum(given[1:], given[0]), kc.stack(given) * 2))()
    np.testing.assert_array_equal(total.numpy(), np.sum(xs, 0))
    np.testing.assert_array_equal(joined.numpy(), np.stack(xs) * 2)


def test_tiles_where_registers_are_the_compilers_business():
    """CPUs and NVIDIA's GPUs have the deep tiles alone."""
    for info in (CARDS["gtx1080"].info, CARDS["rtx4090"].info, device.default().info):
        assert info.registers == 0
        for kind in ("matmul", "conv"):
            solvers = (matmul if kind == "matmul" else conv).SOLVERS
            tiled = [s for s in solvers if s.name.startswith("tiled")]
            for problem, _ in problems.of(kind):
                if not problem.a.is_double or info.fp64:
                    found = {s.name for s in tiled if s.applies(problem, info)}
                    assert found <= {tile.name for tile in TILES}


@pytest.mark.parametrize("profile", ["rx580", "a770", "max1550", "malig715", "mi210"])
def test_each_problem_keeps_a_tile(profile):
    info = CARDS[profile].info
    for kind in ("matmul", "conv"):
        solvers = (matmul if kind == "matmul" else conv).SOLVERS
        for problem, _ in problems.of(kind):
            if problem.a.is_double and not info.fp64:
                continue
            tiled = [s for s in solvers if s.name.startswith("tiled")]
            fitting = [s.tile for s in tiled if s.applies(problem, info)]
            assert fitting
            shapes = [(tile.bm, tile.bn, tile.tm, tile.tn) for tile in fitting]
            assert len(set(shapes)) == len(shapes)


def test_doubles_are_refused_in_words_where_there_are_none(dev, rng, monkeypatch):
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, CARDS["a770"].info))
    x = kc.array(rng.standard_normal((3, 11, 17)))
    for run in (lambda x: x + 1, kc.jit(lambda x: x + 1)):
        with pytest.raises(NotImplementedError, match=r"float64.*lacks double.*float32"):
            run(x).numpy()
    np.testing.assert_array_equal(x.numpy().shape, (3, 11, 17))


TRIED = [("gfx803", "rx580"), ("gfx1100", "rx7900xtx"), ("dg2", "a770")]


@pytest.mark.parametrize(("target", "profile"), TRIED)
def test_products_spill_nothing(target, profile):
    """The largest tile of a product and of a gradient, which once spilled 250 registers."""
    by, info = compilers.compiler(target), CARDS[profile].info
    if by.missing:
        pytest.skip(by.missing)
    product = next(problem for problem, _ in problems.of("matmul"))
    tiled = [s for s in matmul.SOLVERS if s.name.startswith("tiled") and s.applies(product, info)]
    solver = max(tiled, key=lambda s: s.tile.tm * s.tile.tn)
    launch = solver.plan(product, info, store_epilogue(product.acc)).launches[0]
    assert solver.tile.tm == solver.tile.tn == 8
    outcome = by.compile(launch.source, launch.options, target)
    kernel = outcome.kernels["gemm_tile"]
    assert not outcome.error and kernel.spills == kernel.private == 0
    assert kernel.registers >= 64 and kernel.local == solver.tile.local_bytes(product.acc)


@pytest.mark.parametrize(
    ("dtype", "target", "profile"),
    [("int8", "gfx1201", "rx9070xt"), ("int64", "gfx1100", "rx7900xtx")],
)
def test_convolutions_of_integers_spill_nothing(dtype, target, profile):
    """By the largest tile that is offered; such once spilled up to 347 registers."""
    by, info = compilers.compiler(target), CARDS[profile].info
    if by.missing:
        pytest.skip(by.missing)
    t = dtypes.as_dtype(dtype)
    problem = next(p for p, _ in problems.of("conv") if p.w_shape[:3] == (3, 3, 64))
    problem = dataclasses.replace(problem, a=t, b=t, acc=t)
    tiled = [s for s in conv.SOLVERS if s.name.startswith("tiled") and s.applies(problem, info)]
    solver = max(tiled, key=lambda s: (s.tile.tm * s.tile.tn, s.tile.bm == 128))
    launch = solver.plan(problem, info, store_epilogue(t)).launches[0]
    outcome = by.compile(launch.source, launch.options, target)
    kernel = outcome.kernels["gemm_tile"]
    assert not outcome.error and kernel.spills == kernel.private == 0


def _all_of_them(p) -> bool:
    return p.bias is not None and p.mask is not None and p.dropout is not None


def _dropped(p) -> bool:
    return p.width == 64 and p.dropout is not None and p.bias is None and p.grad is None


def _transformed(p) -> bool:
    return p.kind == DATA_GRAD and p.channels_first and p.w_shape[2] == p.w_shape[3] == 64


LONG = [
    ("skl", "uhd630"), ("tgllp", "irisxe"), ("dg2", "a770"), ("pvc", "max1550"),
    ("gfx1030", "apple"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "profile"), LONG)
def test_long_epilogues_keep_sums_in_registers(target, profile, rng):
    """Compilers left loops round them as they were, and put the sums in memory to index them."""
    by, info = compilers.compiler(target), dataclasses.replace(CARDS[profile].info, matrix="")
    if by.missing:
        pytest.skip(by.missing)
    x, w = (kc.array(rng.standard_normal(n, np.float32)) for n in ((2048, 128), (128, 512)))
    bias = kc.array(rng.standard_normal(512, np.float32))
    texts = Texts({profile: info})
    with texts.collecting("test"):
        kc.jit(lambda: kc.gelu(x @ w + bias, approximate=False))()
    (text,) = (t for t in texts.by_text.values() if "gemm_tile" in t.arguments)
    assert "kcl_gelu_float" in text.source
    outcome = by.compile(text.source, text.options, target)
    kernel = outcome.kernels["gemm_tile"]
    assert not outcome.error and kernel.spills == kernel.private == 0


# What once spilled, and the problem of the kind: loops over arrays, 32 lanes where 16 do, results
# that are divided one by one, places of all logits at once, copies of tiles unrolled whole, strips
# of too many columns, transforms of 32 lanes, two steps of products at once beside dropout, places
# in local memory that were kept from block to block.
ONCE_SPILLED = {
    "large prime": ("fft", "gfx1030", "rx6700xt", lambda p: p.length == 488),
    "wide lanes": ("fft", "pvc", "max1550", lambda p: p.length == 1024 and p.acc.is_double),
    "division": ("attention", "tgllp", "irisxe", lambda p: p.causal and p.width == 64),
    "places": ("attention", "gfx1030", "rx6700xt", lambda p: p.width == 64 and _all_of_them(p)),
    "copies": ("attention", "dg2", "a770", lambda p: p.width == 64 and p.causal and p.grad),
    "strips": ("conv", "pvc", "max1550", lambda p: p.groups == 96 and p.kind == FORWARD),
    "strips of few": ("conv", "skl", "uhd630", lambda p: p.groups == 96 and p.kind == FORWARD),
    "transforms": ("conv", "pvc", "max1550", _transformed),
    "steps": ("attention", "gfx1030", "rx6700xt", _dropped),
    "places of blocks": ("attention", "tgllp", "irisxe", lambda p: p.width == 128 and p.grad),
    "copies to units": ("attention", "dg2", "a770", lambda p: p.width == 128 and not p.grad),
}


@pytest.mark.parametrize("case", ONCE_SPILLED)
def test_what_once_spilled_spills_no_more(case, monkeypatch):
    kind, target, profile, wanted = ONCE_SPILLED[case]
    by, info = compilers.compiler(target), CARDS[profile].info
    if by.missing:
        pytest.skip(by.missing)
    if case == "copies to units":
        monkeypatch.setattr(attention_fragment, "available", lambda unit, info, *_: True)
        found = (x for x in problems.of(kind) if wanted(x[0]) and x[0].dtype.itemsize == 2)
    else:
        info = dataclasses.replace(info, matrix="")
        found = (x for x in problems.of(kind) if wanted(x[0]))
    problem, plan = next(found)
    dtype = problem.dtype if kind == "attention" else problem.acc
    for launch in plan(problem, info, store_epilogue(dtype)).launches:
        outcome = by.compile(launch.source, (*launch.options, *always(info)), target)
        kernel = outcome.kernels[launch.name]
        assert not outcome.error and kernel.spills == kernel.private == 0
        assert ("fragment" in launch.name) == (case == "copies to units")


def test_assembler_is_nvidia_s():
    if STANDARD.missing:
        pytest.skip(STANDARD.missing)
    text = '__kernel void f(__global int* x) { int y; asm("mov.u32 %0, 1;" : "=r"(y)); x[0] = y; }'
    assert STANDARD.compile(text, (), "nvidia").error == ""
    assert "asm" in STANDARD.compile(text, (), "any+cl_khr_fp64").error


@pytest.mark.parametrize("by", [AMD, INTEL, STANDARD], ids=lambda c: c.__class__.__name__)
def test_errors_are_told(by):
    if by.missing:
        pytest.skip(by.missing)
    target = by.targets[0] if by.targets else "any"
    assert "nothing" in by.compile("__kernel void f() { nothing(1); }", (), target).error
    assert by.compile("__kernel void f(__global int* x) { x[0] = 1; }", (), target).error == ""


def test_doubles_need_their_extension():
    if STANDARD.missing:
        pytest.skip(STANDARD.missing)
    text = "__kernel void f(__global double* x) { x[0] = 1; }"
    assert "cl_khr_fp64" in STANDARD.compile(text, (), "any").error
    assert STANDARD.compile(text, (), "any+cl_khr_fp64").error == ""


def test_budgets_are_held():
    text = Text("source", (), {"a770"}, {"net fit"}, {"gemm_tile": 3600}, {"gemm_tile": "matmul"})
    fine = {(text.key, "dg2"): Outcome("", {"gemm_tile": Kernel(100, 0, 0, 64, 8)})}
    beyond = report.Report([text], [], fine).beyond_budgets()
    assert len(beyond) == 1 and "1 arguments" in beyond[0]
    spilled = {(text.key, "dg2"): Outcome("", {"gemm_tile": Kernel(128, 9, 0, 64, 8)})}
    assert any("spilled" in line for line in report.Report([text], [], spilled).beyond_budgets())
    wrong = {(text.key, "dg2"): Outcome("error: no", {})}
    assert any("errors" in line for line in report.Report([text], [], wrong).beyond_budgets())


def test_targets_of_profiles():
    assert work.targets_of("a770", ("dg2", "pvc", "opencl-c")) == {"dg2", "opencl-c"}
    assert work.targets_of("gtx1080", ("dg2", "gfx803")) == set()
    assert {p.target for p in CARDS.values()} >= {*AMD.targets, *INTEL.targets}
