"""Libraries that take arrays of the array API standard take ours: scikit-learn, in a process whose
SciPy was told so before its import."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("sklearn", minversion="1.7", reason="scikit-learn from 1.7 on")

PROGRAM = """
import sys

import numpy as np
import sklearn
from sklearn import decomposition, discriminant_analysis, linear_model, metrics, preprocessing
from sklearn.externals import array_api_compat as compat

import kerascl as kc

sklearn.set_config(array_api_dispatch=True)
rng = np.random.default_rng(int(sys.argv[1]))
x = rng.normal(size=(50, 4)).astype("float32")
labels = (x[:, 0] + 0.1 * rng.normal(size=50) > 0).astype("int32")
target = (x @ np.arange(4) + 0.1 * rng.normal(size=50)).astype("float32")

a = kc.asarray(x)
assert compat.is_array_api_obj(a) and compat.array_namespace(a) is kc
assert compat.device(a) is a.device and compat.to_device(a, a.device) is a


def project(x):
    return decomposition.PCA(2, svd_solver="full").fit_transform(x)


def same(name, function, *arrays, sign=False):
    expected, found = function(*arrays), function(*map(kc.asarray, arrays))
    if isinstance(expected, np.ndarray):
        assert isinstance(found, kc.Array), name
        found = found.numpy()
    if sign:
        expected, found = abs(expected), abs(found)
    error = np.linalg.norm(found - np.asarray(expected, "float64"))
    assert error <= 1e-4 * np.linalg.norm(expected), (name, error)


scaler = preprocessing.StandardScaler
same("scaler", lambda x: scaler().fit_transform(x), x)
same("polynomials", lambda x: preprocessing.PolynomialFeatures(2).fit_transform(x), x)
same("pca", project, x, sign=True)
ridge = linear_model.Ridge(solver="svd")
same("ridge", lambda x, t: ridge.fit(x, t).predict(x), x, target)
lda = discriminant_analysis.LinearDiscriminantAnalysis()
same("lda", lambda x, t: lda.fit(x, t).predict(x), x, labels)
same("accuracy", metrics.accuracy_score, labels, 1 - labels)
same("roc", metrics.roc_auc_score, labels, target)
same("r2", metrics.r2_score, target, target + x[:, 0])
same("distances", metrics.pairwise.euclidean_distances, x)
"""


@pytest.mark.slow
def test_scikit_learn_computes_on_the_device(rng):
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(rng.integers(2**32))], env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
