"""Graph to Program: rewrite, group, generate."""

from __future__ import annotations

import contextlib
import functools
import math
import string
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kerascl.compiler import library
from kerascl.compiler.fuse.group import group
from kerascl.compiler.fuse.rules import Part
from kerascl.compiler.fuse.targets import Computing, reads_of
from kerascl.compiler.generate import crossed, maps, reductions
from kerascl.compiler.generate.computed import Expression
from kerascl.compiler.generate.emit import BufferArg, LoopStep, WorkArg
from kerascl.compiler.graph import views
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.in_place import (
    STORE,
    UPDATED,
    ReadLater,
    carry_of,
    updated_in_place,
)
from kerascl.compiler.graph.rewrite import rewrite
from kerascl.compiler.program import (
    lone,
    memory,
    multi,
    offsets,
    packing,
    prologue,
    resident,
    schedule,
)
from kerascl.compiler.program.program import Program, Slot, Step, Use, copy_step, value_of
from kerascl.compiler.program.repeat import advance_step, predicated, repeat_step, start_step
from kerascl.core import collector
from kerascl.core.labels import Labels, Moved
from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.plan import Ref, Role
from kerascl.kernels.contract.solver import joining
from kerascl.kernels.contract.source import Source, unit
from kerascl.kernels.selftests import asked
from kerascl.ops.control import LOOP
from kerascl.ops.repeat import WHILE
from kerascl.ops.views import CONCAT
from kerascl.runtime.device import DeviceInfo

# Elements of a product from which its update runs in a kernel of its own, by kind of device.
UPDATE_LIMIT = {"gpu": 1 << 20}
COPIED_BYTES = 1 << 20  # of each part of a joined array, on average, that is copied by itself
SIZES_BYTES = 192  # of a kernel's arguments, for sizes and the like
# Text of generated kernels in one translation unit of a captured program: a unit by itself costs
# as much as a few kernels, but one of many is waited for when all others are built.
UNIT_BYTES = 24 << 10


def lower(
    nodes: list[Node],
    roots: list[Node],
    info: DeviceInfo,
    generic: bool,
    streamed: frozenset[int] = frozenset(),
    labels: Labels | Moved | None = None,
    meanwhile: asked.Meanwhile[Program] | None = None,
) -> Program:
    """Compile a graph, with kernels alone whose self-tests pass.

    Args:
        nodes: every node that `roots` need, in topological order.
        roots: values wanted in memory.
        info: the device's facts.
        generic: sizes as kernel arguments (eager) instead of literals (captured).
        streamed: ids of roots that each step of a loop stores at its own place.
        labels: which layer each node belongs to.
        meanwhile: see `asked.settled`.

    Raises:
        NotImplementedError: a value is of double precision, which the device lacks.
        ReadLater: see `group`.
    """

    def make() -> Program:
        with contextlib.nullcontext() if generic else collector.waits():
            return _lower(nodes, roots, info, generic, streamed, labels)

    return asked.settled(info, make, meanwhile)


def _lower(
    nodes: list[Node],
    roots: list[Node],
    info: DeviceInfo,
    generic: bool,
    streamed: frozenset[int],
    labels: Labels | Moved | None,
) -> Program:
    if not info.fp64:
        _refuse_doubles(nodes, info)
    given = {id(node): k for k, node in enumerate(nodes)}
    wanted = list({id(s): s for s in map(views.storage, roots)}.values())
    nodes, roots, origin = rewrite(nodes, wanted, info)
    streamed = frozenset(id(r) for r, w in zip(roots, wanted, strict=True) if id(w) in streamed)
    # where the caller finds each leaf and each result
    position = {id(n): given[id(n)] for n in nodes if n.op.kind is Kind.LEAF}
    for root, old in zip(roots, wanted, strict=True):
        position[id(views.storage(root))] = given[id(old)]
    clusters, stored = group(
        nodes, roots, _accepts(info, generic),
        busy_rows=2 * info.compute_units,
        update_limit=UPDATE_LIMIT.get(info.kind, math.inf),
        most_buffers=(info.max_parameter_bytes - SIZES_BYTES) // 8,
        most_reductions=info.most_reductions or math.inf,
        computing=None if generic else _Captured(info),
        memory_bound=info.kind == "gpu",
        crosses=None if generic else functools.partial(crossed.pays, info),
    )  # fmt: skip
    program = _Lowering(position, roots, stored, info, generic, labels)
    for node in nodes:
        if node.op is UPDATED:
            program.memory[id(node)] = program.memory[id(node.inputs[0])] = carry_of(node)
    for cluster in clusters:
        cluster.streamed = {
            id(m) for m in cluster.members if id(m) in streamed or m.op is STORE
        }
        if labels is not None:
            program.layer = labels.at(origin.get(id(cluster.head), -1))
        program.add(cluster)
    return program.finish()


