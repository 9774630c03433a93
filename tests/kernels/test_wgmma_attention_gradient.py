"""Gradients of attention by warpgroup matrix instructions on a CPU, see `emulator`, against float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention.problem import Dropout
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.hopper.attention_gradient import HopperAttentionGradient, Tile, takes
from tests.kernels import emulator
from tests.kernels.harness import poisoned
from tests.kernels.test_attention import Case, close
from tests.kernels.test_wgmma_attention import DROPOUTS, statistic

BF16, F16 = dtypes.bfloat16, dtypes.float16
SMALL = Tile(1, 32, 3)
RESULTS = {"out": "dq", "dk": "dk", "dv": "dv"}


def run(case, info, dev, queries=SMALL, keys=SMALL, groups=2, fault=None):
    """The gradients of a case, by slot, and how often the fault's text was found."""
    p = case.backward
    assert takes(p)
    plan = HopperAttentionGradient(queries, keys, groups).plan(p, info, store_epilogue(p.dtype))
    if fault:
        assert any(fault[0] in launch.source for launch in plan.launches)
        plan.launches[:] = [
            dataclasses.replace(launch, source=launch.source.replace(*fault))
            for launch in plan.launches
        ]
    outs = {slot: poisoned(getattr(case, name).shape, p.dtype) for slot, name in RESULTS.items()}
    inputs = case.inputs | {
        "d": case.g, "e": statistic(case).astype(np.float32), "f": case.delta,
    }  # fmt: skip
    inputs |= dict(zip("g", case.extra.values(), strict=False))
    return emulator.run_outputs_of(plan, inputs, outs, dev)


def check(case, info, dev, **more):
    got = run(case, info, dev, **more)
    for slot, name in RESULTS.items():
        close(got[slot], getattr(case, name))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_lengths(length, causal, cpu_dev, cpu_info, rng):
    """Of one and of several blocks and tiles, whole and partial, one tile a work-group and more."""
    case = Case((1, length, length, 2, 1, 24, 16), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev)


@pytest.mark.parametrize("queries, keys", [
    (Tile(2, 64, 4), Tile(2, 64, 4)), (Tile(1, 64, 2), Tile(1, 64, 2)),
    (Tile(1, 80, 3), Tile(2, 48, 3)), (Tile(1, 64, 2, local=True), Tile(2, 64, 2, local=True)),
    (Tile(1, 32, 3, local=True), Tile(1, 32, 3, local=True)),
], ids=str)  # fmt: skip
def test_tiles(queries, keys, cpu_dev, cpu_info, rng):
    """Own rows in registers and in local memory, columns no multiple of the rows, short rings."""
    case = Case((1, 150, 210, 2, 1, 72, 64), rng, causal=True, dtype=BF16)
    check(case, cpu_info, cpu_dev, queries=queries, keys=keys)


@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
@pytest.mark.parametrize("width, depth", [
    (8, 128), (128, 8), (128, 128), (64, 104), (40, 24), (64, 64), (32, 32),
])  # fmt: skip
def test_features(width, depth, local, cpu_dev, cpu_info, rng):
    """One panel of 64 or two, whole and partial, of keys and of values."""
    case = Case((2, 70, 75, 1, 1, width, depth), rng, dtype=F16)
    tile = Tile(1, 64, 2, local)
    check(case, cpu_info, cpu_dev, queries=tile, keys=tile)


@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_shared_keys(groups, local, cpu_dev, cpu_info, rng):
    """Neighbouring heads share keys, and all do; three work-groups for all tiles."""
    case = Case((2, 100, 90, 6, groups, 16, 24), rng, causal=True, dtype=BF16)
    tile = Tile(1, 64, 3, local)
    check(case, cpu_info, cpu_dev, groups=3, queries=tile, keys=tile)


@pytest.mark.parametrize("length, source", [(20, 150), (150, 20), (1, 200), (200, 3)])
@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
def test_keys_that_no_query_sees(length, source, local, cpu_dev, cpu_info, rng):
    """Get zeros for gradients: their tiles meet no block."""
    case = Case((1, length, source, 2, 1, 16, 16), rng, causal=True, dtype=BF16)
    tile = Tile(1, 32, 3, local)
    check(case, cpu_info, cpu_dev, queries=tile, keys=tile)


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_dropout(causal, name, cpu_dev, cpu_info, rng):
    """The numbers are those of `philox`, which all kernels draw."""
    case = Case(
        (2, 70, 75, 2, 1, 16, 24), rng, causal=causal, dtype=BF16, dropout=DROPOUTS[name]
    )
    check(case, cpu_info, cpu_dev)


