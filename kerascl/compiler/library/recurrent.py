"""All steps of an LSTM, a GRU or another cell of elementwise operations, in one launch."""

from __future__ import annotations

import string

from kerascl.compiler.generate.emit import Scope, Writer
from kerascl.compiler.graph.symbolic import number, variable
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.recurrent import solvers as recurrent
from kerascl.kernels.recurrent.problem import Fetch, RecurrentProblem, Stored
from kerascl.ops.recurrence import RECURRENCE


def _outputs(node: Node) -> tuple[str, ...]:
    (spec,) = node.attrs
    return tuple(f"out{k}" for k in range(len(spec.groups) + len(spec.body.carry)))


def _plan(call: Call) -> Plan:
    node, wanted = call.node, call.wanted
    (spec,) = node.attrs
    body = spec.body
    units = body.carry[0].shape[-1]
    count = len(body.carry)
    letters = string.ascii_lowercase
    acc = body.carry[0].dtype
    writer = Writer(False, False)
    scope = Scope(writer)
    place = (number(0), variable("u", units))

    def know(leaves: list[Node], form: str) -> None:
        for k, leaf in enumerate(leaves):
            name = scope.define(leaf.dtype.compute, f"({leaf.dtype.compute}){form.format(k)}")
            scope.memo[id(leaf), place, ()] = name

    know(body.slices, "x[{}]")
    know(body.captured, "P({})")
    know(body.carry, "c{}")

    def value(root: Node) -> str:
        return scope.value(root, place if root.shape else (), (), set())

    carried = tuple(value(n) for n in body.next_carry)
    operand = tuple(value(n) for n in body.results[: spec.operand])
    stored, position = [], spec.operand
    for output, blocks in enumerate(spec.groups):
        for block in range(blocks):
            name = value(body.results[position])
            position += 1
            if output in wanted:
                dtype = spec.dtypes[output]
                stored.append(Stored(f"out{output}", dtype, name, block, blocks))
    first = len(spec.groups)
    length, batch, _ = node.shape
    problem = RecurrentProblem(
        steps=length,
        batch=batch,
        units=units,
        fan_in=node.inputs[0].shape[0] // units,
        fan_out=node.inputs[0].shape[1] // units,
        weights=node.inputs[0].dtype,
        acc=acc,
        state=node.inputs[1].dtype,
        initial=tuple(letters[1 + k] for k in range(count)),
        final=tuple(f"out{first + k}" if first + k in wanted else None for k in range(count)),
        fetches=tuple(
            Fetch(
                letters[s.source], node.inputs[s.source].dtype, s.kind, s.block, s.blocks
            )
            for s in spec.streams
        ),
        reverse=spec.reverse,
        cell=scope.text(0),
        carried=carried,
        operand=operand or None,
        stored=tuple(stored),
        helpers="".join(writer.helpers),
    )
    return recurrent.plan(problem, call.info)


OPERATIONS = (LibraryOperation(RECURRENCE, _plan, outputs=_outputs),)
