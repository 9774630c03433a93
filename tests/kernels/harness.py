"""Runs a kernel plan on a device, for tests: inputs in, poisoned output overwritten, result out."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from kerascl import config
from kerascl.dtypes import DType
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.run import enqueue
from kerascl.runtime import device

POISON = 0xA5


@functools.cache
def devices() -> dict[str, device.Device]:
    """The device that KERASCL_DEVICE names, else every one that is no simulator, by platform."""
    if config.device():
        found = [device.get(config.device())]
    else:
        found = [f.device for f in device.find_devices() if f.device]
        found = [d for d in found if "simulator" not in d.info.quirks]
    return {d.info.platform: d for d in found}


def small_gpu(info: device.DeviceInfo, local_mem_bytes: int) -> device.DeviceInfo:
    """A device's facts as those of a GPU with small work-groups and so much local memory."""
    return dataclasses.replace(
        info, kind="gpu", max_work_group_size=64, local_mem_bytes=local_mem_bytes, compute_units=4
    )


def poisoned(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """An array whose every byte is POISON, so that an element left unwritten shows."""
    out = np.empty(shape, dtype.numpy)
    out.view(np.uint8 if out.size else out.dtype).fill(POISON)
    return out


def run_plan(
    plan: Plan, inputs: dict[str, np.ndarray], out: np.ndarray, dev: device.Device, out_slot="out"
) -> np.ndarray:
    """The contents of slot `out_slot` after the plan ran.

    Args:
        plan: what a kernel module planned for `dev.info`.
        inputs: arrays for the input slots; they may be empty.
        out: the output's initial (poisoned) contents; left alone.
        dev: where to run.

    The workspace is poisoned too, and guard bytes behind the output must survive.
    """
    return run_outputs(plan, inputs, {out_slot: out}, dev)[out_slot]


def run_outputs(
    plan: Plan, inputs: dict[str, np.ndarray], outs: dict[str, np.ndarray], dev: device.Device
) -> dict[str, np.ndarray]:
    """Like `run_plan` for several outputs, by slot."""
    guard = 256
    slots = {name: _upload(dev, np.ascontiguousarray(x).tobytes()) for name, x in inputs.items()}
    for name, out in outs.items():
        slots[name] = _upload(dev, out.tobytes() + bytes([POISON]) * guard)
    for number, nbytes in enumerate(plan.workspace):
        slots[f"ws{number}"] = _upload(dev, bytes([POISON]) * nbytes)
    enqueue(plan, slots, dev)
    results = {}
    for name, out in outs.items():
        raw = np.empty(out.nbytes + guard, np.uint8)
        dev.queue.read(slots[name], raw)
        assert (raw[out.nbytes :] == POISON).all(), f"written behind output {name}"
        results[name] = raw[: out.nbytes].view(out.dtype).reshape(out.shape)
    return results


def changed(plan: Plan, fault: tuple[str, str]) -> None:
    """Replace a piece of a plan's texts, which must be there, with what is wrong."""
    assert any(fault[0] in launch.source for launch in plan.launches), fault[0]
    plan.launches[:] = [
        dataclasses.replace(launch, source=launch.source.replace(*fault))
        for launch in plan.launches
    ]


def _upload(dev: device.Device, data: bytes):
    array = np.frombuffer(data or b"\0" * 16, np.uint8)
    buffer = dev.buffers.allocate(array.nbytes)
    dev.queue.write(buffer, array)
    return buffer


def random_array(rng: np.random.Generator, shape, dtype: DType) -> np.ndarray:
    """Normal values for float dtypes, small integers for others (exact modulo 2**bits)."""
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    low = 0 if dtype.kind == "u" else -9
    return rng.integers(low, 10, shape).astype(dtype.numpy)


def assert_close(
    got: np.ndarray, want: np.ndarray, acc: DType, terms: int, sizes: np.ndarray | None = None
) -> None:
    """Compare with a float64 (or integer) reference by relative norm.

    The bound follows the accumulator type, `terms` summands and the rounding of the stored dtype.
    Results so few that their terms may cancel in all are measured against `sizes`, the roots of
    the sums of their terms' squares; others against themselves.
    """
    assert got.shape == want.shape
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want.astype(got.dtype))
        return
    got64 = got.astype(np.float64)
    assert np.isfinite(got64).all(), "poison or overflow in the output"
    scale = np.linalg.norm((want if sizes is None else sizes).ravel()) or 1.0
    error = np.linalg.norm((got64 - want).ravel()) / scale
    bound = {"float32": 2e-7, "float64": 1e-15}[acc.name] * max(terms, 1) ** 0.5 + 1e-7
    bound = bound if acc.name == "float32" else bound - 1e-7 + 1e-15
    bound += {"float16": 5e-4, "bfloat16": 4e-3}.get(got.dtype.name, 0.0)
    assert error <= bound, f"relative error {error:.3e} above {bound:.3e}"
