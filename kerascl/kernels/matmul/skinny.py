"""Products with one short side, a matrix times a few vectors: what generating text consists of.

`SkinnyMatmul` lays out the work of gemm_skinny.cl; how work-items multiply is skinny_lanes.cl's, or
a subclass's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kerascl.dtypes import DType
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Counters, Division, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, last_power, round_up
from kerascl.kernels.contract.solver import Solver, joined
from kerascl.kernels.contract.source import (
    SPACE,
    Source,
    cl_source,
    defines,
    narrowest,
    type_macros,
    unit,
    within,
)
from kerascl.kernels.matmul import computed as operands
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index, usable
from kerascl.kernels.matmul.split_k import most_slices, partial_epilogue, vector_reduction_launch
from kerascl.kernels.matmul.tiles import load4
from kerascl.kernels.tuning import machine

THREADS = 256
SEGMENT = 64  # bytes side by side that a work-group reads at least, where the memory has them
SHARED_SEGMENT = 32  # where work-groups that share a line run together
LOADS = 16  # of a work-item, from which on slices pay
# What counts where a GPU's work-groups divide a product, in loads of a work-item: what a group
# takes beside its loads, adding up slices in a launch of its own, and copying more of the short
# operand (parts of GPT-2's and Llama's tokens on an H200: 235 cycles are a load of four bfloat16).
BESIDE, ADDING_APART, COPYING = 12, 24, 8
AT_ONCE, STAYING = 4, 2  # groups of a compute unit at once, and where launches stay
STAYING_BYTES = 15 * 1024  # of local memory that each of these may have
REGISTERS, REGISTERS_DOUBLE = 192, 128  # of a work-item, that are counted upon at most
OTHERS = 32  # of a work-item's registers, for addresses and the short operand
SPARE_BYTES = 64  # of local memory for what is no array
LOCAL_BYTES = 16 * 1024
WIDEST = 8  # bytes of an element that is kept as it lies
STAGE_BYTES = 24 * 1024  # of the short operand, that a work-group copies to local memory
INTS = ("R", "COUNT", "K", "SPLITS", "KSLICE", "B1", "B2")
STEPS = (
    "lOff", "sOff", "lR", "lK", "sJ", "sK", "l0", "l1", "l2", "s0", "s1", "s2", "oR", "oJ",
)  # fmt: skip


class Side(NamedTuple):
    """An operand as rows of `k`: its slot, dtype, start and steps in elements."""

    slot: str
    dtype: DType
    offset: int
    row: int
    depth: int
    batch: tuple[int, ...]

    @property
    def along_k(self) -> bool:
        """Whether neighbours along the depth are closer to each other than those along rows."""
        return self.depth == 1 or (self.row != 1 and abs(self.depth) < abs(self.row))

    def in_fours(self, along: int, across: int, count: int) -> bool:
        """Whether four neighbours by step `along`, of `count`, may be read at once."""
        steps = (self.offset, across, count, *self.batch)
        return along == 1 and all(n % 4 == 0 for n in steps) and not self.dtype.is_complex


class Share(NamedTuple):
    """How the work-items of a group share a piece of the long operand.

    Attributes:
        rows: of the long operand.
        width: neighbours that a load takes.
        lanes: partial sums of a result.
        step: of the depth, that the loads of all work-items take at once.
        words: of 8 bytes that a load takes, as costs count loads.
    """

    rows: int
    width: int
    lanes: int
    step: int
    words: float = 1.0


class Ahead(NamedTuple):
    """Loads that are under way before they are multiplied: a block of `early`, `blocks` times."""

    early: int
    blocks: int


class SkinnyMatmul(Solver):
    """One side of at most eight (matrix times vector): lanes sum along the depth."""

    name = "skinny"
    joins = True
    MOST = 8
    LEAST = 10_000  # elements that keep a compute unit busy
    ON_GPU, ON_CPU = 0.36, 0.008  # shares of the rates that products reach
    # Loads that a work-item of a GPU has under way before it multiplies, of one or two rows and of
    # more, whose sums take registers too.
    EARLY, EARLY_ROWS = 16, 8
    # Of elements that are computed, each from several reads: eight loads of eight elements, int4 in
    # groups, take 123 registers of AMD's.
    EARLY_COMPUTED = 8
    # Rows up to which eight neighbours of the long side are computed at once, on GPUs: what they
    # share, such as the place of their group, is found once, but each has sums: those of four rows
    # take AMD's cards 166 registers.
    EIGHTS = 2
    INNER = True  # whether the short operand may be made in the kernel
    APART = 0  # bytes that may lie between its rows in local memory
    ADDING = 10, 0  # in loads, what the last group takes to add up slices, and with each more

    def __init__(self, split: int | None = None):
        self.split = split
        if split:
            self.name = f"{self.name}_s{split}"

    def applies(self, problem: MatmulProblem, info) -> bool:
        p = problem
        small = usable(p, info) and min(p.m, p.n) <= self.MOST
        room = THREADS * self.MOST * p.acc.itemsize <= info.local_mem_bytes
        return small and room and info.max_work_group_size >= THREADS

    def cost(self, problem: MatmulProblem, info) -> float:
        p, rates = problem, machine.of(info)
        long = max(p.m, p.n) * p.k * p.batches
        if info.kind == "cpu":
            return rates.launch + rates.multiplying(long * min(p.m, p.n), p.acc, self.ON_CPU)
        # The long operand is read once, by as many compute units as have enough of it.
        busy = min(1.0, max(1, long // self.LEAST) / info.compute_units)
        products = rates.multiplying(long * min(p.m, p.n), p.acc, self.ON_GPU)
        work = rates.moving(long * p.a.itemsize) + products
        return rates.launch + rates.begin + work / busy

    def computes(self, problem: MatmulProblem, info) -> str | None:
        p = problem
        if p.batches > 1 or p.acc.is_complex:  # batches may share what each would compute
            return None
        return "a" if p.n <= p.m else "b"

    def plan_computing(
        self, problem: MatmulProblem, info, epilogue: Epilogue, computed: Computed
    ) -> Plan:
        return self.plan(problem, info, epilogue, computed)

    def plan(
        self, problem: MatmulProblem, info, epilogue: Epilogue, computed: Computed | None = None
    ) -> Plan:
        p, index = problem, problem_index(problem)
        long, short, rows, count, steps = sides(p)
        along_k, width = self._loads(long, rows, p.k)
        near, reading, nbytes, text = None, None, float(long.dtype.itemsize), ""
        if computed is not None:
            widths = self._computed_widths(info, count)
            near = operands.closest(
                computed, operands.Side(rows, long.row), operands.Side(p.k, long.depth),
                long.offset, widths, widths, joined=True,
            )  # fmt: skip
            along_k, width, reading = near
            nbytes, text = reading.nbytes, _computed(near, index)
        short_rows = self._short_rows(count)
        stay = joined() and info.kind != "cpu"
        memory = min(STAYING_BYTES if stay else info.local_mem_bytes, info.local_mem_bytes)
        room = min(STAGE_BYTES, memory - SPARE_BYTES) - short_rows * self.APART
        copied = short_rows * short.dtype.itemsize  # bytes for each step of the depth
        shares = self._shares(p, info, nbytes, rows, along_k, width)
        share, wanted = self._division(p, info, rows, shares, room // copied)
        width, sums = share.width, share.rows * share.lanes * p.acc.itemsize  # of a row of s
        most = max(1, min(short_rows, min(LOCAL_BYTES, memory) // sums))
        together = next(n for n in (8, 4, 2, 1) if n <= most)
        groups = ceil_div(rows, share.rows) * p.batches
        slice_ = round_up(ceil_div(p.k, wanted), self._whole(long, along_k, width))
        splits = ceil_div(p.k, slice_)
        arrives = splits > 1 and arrival.supported(info)
        separate = splits > 1 and not arrives
        part = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        inner = part if separate else epilogue
        early, blocks = self._ahead(
            p, info, short_rows, share, along_k, slice_, room // copied,
            self._most_computed(near) if near else 0,
        )  # fmt: skip
        deep = early * share.step  # of a block
        span = min(blocks, room // (copied * deep)) if early else 0
        stage = round_up(min(slice_, span * deep), 4)
        pitch = self._pitch(stage, short.dtype, along_k)
        fours = short.in_fours(short.depth, short.row, p.k)
        names = dict(
            ROWS=share.rows, LANES=share.lanes, SHORT=short_rows, V=width, L_ALONG_K=int(along_k),
            S_VECTOR=int(fours), COPY_FOURS=int(fours and slice_ % 4 == 0), STAGE=stage, SPAN=span,
            PITCH=pitch, LOCAL_BYTES=max(together * sums, pitch * copied),
            ARRIVES=int(arrives), TOGETHER=together, EARLY=early, BLOCKS=blocks,
            WHOLE=int(splits * blocks * deep == p.k),
            L_WORD=_word(long.dtype), S_WORD=_word(short.dtype),
            L_NAMES=_names(reading.params if reading else ("pL",)),
            UNROLL=_unroll(short_rows, width, p.acc, info), TOTAL=f"((INDEX_T){p.total})",
        )  # fmt: skip
        body = within(
            type_macros(index, L=long.dtype, S=short.dtype, ACC=p.acc)
            + SPACE.format("__global")
            + defines(**names)
            + (inner.early if early and short_rows == 1 else inner.macro)
            + text
            + self._multiplying(long, short, p.acc, along_k, width)
            + cl_source("matmul/gemm_skinny.cl")
        )
        ints = (rows, count, p.k, splits, slice_, p.batch[1], p.batch[2])
        longs = (
            long.offset, short.offset, long.row, long.depth, short.row, short.depth,
            *long.batch, *short.batch, *steps,
        )  # fmt: skip
        long_args: tuple[Arg, ...] = (Ref(long.slot),)
        # what is known never to change may be read later than it stands there
        alone = "" if early else "restrict "
        long_params: tuple[str, ...] = (f"__global const {long.dtype.storage}* {alone}pL",)
        if reading is not None:
            long_args, long_params = reading.args, reading.params
        slices, slice_params = _slices(p, groups) if arrives else ((), ())
        args = (
            *long_args, Ref(short.slot), *(Scalar("int", v) for v in ints),
            *(Scalar(index, v) for v in longs), *slices, *inner.args,
        )  # fmt: skip
        inner_param = f"__global const {short.dtype.storage}* restrict pS"
        params = (
            *long_params, inner_param,
            *(f"const int {name}" for name in INTS), *(f"const {index} {name}" for name in STEPS),
            *slice_params, *inner.param_list,
        )  # fmt: skip
        kernel = Source(
            "gemm_skinny", params, body,
            ((arrival.helper(info),) if arrives else ()) + inner.helpers
            + (reading.helpers if reading else ()) + self._helpers(info),
            any(t.is_double for t in (p.a, p.b, p.acc)) or inner.uses_double
            or bool(reading and reading.uses_double),
            self._options(info, arrives), THREADS, narrowest(info),
            inner_param if self.INNER else "", together * sums, inner.param_list,
        )  # fmt: skip
        size = (groups * splits * THREADS,)
        division = None
        if splits == 1:
            of = kernel.name, rows, count, p.batches, steps, share.rows
            division = Division(of, epilogue.aligned)
        launches = [
            Launch(
                unit([kernel]), kernel.name, args, size, (THREADS,), kernel.options, kernel,
                division=division,
            )
        ]  # fmt: skip
        if separate:
            launches.append(vector_reduction_launch(p.total, splits, p.acc, index, epilogue, info))
        return Plan(launches, [splits * p.total * p.acc.itemsize] if splits > 1 else [])

    def _loads(self, long: Side, rows: int, k: int) -> tuple[bool, int]:
        """Whether loads of the long operand run along k, and how many neighbours each takes."""
        along_k = long.along_k
        if along_k:
            return along_k, 4 if long.in_fours(long.depth, long.row, k) else 1
        return along_k, 4 if long.in_fours(long.row, long.depth, rows) else 1

    def _computed_widths(self, info, count: int) -> tuple[int, ...]:
        """How many neighbours may be computed at once, the best first."""
        return (8, 4) if count <= self.EIGHTS and info.kind != "cpu" else (4,)

    def _short_rows(self, count: int) -> int:
        """Of the short operand, that a kernel has sums of."""
        return next(n for n in (1, 2, 4, 8) if n >= count)

    def _whole(self, long: Side, along_k: bool, width: int) -> int:
        """What slices of the depth are a multiple of."""
        return width if along_k else 1

    def _pitch(self, stage: int, dtype: DType, along_k: bool) -> int:
        """Elements from a copied row of the short operand to the next one."""
        return stage

    def _helpers(self, info) -> tuple[str, ...]:
        """Texts of the functions that multiply."""
        return ()

    def _options(self, info, arrives: bool) -> tuple[str, ...]:
        """What these, and groups that arrive, need of the compiler."""
        return arrival.options(info) if arrives else ()

    def _multiplying(self, long: Side, short: Side, acc: DType, along_k: bool, width: int) -> str:
        """The text in front of gemm_skinny.cl, for loads of so many neighbours."""
        return (
            load4("L", long.dtype, acc)
            + load4("RAW", long.dtype, acc, "__private")
            + load4("S", short.dtype, acc, "S_SPACE")
            + cl_source("matmul/skinny_lanes.cl")
        )

    def _shares(
        self, p: MatmulProblem, info, nbytes: float, rows: int, along_k: bool, width: int
    ) -> list[Share]:
        """Those that costs decide between, of elements of so many bytes."""
        if along_k:
            counts = [8] if nbytes >= 1 or info.kind == "cpu" else [32, 16, 8]
        else:
            counts = self._rows(p, info, nbytes, rows, width)
        return [
            Share(
                n, width, THREADS // n * (1 if along_k else width),
                THREADS // n * width, max(1.0, width / 4),
            )
            for n in counts
        ]

    def _division(
        self, p: MatmulProblem, info, rows: int, shares: list[Share], near: int
    ) -> tuple[Share, int]:
        """What a work-group takes, and slices of the depth: of the short operand, `near` steps of
        the depth can be copied to local memory at once."""
        most = max(1, min(most_slices(p.total, p.acc), p.k))

        def loads(share: Share) -> int:
            return int(ceil_div(p.k, share.step) * share.words)

        if self.split or info.kind == "cpu":
            groups = ceil_div(rows, shares[0].rows) * p.batches
            wanted = min(
                self.split or ceil_div(info.compute_units * 4, groups), loads(shares[0]) // LOADS
            )
            return shares[0], max(1, min(wanted, most))
        room = info.compute_units * (STAYING if joined() else AT_ONCE)
        adding, each_slice = self.ADDING if arrival.supported(info) else (ADDING_APART, 0)

        def cost(division: tuple[Share, int]) -> int:
            share, splits = division
            rounds = ceil_div(ceil_div(rows, share.rows) * p.batches * splits, room)
            copies = ceil_div(ceil_div(p.k, splits), max(1, near)) if joined() else 1
            each = max(LOADS, ceil_div(loads(share), splits)) + BESIDE + (copies - 1) * COPYING
            return rounds * each + (adding + each_slice * splits if splits > 1 else 0)

        divisions = [
            (share, splits) for share in shares
            for splits in range(1, max(1, min(loads(share) // LOADS, most)) + 1)
        ]  # fmt: skip
        return min(divisions, key=cost)

    def _ahead(
        self, p: MatmulProblem, info, short_rows: int, share: Share, along_k: bool, slice_: int,
        near: int, computed: int,
    ) -> Ahead:  # fmt: skip
        """A work-item's loads that are under way at once, in a slice: as many as registers have
        room for beside the sums, and of half of them what they are multiplied by; of a `computed`
        operand, so many at most."""
        if info.kind == "cpu" or max(p.a.itemsize, p.b.itemsize) > WIDEST:
            return Ahead(0, 0)
        loads, width = ceil_div(slice_, share.step), share.width
        most = self.EARLY if short_rows <= 2 else self.EARLY_ROWS
        acc = ceil_div(p.acc.itemsize, 4)
        most_words = REGISTERS if acc == 1 else REGISTERS_DOUBLE
        room = min(info.registers or most_words, most_words) - OTHERS - short_rows * width * acc
        word = ceil_div(width * max(p.a.itemsize, p.b.itemsize), 4)
        word += short_rows * acc * (width if along_k else 1) // 2
        if room < word:
            return Ahead(0, 0)
        early = min(loads, most, last_power(room // word))
        return in_blocks(loads, min(early, computed) if computed else early)

    def _most_computed(self, near: operands.Neighbours) -> int:
        """Loads of an operand that is computed, that are under way at once at most."""
        return self.EARLY if _in_groups(near) else self.EARLY_COMPUTED

    def _rows(self, p: MatmulProblem, info, nbytes: float, rows: int, width: int) -> list[int]:
        """Of a work-group where rows lie side by side: fewer where few groups would leave compute
        units without work, so many at least that what lies side by side is read together.  Where
        launches stay, all groups that share a line read it at the same time."""
        most = 32 if nbytes >= 1 else 64
        least = max(width, SEGMENT / max(nbytes, 1 / 8))
        counts = [n for n in (64, 32, 16, 8) if n <= most]
        if joined():
            return [n for n in counts if n * nbytes >= SHARED_SEGMENT] or counts[:1]
        counts = [n for n in counts if n >= min(least, most)]
        busy = (n for n in counts if ceil_div(rows, n) * p.batches >= info.compute_units)
        return [next(busy, counts[-1])]


def in_blocks(loads: int, early: int) -> Ahead:
    """So many loads in equal blocks of at most `early`."""
    blocks = ceil_div(loads, early)
    return Ahead(ceil_div(loads, blocks), blocks)


def sides(p: MatmulProblem) -> tuple[Side, Side, int, int, tuple[int, int]]:
    """The long operand and the short one, their rows, and the result's steps along both."""
    a = Side("a", p.a, p.a_offset, p.a_strides[-2], p.a_strides[-1], p.a_strides[:3])
    b = Side("b", p.b, p.b_offset, p.b_strides[-1], p.b_strides[-2], p.b_strides[:3])
    return (a, b, p.m, p.n, (p.n, 1)) if p.n <= p.m else (b, a, p.n, p.m, (1, p.n))


