"""`keras.ops.numpy` for the kerascl backend: names only."""
# ruff: noqa: F403

from kerascl.backend.ops.numpy_elementwise import *
from kerascl.backend.ops.numpy_movement import *
from kerascl.backend.ops.numpy_reduction import *
