"""Captured functions: trace once, compile for fixed shapes, replay with arguments bound."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, cast

import numpy as np

from kerascl import config
from kerascl.compiler.graph import views
from kerascl.compiler.program import memory
from kerascl.compiler.program.lower import lower
from kerascl.compiler.program.program import Program, Step, Use, copy_many
from kerascl.compiler.program.repeat import Repeat
from kerascl.compiler.run.execute import Engine, structure
from kerascl.core import context
from kerascl.core import node as graph
from kerascl.core.array import Array, State
from kerascl.core.context import P, R, current
from kerascl.core.holders import enrol
from kerascl.core.labels import Labels
from kerascl.core.lease import FIXED, LENT, Lease
from kerascl.core.lock import LOCK
from kerascl.core.node import Node, is_closed, topological
from kerascl.core.op import ARGUMENT, CONST, COPY, Kind
from kerascl.core.structure import exact, flatten
from kerascl.dtypes import DType, as_dtype, host_array
from kerascl.kernels.contract.plan import Counters
from kerascl.runtime.errors import OutOfDeviceMemory
from kerascl.runtime.replay import Note, Replay, Round
from kerascl.runtime.uploads import Uploads

# Signatures that one captured function keeps, and kernels of them all; the one unused for longest
# makes room, with the memory planned for it.  Text in buckets of length asks for some tens.
MOST_SIGNATURES = 64
MOST_KERNELS = 4096
LARGE_GRAPH = 400  # nodes; one so large takes a dozen programs and more


class Trace:
    """What a function does while traced: its arguments, its reads and writes of States."""

    def __init__(self) -> None:
        self.start = graph.new_serial()
        self.count = 0
        self.labels = Labels()
        self.states: dict[int, State] = {}
        self.leaves: dict[int, Array] = {}  # of each state read: the argument that stands for it
        self.current: dict[int, Array] = {}
        self.written: dict[int, None] = {}
        self.index_checks: list[Any] | None = [] if config.debug() else None
        enrol(self)

    def swap(self, array: Array, other: Array) -> None:
        """Hold `other` where `array` stood; see `core.holders`."""
        for held in (self.leaves, self.current):
            for key, value in held.items():
                if value is array:
                    held[key] = other

    def argument(self, shape: tuple[int, ...], dtype: DType, device: Any) -> Array:
        """A new argument of the captured function."""
        node = Node(ARGUMENT, (), (self.count,), shape, dtype, device)
        self.count += 1
        return Array(node)

    def read(self, state: State) -> Array:
        """The value that a State has at this point of the trace."""
        key = id(state)
        value = self.current.get(key)
        if value is None:
            value = self.argument(state.shape, state.dtype, state.device)
            self.states[key] = state
            self.leaves[key] = self.current[key] = value
        return value

    def write(self, state: State, value: Array) -> None:
        """Assign a State, in the trace only."""
        key = id(state)
        self.states[key] = state
        self.current[key] = value
        self.written[key] = None

    def knows_value(self, node: Node) -> bool:
        """Whether a node's value does not depend on the captured function's arguments."""
        return is_closed(node)


def _nothing() -> None:
    """A weak reference to nothing."""


def _copy(x: Array) -> Array:
    return Array(Node(COPY, (x._node,), (), x.shape, x.dtype))


class Captured:
    """One traced signature: the compiled program, bound and ready to replay.

    Attributes:
        program: its steps and memory.
        planned_bytes: memory planned for all temporaries together.
        kernels: how many kernel objects it holds.
    """

    @context.steady
    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        kinds: list[str],
        rebuild_args: Any,
        engine: Engine,
    ) -> None:
        self.engine = engine
        trace = Trace()
        arguments = []
        values = []
        for leaf, kind in zip(leaves, kinds, strict=True):
            if kind == "array":
                dtype = leaf.dtype if isinstance(leaf, Array) else as_dtype(leaf.dtype)
                device = leaf.device if isinstance(leaf, Array) else context.device()
                array = trace.argument(tuple(leaf.shape), dtype, device)
                arguments.append(array._node)
                values.append(array)
            else:
                values.append(leaf)
        with current.replaced(trace=trace, tapes=(), labels=trace.labels):
            args, kwargs = rebuild_args(iter(values))
            result = function(*args, **kwargs)
        checks = trace.index_checks or []
        self.index_checks = [check for check, *_ in checks]
        self._compile(trace, arguments, (result, [bounds for _, *bounds in checks]))

    def _compile(self, trace: Trace, arguments: list[Node], result: Any) -> None:
        outputs: list[Any] = []
        _, self.rebuild = flatten(result, outputs)
        self.constants = [None if isinstance(x, Array) else x for x in outputs]
        self.is_array = [isinstance(x, Array) for x in outputs]
        taken: set[int] = set()
        written = [(trace.states[key], trace.current[key]) for key in trace.written]
        written = [
            (state, self._own(value, taken))
            for state, value in written
            if value is not trace.leaves.get(id(state))
        ]
        arrays = [self._own(x, taken) for x in outputs if isinstance(x, Array)]
        wanted = [v._node for _, v in written] + [x._node for x in arrays]
        self._materialize_outside(wanted, trace.start)
        nodes = topological(wanted)
        self.device: Any = next((n.device for n in nodes if n.device is not None), None)
        if self.device is None:
            self.device = context.device()
        leaf_of = {id(trace.leaves[k]._node): trace.states[k] for k in trace.leaves}
        used = {id(node) for node in nodes}
        self.states = [state for key, state in leaf_of.items() if key in used]
        program, _built = self._program(nodes, wanted, trace.labels)  # held until kernels are made
        self._bind(program, nodes, arguments, leaf_of, written, arrays)

    def _own(self, value: Array, taken: set[int]) -> Array:
        """`value`, or a copy where its memory belongs to something else too."""
        storage = views.storage(value._node)
        if storage.op.kind is Kind.LEAF or id(storage) in taken:
            value = _copy(value)
            storage = value._node
        taken.add(id(storage))
        return value

    def _materialize_outside(self, wanted: list[Node], start: int) -> None:
        """Evaluate what was computed before the trace began; it becomes constant."""
        outside = [
            n
            for n in topological(wanted)
            if n.serial < start and n.op.kind not in (Kind.LEAF, Kind.CONST) and n.op.outputs == 1
        ]
        if outside:
            needed = {id(x) for n in topological(wanted) if n.serial >= start for x in n.inputs}
            self.engine.evaluate([n for n in outside if id(n) in needed])

    def _program(self, nodes: list[Node], wanted: list[Node], labels: Labels) -> tuple[Any, ...]:
        """The graph's Program, and what its steps were built into."""
        key = (structure(nodes, wanted), self.device, "captured", config.piece_bytes())
        program = self.engine.programs.get(key)
        if program is None:
            with self.device.programs.compiler_processes(_problems(nodes), key[::3]) as build:
                built: list[Any] = []

                def start(program: Program, beside: Any, done: Any) -> None:
                    programs = (step.program for step in program.launches)
                    built[:] = build(programs, beside, done, self._materialize_states)

                program = lower(
                    nodes, wanted, self.device.info, generic=False, labels=labels, meanwhile=start
                )
                self.engine.programs.setdefault(key, program)
                return program, built
        return program, self.device.programs.build(step.program for step in program.launches)

    def _materialize_states(self) -> None:
        """Compute the values of States that nobody has asked for yet, such as new weights."""
        for state in self.states:
            state.materialize()

    # -- memory

    def _bind(
        self,
        program: Program,
        nodes: list[Node],
        arguments: list[Node],
        leaf_of: dict[int, State],
        written: list[tuple[State, Array]],
        arrays: list[Array],
    ) -> None:
        """Give every slot of the program its memory, and every launch its arguments."""
        self.program = program
        allocate = self.device.buffers.allocate
        position = {id(n): k for k, n in enumerate(nodes)}
        by_node = {slot.node: k for k, slot in enumerate(program.slots) if slot.node >= 0}

        def slot_of(value: Array) -> int | None:
            """The slot of a result, None where it has no elements."""
            return by_node.get(position[id(views.storage(value._node))])

        buffers: list[Any] = [None] * len(program.slots)
        state_slot = self._bind_inputs(nodes, leaf_of, buffers)
        self.written = [state for state, _ in written]
        copies = self._bind_states(written, slot_of, state_slot, buffers)
        self.outputs: list[tuple[Any, ...]] = [
            (slot_of(array), array.shape, array.dtype, array.nbytes) for array in arrays
        ]
        self.arguments = [by_node.get(position.get(id(a), -2)) for a in arguments]
        sizes = [None if k is None else program.slots[k].nbytes for k in self.arguments]
        self.uploads = Uploads(self.device, sizes)
        self.argument_buffers: list[Any] = [None] * len(arguments)
        for k in {slot for slot, *_ in self.outputs}:
            if k is not None:
                buffers[k] = allocate(program.slots[k].nbytes)
        for k, given in enumerate(self.arguments):
            if given is not None:
                buffers[given] = self.argument_buffers[k] = allocate(program.slots[given].nbytes)
        for place, _ in copies:
            buffers[place] = allocate(program.slots[place].nbytes)
        self._plan_memory(buffers)
        launches, order, notes = self._launches(buffers)
        self._append_copies(copies, buffers, launches, order)
        self.copies = len(copies)
        self.replay = Replay(self.device, launches, order, notes)
        self.kernels = len(launches)
        self.out_buffers = [None if s is None else buffers[s] for s, *_ in self.outputs]
        # weak, of the results given last
        self.out_leases: list[Any] = [_nothing for _ in self.outputs]

    def _bind_inputs(
        self, nodes: list[Node], leaf_of: dict[int, State], buffers: list[Any]
    ) -> dict[int, int]:
        """Memory of constants and of States that are read; gives the slot of each State, by id."""
        self._materialize_states()
        state_slot = {}
        for k, slot in enumerate(self.program.slots):
            if slot.kind != "input":
                continue
            node = nodes[slot.node]
            if node.op is not ARGUMENT:
                assert node.lease is not None
                buffers[k] = self._fixed(node.lease)
            elif id(node) in leaf_of:
                state = leaf_of[id(node)]
                buffers[k] = state.place
                state_slot[id(state)] = k
        return state_slot

    def _bind_states(
        self,
        written: list[tuple[State, Array]],
        slot_of: Callable[[Array], int | None],
        state_slot: dict[int, int],
        buffers: list[Any],
    ) -> list[tuple[int, State]]:
        """Memory of new values of States: their own where it may be overwritten; gives the slots
        whose values are copied there at the end."""
        copies = []
        for state, value in written:
            if state.place is None:
                state.materialize()
            place = slot_of(value)
            if place is None:
                continue
            if self.program.may_overwrite(state_slot.get(id(state)), place):
                buffers[place] = state.place
            else:
                copies.append((place, state))
        return copies

    def _launches(self, buffers: list[Any]) -> tuple[list[Any], list[Any], list[Note]]:
        """Each kernel with its arguments, the order in which they are launched, and their notes."""
        device, program = self.device, self.program
        launches: list[Any] = []
        self.uses: dict[Any, Any] = {}
        notes: list[Note] = []
        index_of: dict[int, int] = {}  # loops launch one step many times
        for step in program.launches:
            if id(step) in index_of:
                continue
            place = index_of[id(step)] = len(launches)
            kernel = device.programs.kernel(step.source, step.name, step.options)
            args = []
            for number, arg in enumerate(step.args):
                if type(arg) is Use:
                    self.uses.setdefault(arg.index, []).append((place, number, arg.offset))
                    arg = self._view(buffers[arg.index], arg.offset)
                elif type(arg) is Counters:
                    arg = device.buffers.counters(program.counters)
                args.append(arg)
            launches.append((kernel, step.global_size, step.local_size, args))
            notes.append(Note(step.layer, step.flops, program.nbytes(step)))
        return launches, [_place(step, index_of, buffers) for step in program.steps], notes

    def _append_copies(
        self,
        copies: list[tuple[int, State]],
        buffers: list[Any],
        launches: list[Any],
        order: list[Any],
    ) -> None:
        """Copy new values to the places of their States, many in one launch."""
        most = max(1, (self.device.info.max_parameter_bytes - 64) // 16)
        for start in range(0, len(copies), most):
            part = copies[start : start + most]
            sizes = tuple(self.program.slots[slot].nbytes for slot, _ in part)
            source, groups = copy_many(sizes)
            kernel = self.device.programs.kernel(source, "copy_many")
            args = [b for slot, state in part for b in (buffers[slot], state.place)]
            order.append(len(launches))
            launches.append((kernel, (64 * groups,), (64,), args))

    def _fixed(self, lease: Lease) -> Any:
        """The memory of a constant, which nobody may write to from now on."""
        if lease.tenure == LENT:
            lease.move(self.engine.copy_buffer(lease.buffer, self.device))
        lease.tenure = FIXED
        return lease.buffer

    def _plan_memory(self, buffers: list[Any]) -> None:
        """Memory for every temporary, reused as soon as a value is dead."""
        program = self.program
        free = [k for k, b in enumerate(buffers) if b is None and program.first[k] >= 0]
        lives = [(program.slots[k].nbytes, program.first[k], program.last[k]) for k in free]
        allocate = self.device.buffers.allocate
        if self.device.addresses is not None:
            offsets, total = memory.arena(lives)
            if total <= self.device.info.max_alloc_bytes:
                block = allocate(total)
                self.planned_bytes = total
                for k, offset in zip(free, offsets, strict=True):
                    buffers[k] = block.view(offset, program.slots[k].nbytes)
                return
        places, sizes = memory.plan(lives)
        blocks = [allocate(nbytes) for nbytes in sizes]
        self.planned_bytes = sum(sizes)
        for k, place in zip(free, places, strict=True):
            buffers[k] = blocks[place]

    def _view(self, buffer: Any, offset: int) -> Any:
        return buffer.view(offset, buffer.nbytes - offset) if offset else buffer

    def _rebind(self, slot: int | None, buffer: Any) -> None:
        for launch, place, offset in self.uses.get(slot, ()):
            self.replay.rebind(launch, place, self._view(buffer, offset))

    # -- running

    def __call__(self, leaves: list[Any]) -> Any:
        """Replay with new arguments (Arrays or NumPy arrays, in order of tracing)."""
        device = self.device
        with LOCK:
            for state in self.states:
                if state.pending is not None:
                    state.materialize()
            for state in self.written:
                if state.pending is not None:
                    state.materialize()
                if state.lease is not None:
                    state.vacate()
            uploaded = self._give_arguments(leaves)
            for k, (slot, _, _, nbytes) in enumerate(self.outputs):
                if slot is None:
                    continue
                # a previous result that is still in use keeps its memory
                lease, buffer = self.out_leases[k](), self.out_buffers[k]
                if buffer is None or (lease is not None and lease.buffer is buffer):
                    self.out_buffers[k] = None  # should an interrupt leave it half bound
                    buffer = device.buffers.allocate(nbytes)
                    self._rebind(slot, buffer)
                    self.out_buffers[k] = buffer
            self.replay.run()
            if uploaded:
                self.uploads.used()
            self.engine.launches += len(self.replay)
            results = []
            arrays = iter(range(len(self.outputs)))
            for constant, is_array in zip(self.constants, self.is_array, strict=True):
                if not is_array:
                    results.append(constant)
                    continue
                k = next(arrays)
                _, shape, dtype, nbytes = self.outputs[k]
                buffer = self.out_buffers[k]
                if buffer is None:
                    lease = Lease(device.buffers.allocate(1))
                else:
                    lease = Lease(buffer, LENT)
                    self.out_leases[k] = weakref.ref(lease)
                results.append(Array(graph.data(lease, shape, dtype, device)))
        result, bounds = self.rebuild(iter(results))
        for check, (low, high) in zip(self.index_checks, bounds, strict=True):
            check.check(low.numpy(), high.numpy())
        return result

    def _give_arguments(self, leaves: list[Any]) -> bool:
        """Bind the arguments of a call; gives whether some of them came from the host."""
        on_host: dict[int, np.ndarray] = {}
        for k, (slot, leaf) in enumerate(zip(self.arguments, leaves, strict=True)):
            if slot is None:
                continue
            if isinstance(leaf, Array):
                leaf.evaluate()
                node = leaf._node
                if node.op is not CONST:
                    self._bind_argument(k, node.buffer)
                    continue
                leaf = np.asarray(node.attrs[0], node.dtype.numpy)
            on_host[k] = host_array(leaf)
        if on_host:
            for k, buffer in self.uploads.send(on_host).items():
                self._bind_argument(k, buffer)
        return bool(on_host)

    def _bind_argument(self, k: int, buffer: Any) -> None:
        if buffer is not self.argument_buffers[k]:
            self.argument_buffers[k] = None  # should an interrupt leave it half bound
            self._rebind(self.arguments[k], buffer)
            self.argument_buffers[k] = buffer


def _problems(nodes: list[Node]) -> int:
    """How many different ones of a graph have kernels from a library; 0 of a small graph."""
    if len(nodes) < LARGE_GRAPH:
        return 0
    library = (n for n in nodes if n.op.kind is Kind.LIBRARY)
    found = {(n.op.name, n.dtype, n.shape, *(x.shape for x in n.inputs)) for n in library}
    return max(1, len(found))


def _place(step: Step, index_of: dict[int, int], buffers: list[Any]) -> int | Round:
    """Where a step stands among the launches; a loop as what it repeats."""
    if not isinstance(step, Repeat):
        return index_of[id(step)]
    order = [_place(part, index_of, buffers) for part in step.body]
    return Round(order, buffers[step.flag], step.most)


class Jit(Generic[P, R]):
    """The callable that `jit` makes; see there."""

    def __init__(self, function: Callable[P, R], engine: Engine) -> None:
        self._function = function
        self._engine = engine
        self._captured: OrderedDict[tuple[Any, ...], Captured] = OrderedDict()
        self._lock = threading.RLock()
        # an object's attributes are its own
        updated = ("__dict__",) if inspect.isroutine(function) else ()
        functools.update_wrapper(self, function, updated=updated)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if current.trace is not None:
            return self._function(*args, **kwargs)
        with self._lock:
            captured, leaves = self._find(args, kwargs)
            return cast(R, captured(leaves))

    def captured(self, *args: P.args, **kwargs: P.kwargs) -> Captured:
        """The compiled form for these arguments, traced now if need be; it is not run."""
        with self._lock:
            return self._find(args, kwargs)[0]

    def _find(self, args: Any, kwargs: Any) -> tuple[Captured, list[Any]]:
        """The compiled form for these arguments, and those of them that are arrays."""
        try:
            key, leaves, kinds, rebuild = _signature(args, kwargs)
        except RecursionError:
            raise self._endless(args, kwargs) from None
        captured = self._captured.get(key)
        if captured is None:
            # before the new one is made, so that it can have the memory
            self._make_room()
            try:
                captured = Captured(self._function, leaves, kinds, rebuild, self._engine)
            except OutOfDeviceMemory:
                if not self._captured:
                    raise
                captured = None
            if captured is None:  # what other signatures keep is worth less than this one
                self.clear()
                captured = Captured(self._function, leaves, kinds, rebuild, self._engine)
            self._captured[key] = captured
        else:
            self._captured.move_to_end(key)
        return captured, [x for x, kind in zip(leaves, kinds, strict=True) if kind == "array"]

    def _make_room(self) -> None:
        kept = self._captured
        kernels = sum(captured.kernels for captured in kept.values())
        while kept and (len(kept) >= MOST_SIGNATURES or kernels > MOST_KERNELS):
            kernels -= kept.popitem(last=False)[1].kernels

    def clear(self) -> None:
        """Forget every signature."""
        self._captured.clear()

    def _endless(self, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> ValueError:
        """The error of arguments whose parts have no end."""
        name = getattr(self._function, "__qualname__", repr(self._function))
        try:
            given = inspect.signature(self._function).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # a built-in one, or arguments that do not fit it
            given = {**{str(k): x for k, x in enumerate(args)}, **kwargs}
        for argument, value in given.items():
            try:
                _signature((value,), {})
            except RecursionError:
                return ValueError(
                    f"jit: argument {argument} of {name}, a {type(value).__name__}, holds itself "
                    "or is nested too deeply: it counts by value. Give its class __hash__, or "
                    "close over it"
                )
        return ValueError(f"jit: arguments of {name} are nested too deeply")


def _signature(args: Any, kwargs: Any) -> Any:
    leaves: list[Any] = []
    described, rebuild = flatten((list(args), kwargs), leaves)
    kinds: list[str] = []
    parts: list[Any] = []
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, np.generic):
            leaf = leaves[k] = np.asarray(leaf)
        if isinstance(leaf, Array):
            kinds.append("array")
            parts.append((leaf.shape, leaf.dtype.name, id(leaf.device)))
        elif isinstance(leaf, np.ndarray) and leaf.dtype != object:
            kinds.append("array")
            parts.append((leaf.shape, as_dtype(leaf.dtype).name, id(context.device())))
        else:
            kinds.append("static")
            parts.append(exact(leaf))
    return (described, tuple(parts), context.precision()), leaves, kinds, rebuild


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Capture a function over arrays and States.

    The first call with new shapes traces the function: every array operation
    is noted, none is run.  The result is compiled for these shapes and then
    replayed at each call, with the States it assigns updated in place.  The last 64 signatures
    (shapes, dtypes and other arguments) are kept, fewer where they take more than 4096 kernels or
    where memory runs out.

    Args:
        function: takes and returns nested lists, tuples and dicts of Arrays
            (NumPy arrays are copied to the device at each call).  Other
            arguments are constants: another value traces again, also one that
            differs from the first as 1 does from True, and 0.0 from -0.0.
            Lists, sets, dicts, dataclasses and attributes of objects that
            cannot be hashed count by value, so they may be changed between
            calls.  It must not depend on other things that change, except
            States.

    Raises:
        CaptureError: at the first call, when the function needs the value of
            an array on the host.
    """
    return Jit(function, cast(Engine, current.engine))
