"""A pytest plugin: CPU drivers pass for the profile that KERASCL_TEST_PROFILE names."""

import os

from tests import profiles


def pytest_configure():
    profiles.pretend(os.environ["KERASCL_TEST_PROFILE"])