FAULTS = {
    "blocks handed back early": (
        "        WG_WAIT(1);  // for x, and so for the sums of the block before\n        WGMMA_KEEP_S(x);\n"
        "        if (before >= 0) HAND_BACK(before);",
        "        if (before >= 0) HAND_BACK(before);\n        WG_WAIT(1);\n        WGMMA_KEEP_S(x);",
    ),
    "products not waited for": ("        WG_WAIT(1);  // for x, and so for", "        // for"),
    "slopes not waited for": ("        WG_WAIT(0);\n#endif\n        WGMMA_KEEP_P", "#endif\n        WGMMA_KEEP_P"),
    "slopes of keys not waited for": ("OTHER_Y, stage)\n        WG_WAIT(1);", "OTHER_Y, stage)"),
    "sums not waited for": ("WG_WAIT(0);\n      WGMMA_KEEP_K(sum);", "WGMMA_KEEP_K(sum);"),
    "last block never handed back": ("#endif\n      HAND_BACK(before);", "#endif"),
    "own rows never handed back": ("HAND_BACK(OWN_Y);", ""),
    "own rows' other phase": ("BAR_WAIT(full + 8 * OWN_X, turn);", "BAR_WAIT(full + 8 * OWN_X, 0);"),
    "other phase": ("BAR_WAIT(empty + 8 * stage, phase ^ 1)", "BAR_WAIT(empty + 8 * stage, phase)"),
    "no fence": ("WG_FENCE; \\\n    EACH(k_, BC / 16)", "EACH(k_, BC / 16)"),
    "other bytes": ("BAR_EXPECT(bar, FACTS);", "BAR_EXPECT(bar, FACTS - 128);"),
    "other steps of rows": ("PANEL >> 4) + k_ % 4 * 2), k_ != 0); \\\n    WG_COMMIT; \\\n    WG_F",
                            "PANEL >> 4) + k_ % 4 * 4), k_ != 0); \\\n    WG_COMMIT; \\\n    WG_F"),
    "other steps of columns": ("at_ + (ulong)(k_ * 128)", "at_ + (ulong)(k_ * 64)"),
    "values for queries": ("WGMMA_A_K, sum, slopes, 0,", "WGMMA_A_K, sum, slopes, OTHER_Y,"),
    "queries for gradients": ("sumV, weights, OTHER_Y,", "sumV, weights, 0,"),
    "own rows of another tile": ("{ HOLD(tile + groups) }", "{ HOLD(tile) }"),
    "other columns of own rows": ("2 * t4 + 8 * (e_ >> 1)", "2 * t4 + 8 * (e_ & 0)"),
    "other warpgroup's rows": ("OWN_X * STAGE + consumer * 64 * 128", "OWN_X * STAGE"),
    "statistic of other columns": ("facts + 4 * COLUMN(n, 0)", "facts + 4 * COLUMN(0, 0)"),
    "delta of other columns": ("facts + 4 * BC + 4 * COLUMN(n, 0)", "facts + 4 * COLUMN(n, 0)"),
    "delta left out": ("#define SLOPE(v, less) ((v) - (less))", "#define SLOPE(v, less) (v)"),
    "rows' statistics swapped": ("#define TOP(e) top[(e) >> 1]", "#define TOP(e) top[(e) & 1]"),
    "rows' deltas swapped": ("#define LESS(e) less[(e) >> 1]", "#define LESS(e) less[(e) & 1]"),
    "diagonal as any other": ("#define HIDDEN(n, e) (CAUSAL && KEY_OF(n, e) > QUERY_OF(n, e))",
                              "#define HIDDEN(n, e) 0"),
    "diagonal begins late": ("+ 63 > c0)", "- 1 > c0)"),
    "one head of several": ("{ ++h; c0 = BEGIN; }", "{ c0 = BEGIN; }"),
    "statistic of one head": ("b * HEADS + h) * T + t_]", "b * HEADS + owner) * T + t_]"),
    "no scale": ("STORE_ROW(results, r, scale, row < ROWS, at * WIDTH, WIDTH, WP, PUT_R",
                 "STORE_ROW(results, r, 1.0f, row < ROWS, at * WIDTH, WIDTH, WP, PUT_R"),
    "no factor, dropped": ("#define FACTOR_V keepFactor", "#define FACTOR_V 1.0f"),
    "slopes' factor, dropped": ("((v) * keepFactor - (less))", "((v) - (less))"),
    "other row, dropped": ("DRAWS_ACROSS(words, c0 + COLUMN(n, 0), row0)",
                           "DRAWS_ACROSS(words, c0 + COLUMN(n, 0), row0 + 8)"),
    "other bits, dropped": (">> (4 * ((n) % 8) + (e)) & 1u", ">> (4 * ((n) % 8) + ((e) ^ 1)) & 1u"),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_seen(fault, cpu_dev, cpu_info, rng):
    case = Case(
        (1, 130, 70, 2, 1, 40, 24), rng, causal=True, dtype=F16,
        dropout=DROPOUTS["fine"] if "dropped" in fault else None,
    )  # fmt: skip
    local = "never" in fault or "own rows' " in fault or "warpgroup" in fault
    tile = Tile(2, 64, 3, True) if local else Tile(1, 32, 3)
    with pytest.raises(AssertionError, match=r"relative error|poison|\['|a phase never ends"):
        check(case, cpu_info, cpu_dev, queries=tile, keys=tile, fault=FAULTS[fault])


def test_columns_beyond_the_last_key(cpu_dev, cpu_info, rng):
    """They weigh nothing: with their logits of 0 other keys' smaller ones would make them infinite."""
    case = Case((1, 40, 40, 1, 1, 16, 16), rng, dtype=F16)
    case.inputs["a"][..., 0] = 200
    case.inputs["b"][..., 0] = -2
    case._expect(*case.inputs.values(), case.g, (1, 1, 40, 40))
    assert statistic(case).max() < -90
    check(case, cpu_info, cpu_dev)
    fault = "#define HIDDEN(n, e) (KEY_OF(n, e) >= S || (", "#define HIDDEN(n, e) (0 || ("
    with pytest.raises(AssertionError, match="poison or overflow"):
        check(case, cpu_info, cpu_dev, fault=fault)
