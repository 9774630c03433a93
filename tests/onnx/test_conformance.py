"""The cheap part of python -m tests.onnx."""

import pytest

from tests.onnx import cases

KINDS = ("simple", "pytorch-operator")


@pytest.mark.parametrize("case", cases.cases(KINDS), ids=lambda c: f"{c.kind}/{c.name}")
def test_onnx_case(case):
    error, why = cases.run(case), cases.reason(case, cases.reasons())
    assert bool(error) == bool(why), error
