"""One small model of each family of keras.applications agrees with JAX."""

import argparse
import importlib.util
import sys

import pytest

from benchmarks import applications

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="jax is not installed"
)
MODELS = [
    "MobileNet", "MobileNetV2", "MobileNetV3Small", "EfficientNetB0", "EfficientNetV2B0",
    "DenseNet121", "ResNet50", "ResNet50V2", "VGG16", "NASNetMobile", "Xception", "InceptionV3",
    "ConvNeXtTiny",
]  # fmt: skip


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MODELS)
def test_application(name):
    args = argparse.Namespace(
        python=sys.executable,
        reference=sys.executable,
        reference_backend="jax",
        seed=1,
        quick=False,
    )
    row = applications.check(name, args)
    assert applications.passed(row), row
    assert row["host"] == {}
