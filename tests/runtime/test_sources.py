"""What a verdict about a driver depends on: its key changes with these sources and no others."""

import pytest

from kerascl.kernels import wgmma_probe
from kerascl.runtime import selftest, sources

MODULES = [
    *(f"kerascl.kernels.{family}_selftest" for family in wgmma_probe.FAMILIES),
    "kerascl.kernels.attention_mma_selftest", "kerascl.runtime.addresses_selftest",
]  # fmt: skip


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
        ("wgmma", "kernels/wgmma_selftest.py", True),  # the test itself
        ("wgmma", "kernels/wgmma_gemm.py", True),  # a planner
        ("wgmma", "kernels/tiles.py", True),  # what planners use
        ("wgmma", "kernels/cl/wgmma.cl", True),
        ("wgmma", "kernels/cl/wgmma_taps.cl", True),  # named by its stem only
        ("wgmma", "kernels/cl/pool.cl", False),
        ("wgmma", "kernels/pool.py", False),
        ("wgmma", "ops/nn.py", False),
        ("attention_mma", "kernels/cl/attention_mma.cl", True),
        ("attention_mma", "kernels/cl/mma_units.cl", True),
        ("attention_mma", "kernels/cl/sort.cl", False),
    ],
)
def test_a_digest_knows_what_a_self_test_depends_on(module, file, counts, monkeypatch):
    assert (sources.PACKAGE / file).is_file()
    module = f"kerascl.kernels.{module}_selftest"
    assert (digest_with(monkeypatch, module, file) != sources.of_module(module)) == counts


@pytest.mark.parametrize("module", MODULES)
def test_every_self_test_has_its_files(module):
    found = {file.name for file in sources.files_of(module)}
    assert f"{module.split('.')[-1]}.py" in found
    if "kernels" in module:
        assert f"{module.split('.')[-1].removesuffix('_selftest')}.cl" in found


def test_a_verdict_is_asked_for_again_when_the_sources_change(dev, tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    asked = []

    def test():
        asked.append(1)
        return "failed", True

    for digest in ("one", "one", "two", "one"):
        assert selftest.kept(dev.info, "name", digest, test) == "failed"
    assert len(asked) == 2
