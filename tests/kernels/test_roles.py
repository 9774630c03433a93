"""Of each solver's launches one kernel does the arithmetic; the others say what they are."""

import dataclasses
import itertools

import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes
from kerascl.compiler import library
from kerascl.compiler.program import lower
from kerascl.core.node import topological
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import AttentionProblem, Tensor
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.plan import Role
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, normalise_conv
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper.selftests.dense import problem as dense_gradients
from kerascl.kernels.hopper.selftests.sums import problem as sum_of_products
from kerascl.kernels.matmul import dense, sums
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.tuning import database
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_fragment, known
from tests.kernels.test_conv import make
from tests.solvers.emulated import card

# Beginnings of the names of kernels that do not lay out, add up or transform.
ARITHMETIC = (
    "gemm_direct", "gemm_tile", "gemm_skinny", "gemm_cpu", "gemm_streamed", "gemm_zero",
    "conv_cpu", "depthwise", "mma_tile", "wgmma", "attention",
)  # fmt: skip


def gpu(info, matrix: str):
    """Facts of a GPU with such matrix units."""
    found = dataclasses.replace(card(info), matrix=matrix, compute_units=100)
    nvidia = matrix.startswith(("mma", "wgmma"))
    return dataclasses.replace(found, nvidia_capability=(9, 0) if nvidia else None)


def problems():
    rng = np.random.default_rng(0)
    sizes = ((300, 200, 500), (8, 64, 4096), (1, 64, 256), (3, 5, 7))
    found = []
    for name in ("float32", "bfloat16"):
        t, acc = dtypes.as_dtype(name), dtypes.float32
        for m, n, k in sizes:
            problem = MatmulProblem(m, n, k, (1,), (m * k, k, 1), (k * n, n, 1), t, t, acc)
            found.append(("gemm", normalise_matmul(problem)))
        found.append(("gemm_sum", sum_of_products(300, 200, 504, 3, t, "high")))
        found.append(("dense_grad", dense_gradients(300, 200, 504, t)))
        turned = MatmulProblem(300, 200, 500, (1,), (150000, 1, 300), (100000, 200, 1), t, t, acc)
        found.append(("gemm", normalise_matmul(turned)))
        for kind in (FORWARD, DATA_GRAD, FILTER_GRAD):
            for channels, filters, groups, kernel, stride in (
                (64, 64, 1, 3, 1), (3, 64, 1, 3, 1), (32, 32, 32, 3, 1), (64, 64, 1, 1, 1),
                (3, 64, 1, 4, 4),
            ):  # fmt: skip
                problem, _, _ = make(
                    rng, kind, (16, 16), channels, filters, kernel, stride,
                    pads=kernel // 2 if stride == 1 else 0, groups=groups, dtype=name,
                )  # fmt: skip
                found.append(("conv", normalise_conv(problem)))
    t, acc = dtypes.int8, dtypes.int32
    row = MatmulProblem(1, 64, 256, (1,), (256, 256, 1), (256 * 64, 64, 1), t, t, acc)
    found.append(("gemm", normalise_matmul(row)))
    high = [(kind, dataclasses.replace(p, precision="high")) for kind, p in found]
    return found + high


@pytest.fixture
def units(monkeypatch):
    """As if every matrix unit had passed its self-test."""
    monkeypatch.setattr(hopper_probe, "available", lambda info, *_: info.matrix == "wgmma90")
    for module in (unit_attention, attention16):
        monkeypatch.setattr(module, "available", lambda info, *_: bool(info.matrix))
    for module in (known, attention_fragment):
        monkeypatch.setattr(module, "available", lambda unit, info, *_: info.matrix in unit.matrix)


