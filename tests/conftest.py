"""Fixtures for every test.  KERASCL_DEVICE selects the device; caches go to a fresh folder."""

import os
import tempfile

import numpy as np
import pytest
from hypothesis import settings

os.environ.setdefault("KERASCL_CACHE_DIR", tempfile.mkdtemp(prefix="kerascl-test-"))

from kerascl.runtime import device  # (the environment comes first)

collect_ignore = ["upstream"]  # Keras' own tests: python -m tests.upstream

# Chosen by --hypothesis-profile; every test takes its share of the number.
settings.register_profile("quick", max_examples=200)
settings.register_profile("thorough", max_examples=2000)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def dev():
    """The device under test."""
    return device.default()


@pytest.fixture
def rng(request):
    """A random generator whose seed is printed when a test fails."""
    seed = np.random.SeedSequence().entropy % 2**32
    print(f"seed {seed}")
    return np.random.default_rng(seed)
