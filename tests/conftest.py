"""Fixtures for every test.  KERASCL_DEVICE selects the device; caches go to a fresh folder.

Random inputs are new in each run.  KERASCL_TEST_SEED, a number, brings a run's again.  --long runs
what a quick run leaves out: long tests, and cases of tests with dozens that differ little.
"""

import os
import random
import signal
import tempfile
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings

os.environ.setdefault("KERASCL_CHECK", "0")  # tests/checks asks for it
os.environ.setdefault("KERASCL_CACHE_DIR", tempfile.mkdtemp(prefix="kerascl-test-"))

from kerascl.runtime import device  # (the environment comes first)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it

collect_ignore = ["upstream"]  # Keras' own tests: python -m tests.upstream

# Chosen by --hypothesis-profile; every test takes its share of the number.
settings.register_profile("quick", max_examples=200)
settings.register_profile("thorough", max_examples=2000)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def dev():
    """The device under test."""
    return device.default()


def pytest_addoption(parser):
    parser.addoption(
        "--long", action="store_true", help="long tests, and every case where else each nth runs"
    )


def pytest_collection_modifyitems(config, items):
    """Leave out tests marked `long`; of one marked `every(n)` each nth case runs, from the first.

    Cases count through their parameters as through the digits of a number: where n shares no
    factor with the numbers of values, all values of all parameters are met.
    """
    if config.option.long:
        return
    counts: Counter[tuple] = Counter()
    kept, left = [], []
    for item in items:
        mark = item.get_closest_marker("every")
        case = 0
        if mark is not None:
            test = (item.parent.nodeid, item.originalname)
            case = counts[test] % mark.args[0]
            counts[test] += 1
        leave = case or item.get_closest_marker("long") is not None
        (left if leave else kept).append(item)
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)


SEED = os.environ.get("KERASCL_TEST_SEED")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if SEED is not None and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


@pytest.fixture
def seeds(request) -> list[int]:
    """What the test's random inputs follow from; printed when the test fails."""
    seed = np.random.SeedSequence().entropy % 2**32 if SEED is None else int(SEED)
    print(f"KERASCL_TEST_SEED={seed} draws these inputs again")
    return [seed, zlib.crc32(request.node.name.encode())]


@pytest.fixture
def rng(seeds):
    """The test's own random generator."""
    return np.random.default_rng(seeds)


@pytest.fixture(autouse=True)
def global_generators(seeds):
    """Python's and NumPy's own generators, from which Keras' initialisers draw, start anew: what a
    test draws does not depend on the tests before it."""
    random.seed(repr(seeds))
    np.random.seed(seeds)
