"""kerascl: lazy OpenCL arrays with automatic differentiation, and the Keras 3 backend on them."""

from numpy import complexfloating as complexfloating
from numpy import floating as floating
from numpy import generic as generic
from numpy import inexact as inexact
from numpy import integer as integer
from numpy import number as number
from numpy import signedinteger as signedinteger
from numpy import unsignedinteger as unsignedinteger

import kerascl_hook as _hook
from kerascl.checks import first as _first
from kerascl.compiler.library.own import solver as solver
from kerascl.compiler.run import execute as _execute
from kerascl.compiler.run.capture import jit as jit
from kerascl.core import context as _context
from kerascl.core import tape as _tape
from kerascl.core.array import Array as Array
from kerascl.core.array import State as State
from kerascl.core.context import device as current_device
from kerascl.core.context import device_scope as device_scope
from kerascl.core.context import precision_scope as precision_scope
from kerascl.core.context import set_precision as set_precision
from kerascl.core.derivatives import grad as grad
from kerascl.core.derivatives import hessian as hessian
from kerascl.core.derivatives import jacobian as jacobian
from kerascl.core.derivatives import jvp as jvp
from kerascl.core.derivatives import value_and_grad as value_and_grad
from kerascl.core.derivatives import vjp as vjp
from kerascl.core.errors import CaptureError as CaptureError
from kerascl.core.errors import DeviceMismatchError as DeviceMismatchError
from kerascl.core.errors import KerasclError as KerasclError
from kerascl.core.tape import GradientTape as GradientTape
from kerascl.core.tape import custom_gradient as custom_gradient
from kerascl.core.tape import stop_gradient as stop_gradient
from kerascl.core.traced import remat as remat
from kerascl.dtypes import bfloat16 as bfloat16
from kerascl.dtypes import bool_ as bool
from kerascl.dtypes import bool_ as bool_
from kerascl.dtypes import complex64 as complex64
from kerascl.dtypes import complex128 as complex128
from kerascl.dtypes import float8_e4m3fn as float8_e4m3fn
from kerascl.dtypes import float8_e5m2 as float8_e5m2
from kerascl.dtypes import float16 as float16
from kerascl.dtypes import float32 as float32
from kerascl.dtypes import float64 as float64
from kerascl.dtypes import int8 as int8
from kerascl.dtypes import int16 as int16
from kerascl.dtypes import int32 as int32
from kerascl.dtypes import int64 as int64
from kerascl.dtypes import uint8 as uint8
from kerascl.dtypes import uint16 as uint16
from kerascl.dtypes import uint32 as uint32
from kerascl.dtypes import uint64 as uint64
from kerascl.ops import fft as fft
from kerascl.ops import generator as random
from kerascl.ops import host as host
from kerascl.ops import linalg as linalg
from kerascl.ops import methods as _methods
from kerascl.ops import nn as nn
from kerascl.ops.attention import *
from kerascl.ops.batching import *
from kerascl.ops.bits import *
from kerascl.ops.bits import bitwise_not as bitwise_invert
from kerascl.ops.bits import bitwise_not as invert
from kerascl.ops.bits import left_shift as bitwise_left_shift
from kerascl.ops.bits import right_shift as bitwise_right_shift
from kerascl.ops.branches import *
from kerascl.ops.calculus import *
from kerascl.ops.choosing import *
from kerascl.ops.constants import *
from kerascl.ops.contraction import *
from kerascl.ops.control import loop as loop
from kerascl.ops.control import scan as scan
from kerascl.ops.convolution import *
from kerascl.ops.creation import *
from kerascl.ops.creation import asarray as asanyarray
from kerascl.ops.creation import asarray as ascontiguousarray
from kerascl.ops.custom import elementwise as elementwise
from kerascl.ops.custom import reduction as reduction
from kerascl.ops.dlpack import *
from kerascl.ops.dtype_functions import *
from kerascl.ops.files import *
from kerascl.ops.grids import *
from kerascl.ops.grids import c_ as c_
from kerascl.ops.grids import index_exp as index_exp
from kerascl.ops.grids import mgrid as mgrid
from kerascl.ops.grids import ogrid as ogrid
from kerascl.ops.grids import r_ as r_
from kerascl.ops.grids import s_ as s_
from kerascl.ops.histograms import *
from kerascl.ops.indexing import *
from kerascl.ops.inspection import __array_namespace_info__ as __array_namespace_info__
from kerascl.ops.kernel import kernel as kernel
from kerascl.ops.movement import *
from kerascl.ops.movement import concatenate as concat
from kerascl.ops.movement import transpose as permute_dims
from kerascl.ops.nn import elu as elu
from kerascl.ops.nn import gelu as gelu
from kerascl.ops.nn import leaky_relu as leaky_relu
from kerascl.ops.nn import log_softmax as log_softmax
from kerascl.ops.nn import one_hot as one_hot
from kerascl.ops.nn import relu as relu
from kerascl.ops.nn import silu as silu
from kerascl.ops.nn import softmax as softmax
from kerascl.ops.nn import softplus as softplus
from kerascl.ops.parts import *
from kerascl.ops.pieces import *
from kerascl.ops.pointwise import *
from kerascl.ops.pointwise import absolute as abs
from kerascl.ops.pointwise import arccos as acos
from kerascl.ops.pointwise import arccosh as acosh
from kerascl.ops.pointwise import arcsin as asin
from kerascl.ops.pointwise import arcsinh as asinh
from kerascl.ops.pointwise import arctan as atan
from kerascl.ops.pointwise import arctan2 as atan2
from kerascl.ops.pointwise import arctanh as atanh
from kerascl.ops.pointwise import conjugate as conj
from kerascl.ops.pointwise import deg2rad as radians
from kerascl.ops.pointwise import divide as true_divide
from kerascl.ops.pointwise import mod as remainder
from kerascl.ops.pointwise import power as pow
from kerascl.ops.pointwise import rad2deg as degrees
from kerascl.ops.pointwise import round as around
from kerascl.ops.pointwise import trunc as fix
from kerascl.ops.polynomials import *
from kerascl.ops.pooling import *
from kerascl.ops.pyopencl_arrays import from_pyopencl as from_pyopencl
from kerascl.ops.reduction import *
from kerascl.ops.reduction import max as amax
from kerascl.ops.reduction import min as amin
from kerascl.ops.repeat import *
from kerascl.ops.scan import *
from kerascl.ops.sets import *
from kerascl.ops.sorting import *
from kerascl.runtime import programs as _programs
from kerascl.runtime.errors import CompileError as CompileError

# What may have nothing to do gives an Array of its own all the same: what is assigned to its
# elements stays there.
_MAY_GIVE_BACK = """
    amax amin apply_over_axes around array array_split atleast_1d atleast_2d atleast_3d bitcast
    block broadcast_arrays broadcast_to cast clip column_stack concat
    concatenate conj conjugate copy delete diff ediff1d fix flip flipud fromfunction hsplit hstack
    insert ix_ max meshgrid min nan_to_num pad partition permute_dims polyder polyint prod ravel
    ravel_multi_index real reshape resize roll rollaxis rot90 round sort split squeeze sum transpose
    trim_zeros unwrap view vsplit vstack"""
for _name in _MAY_GIVE_BACK.split():
    globals()[_name] = _tape.distinct(globals()[_name])

__version__ = "0.1.0"
__array_api_version__ = "2024.12"
engine = _execute.Engine()
_context.Context.engine = engine
_programs.first_use = _first.guard_for
_hook.install()

# What tab completion leaves out: the rooms of the implementation.
_ROOMS = {"checks", "compiler", "config", "core", "engine", "kernels", "ops", "runtime"}


def __dir__() -> list[str]:
    return sorted(name for name in globals() if name[0] != "_" and name not in _ROOMS)
