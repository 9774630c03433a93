"""What a self-test's result depends on: its key changes with these sources and no others."""

import pytest

from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.runtime import selftest, sources

MODULES = [
    *hopper_probe.MODULES.values(),
    "kerascl.kernels.units.attention16_large_selftest",
    "kerascl.kernels.units.attention16_selftest",
    "kerascl.kernels.units.attention_fragment_selftest",
    "kerascl.kernels.units.attention_selftest",
    "kerascl.runtime.addresses_selftest",
]
# The OpenCL C of which each self-test speaks.
PROGRAMS = {
    **{
        module: [f"{name}.cl"] for name, module in hopper_probe.MODULES.items()
        if name not in (
            hopper_probe.CONVOLUTIONS, "wgmma_attention_whole", "wgmma_attention_stored",
            "wgmma_sum", "wgmma_several", "wgmma_dense",
        )
    },
    hopper_probe.MODULES["wgmma_sum"]: ["wgmma.cl"],
    hopper_probe.MODULES["wgmma_several"]: ["wgmma.cl", "wgmma_transposed.cl"],
    hopper_probe.MODULES["wgmma_dense"]: [
        "wgmma.cl", "wgmma_dense.cl", "wgmma_transposed.cl",
    ],
    hopper_probe.MODULES["wgmma_attention_whole"]: ["wgmma_attention_gradient.cl"],
    hopper_probe.MODULES["wgmma_attention_stored"]: [
        "wgmma_attention_gradient.cl", "wgmma_attention_queries.cl",
    ],
    hopper_probe.MODULES[hopper_probe.CONVOLUTIONS]: [
        "wgmma.cl", "wgmma_register_blocked.cl",
    ],
    "kerascl.kernels.units.attention_selftest": [
        "attention_mma.cl", "attention_mma_tiles32.cl", "attention_quads.cl", "attention_bits.cl",
        "mma_units.cl", "nv_sm80.cl",
    ],
    "kerascl.kernels.units.attention_fragment_selftest": [
        "attention_fragment.cl", "attention_fragment_tiles.cl", "attention_common.cl", "pairs.cl",
    ],
    **{f"kerascl.kernels.units.attention16{large}_selftest": [
        "attention_mma.cl", "attention_mma_tiles16.cl", "attention_quads.cl", "attention_bits.cl",
        "mma16_units.cl", "mma_units.cl", "nv_sm80.cl",
    ] for large in ("", "_large")},
}


def digest_with(monkeypatch, module: str, changed: str) -> str:
    """The digest of a module as it would be had a file changed."""
    read = sources._text

    def text(file):
        return read(file) + b"\n// more\n" * (str(file.relative_to(sources.PACKAGE)) == changed)

    with monkeypatch.context() as patch:
        patch.setattr(sources, "_text", text)
        return sources.of_module.__wrapped__(module)


@pytest.mark.parametrize(
    ("module", "file", "counts"),
    [
        ("wgmma", "kernels/hopper/selftests/products.py", True),  # the test itself
        ("wgmma", "kernels/hopper/matmul.py", True),  # a planner
        ("wgmma", "kernels/matmul/split_k.py", True),  # what planners use
        ("wgmma", "kernels/hopper/tiles.py", True),  # imported beside others
        ("wgmma", "kernels/hopper/wgmma.cl", True),
        ("conv", "kernels/hopper/wgmma_register_blocked.cl", True),  # named by its stem only
        ("wgmma", "kernels/hopper/wgmma_register_blocked.cl", False),
        ("wgmma", "kernels/pool/pool.cl", False),
        ("wgmma", "kernels/pool/solvers.py", False),
        ("wgmma", "ops/nn.py", False),
        ("attention", "kernels/units/attention_mma.cl", True),
        ("attention", "kernels/units/mma_units.cl", True),
        ("attention", "kernels/units/attention_bits.cl", True),
        ("attention", "kernels/sort/sort.cl", False),
    ],
)
def test_a_digest_knows_what_a_self_test_depends_on(module, file, counts, monkeypatch):
    assert (sources.PACKAGE / file).is_file()
    modules = hopper_probe.MODULES
    module = {
        "wgmma": modules[hopper_probe.BASE], "conv": modules[hopper_probe.CONVOLUTIONS],
        "attention": "kerascl.kernels.units.attention_selftest",
    }[module]
    assert (digest_with(monkeypatch, module, file) != sources.of_module(module)) == counts


@pytest.mark.parametrize("module", MODULES)
def test_every_self_test_has_its_files(module):
    found = {file.name for file in sources.files_of(module)}
    assert {f"{module.split('.')[-1]}.py", *PROGRAMS.get(module, ())} <= found


def test_a_self_test_runs_again_when_the_sources_change(dev, tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    asked = []

    def test():
        asked.append(1)
        return "failed", True

    for digest in ("one", "one", "two", "one"):
        assert selftest.kept(dev.info, "name", digest, test) == "failed"
    assert len(asked) == 2
