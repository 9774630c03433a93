"""A pytest plugin: solvers on matrix units beside a CPU's own, emulated, for KERASCL_SOLVERS to
force on.

Whole programs then run as on a card: what is planned, packed, fused into epilogues and stored.
TF32 keeps what float32 holds where "high" precision is asked for, so that tests keep their
tolerances; how it rounds is left to tests/kernels, and so is float32 as pairs of bfloat16, which
other solvers take here.  A fault that the emulator finds makes results NaN and is printed.  See
`emulator`, `mma_emulator` and `unit_emulator` of `tests.kernels` for what they cannot see.
"""

import dataclasses
import functools
import math

from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import reach
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_fragment, known, nv_sm80
from kerascl.kernels.units.tile import FragmentSolver
from tests import profiles
from tests.kernels import emulator, mma_emulator, unit_emulator

FAR = 1e15  # beyond all costs: none is chosen that is not forced on

_FILL = """
__kernel void emulated_fill(__global int* ring, int ring_words, __global int* state, int words) {
  for (int i = get_global_id(0); i < ring_words; i += get_global_size(0)) ring[i] = -1;
  for (int i = get_global_id(0); i < words; i += get_global_size(0)) state[i] = 0;
}
"""
# As emulator._check.
_JUDGE = """
#define OF_GROUP (1 + (KINDS * STAGES + TURNS + 2 * PARTS) * COUNTS)
#define AT(g, kind, stage, count) \\
  state[(g) * OF_GROUP + 1 + ((kind) * STAGES + (stage)) * COUNTS + (count)]
__kernel void emulated_judge(__global const int* state, int groups, int stays RESULTS) {
  int faults = 0, phases = 0;
  for (int g = 0; g < groups; ++g) {
    faults |= state[g * OF_GROUP];
    for (int kind = 0; kind < KINDS; ++kind)
      for (int s = 0; s < STAGES; ++s) {
        const int last = stays && kind == KINDS - 1 && s == STAGES - 1;
        const int ended = last ? 0 : AT(g, 0, s, 2) * AT(g, kind, s, 0);
        phases |= AT(g, kind, s, 0) <= 0 || AT(g, kind, s, 1) != ended || AT(g, kind, s, 3) != 0;
      }
    for (int t = 0; t < TURNS; ++t) {
      const int passed = AT(g, KINDS, t, 1), needed = AT(g, KINDS, t, 0) * AT(g, KINDS, t, 2);
      phases |= passed != needed && passed != needed + AT(g, KINDS, t, 0);
    }
    for (int p = 0; p < PARTS; ++p) {  // of a team half the barriers say that parts have come
      const int each = PARTS / TURNS, came = TURNS + p / each * 2 * each + p % each;
      for (int back = 0; back < 2; ++back) {
        const int b = came + back * each, ended = AT(g, KINDS, came, 2) * AT(g, KINDS, b, 0);
        phases |= AT(g, KINDS, b, 0) <= 0 || AT(g, KINDS, b, 1) != ended || AT(g, KINDS, b, 3) != 0;
      }
    }
  }
  if (!faults && !phases) return;
  printf("a kernel for Hopper: bits %x of emulator.FAULTS, phases %d\\n", faults, phases);
  WRONG
}
"""


@functools.cache
def card(info):
    """Facts of an H200 of two compute units, so that work-groups have several tiles."""
    return dataclasses.replace(
        info, name="NVIDIA H200", kind="gpu", matrix="wgmma90", compute_units=2,
        local_mem_bytes=49152, max_work_group_size=1024,
    )  # fmt: skip


# The profile of a card that has them, by a unit's DeviceInfo.matrix.
OTHERS = {
    "wmma11": "rx7900xtx", "wmma12": "rx9070xt", "mfma90a": "mi210", "mfma942": "mi300x",
    "xmx8": "a770", "xmx16": "b580",
}  # fmt: skip


@functools.cache
def other_card(name, info):
    """Facts of a card of AMD's or Intel's, of two compute units."""
    like = profiles.load()[name].info
    return dataclasses.replace(like, compute_units=2, cache_key=info.cache_key)


class Emulated(Solver):
    """A solver of matrix units for any device, but only if forced on."""

    def __init__(self, solver: Solver, pairs: bool):
        self.solver, self.name, self.pairs = solver, solver.name, pairs
        unit = getattr(solver, "unit", None)
        units = unit.matrix if unit else ()
        name = next((OTHERS[matrix] for matrix in units if matrix in OTHERS), None)
        self.card = functools.partial(other_card, name) if name else card

    def applies(self, problem, info) -> bool:
        if not self.solver.applies(problem, self.card(info)):
            return False
        unit = getattr(self.solver, "unit", None)
        return self.pairs or unit is None or unit.fragments[self._dtype(problem)].products == 1

    def cost(self, problem, info) -> float:
        return FAR + self.solver.cost(problem, self.card(info))

    def _dtype(self, problem):
        return problem.a

    def takes_moments(self, problem, info) -> bool:
        return self.solver.takes_moments(problem, self.card(info))

    def plan(self, problem, info, epilogue) -> Plan:
        exact = problem.precision == "high"
        plan = self.solver.plan(problem, self.card(info), epilogue)
        plan = mma_emulator.emulated(unit_emulator.emulated(plan, exact), exact)
        sizes = dict(zip("abcd", operand_bytes(problem), strict=False))
        sizes |= {f"ws{n}": nbytes for n, nbytes in enumerate(plan.workspace)}
        results = tuple(dict.fromkeys(
            arg for launch in plan.launches for arg in launch.args
            if isinstance(arg, Ref) and arg.slot not in ("a", "b") and arg.slot[:2] != "ws"
        ))  # fmt: skip
        launches, judges, workspace = [], [], list(plan.workspace)
        for launch in plan.launches:
            if not emulator.is_emulated(launch):
                launches.append(launch)
                continue
            ring, state = (f"ws{len(workspace) + n}" for n in (0, 1))
            e = emulator.emulate(launch, (ring, state), sizes, exact)
            launches += [_fill(ring, state, e), *e.launches]
            judges.append(_judge(state, e, results))
            workspace += [e.ring, 4 * math.prod(e.state)]
        return Plan(launches + judges, workspace)


