"""What a self-test is made of: plans, and what tells whether they computed rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.run import enqueue
from kerascl.runtime import device

POISON = 0xFF  # NaN in every float dtype

Arrays = dict[str, np.ndarray]


@dataclass
class Data:
    """What a plan is given, and what it must leave.

    Attributes:
        inputs: by slot.
        outs: by slot; they get what the slots hold afterwards.
        verdict: looks at `outs`; it raises DeviceError (see `check`).
    """

    inputs: Arrays
    outs: Arrays
    verdict: Callable[[], None]


@dataclass(frozen=True)
class Trial:
    """A plan to run on poisoned memory, `times` times.

    Attributes:
        data: makes what it is given: called when the plan is about to run, as programs take longer
            to build than to run, and all are built first.
    """

    plan: Plan
    data: Callable[[], Data] = field(compare=False)
    times: int = 1


def run(dev: device.Device, trials: Iterable[Trial]) -> None:
    """Run trials, one after the other.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    for trial in trials:
        data = trial.data()
        for _ in range(trial.times):
            compute(trial.plan, data.inputs, data.outs, dev)
            data.verdict()


def compute(plan: Plan, inputs: Arrays, outs: Arrays, dev: device.Device) -> None:
    """Run a plan on poisoned memory; `outs` get what slots of these names then hold."""
    slots = {}
    for name, array in inputs.items():
        slots[name] = dev.buffers.allocate(array.nbytes)
        dev.queue.write(slots[name], array)
    sizes = {f"ws{k}": n for k, n in enumerate(plan.workspace)}
    for name, nbytes in (sizes | {name: array.nbytes for name, array in outs.items()}).items():
        slots[name] = dev.buffers.allocate(nbytes)
        dev.queue.fill(slots[name], bytes([POISON]), 0, nbytes)
    enqueue(plan, slots, dev)
    for name, array in outs.items():
        dev.queue.read(slots[name], array)


def check(name: str, got: np.ndarray, want: np.ndarray, bound: float) -> None:
    """Compare what a self-test computed, by relative norm.

    Raises:
        DeviceError: the error passes `bound`; it names the self-test.
    """
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    if not error <= bound:
        raise device.DeviceError(f"{name} is wrong: relative error {error:.2e}")


def programs(trials: Iterable[Trial]) -> list[tuple[str, tuple[str, ...]]]:
    """What has to be built for them, (source, options), each once."""
    launches = (launch for trial in trials for launch in trial.plan.launches)
    return list(dict.fromkeys((launch.source, launch.options) for launch in launches))
