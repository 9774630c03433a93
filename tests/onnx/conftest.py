"""Selects kerascl for the Keras of these tests."""

import os

os.environ["KERAS_BACKEND"] = "kerascl"

import pytest

import kerascl_hook

kerascl_hook.install()

import keras  # noqa: E402  (the environment and the hook come first)


@pytest.fixture(autouse=True)
def clean_session():
    """Global Keras state is as at the start."""
    yield
    keras.utils.clear_session(free_memory=False)
