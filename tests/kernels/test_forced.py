"""Which solvers `python -m tests.solvers` forces on."""

from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.contract.lanes import lanes_of
from kerascl.runtime import device
from tests.solvers import emulated
from tests.solvers.__main__ import ATTENTION_PATHS, PATHS, names


def test_names_of_a_device():
    info = device.default().info
    found = names(info)
    assert "pointwise" in found and any(name.startswith("tiled") for name in found)
    assert info.matrix == "wgmma90" or not any("wgmma" in name for name in found)


def test_names_of_a_card(hopper_info):
    wanted = {
        "wgmma",
        "wgmma_register_blocked",
        "wgmma_channel_major",
        "wgmma_stem",
        "wgmma_stem_filter",
    }
    assert wanted | {"wgmma_transposed", "wgmma_left"} <= set(names(hopper_info))


def test_names_of_attention(monkeypatch):
    """All of them with its tests, those of matrix units where these are emulated."""
    info = device.default().info
    found = names(info)
    assert set(ATTENTION_PATHS) <= set(found["tile"]) and found["direct"] == PATHS
    assert "xmx16" not in found or info.matrix
    emulated.install(monkeypatch.setattr)
    found = names(info)
    elsewhere = {"cpu", "cpu_grad"} if info.kind != "cpu" else set()
    elsewhere |= {"few_lanes"} if lanes_of(info) is None else set()
    assert {solver.name for solver in attention.SOLVERS} - elsewhere <= set(found)
    assert set(ATTENTION_PATHS) <= set(found["xmx16"]) and found["xmx16_32x32"] == PATHS
