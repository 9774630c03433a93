"""Kernels that users wrote: one launch each."""

from __future__ import annotations

import math
import string

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.dtypes import BY_NAME, PRELUDE
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Role
from kerascl.kernels.contract.source import FP64
from kerascl.ops.kernel import KERNEL, KernelCall


def _slots(node: Node) -> tuple[str, ...]:
    return tuple(f"out{k}" for k in range(len(node.attrs[0].results)))


def _plan(call: Call) -> Plan:
    node = call.node
    told: KernelCall = node.attrs[0]
    launches = []
    if told.initial is not None:
        for slot, (shape, name) in zip(_slots(node), told.results, strict=True):
            dtype = BY_NAME[name]
            store = dtype.store.format(p="y", i="i", v=f"(({dtype.compute})({told.initial}))")
            source = (
                f"{FP64 if dtype.is_double else ''}{PRELUDE}__kernel void kcl_initial("
                f"__global {dtype.storage}* y) {{ const size_t i = get_global_id(0); {store}; }}\n"
            )
            size = (math.prod(shape),)
            launches.append(
                Launch(source, "kcl_initial", (Ref(slot),), size, None, role=Role.PACK)
            )
    inputs = [Ref(string.ascii_lowercase[k]) for k in range(len(node.inputs))]
    args = (*inputs, *map(Ref, _slots(node)))
    launches.append(Launch(told.source, told.name, args, told.global_size, told.local_size))
    return Plan(launches)


def _largest(node: Node) -> int:
    told: KernelCall = node.attrs[0]
    return max(math.prod(shape) * BY_NAME[name].itemsize for shape, name in told.results)


OPERATIONS = (LibraryOperation(KERNEL, _plan, outputs=_slots, spare_bytes=_largest),)
