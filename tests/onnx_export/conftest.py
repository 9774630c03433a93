"""Selects kerascl for the Keras of these tests."""

import os

os.environ["KERAS_BACKEND"] = "kerascl"

import kerascl_hook

kerascl_hook.install()
