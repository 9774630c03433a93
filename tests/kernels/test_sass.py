"""ptxas leaves registers of products alone that are under way (`sass`)."""

import dataclasses

import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import FILTER_GRAD
from kerascl.kernels.hopper import (
    attention,
    attention_gradient,
    attention_gradient_whole,
    register_blocked,
    transposed,
)
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests import convolutions, products
from kerascl.kernels.units import attention_selftest
from tests.kernels import ptx, sass
from tests.kernels.test_wgmma_brought import KINDS, TILE, reading

BF16, FLOAT = dtypes.bfloat16, dtypes.float32
needs_compilers = pytest.mark.skipif(
    not ptx.available() or not ptx.disassembler(),
    reason="needs clang-15, ptxas and nvdisasm (of the package nvidia-cuda-nvdisasm)",
)


def listing(*texts):
    lines = (
        text if text.startswith(".L") else f"        /*{16 * n:04x}*/                   {text} ;"
        for n, text in enumerate(texts)
    )
    return "\n".join(lines)


START = "HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], RZ, !UPT"
END = "HGMMA.64x64x16.F32.BF16 R24, R12, gdesc[UR8], R24, gsb0"
SHARED = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0"
WAIT, WAIT_FOR_ONE = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"


@pytest.mark.parametrize("texts, kinds", [
    ((START, END, "FADD R15, R0, R1"), ["operand"]),
    ((START, END, "FADD R55, R0, R1"), ["result"]),
    ((START, END, "FADD R56, R0, R1"), []),
    ((START, END, WAIT_FOR_ONE, "FADD R15, R0, R1"), []),
    ((START, END, WAIT, "FADD R15, R0, R1"), ["operand"]),
    ((START, "FADD R8, R0, R1", END), ["operand"]),
    ((START, END, SHARED, WAIT, "FADD R15, R0, R1"), []),
    ((SHARED, "FADD R8, R0, R1"), []),
    ((SHARED, "@!P0 FADD R87, R0, R1"), ["result"]),
    ((START, END, "LDS.128 R4, [R0]"), []),
    ((START, END, "LDS.128 R6, [R0]"), ["operand"]),
    ((START, END, "IMAD.WIDE R6, R0, R1, R2"), []),
    ((START, END, "CS2R R6, SRZ"), []),
    ((START, END, "CS2R R14, SRZ"), ["operand"]),
    ((START, END, "STG.E.128 [R8], R12"), []),
    ((START, END, "ISETP.NE.AND P0, PT, R8, RZ, PT"), []),
    ((".L_x_1:", "FADD R8, R0, R1", START, END, "@P0 BRA `(.L_x_1)"), ["operand"]),
    ((".L_x_1:", "FADD R8, R0, R1", START, END, WAIT_FOR_ONE, "@P0 BRA `(.L_x_1)"), []),
], ids=str)  # fmt: skip
def test_what_is_found(texts, kinds):
    assert [hazard.kind for hazard in sass.hazards(listing(*texts))] == kinds


def check(launches, of_registers=True):
    """No hazard in those that multiply; there is at least one that does."""
    count = 0
    for launch in launches:
        if not launch.options:
            continue
        found = ptx.disassembly(launch.source, "sm_90", launch.local_size[0], sm_90a)
        every, by_registers = sass.products(found)
        assert every > 0 and bool(by_registers) == of_registers
        assert sass.hazards(found) == []
        count += 1
    assert count


def case(features, causal, keep, dtype=BF16):
    return attention_selftest.problems((4, 512, 512, 8, features, features, causal, keep), dtype)


@needs_compilers
@pytest.mark.every(8)
@pytest.mark.parametrize("keep", [1.0, 0.75])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("tile", attention.TILES, ids=str)
def test_attention(tile, features, causal, keep, hopper_info):
    p, _ = case(features, causal, keep)
    if not tile.holds(p):
        assert keep < 1
        return
    check(attention.HopperAttention(tile).plan(p, hopper_info, store_epilogue(BF16)).launches)


@needs_compilers
@pytest.mark.every(6)
@pytest.mark.parametrize("keep", [1.0, 0.75])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("keys, most, tile", [
    *((0, *row) for row in attention_gradient.QUERIES),
    *((1, *row) for row in attention_gradient.KEYS),
], ids=str)  # fmt: skip
def test_gradients_of_attention(keys, most, tile, causal, keep, hopper_info):
    _, p = case(most, causal, keep)
    if not tile.holds(p):
        assert keep < 1
        return
    solver = attention_gradient.HopperAttentionGradient(*((None, tile) if keys else (tile, None)))
    check(solver.plan(p, hopper_info, store_epilogue(BF16)).launches[keys :][:1])


@needs_compilers
@pytest.mark.every(2)
@pytest.mark.parametrize("keep", [1.0, 0.75])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_gradients_of_whole_heads(causal, keep, hopper_info):
    _, p = case(64, causal, keep)
    p = dataclasses.replace(p, length=197, source=197)
    plan = attention_gradient_whole.WholeAttentionGradient().plan(
        p, hopper_info, store_epilogue(BF16)
    )
    check(plan.launches)


@needs_compilers
def test_a_branch_is_found(hopper_info):
    """Gradients of keys as they once were: slopes are computed by those warps that have rows."""
    _, p = case(64, False, 1.0)
    _, launch = attention_gradient.HopperAttentionGradient().plan(
        p, hopper_info, store_epilogue(BF16)
    ).launches
    kept = "        SLOPES\n        ADD_PRODUCT"
    assert launch.source.count(kept) == 1
    wrong = launch.source.replace(
        kept, "        if (first + tid / 32 * 16 < ROWS) { SLOPES }\n        ADD_PRODUCT"
    )
    found = ptx.disassembly(wrong, "sm_90", launch.local_size[0], sm_90a)
    assert "operand" in {hazard.kind for hazard in sass.hazards(found)}


@needs_compilers
@pytest.mark.every(3)
@pytest.mark.parametrize("shape", transposed.SHAPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_transposed_products(shape, bias, hopper_info):
    p = products.matmul(700, 392, 424, FLOAT)
    epilogue = products.biased(FLOAT, 392) if bias else store_epilogue(FLOAT)
    check(transposed.TransposedMatmul(shape, 1).plan(p, hopper_info, epilogue).launches)


@needs_compilers
@pytest.mark.every(2)
@pytest.mark.parametrize("dtype, out, more", KINDS, ids=str)
def test_products_of_teams(dtype, out, more, hopper_info):
    p = dataclasses.replace(products.matmul(4096, 768, 768, dtype), precision="high")
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, hopper_info, reading(out, *more))
    check(plan.launches[-1:], of_registers=False)


@needs_compilers
@pytest.mark.every(2)
@pytest.mark.parametrize("box, dtype", [
    *((box, FLOAT) for box in register_blocked.BOXES),
    *((box, BF16) for box in register_blocked.BOXES16),
], ids=str)  # fmt: skip
def test_filter_gradients(box, dtype, hopper_info):
    p = convolutions.problem(FILTER_GRAD, (9, 13, 11, 72, 136, 3, 1, 1, 1), dtype)
    kinds = {
        FLOAT: register_blocked.RegisterBlockedFilterGradient,
        BF16: register_blocked.RegisterBlockedFilterGradient16,
    }
    launches = kinds[dtype](box, 1).plan(p, hopper_info, store_epilogue(FLOAT)).launches
    check([x for x in launches if "register" in x.name])
