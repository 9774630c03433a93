"""Damaged, swapped and planted files of the cache, each once; the script does many rounds."""

import pytest

from tests.faults import cache


@pytest.mark.slow
def test_no_damaged_file_raises_misleads_or_stays(dev, rng, tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    assert cache.attack(dev, 1, rng) == []
