"""One plan alone on a device, outside any compiled program: for trials, self-tests and tests."""

from __future__ import annotations

from kerascl.kernels.contract.plan import Arg, Counters, Local, Plan, Ref
from kerascl.runtime.buffers import Buffer
from kerascl.runtime.device import Device, LocalMemory
from kerascl.runtime.launch import Argument


def enqueue(plan: Plan, slots: dict[str, Buffer], dev: Device) -> None:
    """Enqueue a plan's launches over named buffers, its workspace ("ws0", …) among them.

    Raises:
        CompileError, LaunchError: as the runtime does.
    """
    for launch in plan.launches:
        kernel = dev.programs.kernel(launch.source, launch.name, launch.options)
        args = [_argument(arg, slots, dev) for arg in launch.args]
        dev.queue.launch(kernel, launch.global_size, launch.local_size, args)


def _argument(arg: Arg, slots: dict[str, Buffer], dev: Device) -> Argument:
    if isinstance(arg, Ref):
        buffer = slots[arg.slot]
        return buffer.view(arg.offset, buffer.nbytes - arg.offset) if arg.offset else buffer
    if isinstance(arg, Counters):
        return dev.buffers.counters(arg.count)
    if isinstance(arg, Local):
        return LocalMemory(arg.nbytes)
    return arg.host
