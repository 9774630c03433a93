"""Array's operators and methods as editors and type checkers see them.

The room above makes them: `kerascl/ops/methods.py` gives `Array` the functions of `kerascl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Protocol

    from kerascl.core.array import Array, ArrayLike
    from kerascl.core.types import Axes, Device, ShapeLike
    from kerascl.dtypes import DTypeLike

    class Update(Protocol):
        """Selected elements, of which a changed copy of the whole array can be made."""

        def get(self) -> Array:
            """The elements themselves."""

        def set(self, value: ArrayLike) -> Array:
            """A copy with `value` in their place."""

        def add(self, value: ArrayLike) -> Array:
            """A copy with `value` added to them; where an index is repeated, each time."""

        def multiply(self, value: ArrayLike) -> Array:
            """A copy with them times `value`; where an index is repeated, each time."""

        def max(self, value: ArrayLike) -> Array:
            """A copy with the larger of each and `value`."""

        def min(self, value: ArrayLike) -> Array:
            """A copy with the smaller of each and `value`."""

    class At(Protocol):
        """`x.at`, which takes an index."""

        def __getitem__(self, key: Any) -> Update: ...

    class Methods:
        """What every Array can do."""

        def __add__(self, other: ArrayLike) -> Array: ...
        def __radd__(self, other: ArrayLike) -> Array: ...
        def __sub__(self, other: ArrayLike) -> Array: ...
        def __rsub__(self, other: ArrayLike) -> Array: ...
        def __mul__(self, other: ArrayLike) -> Array: ...
        def __rmul__(self, other: ArrayLike) -> Array: ...
        def __truediv__(self, other: ArrayLike) -> Array: ...
        def __rtruediv__(self, other: ArrayLike) -> Array: ...
        def __floordiv__(self, other: ArrayLike) -> Array: ...
        def __rfloordiv__(self, other: ArrayLike) -> Array: ...
        def __mod__(self, other: ArrayLike) -> Array: ...
        def __rmod__(self, other: ArrayLike) -> Array: ...
        def __divmod__(self, other: ArrayLike) -> tuple[Array, Array]: ...
        def __rdivmod__(self, other: ArrayLike) -> tuple[Array, Array]: ...
        def __pow__(self, other: ArrayLike) -> Array: ...
        def __rpow__(self, other: ArrayLike) -> Array: ...
        def __matmul__(self, other: ArrayLike) -> Array: ...
        def __rmatmul__(self, other: ArrayLike) -> Array: ...
        def __and__(self, other: ArrayLike) -> Array: ...
        def __rand__(self, other: ArrayLike) -> Array: ...
        def __or__(self, other: ArrayLike) -> Array: ...
        def __ror__(self, other: ArrayLike) -> Array: ...
        def __xor__(self, other: ArrayLike) -> Array: ...
        def __rxor__(self, other: ArrayLike) -> Array: ...
        def __lshift__(self, other: ArrayLike) -> Array: ...
        def __rlshift__(self, other: ArrayLike) -> Array: ...
        def __rshift__(self, other: ArrayLike) -> Array: ...
        def __rrshift__(self, other: ArrayLike) -> Array: ...
        # element by element, where every other object gives one bool
        def __eq__(self, other: ArrayLike) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: ArrayLike) -> Array: ...  # type: ignore[override]
        def __lt__(self, other: ArrayLike) -> Array: ...
        def __le__(self, other: ArrayLike) -> Array: ...
        def __gt__(self, other: ArrayLike) -> Array: ...
        def __ge__(self, other: ArrayLike) -> Array: ...
        def __neg__(self) -> Array: ...
        def __pos__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __invert__(self) -> Array: ...
        def __round__(self, digits: int = 0) -> Array: ...
        def __getitem__(self, key: Any) -> Array: ...
        def __array_ufunc__(
            self, ufunc: Any, method: str, *inputs: Any, **options: Any
        ) -> Any: ...
        def __array_function__(
            self, function: Any, types: Any, args: Any, kwargs: Any
        ) -> Any: ...
        def __setitem__(self, key: Any, value: ArrayLike) -> None: ...
        def __iter__(self) -> Iterator[Array]: ...

        def __array_namespace__(self, *, api_version: str | None = None) -> Any: ...
        def __dlpack__(
            self,
            *,
            stream: None = None,
            max_version: tuple[int, int] | None = None,
            dl_device: tuple[int, int] | None = None,
            copy: bool | None = None,
        ) -> Any: ...
        def __dlpack_device__(self) -> tuple[int, int]: ...
        def to_pyopencl(self, queue: Any = None) -> Any:
            """The value as a `pyopencl.array.Array` over the same memory: not to be written.

            Args:
                queue: of the same context, for what pyopencl does with it; None: the device's own.

            Raises:
                CaptureError: inside a captured function, where there is no value yet.
                TypeError: for bfloat16 and float8, which pyopencl does not know.
                ValueError: `queue` is of another context.
            """

        @property
        def T(self) -> Array:
            """The array with its axes in reverse order."""

        @property
        def mT(self) -> Array:
            """Matrices (…, m, n) transposed to (…, n, m).

            Raises:
                ValueError: for less than two dimensions.
            """

        @property
        def real(self) -> Array:
            """The real part."""

        @property
        def imag(self) -> Array:
            """The imaginary part; zeros for real arrays."""

        @property
        def at(self) -> At:
            """Changed copies: `x.at[key].set(v)`, `.add`, `.multiply`, `.max` and `.min`."""

        def astype(self, dtype: DTypeLike) -> Array:
            """The array in another dtype."""

        def reshape(self, *shape: ShapeLike) -> Array:
            """The array with another shape, given as a tuple or as integers; one may be -1."""

        def transpose(self, *axes: int | Sequence[int] | None) -> Array:
            """The array with its axes in the order `axes`; reversed by default."""

        def ravel(self) -> Array:
            """All elements along one axis."""

        def flatten(self) -> Array:
            """All elements along one axis, as `ravel`."""

        def squeeze(self, axis: Axes = None) -> Array:
            """The array without axes of size 1: all of them, or those of `axis`.

            Raises:
                ValueError: for an axis of another size.
            """

        def swapaxes(self, axis1: int, axis2: int) -> Array:
            """The array with two axes exchanged."""

        def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
            """The diagonal of two axes, as the last axis of the result.

            Args:
                offset: how far above the main diagonal; below it where negative.

            Raises:
                ValueError: for less than two dimensions.
            """

        def copy(self) -> Array:
            """An Array of its own with the same values; none are copied."""

        def sort(self, axis: int = -1, descending: bool = False) -> None:
            """Put the elements into order along `axis`, in place; NaN counts as the largest."""

        def fill(self, value: ArrayLike) -> None:
            """Set all elements to one value, in place."""

        def take(self, indices: ArrayLike, axis: int | None = None) -> Array:
            """Slices at integer `indices` along `axis` (None: of the flat array).

            Negative indices count from the end.  As in JAX, those out of range give NaN (the least
            signed or the largest unsigned integer, True).

            Raises:
                TypeError: for indices that are not integers.
                IndexError: where there are no elements along `axis`; under KERASCL_DEBUG also for
                    indices out of range.
            """

        def nonzero(self) -> tuple[Array, ...]:
            """Coordinates of the elements that are not 0, one array for each axis.

            Raises:
                ValueError: for an array of shape (), which has no axes.
            """

        def argsort(
            self, axis: int | None = -1, descending: bool = False, stable: bool = True
        ) -> Array:
            """int32 positions that sort the array along `axis` (None: the flat array).

            Equal values keep their order, `stable` or not.
            """

        def to_device(self, device: Device | str, /, *, stream: None = None) -> Array:
            """The array on another device; itself where it lies there.

            Args:
                device: a device, or a name such as "gpu:0".
                stream: None; OpenCL has none.
            """

        def repeat(
            self, repeats: ArrayLike, axis: int | None = None, total_length: int | None = None
        ) -> Array:
            """Each element repeated along `axis` (None: of the flat array).

            Args:
                repeats: a number, or one for each element along `axis`.
                total_length: the sum of several repeats; without it, it is read on the host.
            """

        def cumsum(
            self,
            axis: int | None = None,
            dtype: DTypeLike | None = None,
            reverse: bool = False,
            exclusive: bool = False,
        ) -> Array:
            """Cumulative sum along `axis` (None: of the flat array).

            Args:
                dtype: of the sums; by default the array's, int64 or uint64 for integers and bools.
                reverse: from the last element to the first.
                exclusive: each sum leaves out its own element.
            """

        def cumprod(
            self,
            axis: int | None = None,
            dtype: DTypeLike | None = None,
            reverse: bool = False,
            exclusive: bool = False,
        ) -> Array:
            """Cumulative product along `axis`; arguments as for `cumsum`."""

        def dot(self, b: ArrayLike, dtype: DTypeLike | None = None) -> Array:
            """NumPy's dot: the last axis with the last but one of `b`; scalars multiply."""

        def trace(
            self,
            offset: int = 0,
            axis1: int = 0,
            axis2: int = 1,
            dtype: DTypeLike | None = None,
        ) -> Array:
            """Sum of the diagonal of two axes; `offset` as for `diagonal`, `dtype` as for `sum`."""

        def round(self, decimals: int = 0) -> Array:
            """The array rounded to `decimals` places, halves to even."""

        def clip(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
            """Elements limited to [min, max], in the dtype of the array.

            None leaves a side open; NaN stays NaN.
            """

        def conj(self) -> Array:
            """The complex conjugate."""

        def conjugate(self) -> Array:
            """The complex conjugate, as `conj`."""

        # `dtype` and `out` are those that NumPy's functions of these names hand on; out is None.
        def sum(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """Sum over `axis` (None: all axes, an int or a tuple).

            In `dtype`; by default in the array's, integers and bools in int64 or uint64.
            """

        def mean(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """Arithmetic mean over `axis`; integers give float32."""

        def prod(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """Product over `axis`; in `dtype`, by default as for `sum`."""

        def any(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """Whether any element along `axis` is true."""

        def all(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """Whether all elements along `axis` are true."""

        def ptp(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """The largest minus the smallest element over `axis`."""

        def argmax(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """Position of the first largest element along `axis` (None: of the flat array).

            It is int32, or int64 among more than 2**31 - 1 elements.
            """

        def argmin(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
        ) -> Array:
            """Position of the first smallest element along `axis` (None: of the flat array).

            It is int32, or int64 among more than 2**31 - 1 elements.
            """

        def max(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
            initial: ArrayLike | None = None,
        ) -> Array:
            """The largest element over `axis` (and `initial`); NaN where there is one."""

        def min(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
            initial: ArrayLike | None = None,
        ) -> Array:
            """The smallest element over `axis` (and `initial`); NaN where there is one."""

        def var(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
            ddof: float = 0,
            correction: float | None = None,
        ) -> Array:
            """Variance over `axis`, in two passes.

            Args:
                ddof: what is subtracted from the divisor; `correction` is the same.

            Raises:
                ValueError: when both are given.
            """

        def std(
            self,
            axis: Axes = None,
            keepdims: bool = False,
            *,
            dtype: DTypeLike | None = None,
            out: None = None,
            ddof: float = 0,
            correction: float | None = None,
        ) -> Array:
            """Standard deviation over `axis`: the square root of `var`, with its arguments."""
else:

    class Methods:
        """Nothing while programs run."""

        __slots__ = ()


__all__ = ["Methods"]
