"""Fixtures for every test.  KERASCL_DEVICE selects the device; caches go to a fresh folder.

Random inputs are new in each run.  KERASCL_TEST_SEED, a number, brings a run's again.

`pytest` alone runs what a few minutes are enough for: of each test a share of the cases.  `pytest
--rest` runs the others.  --long adds long tests, and cases of tests with dozens that differ little.
"""

import os
import random
import signal
import tempfile
import zlib

import numpy as np
import pytest
from hypothesis import settings

os.environ.setdefault("KERASCL_CHECK", "0")  # tests/checks asks for it
os.environ.setdefault("KERASCL_CACHE_DIR", tempfile.mkdtemp(prefix="kerascl-test-"))

from kerascl.runtime import device  # (the environment comes first)
from tests.selection import chosen, one_part, part_of

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
    group = parser.getgroup("which tests run")
    group.addoption(
        "--whole", action="store_true",
        help="all but long tests, as where paths, -k or -m are given",
    )  # fmt: skip
    group.addoption("--rest", action="store_true", help="of those what pytest alone leaves out")
    group.addoption(
        "--long", action="store_true", help="also long tests, and the cases that `every` leaves out"
    )
    group.addoption(
        "--part", type=part_of, default="1/1", help="of these the i-th of n parts, as i/n"
    )


def pytest_collection_modifyitems(config, items):
    """Leave out what --long, --whole or --rest would run, and other parts than --part."""
    option, seed = config.option, int(SEED or 0)
    which = "rest" if option.rest else "whole" if _named(config) else "quick"
    whole = list(items) if option.long else chosen(items, "whole", seed)
    kept = set(whole if option.long else chosen(items, which, seed))
    kept &= set(one_part(whole, option.part))
    if left := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item in kept]


def _named(config):
    """Whether all of the tests collected run: they were asked for, or --whole."""
    if hasattr(config, "workerinput"):
        return config.workerinput["named"]
    option = config.option
    asked = config.args_source is not config.ArgsSource.TESTPATHS
    return asked or option.whole or bool(option.keyword or option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Processes of xdist get paths in any case."""
    node.workerinput["named"] = _named(node.config)


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
