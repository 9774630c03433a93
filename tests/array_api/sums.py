"""A plugin of pytest that tells the suite that integers are summed in 64 bits, as in NumPy.

By the standard they are summed in the default integer dtype, which has 32 bits here.
"""

import pytest

TESTS = (
    "array_api_tests/test_statistical_functions.py::test_sum",
    "array_api_tests/test_statistical_functions.py::test_prod",
    "array_api_tests/test_statistical_functions.py::test_cumulative_sum",
    "array_api_tests/test_statistical_functions.py::test_cumulative_prod",
)


@pytest.hookimpl
def pytest_collection_finish(session):
    from array_api_tests import dtype_helpers

    import kerascl as kc

    dtype_helpers.default_int, dtype_helpers.default_uint = kc.int64, kc.uint64
