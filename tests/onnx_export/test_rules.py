"""Every operation of tests/ops/table.py, as a file that onnx' own evaluator runs."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.onnx import ExportError
from tests.onnx_export.running import agree, run
from tests.ops import table

# ONNX has no operator for these, nor a short way to them that keeps their digits.
NO_FORM = {
    "bitcast", "digamma", "erfc", "erfinv", "gcd", "i0", "i1", "lcm", "lgamma", "make_complex",
    "nextafter", "sort_complex", "view",
}  # fmt: skip
CASES = [c for c in table.CASES if c.name not in table.READ_THE_HOST | NO_FORM]


@pytest.mark.parametrize("case", CASES, ids=[c.label for c in CASES])
def test_value(case, rng, tmp_path):
    inputs = [np.asarray(x) for x in case.inputs(rng)]
    inputs = [x.astype("float32") if x.dtype.kind == "f" else x for x in inputs]
    (found,) = run(tmp_path / "o.onnx", *inputs, function=case.call, dynamic_batch=False)
    exact = [x.astype("float64") if x.dtype.kind == "f" else x for x in inputs]
    agree(found, case.reference(*exact))


@pytest.mark.parametrize("approximate", [False, True], ids=["exact", "tanh"])
def test_gradients_of_gelu(approximate, rng, tmp_path):
    x = rng.normal(size=(5, 7)).astype("float32")
    slope = kc.grad(lambda v: kc.sum(kc.gelu(v, approximate)))
    (found,) = run(tmp_path / "o.onnx", x, function=slope, dynamic_batch=False)
    agree(found, slope(kc.array(x)).numpy())


@pytest.mark.parametrize("size", [2, 9])
def test_unique_values_of_a_given_size(size, tmp_path):
    x = np.array([3, 1, 3, 3, 2, 1], "int32")

    def function(x):
        return kc.unique(x, size=size)

    (found,) = run(tmp_path / "o.onnx", x, function=function, dynamic_batch=False)
    np.testing.assert_array_equal(found, np.array([1, 2, 3, 1, 1, 1, 1, 1, 1])[:size])


REFUSED = {c.name: c for c in table.CASES if c.name in NO_FORM | table.READ_THE_HOST}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_operations_without_a_form_leave_no_file(case, rng, tmp_path):
    inputs = [np.asarray(x) for x in case.inputs(rng)]
    inputs = [x.astype("float32") if x.dtype.kind == "f" else x for x in inputs]
    with pytest.raises(ExportError):
        run(tmp_path / "o.onnx", *inputs, function=case.call, dynamic_batch=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [18, 20])
def test_transforms(opset, rng, tmp_path):
    x, y = rng.standard_normal((2, 3, 12, 5)).astype("float32")

    def function(x, y):
        re, im = kc.fft.dft(x, y, axis=1)
        return kc.concat([re, *kc.fft.dft(im, inverse=True, axis=1)], 0)

    (found,) = run(
        tmp_path / "o.onnx", x, y, function=function, dynamic_batch=False, opset=opset
    )
    z = np.fft.fft(x.astype(float) + 1j * y, axis=1)
    back = np.fft.ifft(z.imag, axis=1)
    agree(found, np.concatenate([z.real, back.real, back.imag]))