def _refuse_doubles(nodes: list[Node], info: DeviceInfo) -> None:
    """Say in words what the driver's compiler would say of generated text."""
    double = next((n for n in nodes if n.dtype.is_double and n.op is not CONST), None)
    if double is not None:
        raise NotImplementedError(
            f"{double.op.name} has {double.dtype.name} values, for which {info.name} lacks double "
            "precision: convert to float32 (complex64), or take another device (KERASCL_DEVICE)"
        )


def _accepts(info: DeviceInfo, generic: bool) -> Callable[[Node, Part], bool]:
    """What the kernels of library operations take beside their problems on a device."""

    @functools.cache
    def accepts(head: Node, part: Part) -> bool:
        record = library.record(head.op)
        if record is None or not record.takes_epilogue:
            return False
        if part is Part.EPILOGUE:
            return True
        if part is Part.UPDATE:
            return record.streams
        return not generic and record.takes_moments(head, library.operands(head), info)

    return accepts


class _Captured(Computing):
    """What kernels compute on a device, where sizes are literals."""

    def __init__(self, info: DeviceInfo) -> None:
        self._info = info

    def which(self, node: Node) -> int | None:
        record = library.record(node.op)
        return record.computes(node, library.operands(node), self._info) if record else None

    def pays(self, node: Node, base: Node, stored: set[int]) -> bool:
        record = library.record(node.op)
        assert record is not None
        computed = Expression(base, stored, self._info, lambda node: "")
        return record.computes_well(node, library.operands(node), self._info, computed)