def _names(params: tuple[str, ...]) -> str:
    return ", ".join(re.findall(r"\w+$", param)[0] for param in params)


def _word(dtype: DType) -> str:
    """The type that keeps an element as it lies: its own, as compilers take what is stored as one
    scalar type and read as another for two things (C99, 6.5); of halves not all have arrays."""
    return "ushort" if dtype.storage == "half" else dtype.storage


def _computed(near: operands.Neighbours, index: str) -> str:
    """The macros of skinny_lanes.cl for an operand that is computed; those of groups, too."""
    fixed, each = ("given_row_", "given_k_") if near.along_k else ("given_k_", "given_row_")
    place, reading = f"{each} / {near.width}", near.reading
    given = f"const u{index} given_row_ = (row_), given_k_ = (k_);"
    places = near.places(index, fixed, place)
    values = ", ".join(f"(ACC_T){value}" for value in reading.values)
    known, loads = _declared("(first_)", reading.first), _loads("(first_)", reading.first)
    return (
        f"#define L_FIRSTS {_fields(reading.first)}\n"
        f"#define L_FIRST(first_, row_, k_) {{ {given} {places} {loads} }}\n"
        f"#define L_COMPUTED(x_, first_, row_, k_) {{ {given} {{ {known} "
        f"{near.fixed(index, fixed)} {near.each(index, place)} x_ = (ACCV)({values}); }} }}\n"
        + (_grouped(near, given, places, values) if _in_groups(near) else "")
    )


