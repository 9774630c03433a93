"""Which solvers `python -m tests.solvers` forces on."""

from kerascl.runtime import device
from tests.solvers.__main__ import names


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
    assert wanted | {"wgmma_transposed"} <= set(names(hopper_info))
