"""Programs ready to run again: what eager evaluation need not find out each time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from kerascl.compiler.graph import views
from kerascl.compiler.program.program import Program, Step, Use
from kerascl.compiler.program.repeat import Repeat
from kerascl.core.lease import Lease
from kerascl.core.node import Node
from kerascl.kernels.contract.plan import Counters
from kerascl.runtime.device import Device
from kerascl.runtime.ready import ReadyLaunch
from kerascl.runtime.repeat import repeat


class _Memory(NamedTuple):
    """A launch argument: a slot from byte `offset` on, or so many arrival counters."""

    slot: int
    offset: int = 0
    counters: int = 0


class _ReadyStep(NamedTuple):
    """A launch or a loop; `new` are the slots that it is first to use and their bytes, `done` those
    whose memory nobody needs afterwards."""

    work: ReadyLaunch | Repeat
    slots: list[int] | None  # of a launch that uses whole slots only
    memory: list[_Memory]
    new: list[tuple[int, int]]
    done: list[int]


class ReadyProgram:
    """A Program of a graph, for equal graphs on one device.

    Args:
        program: from `lower`.
        graph: the graph's nodes in topological order.
        roots: the values wanted.
        device: where it runs.

    Attributes:
        steps: how many steps the program has.
    """

    def __init__(self, program: Program, graph: list[Node], roots: list[Node], device: Device):
        self.program, self.steps = program, len(program.steps)
        self._device = device
        position = {node: k for k, node in enumerate(graph)}
        self._roots = [(position[root], position[views.storage(root)]) for root in roots]
        slots = list(enumerate(program.slots))
        self._inputs = [(k, slot.node) for k, slot in slots if slot.kind == "input"]
        self._outputs = {slot.node: k for k, slot in slots if slot.kind == "output"}
        # of the same program the same kernels: whether they are built, the last one tells
        self._last = next(reversed(list(program.launches)), None)
        self._ready: list[_ReadyStep] = []
        self._launches: dict[Step, tuple[ReadyLaunch, list[_Memory]]] = {}

    @property
    def kernels(self) -> int:
        """How many different kernels it launches."""
        return self.program.kernels

    def run(self, graph: list[Node]) -> None:
        """Enqueue it for a graph that equals its own; the roots become data.

        Temporaries go back to the allocator after their last use.

        Raises:
            CompileError, LaunchError, OutOfDeviceMemory, ContextLost: no root has become data.
        """
        if self._last is not None and self._last.kernel is None:
            self._make_kernels()
        device = self._device
        allocate = device.buffers.allocate
        buffers: list[Any] = [None] * len(self.program.slots)
        for slot, node in self._inputs:
            buffers[slot] = graph[node].buffer
        for step in self._ready:
            for slot, nbytes in step.new:
                buffers[slot] = allocate(nbytes)
            work = step.work
            if isinstance(work, Repeat):
                self._repeat(work, buffers)
            elif step.slots is not None:
                work.run([buffers[slot] for slot in step.slots])
            else:
                work.run([self._find(one, buffers) for one in step.memory])
            for slot in step.done:
                buffers[slot] = None
        leases: dict[int, Lease] = {}
        found: list[tuple[Node, Lease]] = []
        for root, storage in self._roots:
            lease = graph[storage].lease or leases.get(storage)
            if lease is None:
                index = self._outputs.get(storage)
                buffer = None if index is None else buffers[index]
                if buffer is None:  # no elements: nothing was launched
                    buffer = allocate(1)
                lease = leases[storage] = Lease(buffer)
            found.append((graph[root], lease))
        for value, lease in found:
            value.device = device
            value.realize(lease)

    def _find(self, memory: _Memory, buffers: list[Any]) -> Any:
        if memory.counters:
            return self._device.buffers.counters(memory.counters)
        buffer = buffers[memory.slot]
        if memory.offset:
            nbytes = self.program.slots[memory.slot].nbytes
            return buffer.view(memory.offset, nbytes - memory.offset)
        return buffer

    def _make_kernels(self) -> None:
        program, programs = self.program, self._device.programs
        built = programs.build(step.program for step in program.launches)
        self._launches.clear()
        for step in program.launches:
            step.kernel = programs.kernel(step.source, step.name, step.options)
            self._launches[step] = self._launch(step)
        del built  # the kernels hold it
        self._ready = [self._step(position, step) for position, step in enumerate(program.steps)]

    def _launch(self, step: Step) -> tuple[ReadyLaunch, list[_Memory]]:
        values, memory = [], []
        for arg in step.args:
            if type(arg) is Use:
                memory.append(_Memory(arg.index, arg.offset))
            elif type(arg) is Counters:
                memory.append(_Memory(-1, counters=arg.count))
            else:
                values.append(arg)
                continue
            values.append(None)
        queue = self._device.queue
        return ReadyLaunch(queue, step.kernel, step.global_size, step.local_size, values), memory

    def _step(self, position: int, step: Step) -> _ReadyStep:
        program = self.program
        used = dict.fromkeys(arg.index for arg in step.args if type(arg) is Use)
        kinds = {k: program.slots[k].kind for k in used}
        new = [
            (k, program.slots[k].nbytes)
            for k in used
            if program.first[k] == position and kinds[k] != "input"
        ]
        done = [k for k in used if program.last[k] == position and kinds[k] == "temporary"]
        if isinstance(step, Repeat):
            return _ReadyStep(step, None, [], new, done)
        work, memory = self._launches[step]
        whole = all(not one.offset and not one.counters for one in memory)
        return _ReadyStep(work, [one.slot for one in memory] if whole else None, memory, new, done)

    def _repeat(self, loop: Repeat, buffers: list[Any]) -> None:
        """Launch a loop's steps until the device has left it."""
        calls: list[Callable[[], None]] = []
        for step in loop.body:
            if isinstance(step, Repeat):
                calls.append(functools.partial(self._repeat, step, buffers))
                continue
            work, memory = self._launches[step]
            given = [self._find(one, buffers) for one in memory]
            calls.append(functools.partial(work.run, given))

        def iterate(count: int) -> None:
            for _ in range(count):
                for call in calls:
                    call()

        repeat(self._device.queue, buffers[loop.flag], iterate, len(calls), loop.most)