def _in_groups(near: operands.Neighbours) -> bool:
    """Whether the depth has groups, for whose keys work-items look."""
    return near.reading.grouped is not None and near.reading.grouped.along == near.along_k


def _grouped(near: operands.Neighbours, given: str, places: str, values: str) -> str:
    """The macros of skinny_lanes.cl for loads that have groups."""
    grouped = near.reading.grouped
    assert grouped is not None
    keys = {key.name for key in grouped.keys}
    loads = [load for load in near.reading.first if load[1] not in keys]
    known = _declared("(first_)", loads) + " " + _declared("(group_)", _named(grouped.kept))
    # of each table, the first number that a load of it gives
    firsts = {key.table: f"{key.name}{_PARTS[key.kind[-1:]][0]}" for key in reversed(grouped.keys)}
    place = {key.name: firsts[key.table] if grouped.along else key.name for key in grouped.keys}
    found = " ".join(
        f"const {key.kind} {key.name} = ({key.kind})(own_.{place[key.name]});"
        for key in grouped.keys
    )
    differ = " || ".join(
        f"{_bits(key.kind, f'(a_).{key.name}{part}')} != "
        f"{_bits(key.kind, f'(b_).{place[key.name]}')}"
        for key in grouped.keys
        for part in _PARTS[key.kind[-1:]]
    )
    keep = " ".join(f"(group_).{name} = {name};" for _, name in grouped.kept)
    return (
        f"#define L_KEYS {_fields(grouped.keys)}\n"
        f"#define L_KEY(keys_, row_, k_) {{ {given} {places} {_loads('(keys_)', grouped.keys)} }}\n"
        f"#define L_DIFFER(a_, b_) ({differ})\n"
        f"#define L_GROUP {_fields(_named(grouped.kept))}\n"
        f"#define L_FIND(group_, row_, k_) {{ struct {{ L_KEYS }} own_; L_KEY(own_, row_, k_) "
        f"{given} {places} {found} {' '.join(grouped.lines)} {keep} }}\n"
        f"#define L_OWNS {_fields(loads)}\n"
        f"#define L_OWN(first_, row_, k_) {{ {given} {places} {_loads('(first_)', loads)} }}\n"
        f"#define L_SHARED(x_, first_, group_, row_, k_) {{ {given} {{ {known} {places} "
        f"{' '.join(grouped.rest)} x_ = (ACCV)({values}); }} }}\n"
    )


