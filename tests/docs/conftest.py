"""Selects kerascl for the Keras of these tests."""

import os

os.environ["KERAS_BACKEND"] = "kerascl"

import pytest

import kerascl_hook

kerascl_hook.install()

import keras  # noqa: E402  (the environment and the hook come first)

import kerascl as kc  # noqa: E402


@pytest.fixture(autouse=True)
def clean_session():
    """What a page sets for the whole process is as at the start."""
    yield
    kc.set_precision("high")
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