def check(plan) -> None:
    main = {launch.name for launch in plan.launches if launch.role is Role.MAIN}
    assert len(main) == 1 or main == {"wgmma_attention_gradient", "wgmma_attention_queries"}
    assert all(name.startswith(ARITHMETIC) for name in main)
    for launch in plan.launches:
        words = ("pack", "patches", "reduce", "winograd", "stem_", "store")
        helps = any(word in launch.name for word in words)
        assert helps == (launch.role is not Role.MAIN) or launch.name == "wgmma_channel_major"


@pytest.mark.slow
def test_one_kernel_of_each_solver_is_the_main_one(dev, units):
    seen = set()
    units = sorted({name for unit in known.UNITS for name in unit.matrix})
    infos = [dev.info, *(gpu(dev.info, m) for m in ("", *units))]
    infos += [dataclasses.replace(infos[1], registers=count) for count in (64, 96, 144)]
    in_order = infos[1].quirks | {"schedules_for_registers"}
    infos.append(dataclasses.replace(infos[1], quirks=in_order))
    rooms = {"gemm": matmul, "gemm_sum": sums, "dense_grad": dense, "conv": conv}
    for kind, problem in problems():
        module = rooms[kind]
        for info in infos:
            for solver in (*module.SOLVERS, *getattr(module, "VARIANTS", ())):
                if solver.applies(problem, info):
                    check(solver.plan(problem, info, store_epilogue(dtypes.float32)))
                    seen.add((kind, solver.name))
    names = {(kind, s.name) for kind, room in rooms.items() for s in room.SOLVERS}
    missing = names - seen
    assert not missing
    winograd = {name for _, name in seen if "winograd" in name}
    assert len(winograd) >= 2


def test_attention(dev, units):
    def forward_of(width: int, dtype: dtypes.DType) -> AttentionProblem:
        heads, length = 4, 50
        x = Tensor(dtype, (length * heads * width, heads * width, width, 1), 0)
        return AttentionProblem(
            batch=2, length=length, source=length, heads=heads, groups=heads, width=width,
            depth=width, scale=1.0, causal=False, dtype=dtype, q=x, k=x, v=x, bias=None, mask=None,
            grad=None, precision="high",
        )  # fmt: skip

    others = (m for unit in attention_fragment.UNITS for m in unit.matrix)
    matrices = "", "mma80", "wgmma90", *others
    infos, seen = (dev.info, *(gpu(dev.info, m) for m in dict.fromkeys(matrices))), set()
    for dtype, width in itertools.product((dtypes.float32, dtypes.bfloat16), (32, 128)):
        forward = forward_of(width, dtype)
        for problem in (
            dataclasses.replace(forward, precision=precision, grad=grad)
            for precision in ("high", "highest") for grad in (None, forward.q)
        ):  # fmt: skip
            for info in infos:
                for solver in attention.SOLVERS:
                    if solver.applies(problem, info):
                        check(solver.plan(problem, info, store_epilogue(dtype)))
                        seen.add(solver.name)
    assert not {solver.name for solver in attention.SOLVERS} - seen - {"few", "few_lanes"}


@pytest.mark.parametrize("solver", ["winograd2", "winograd4", "cpu", ""])
def test_a_convolution_s_operations_are_all_its_product_s(dev, solver, monkeypatch):
    """Before, Winograd's first transform had them in profiles."""
    monkeypatch.setenv("KERASCL_SOLVERS", solver)
    monkeypatch.setattr(database, "_choose", database._choose.__wrapped__)  # keeps no choice
    x = kc.ones((2, 20, 20, 16)) * 2
    y = kc.conv(x, kc.ones((3, 3, 16, 24)) * 3, padding="same")
    nodes = topological([y._node])
    (product,) = [node for node in nodes if node.op.name == "conv"]
    info = dataclasses.replace(dev.info, matrix="")
    program = lower.lower(nodes, [y._node], info, generic=True)
    counted = {step.name: step.flops for step in program.steps if step.flops}
    expected = library.record(product.op).flops(product)
    assert sum(step.flops for step in program.steps) == expected > 0
    assert all(name.startswith(ARITHMETIC) for name in counted), counted
