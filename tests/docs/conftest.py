"""Selects kerascl for the Keras of these tests."""

import os

os.environ["KERAS_BACKEND"] = "kerascl"

import pytest

import kerascl_hook

kerascl_hook.install()

import keras  # noqa: E402  (the environment and the hook come first)

from kerascl.core.context import Context  # noqa: E402


@pytest.fixture(autouse=True)
def clean_session(monkeypatch):
    """What a page sets for the whole process is as at the start."""
    monkeypatch.setattr(Context, "process_precision", Context.process_precision)
    yield
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