class EmulatedAttention(Emulated):
    """The same of attention; NVIDIA's are emulated already."""

    def _dtype(self, problem):
        return problem.q.dtype

    def plan(self, problem, info, epilogue) -> Plan:
        plan = self.solver.plan(problem, self.card(info), epilogue)
        return unit_emulator.emulated(plan, problem.precision == "high")


def operand_bytes(p) -> tuple[int, ...]:
    """Of slots a and b, of attention of c, too, and of d where it is the gradient's."""
    if isinstance(p, AttentionProblem):
        rows, keys = (p.batch, p.length, p.heads), (p.batch, p.source, p.groups)
        shapes = (*rows, p.width), (*keys, p.width), (*keys, p.depth), (*rows, p.depth)
        return tuple(
            reach(shape, x.strides, x.offset) * x.dtype.itemsize
            for shape, x in zip(shapes, (p.q, p.k, p.v, p.grad), strict=True)
            if x is not None
        )
    if isinstance(p, ConvProblem):
        x, w, y = p.x_shape, p.w_shape, p.y_shape
        shapes = {FORWARD: (x, w), DATA_GRAD: (y, w), FILTER_GRAD: (x, y)}[p.kind]
        a, b = map(math.prod, shapes)
    else:
        a = reach((*p.batch, p.m, p.k), p.a_strides, p.a_offset)
        b = reach((*p.batch, p.k, p.n), p.b_strides, p.b_offset)
    return a * p.a.itemsize, b * p.b.itemsize


def _fill(ring: str, state: str, e: emulator.Emulation) -> Launch:
    args = (
        Ref(ring), Scalar("int", e.ring // 4), Ref(state), Scalar("int", math.prod(e.state)),
    )  # fmt: skip
    return Launch(_FILL, "emulated_fill", args, (4096,), (64,))


def _judge(state: str, e: emulator.Emulation, results: tuple[Ref, ...]) -> Launch:
    """Spoils the results, and what an epilogue reads, where the emulator found a fault."""
    kinds, stages, counts = e.shape
    names = [f"result{n}" for n in range(len(results))]
    defines = {
        "KINDS": kinds, "STAGES": stages, "COUNTS": counts, "TURNS": e.turns,
        "PARTS": e.parts,
        "RESULTS": "".join(f", __global short* {name}" for name in names),
        "WRONG": " ".join(f"{name}[0] = {name}[1] = -1;" for name in names),
    }  # fmt: skip
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    args = (Ref(state), Scalar("int", e.groups), Scalar("int", int(e.stays)), *results)
    return Launch(head + _JUDGE, "emulated_judge", args, (1,), (1,))


def install(put=setattr, pairs: bool = True) -> None:
    """Put those solvers among those of products, convolutions and attention; `put` sets attributes.

    Args:
        pairs: let float32 become pairs of bfloat16 where units take no more.
    """
    for module in (known, attention_fragment):
        put(module, "available", lambda unit, info, *_: info.matrix in unit.matrix)
    for module in (unit_attention, attention16):  # of tiles beyond 48 KiB none
        put(module, "available", lambda info, p, name="": (
            info.matrix in nv_sm80.MATRIX and name != attention16.BEYOND
        ))  # fmt: skip
    put(hopper_probe, "available", lambda info, *_: info.matrix == "wgmma90")
    for module in (matmul, conv, attention):
        for name in ("SOLVERS", "VARIANTS"):
            if found := getattr(module, name, None):
                put(module, name, tuple(_emulated(s, pairs) for s in found))


def _emulated(solver: Solver, pairs: bool) -> Solver:
    if solver in attention_fragment.SOLVERS:
        return EmulatedAttention(solver, pairs)
    if solver in unit_attention.SOLVERS:
        return EmulatedAttention(mma_emulator.emulated_class(type(solver))(), pairs)
    if solver in attention16.SOLVERS:
        return EmulatedAttention(mma_emulator.emulated16(type(solver))(), pairs)
    other = isinstance(solver, FragmentSolver) or solver.name.startswith("wgmma")
    return Emulated(solver, pairs) if other else solver


def pytest_configure():
    install(pairs=False)
