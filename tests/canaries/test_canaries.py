"""Some forms of kernels of every dtype at some lengths; `python -m tests.canaries` runs all."""

import numpy as np
import pytest

from tests.canaries import check
from tests.canaries.forms import DTYPES, LENGTHS, forms, wrong

SHARE = 0.0008  # of the pairs of operations, around every form


@pytest.mark.parametrize("dtype", DTYPES)
def test_forms_of_kernels(dtype, rng):
    n = int(rng.choice(LENGTHS))
    chosen = forms(dtype, SHARE, rng)
    found = list(check.mismatches(chosen, dtype, n, rng, captured=True))
    assert not found, [f"{form}, n = {n}: {text}" for form, text in found]


def test_a_wrong_element_is_found():
    right = np.arange(5.0)
    assert not wrong(right.astype("f4"), right, 5)
    assert "first at [3]" in wrong(np.array([0, 1, 2, 3.01, 4], "f4"), right, 5)
    assert wrong(np.arange(5) + 1, right, 5) and wrong(right[:4], right, 5)
