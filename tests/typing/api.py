"""What a user's type checker knows of kerascl: read by mypy, never run."""

from typing import Any, Literal, assert_type

import numpy as np

import kerascl as kc
from kerascl.typing import Array, ArrayLike, DType, DTypeLike, State

x = kc.array([[1.0, 2.0], [3.0, 4.0]])
state = kc.State(kc.zeros((2,)), "total")


def arrays_are_made_of_what_numpy_takes() -> None:
    assert_type(x, Array)
    assert_type(kc.array(np.ones(3), dtype="float16"), Array)
    assert_type(kc.zeros((2, 3), dtype=kc.bfloat16), Array)
    assert_type(kc.ones(3, dtype=np.float32), Array)
    assert_type(kc.full((2,), 7, dtype=int), Array)
    assert_type(kc.arange(5), Array)
    assert_type(kc.eye(3), Array)
    kc.zeros(3, dtype="float23")  # type: ignore[arg-type]  # no such dtype


def arrays_tell_what_they_are() -> None:
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.dtype, DType)
    assert_type(x.ndim, int)
    assert_type(x.numpy(), np.ndarray)
    assert_type(float(x[0, 0]), float)
    assert_type(list(x), list[Array])
    assert_type(state.value, Array)


def operators_give_arrays() -> None:
    assert_type(x + 1, Array)
    assert_type(1 - x, Array)
    assert_type(2.0 * x / x**2, Array)
    assert_type(x @ x, Array)
    assert_type(-abs(x), Array)
    assert_type(x == 1, Array)
    assert_type((x > 0) & ~(x < 1), Array)
    assert_type(x[..., None, ::2], Array)
    assert_type(divmod(x, 2), tuple[Array, Array])


def methods_give_arrays() -> None:
    assert_type(x.sum(axis=0), Array)
    assert_type(x.mean(keepdims=True), Array)
    assert_type(x.var(ddof=1), Array)
    assert_type(x.astype("int32"), Array)
    assert_type(x.reshape(-1), Array)
    assert_type(x.reshape((1, 4)), Array)
    assert_type(x.T, Array)
    assert_type(x.at[0].set(1.0), Array)
    assert_type(x.nonzero(), tuple[Array, ...])


def functions_give_arrays() -> None:
    assert_type(kc.sum(x, axis=0), Array)
    assert_type(kc.max([1, 2, 3]), Array)
    assert_type(kc.mean(x, axis=(0, 1), keepdims=True), Array)
    assert_type(kc.exp(x), Array)
    assert_type(kc.maximum(x, 0), Array)
    assert_type(kc.where(x > 0, x, 0), Array)
    assert_type(kc.matmul(x, x), Array)
    assert_type(kc.einsum("ij,jk->ik", x, x), Array)
    assert_type(kc.concatenate([x, x], axis=1), Array)
    assert_type(kc.split(x, 2), list[Array])
    assert_type(kc.top_k(x, 1), tuple[Array, Array])
    assert_type(kc.argmax(x), Array)
    assert_type(kc.cumsum(x, axis=0), Array)
    assert_type(kc.cast(x, "int8"), Array)
    assert_type(kc.nn.softmax(x), Array)
    assert_type(kc.nn.relu(x), Array)
    assert_type(kc.nn.gelu(x, approximate=False), Array)
    assert_type(kc.linalg.solve(x, x), Array)
    assert_type(kc.random.normal(kc.array([0, 1], "uint32"), (3,)), Array)
    kc.sum(x, axis="rows")  # type: ignore[arg-type]  # an axis is a number
    kc.reshape(x, "flat")  # type: ignore[arg-type]


def results_differ_by_literals() -> None:
    assert_type(kc.linspace(0, 1, 5), Array)
    assert_type(kc.linspace(0, 1, 5, retstep=True), tuple[Array, Array])
    assert_type(kc.unique(x), Array)
    assert_type(kc.unique(x, return_counts=True), Array | tuple[Array, ...])


def decay(x: ArrayLike, rate: float = 0.9) -> Array:
    return kc.multiply(x, rate)


def loss(w: Array, name: str) -> Array:
    return kc.sum(w * w)


def transforms_keep_signatures() -> None:
    fast = kc.jit(decay)
    assert_type(fast(x, rate=0.5), Array)
    fast(x, "quickly")  # type: ignore[arg-type]  # the rate is a number
    assert_type(kc.remat(decay)(x), Array)
    assert_type(kc.value_and_grad(loss)(x, "l2"), tuple[Array, Any])
    kc.grad(loss)(x)  # type: ignore[call-arg]  # the name is missing
    assert_type(kc.vmap(decay)(x), Array)
    assert_type(kc.stop_gradient(x), Array)


def blocks() -> None:
    with kc.GradientTape(persistent=True) as tape:
        y = kc.sum(x * x)
    assert_type(tape, kc.GradientTape)
    tape.gradient(y, [x])
    with kc.device_scope("cpu:0"), kc.precision_scope("highest"):
        kc.zeros(3)


def annotations_of_users(dtype: DTypeLike, mode: Literal["float16", "float32"]) -> Array:
    return kc.zeros((2,), mode) + kc.zeros((2,), dtype)


def updated(total: State) -> None:
    total.assign(total.value + 1)
    total.assign(1.0)
    total.assign(None)  # type: ignore[arg-type]  # a value of the state's shape
