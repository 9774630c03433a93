"""Small graphs without a device: arguments, and what the compiler makes of what follows."""

from types import SimpleNamespace

from kerascl.compiler import library
from kerascl.compiler.fuse.group import group
from kerascl.compiler.fuse.rules import Part
from kerascl.compiler.generate.maps import map_kernel
from kerascl.compiler.generate.reductions import reduction_kernels
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.rewrite import rewrite
from kerascl.core.array import Array
from kerascl.core.node import Node, topological
from kerascl.core.op import ARGUMENT
from kerascl.dtypes import float32

# The facts that rewriting and generation ask for.
CPU = SimpleNamespace(
    quirks=frozenset(),
    kind="cpu", name="a CPU", matrix="", compute_units=4, max_work_group_size=64, simd_width=8,
    device_atomics=False, nvidia_capability=None, global_mem_bytes=1 << 32,
    registers=0, sub_group_sizes=(),
)  # fmt: skip


def argument(*shape: int, dtype=float32) -> Array:
    """An array of which nobody knows the values, on no device."""
    return Array(Node(ARGUMENT, (), (), shape, dtype))


def nodes_of(*arrays: Array) -> list[Node]:
    """All nodes behind arrays, inputs first."""
    return topological([x._node for x in arrays])


def epilogues_only(head: Node, part: Part) -> bool:
    """Library operations that take elementwise operations, and no moments."""
    return part is Part.EPILOGUE and library.record(head.op).takes_epilogue


def grouped(*arrays: Array, accepts=epilogues_only, **limits) -> list[Cluster]:
    """The clusters of a graph as it stands."""
    return group(nodes_of(*arrays), [x._node for x in arrays], accepts, **limits)[0]


def simplified(*arrays: Array) -> list[Node]:
    """What rewriting makes of arrays."""
    return rewrite(nodes_of(*arrays), [x._node for x in arrays], CPU)[1]


def names(clusters: list[Cluster]) -> list[list[str]]:
    """Of each cluster: its kind and its members' operations."""
    return [[c.kind, *(m.op.name for m in c.members)] for c in clusters]


def kernels(*arrays, generic=False, info=CPU):
    """The generated kernels of a graph in one cluster."""
    roots = [x._node for x in arrays]
    (cluster,), stored = group(nodes_of(*arrays), roots, epilogues_only)
    make = map_kernel if cluster.kind == "map" else reduction_kernels
    return make(cluster, stored, info, generic)


def text(*arrays, generic=False) -> str:
    """The body of the one kernel of a graph."""
    (launch,) = kernels(*arrays, generic=generic).launches
    return launch.source.body
