"""kerascl: lazy OpenCL arrays with automatic differentiation, and the Keras 3 backend on them."""

import kerascl_hook as _hook
from kerascl.checks import first as _first
from kerascl.compiler import execute as _execute
from kerascl.compiler.capture import jit
from kerascl.core import context as _context
from kerascl.core.array import Array, State
from kerascl.core.closed import remat
from kerascl.core.context import device_scope, precision_scope, set_precision
from kerascl.core.errors import CaptureError, DeviceMismatchError, KerasclError
from kerascl.core.tape import (
    GradientTape,
    custom_gradient,
    grad,
    stop_gradient,
    value_and_grad,
)
from kerascl.dtypes import (
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from kerascl.dtypes import bool_ as bool_
from kerascl.ops import fft, host, linalg, nn, random
from kerascl.ops import methods as _methods
from kerascl.ops.attention import *
from kerascl.ops.batching import *
from kerascl.ops.bits import *
from kerascl.ops.calculus import *
from kerascl.ops.contraction import *
from kerascl.ops.control import loop, scan
from kerascl.ops.convolution import *
from kerascl.ops.creation import *
from kerascl.ops.indexing import *
from kerascl.ops.movement import *
from kerascl.ops.pointwise import *
from kerascl.ops.pointwise import absolute as abs
from kerascl.ops.pointwise import conjugate as conj
from kerascl.ops.pooling import *
from kerascl.ops.reduction import *
from kerascl.ops.scan import *
from kerascl.ops.sorting import *
from kerascl.runtime import programs as _programs

__version__ = "0.1.0"
engine = _execute.Engine()
_context.Context.engine = engine
_programs.first_use = _first.guard_for
_hook.install()
