"""Every function of the Python array API standard (2024.12) takes the arguments that it must."""

import inspect

import pytest

import kerascl as kc

# Parameters as the standard has them, and who takes them: those before "/" by position, those after
# it by position or name, those after "*" by name.
MAIN = [
    ("start / stop step * dtype device", "arange"),
    ("obj / * dtype device copy", "asarray"),
    ("shape * dtype device", "empty ones zeros"),
    ("x / * dtype device", "empty_like ones_like zeros_like"),
    ("n_rows n_cols / * k dtype device", "eye"),
    ("x / * device copy", "from_dlpack"),
    ("shape fill_value * dtype device", "full"),
    ("x / fill_value * dtype device", "full_like"),
    ("start stop / num * dtype device endpoint", "linspace"),
    ("a b / * indexing", "meshgrid"),
    ("x / * k", "tril triu"),
    ("x dtype / * copy device", "astype"),
    ("from_ to /", "can_cast"),
    ("type /", "finfo iinfo"),
    ("dtype kind", "isdtype"),
    ("a b /", "result_type broadcast_arrays"),
    (
        "x /",
        "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor "
        "imag isfinite isinf isnan log log1p log2 log10 logical_not negative positive real "
        "reciprocal round sign signbit sin sinh square sqrt tan tanh trunc matrix_transpose "
        "nonzero unique_all unique_counts unique_inverse unique_values",
    ),
    (
        "x1 x2 /",
        "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor "
        "copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp "
        "logical_and logical_or logical_xor maximum minimum multiply nextafter not_equal pow "
        "remainder subtract matmul",
    ),
    ("x / min max", "clip"),
    ("x indices / * axis", "take take_along_axis"),
    ("x1 x2 / * axes", "tensordot"),
    ("x1 x2 / * axis", "vecdot"),
    ("x / shape", "broadcast_to"),
    ("arrays / * axis", "concat stack"),
    ("x / axis", "expand_dims squeeze"),
    ("x / * axis", "flip unstack"),
    ("x source destination /", "moveaxis"),
    ("x / axes", "permute_dims"),
    ("x repeats / * axis", "repeat"),
    ("x / shape * copy", "reshape"),
    ("x / shift * axis", "roll"),
    ("x repetitions /", "tile"),
    ("x / * axis keepdims", "argmax argmin count_nonzero max mean min all any"),
    ("x1 x2 / * side sorter", "searchsorted"),
    ("condition x1 x2 /", "where"),
    ("x / * axis descending stable", "argsort sort"),
    ("x / * axis dtype include_initial", "cumulative_prod cumulative_sum"),
    ("x / * axis dtype keepdims", "prod sum"),
    ("x / * axis correction keepdims", "std var"),
    ("x / * axis n prepend append", "diff"),
]
LINALG = [
    ("x / * upper", "cholesky"),
    ("x1 x2 / * axis", "cross vecdot"),
    ("x /", "det eigh eigvalsh inv matrix_transpose slogdet svdvals"),
    ("x / * offset", "diagonal"),
    ("x1 x2 /", "matmul outer solve"),
    ("x / * keepdims ord", "matrix_norm"),
    ("x n /", "matrix_power"),
    ("x / * rtol", "matrix_rank pinv"),
    ("x / * mode", "qr"),
    ("x / * full_matrices", "svd"),
    ("x1 x2 / * axes", "tensordot"),
    ("x / * offset dtype", "trace"),
    ("x / * axis keepdims ord", "vector_norm"),
]
FFT = [
    ("x / * n axis norm", "fft ifft rfft irfft hfft ihfft"),
    ("x / * s axes norm", "fftn ifftn rfftn irfftn"),
    ("n / * d dtype device", "fftfreq rfftfreq"),
    ("x / * axes", "fftshift ifftshift"),
]
METHODS = [
    ("device / * stream", "to_device"),
    ("* api_version", "__array_namespace__"),
    ("* stream max_version dl_device copy", "__dlpack__"),
    ("", "__dlpack_device__ __bool__ __int__ __float__ __complex__ __index__"),
    ("", "__abs__ __invert__ __neg__ __pos__"),
    ("key /", "__getitem__"),
    ("key value /", "__setitem__"),
    (
        "other /",
        "__add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__ __and__ "
        "__or__ __xor__ __lshift__ __rshift__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__",
    ),
]


def functions(room, table):
    return [
        pytest.param(room, name, parameters, id=f"{getattr(room, '__name__', room)}.{name}")
        for parameters, names in table
        for name in names.split()
    ]


@pytest.mark.parametrize(
    "room, name, parameters",
    functions(kc, MAIN)
    + functions(kc.linalg, LINALG)
    + functions(kc.fft, FFT)
    + functions(kc.Array, METHODS),
)
def test_parameters(room, name, parameters):
    signature = inspect.signature(getattr(room, name))
    head, _, named = parameters.partition("*")
    first, slash, either = head.partition("/")
    if not slash:
        first, either = "", head
    self = [object()] if room is kc.Array else []
    by_position = self + [object() for _ in first.split()]
    for by_name in (either.split(), []):
        options = {key: object() for key in [*by_name, *named.split()]}
        rest = [object() for key in either.split() if key not in options]
        bound = signature.bind(*by_position, *rest, **options)
        for key, value in options.items():
            assert bound.arguments[key] is value


@pytest.mark.parametrize("name", ["e", "inf", "nan", "pi"])
def test_constants(name):
    assert type(getattr(kc, name)) is float


def test_namespace():
    x = kc.ones(2)
    assert kc.newaxis is None and kc.bool is kc.bool_
    assert x.__array_namespace__() is kc
    assert x.__array_namespace__(api_version="2024.12") is kc
    assert kc.__array_api_version__ == "2024.12"
    with pytest.raises(ValueError, match=r"2024\.12"):
        x.__array_namespace__(api_version="1999.12")