# The numbers of a variable, by the last letter of its type.
_PARTS: dict[str, Sequence[str]] = {
    **dict.fromkeys("rtgdce", ("",)),
    **{str(n): [f".s{k}" for k in range(n)] for n in (2, 4, 8)},
}


def _named(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    return [(kind, name, "") for kind, name in fields]


def _fields(loads: Iterable[tuple[str, ...]]) -> str:
    return " ".join(f"{kind} {name};" for kind, name, *_ in loads) or "char none_;"


def _loads(struct: str, loads: Iterable[tuple[str, ...]]) -> str:
    return " ".join(f"{struct}.{name} = {load};" for _, name, load, *_ in loads)


def _declared(struct: str, loads: Iterable[tuple[str, ...]]) -> str:
    return " ".join(f"const {kind} {name} = {struct}.{name};" for kind, name, *_ in loads)


def _bits(kind: str, name: str) -> str:
    """A number as an integer that tells all numbers apart."""
    return {"float": f"as_uint({name})", "double": f"as_ulong({name})"}.get(kind, name)


def _unroll(short_rows: int, width: int, acc: DType, info) -> str:
    """The pragma's text for the loop along the depth: so many reads are under way at once."""
    if info.kind == "cpu" or (short_rows > 2 and acc.itemsize > 4):
        return '"nounroll"'  # takes long to compile, and gains nothing; or registers
    return '"unroll 4"' if short_rows > 2 or width == 1 else '"unroll 8"'


def _slices(p: MatmulProblem, groups: int) -> tuple[tuple[Arg, ...], tuple[str, ...]]:
    """Arguments and parameters for slices whose last work-group adds them up."""
    slices = f"volatile __global {p.acc.compute}* slices"
    params = (slices, "volatile __global uint* arrivals", "const int arrival")
    return (Ref("ws0"), Counters(groups), Scalar("int", 0)), params