class _Lowering:
    def __init__(
        self,
        position: dict[int, Any],
        roots: list[Node],
        stored: set[int],
        info: DeviceInfo,
        generic: bool,
        labels: Labels | Moved | None = None,
    ) -> None:
        self.info = info
        self.labels = labels
        self.stored = stored
        self.generic = generic
        self.position = position
        self.roots = {id(views.storage(node)) for node in roots}
        self.memory: dict[int, Node] = {}  # of what lies in a carry's memory: the carry
        self.slots: list[Slot] = []
        self.slot_of: dict[int, int] = {}
        self.steps: list[Step] = []
        self.aliases: set[tuple[int, int]] = set()
        self.generated: list[tuple[Step, Source]] = []
        self.layer = ""  # of the cluster at hand
        self.phase_of: dict[int, int] = {}  # of slots that no input is: which one, if not the first

    def slot(self, node: Node) -> int:
        """The slot of a storage node."""
        node = self.memory.get(id(node), node)
        key = id(node)
        if key not in self.slot_of:
            if node.op.kind is Kind.LEAF:
                kind = "input"
            else:
                kind = "output" if key in self.roots else "temporary"
            self.slot_of[key] = len(self.slots)
            self.slots.append(Slot(kind, node.nbytes, self.position.get(key, -1)))
        return self.slot_of[key]

    def work(self, nbytes: int) -> int:
        self.slots.append(Slot("temporary", max(nbytes, 1), -1))
        return len(self.slots) - 1

    def add(self, cluster: Cluster) -> None:
        """The steps of a cluster."""
        before = len(self.steps)
        if cluster.kind == "library":
            self._library(cluster)
        else:
            self._generated(cluster)
        for step in self.steps[before:]:
            step.phase = cluster.phase
        self._note_aliases(cluster)

    def _note_aliases(self, cluster: Cluster) -> None:
        """Which leaves, and sums of earlier phases, each stored member may overwrite in place."""
        if cluster.phase:
            self.phase_of.update((self.slot(m), cluster.phase) for m in cluster.stores)
        read, row = cluster.patterns, cluster.row
        if cluster.columns:  # these are stored by a second kernel, which reads nothing else
            row, read = cluster.columns, {}
            for member in cluster.members:
                if id(member) in row and member.op.kind is not Kind.REDUCTION:
                    for key, patterns in reads_of(member, self.stored).patterns.items():
                        read.setdefault(key, set()).update(patterns)
        elif cluster.kind == "reduction" and (cluster.staged or cluster.rows == cluster.size):
            return
        for member in cluster.stores:
            if cluster.kind == "reduction" and id(member) not in row:
                continue
            if member.op is STORE:
                continue
            for key, patterns in read.items():
                if patterns == {"same"} and key in self.slot_of:
                    place = self.slot_of[key]
                    if self._is_replaced(place, cluster) and (
                        self.slots[place].nbytes == member.nbytes
                    ):
                        self.aliases.add((place, self.slot(member)))

    def _is_replaced(self, slot: int, cluster: Cluster) -> bool:
        """Whether what a cluster makes of a slot, element by element, may take its place: of an
        input, and of what an earlier phase made, as sums over pieces are."""
        kind, phase = self.slots[slot].kind, self.phase_of.get(slot)
        earlier = phase is not None and 0 < phase < cluster.phase
        return kind == "input" or (kind == "temporary" and earlier)

    def _joined(self, cluster: Cluster) -> bool:
        """Copy the parts of a large array that is only joined, if each lies in memory whole."""
        node = cluster.head
        if node.op is not CONCAT or len(cluster.members) > 1 or cluster.streamed:
            return False
        parts = [views.storage(x) for x in node.inputs]
        if node.nbytes < len(parts) * COPIED_BYTES or math.prod(node.shape[: node.attrs[0]]) != 1:
            return False
        if not all(id(x) in self.stored for x in parts):
            return False
        at = 0
        for part in parts:
            step = copy_step(self.slot(part), self.slot(node), part.nbytes, at)
            step.layer = self.layer
            self.steps.append(step)
            at += part.nbytes
        return True

    def _generated(self, cluster: Cluster) -> None:
        if self._joined(cluster):
            return
        make = maps.map_kernel if cluster.kind == "map" else reductions.reduction_kernels
        make = crossed.kernels if cluster.columns else make
        kernels = make(cluster, self.stored, self.info, self.generic)
        work = [self.work(nbytes) for nbytes in kernels.workspace]
        for launch in kernels.launches:
            args = []
            for arg in launch.args:
                if isinstance(arg, BufferArg):
                    args.append(Use(self.slot(arg.node)))
                elif isinstance(arg, WorkArg):
                    args.append(Use(work[arg.index]))
                else:
                    args.append(value_of(arg))
            text = launch.source
            step = Step(
                unit([text]),
                text.name,
                text.options,
                args,
                launch.global_size,
                launch.local_size,
                text.name,
                layer=self.layer,
                among=launch.among,
            )
            stored = {self.slot(m) for m in cluster.stores}
            step.writes = frozenset(stored.union(work))
            step.tiles = self._tiles(cluster)
            self.generated.append((step, text))
            self.steps.append(step)

    def _library(self, cluster: Cluster) -> None:
        node = cluster.head
        reads = library.operands(node)
        if node.op is LOOP or node.op is WHILE:
            run = self._loop if node.op is LOOP else self._while
            run(cluster, [self.slot(read.base) for read in reads])
            return
        if cluster.size == 0:
            return
        names: dict[str, int] = {}
        inputs: set[int] = set()

        def input_name(base: Node) -> str:
            slot = names[f"i{self.slot(base)}"] = self.slot(base)
            inputs.add(slot)
            return f"i{slot}"

        computed = None
        for k, read in enumerate(reads):
            if k == cluster.computed:
                computed = Expression(read.base, self.stored, self.info, input_name)
            else:
                slot = names[string.ascii_lowercase[k]] = self.slot(read.base)
                inputs.add(slot)
        beside: set[int] = set()  # slots that the epilogue reads or stores
        picks = {m.attrs[0]: m for m in cluster.members if m.op.kind is Kind.PICK}
        record = library.record(node.op)
        assert record is not None
        if record.outputs is not None:
            for k, name in enumerate(record.outputs(node)):
                if k in picks:
                    names[name] = self.slot(picks[k])
                elif record.spare_bytes is not None:
                    names[name] = self.work(record.spare_bytes(node))
            epilogue = store_epilogue(node.dtype)
        else:

            def slot_name(member: Node) -> str:
                slot = names[f"e{self.slot(member)}"] = self.slot(member)
                beside.add(slot)
                return f"e{slot}"

            epilogue = maps.epilogue(cluster, self.stored, self.info, self.generic, slot_name)
        call = library.Call(node, reads, self.info, epilogue, frozenset(picks), computed)
        plan = record.plan(call)
        for k, nbytes in enumerate(plan.workspace):
            names[f"ws{k}"] = self.work(nbytes)
        stores = frozenset(self.slot(m) for m in cluster.stores)
        writes = frozenset(names.values()).difference(inputs, beside.difference(stores))
        writes |= stores.intersection(beside)  # in place also where the kernel reads that memory
        work = [launch.role is Role.MAIN for launch in plan.launches]
        flops = record.flops(node) // max(1, sum(work))  # parts of a problem are about equal
        for launch in plan.launches:
            args = [
                Use(names[a.slot], a.offset) if isinstance(a, Ref) else value_of(a)
                for a in launch.args
            ]
            step = Step(
                launch.source,
                launch.name,
                launch.options,
                args,
                launch.global_size,
                launch.local_size,
                node.op.name,
                layer=self.layer,
                flops=flops if launch.role is Role.MAIN else 0,
            )
            step.writes = writes
            step.tiles = self._tiles(cluster)
            step.several = launch.several
            if launch.division is not None:
                step.division = launch.division.of
                step.aligned = frozenset(
                    (names[slot], nbytes) for slot, nbytes in launch.division.aligned
                    if names[slot] in beside and names[slot] not in inputs
                )
            self.steps.append(step)
            if launch.text is not None:
                self.generated.append((step, launch.text))

    def _tiles(self, cluster: Cluster) -> frozenset[tuple[int, int]]:
        """Where a cluster stores in memory that it does not read: boxes of arrays that begin
        elsewhere in it lie apart, see `updated_in_place`."""
        stores = (m for m in cluster.stores if m.op is STORE)
        read = {self.slot(self.memory[key]) for key in cluster.patterns if key in self.memory}
        found = ((self.slot(m), m.attrs[0].offset) for m in stores)
        return frozenset(tile for tile in found if tile[0] not in read)

    def _loop(self, cluster: Cluster, inputs: list[int]) -> None:
        """The launches of a loop: its body's, once for each step."""
        node = cluster.head
        body, length, reverse, history = node.attrs
        picks = {m.attrs[0]: self.slot(m) for m in cluster.members[1:]}
        nodes, _, roots = body.graph(history)
        carries = len(body.carry)
        places = []  # slots of the final carry, then of what each step stores
        for k, root in enumerate(roots):
            nbytes = root.nbytes * (1 if k < carries else length)
            places.append(picks[k] if k in picks else self.work(nbytes))
        for k, argument in enumerate(body.carry):
            if argument.nbytes:
                self.steps.append(copy_step(inputs[k], places[k], argument.nbytes))
        if length == 0:
            return
        inner, nodes, roots = self._body(body, nodes, roots, streams=True)
        slots, copies = self._loop_slots(body, inner, nodes, roots, inputs, places, {})
        once: dict[int, Step] = {}
        for step in range(length):
            index = np.int32(length - 1 - step if reverse else step)
            for k, template in enumerate(inner.steps):
                if k not in once or any(type(a) is LoopStep for a in template.args):
                    once[k] = template.moved(slots, index)
                self.steps.append(once[k])
            self.steps.extend(copies)

    def _while(self, cluster: Cluster, inputs: list[int]) -> None:
        """The launches of a loop with a condition: one step, which repeats its body's."""
        node = cluster.head
        body, most = node.attrs
        picks = {m.attrs[0]: self.slot(m) for m in cluster.members[1:]}
        nodes, _, roots = body.graph(False)
        carries = len(body.carry)
        initial, wanted = inputs[:carries], inputs[carries]
        places = [picks[k] if k in picks else self.work(n.nbytes) for k, n in enumerate(roots)]
        for k, argument in enumerate(body.carry):
            if argument.nbytes:
                self.steps.append(copy_step(initial[k], places[k], argument.nbytes))
        flag = self.work(np.dtype(np.int32).itemsize)
        self.steps.append(start_step(wanted, flag))
        stay = not self.generic and resident.team(self.info) is not None
        nbytes = sum(self.slots[slot].nbytes for slot in set(inputs))
        alone = not self.generic and not stay and lone.joins(nbytes, self.info)
        with joining() if stay or alone else contextlib.nullcontext():
            inner, nodes, roots = self._body(body, nodes, roots, streams=False)
        when = list(range(len(inner.steps)))
        if stay:
            order, when = schedule.in_levels(inner.steps, self._replaced(body, inner, nodes, roots))
            inner = Program(order, inner.slots, inner.aliases)
        # they live as long as the loop, so share memory among themselves
        own = [
            k for k, slot in enumerate(inner.slots)
            if slot.kind == "temporary" and inner.first[k] >= 0
        ]  # fmt: skip
        lives = [
            (inner.slots[k].nbytes, when[inner.first[k]], when[inner.last[k]]) for k in own
        ]  # fmt: skip
        blocks, sizes = memory.plan(lives)
        shared = [self.work(nbytes) for nbytes in sizes]
        temporaries = {k: shared[block] for k, block in zip(own, blocks, strict=True)}
        slots, copies = self._loop_slots(
            body, inner, nodes, roots, [*initial, *inputs[carries + 1 :]], places, temporaries
        )
        known: dict[int, Step] = {}  # a loop in the body launches one step many times
        for step in inner.steps:
            known.setdefault(id(step), step.moved(slots, None))
        steps = [*(known[id(step)] for step in inner.steps), *copies]
        steps.append(advance_step(places[carries], flag))
        if self.generic:
            repeated = [*predicated(steps[:-1], flag), steps[-1]]
        else:
            if alone:
                steps = lone.joined(steps, flag, self.slots, self.info)
            before, repeated = resident.repeated(
                steps, flag, self.slots, self.info, self.work
            )
            self.steps += before
        self.steps.append(repeat_step(repeated, flag, most))

    def _body(
        self, body: Any, nodes: list[Node], roots: list[Node], streams: bool
    ) -> tuple[Program, list[Node], list[Node]]:
        """The program of a loop's body, with its graph: carries are updated in place where they
        can be."""
        without: set[int] = set()
        while True:
            found = updated_in_place(body.carry, roots, nodes, without)
            streamed = found.roots[len(body.carry) :] if streams else []
            ids = frozenset(id(n) for n in streamed)
            wanted = [*found.roots, *found.more]
            try:
                labels = None if self.labels is None else self.labels.through(found.serials)
                inner = _lower(found.nodes, wanted, self.info, self.generic, ids, labels)
            except ReadLater as late:
                without.add(id(late.carry))
                continue
            return inner, found.nodes, found.roots

    def _share_units(self) -> None:
        """Put the generated kernels into few translation units: building one costs more than
        the kernels in it."""
        kernels: dict[Source, Source] = {}
        for _, text in self.generated:
            if text not in kernels:
                kernels[text] = replace(text, name=f"{text.name}_{len(kernels)}")
        texts = sorted(kernels.values(), key=lambda text: text.options)
        place: dict[str, tuple[str, tuple[str, ...]]] = {}
        for part in _units(texts):
            shared = unit(part), part[-1].options
            place.update((t.name, shared) for t in part)
        for step, text in self.generated:
            final = kernels[text]
            step.name = final.name
            step.source, step.options = place[final.name]

    def _replaced(
        self, body: Any, inner: Program, nodes: list[Node], roots: list[Node]
    ) -> list[tuple[int, int]]:
        """Of a loop's body the input slots of carries, each with that of its next value."""
        own = {id(nodes[s.node]): k for k, s in enumerate(inner.slots) if s.node >= 0}
        pairs = [
            (own.get(id(carry)), own.get(id(views.storage(root))))
            for carry, root in zip(body.carry, roots, strict=False)
        ]
        return [(a, b) for a, b in pairs if a is not None and b is not None and a != b]

    def _loop_slots(
        self,
        body: Any,
        inner: Program,
        nodes: list[Node],
        roots: list[Node],
        inputs: list[int],
        places: Any,
        temporaries: dict[int, int],
    ) -> Any:
        """The outer slot of each slot of the body's program, and copies that end each step."""
        carries, slices = len(body.carry), len(body.slices)
        outside = {id(n): places[k] for k, n in enumerate(body.carry)}
        outside |= {id(n.inputs[0]): inputs[carries + k] for k, n in enumerate(body.slices)}
        outside |= {id(n): inputs[carries + slices + k] for k, n in enumerate(body.captured)}
        result = {id(views.storage(n)): k for k, n in enumerate(roots)}
        own = {s.node: k for k, s in enumerate(inner.slots) if s.node >= 0}
        position = {id(n): k for k, n in enumerate(nodes)}
        slots: dict[int, int] = {}
        copies = []
        for k, slot in enumerate(inner.slots):
            node = nodes[slot.node] if slot.node >= 0 else None
            if slot.kind == "input":
                slots[k] = outside[id(node)]
            elif slot.kind == "temporary":
                slots[k] = temporaries[k] if k in temporaries else self.work(slot.nbytes)
            else:
                which = result[id(node)]
                slots[k] = places[which]
                if which < carries:
                    source = own.get(position.get(id(body.carry[which]), -2))
                    if not inner.may_overwrite(source, k):
                        slots[k] = self.work(slot.nbytes)
                        copies.append(copy_step(slots[k], places[which], slot.nbytes))
        return slots, copies

    def finish(self) -> Program:
        if not self.generic:
            self.steps = packing.gather(self.steps, self.slots, self.info)
            if self.info.kind == "gpu":  # elsewhere a launch costs no more than the work again
                self.steps, self.generated = prologue.absorb(
                    self.steps, self.generated, self.slots, self.aliases, self.info
                )
            self.steps, self.generated = multi.merge(
                self.steps, self.generated, self.slots, self.aliases, self.info
            )
            for step in self.steps:
                step.several = step.among = None  # nobody asks any more
            self.generated = offsets.share(self.generated)
            self._share_units()
            self.steps = schedule.early(self.steps, self.slots)
        memory.replace(self.steps, self.slots, self.aliases)
        return Program(self.steps, self.slots, self.aliases)


def _units(texts: list[Source]) -> list[list[Source]]:
    """Split kernels, in order, so that no part but that of a single one exceeds the limit."""
    parts: list[list[Source]] = []
    room = 0
    for text in texts:
        if len(text.text) > room:
            parts.append([])
            room = UNIT_BYTES
        parts[-1].append(text)
        room -= len(text.text)
    return parts
