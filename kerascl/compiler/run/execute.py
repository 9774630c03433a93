"""Eager execution: evaluate the graph behind arrays, now."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable
from typing import Any, cast

import numpy as np

from kerascl.compiler.graph import views
from kerascl.compiler.program.lower import lower
from kerascl.compiler.run.prepared import PreparedGraph
from kerascl.compiler.run.ready import ReadyProgram
from kerascl.core import context
from kerascl.core.errors import CaptureError
from kerascl.core.lease import FIXED, LENT, Lease
from kerascl.core.lock import LOCK
from kerascl.core.node import BY_SERIAL, Node, identity, topological
from kerascl.core.op import ARGUMENT, BATCHED, CONST, DATA, Kind
from kerascl.kernels.tuning import choices
from kerascl.runtime import device as devices
from kerascl.runtime import programs, sharing
from kerascl.runtime.device import Device
from kerascl.runtime.errors import CompileError, DeviceError
from kerascl.runtime.profile import profile
from kerascl.runtime.recent import Recent
from kerascl.runtime.sharing import Borrowed

# Kernels of all compiled graphs that are kept for the next evaluation of an equal graph.  Eager
# steps of a large network take some hundreds; a CPU driver takes about a MiB for one.
MOST_KERNELS = 2048
_MOST_BEFORE = 32  # nodes of inputs not computed yet that a prepared graph may begin with


def structure(nodes: list[Node], roots: list[Node]) -> tuple[Any, ...]:
    """A key that is equal for graphs that compile to the same Program."""
    position: dict[Node, int] = {}
    at = position.__getitem__
    parts = []
    for k, node in enumerate(nodes):
        position[node] = k
        inputs = tuple(map(at, node.inputs))
        parts.append(identity(node.op, inputs, node.attrs, node.shape, node.dtype))
    return (*parts, *map(at, roots))  # every part is a tuple, and no root is


class Engine:
    """Evaluates graphs on OpenCL devices; the one engine behind `kerascl.core.context`."""

    def __init__(self) -> None:
        self.programs = Recent(MOST_KERNELS, lambda program: max(1, program.kernels))
        self.compiled = 0
        self.launches = 0

    # -- the protocol of kerascl.core.context.Engine
    def default_device(self) -> Device:
        """The device of arrays that name none."""
        return devices.default()

    def find_device(self, name: str) -> Device:
        """The device of this name or index.

        Raises:
            DeviceError: there is none."""
        return devices.get(name)

    def devices(self) -> list[Device]:
        """All devices that there are, but for simulators."""
        found = (place.device for place in devices.find_devices())
        return [d for d in found if d is not None and "simulator" not in d.info.quirks]

    def from_host(self, value: np.ndarray, device: Device) -> Any:
        """A buffer with a copy of a NumPy array."""
        buffer = device.buffers.allocate(value.nbytes)
        device.queue.write(buffer, value)
        return buffer

    def to_host(self, node: Node) -> np.ndarray:
        """A node's value as a NumPy array; evaluates it and waits."""
        return self.to_hosts([node])[0]

    def to_hosts(self, nodes: list[Node]) -> list[np.ndarray]:
        """Several nodes' values; they are evaluated together."""
        hosts, pending = [], []
        with LOCK:
            self.evaluate([node for node in nodes if node.op is not CONST])
            for node in nodes:
                if node.op is CONST:
                    hosts.append(np.asarray(node.attrs[0], node.dtype.numpy))
                    continue
                host = np.empty(node.shape, node.dtype.numpy)
                hosts.append(host)
                if node.size:
                    pending.append(device_of(node).queue.read_async(node.buffer, host))
        for read in pending:
            read.wait()
        return hosts

    def element(self, node: Node, place: int) -> np.generic:
        """One element of a node's value, by its place in the flat array; evaluates it and waits."""
        host = np.empty(1, node.dtype.numpy)
        with LOCK:
            self.evaluate([] if node.op is CONST else [node])
            if node.op is CONST:
                return self.to_host(node).reshape(-1)[place]  # type: ignore[no-any-return]
            offset = place * node.dtype.itemsize
            read = device_of(node).queue.read_async(node.buffer, host, offset)
        read.wait()
        return host[0]  # type: ignore[no-any-return]

    def shared_with_host(self, node: Node) -> np.ndarray | None:
        """A node's value in the memory that it lies in, once it is written; None where the host
        cannot read that."""
        with LOCK:
            self.evaluate([node] if node.op is not CONST else [])
            lease, device = node.lease, device_of(node)
            if lease is None or not node.size:
                return self.to_host(node)  # it lies in no memory of the device
            if lease.tenure == LENT:
                return None
            lease.tenure = FIXED  # no State may take the memory to write to it
            memory = sharing.on_host(device, lease.buffer, lease)
        if memory is None:
            return None
        return memory[: node.nbytes].view(node.dtype.numpy).reshape(node.shape)

    def lend(self, node: Node, queue: Any) -> Any:
        """A node's value as a pyopencl.array.Array for that queue (None: the device's)."""
        device = device_of(node)
        with LOCK:
            lease = None
            if node.op is CONST:
                lease = Lease(self.from_host(self.to_host(node), device), FIXED)
            elif node.size:
                self.evaluate([node])
                assert node.lease is not None
                lease = node.lease
                if lease.tenure == LENT:  # its owner may have the memory back at any time
                    lease = Lease(self.copy_buffer(lease.buffer, device), FIXED)
                lease.tenure = FIXED
        buffer = None if lease is None else lease.buffer
        return sharing.lent(device, queue, buffer, lease, node.shape, node.dtype.numpy)

    def borrow(self, x: Any) -> Borrowed:
        """What pyopencl's array or buffer says of itself."""
        return Borrowed(x)

    def check_source(self, source: str, name: str, title: str, device: Device) -> int:
        """How many arguments kernel `name` of a user's `source` has.

        Raises:
            CompileError: it does not compile; the message has `title` and the source's own lines.
        """
        try:
            count: int = device.programs.kernel(source, name).num_args
            return count
        except CompileError as error:
            raise programs.of_user(error, title, device.info.name) from None

    def attempt(self, run: Callable[[], Any]) -> tuple[Any, str]:
        """What `run` gives, and "", or None and why a user's kernel cannot be run so."""
        try:
            return run(), ""
        except (DeviceError, ValueError, TypeError) as error:
            return None, str(error)

    def seconds(self, run: Callable[[], object], repeats: int, device: Device) -> float:
        """Median time on the device of what `run` has executed, after a run to warm up."""
        run()
        device.queue.finish()
        times = []
        for _ in range(repeats):
            with profile(device, show=False) as recorded:
                run()
            times.append(sum(span.end - span.start for span in recorded.spans))
        return statistics.median(times) * 1e-9

    def kept_times(self, text: str, device: Device) -> dict[str, float]:
        """What `keep_times` was given for a text on such a device, now or earlier; else empty."""
        return choices.kept(device.info, text)

    def keep_times(self, text: str, times: dict[str, float], device: Device) -> None:
        """Keep the microseconds of variants of a user's kernel."""
        choices.keep(device.info, text, times)

    def copy_buffer(self, buffer: Any, device: Device) -> Any:
        """A new buffer with the same bytes."""
        copy = device.buffers.allocate(buffer.nbytes)
        device.queue.copy(buffer, copy)
        return copy

    def copy_into(self, source: Any, target: Any, device: Device) -> None:
        """Copy one buffer's bytes into another of the same size."""
        device.queue.copy(source, target)

    def evaluate(self, nodes: list[Node]) -> None:
        """Compute nodes, which become data in place."""
        with LOCK:
            wanted = [n for n in nodes if n.op is not DATA]
            if not wanted:
                return
            graph = topological(wanted)
            roots = _live_roots(graph, wanted)
            ready = self._ready(graph, roots, _device_of_graph(graph))
            ready.run(graph)
            self.launches += ready.steps

    def _ready(self, graph: list[Node], roots: list[Node], device: Device) -> ReadyProgram:
        key = (structure(graph, roots), device)
        ready: ReadyProgram | None = self.programs.get(key)
        if ready is None:
            _refuse_foreign(graph)
            program = lower(graph, roots, device.info, generic=True)
            ready = ReadyProgram(program, graph, roots, device)
            self.compiled += 1
            self.programs.setdefault(key, ready)
        return ready

    def prepared(
        self, key: Hashable, inputs: list[Node], build: Callable[[list[Node]], list[Node]]
    ) -> list[Node]:
        """The values of a graph of `inputs`, computed now, as new nodes.

        Args:
            key: what the graph depends on besides its inputs' shapes and dtypes; for equal ones
                `build` runs once.
            inputs: on one device; what computes them becomes part of the graph.
            build: gives the graph's results, values of their own, from nodes that stand for the
                inputs.
        """
        with LOCK:
            graph = inputs
            if len(set(inputs)) < len(inputs) or any(node.op is not DATA for node in inputs):
                graph = topological(inputs)
                if len(graph) > _MOST_BEFORE:
                    self.evaluate(inputs)
                    graph = topological(inputs)
            device = _device_of_graph(graph)
            live = [] if graph is inputs else _live_roots(graph, [])
            own: Hashable
            if graph is inputs:
                own = (key, device, *[(node.shape, node.dtype.name) for node in inputs])
            else:
                own = (key, device, structure(graph, inputs + live))
            made: PreparedGraph | None = self.programs.get(own)
            if made is None:
                _refuse_foreign(graph)
                made = PreparedGraph.of(graph, inputs, live, build, device)
                self.compiled += 1
                self.programs.setdefault(own, made)
            results = made.run(graph, live)
            self.launches += made.steps
            return results

    def shorten(self, node: Node, count: int) -> None:
        """Leave the first `count` slices alone of a result of `prepared` that nobody else has."""
        node.shape = (count, *node.shape[1:])
        node.buffer.nbytes = node.nbytes  # the memory behind it stays as large

    def forget_programs(self) -> None:
        """Compile graphs anew, as where other kernels are taken."""
        self.programs.clear()

    def let_go(self) -> None:
        """Free compiled graphs, built programs and memory that nothing in use holds."""
        self.programs.let_go()
        for device in devices.opened():
            device.programs.let_go()
            device.buffers.trim()


def _refuse_foreign(graph: list[Node]) -> None:
    if any(n.op is ARGUMENT or n.op is BATCHED for n in graph):
        raise CaptureError(
            "an array from inside a captured function, a loop or a vectorized map is used "
            "outside of it; return it as a result instead"
        )


def _live_roots(graph: list[Node], wanted: list[Node]) -> list[Node]:
    """What to keep: the values asked for, and those that somebody still holds an Array of."""
    roots = dict.fromkeys(wanted)
    for node in graph:
        op, handle = node.op, node.handle
        if op is DATA or op is CONST or handle is None or node in roots or handle() is None:
            continue
        while views.is_view(node):
            node = node.inputs[0]  # a view is free; what it looks at is kept
        if node.op.kind in (Kind.LEAF, Kind.CONST) or node.op.outputs > 1:
            continue
        roots[node] = None
    if len(roots) == 1:
        return list(roots)
    return sorted(roots, key=BY_SERIAL)


def _device_of_graph(graph: list[Node]) -> Device:
    for node in graph:
        if node.device is not None:
            return device_of(node)
    return cast(Device, context.device())


def device_of(node: Node) -> Device:
    """The device a node lies on or will lie on."""
    return cast(Device, context.device() if node.device is None else node.device)
