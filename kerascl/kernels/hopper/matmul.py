"""Matrix products with warpgroup matrix instructions: see `ptx`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from kerascl.kernels.contract.epilogue import Epilogue, store_epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Launch, Plan, Workspace
from kerascl.kernels.contract.sizes import ceil_div, index_type
from kerascl.kernels.hopper import brought, pingpong
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.hopper.pack import Matrix, pack_launch, pack_time, packed_step
from kerascl.kernels.hopper.ptx import KINDS
from kerascl.kernels.hopper.solver import MomentsSolver
from kerascl.kernels.hopper.tiles import (
    ONE_BY_ONE,
    PROMOTED,
    READ,
    SHAPES,
    STORE_CLOCKS,
    Shape,
    slice_counts,
    tiles_time,
)
from kerascl.kernels.hopper.tma import depth_of, map_words
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.matmul.problem import slots as slots_of
from kerascl.kernels.matmul.split_k import reduction_time, vector_reduction_launch
from kerascl.kernels.selftests import asked, part
from kerascl.kernels.tuning import machine


@dataclass(frozen=True)
class _Side:
    """One operand: `rows` by k with element strides, and how the kernel is to read it."""

    rows: int
    k: int
    offset: int
    row: int
    depth: int
    batch: tuple[int, int, int]
    steps: tuple[int, int, int]

    def layout(self, itemsize: int, turnable: bool) -> str:
        """ "k" or "mn" where TMA can take it as it lies, else "pack"."""
        whole = 16 // itemsize

        def fits(unit: int, other: int, length: int) -> bool:
            return (
                (unit == 1 or length == 1)
                and all(s % whole == 0 and s >= 0 for s in self.steps)
                and self.offset % whole == 0
                and other % whole == 0
                and other > 0
            )

        if fits(self.depth, self.row if self.rows > 1 else whole, self.k):
            return "k"
        if turnable and fits(self.row, self.depth if self.k > 1 else whole, self.rows):
            return "mn"
        return "pack"

    @property
    def distinct(self) -> tuple[int, int, int]:
        """Sizes of the batch dimensions without the repeated ones."""
        a, b, c = (n if s else 1 for n, s in zip(self.batch, self.steps, strict=True))
        return a, b, c

    @property
    def batches(self) -> int:
        a, b, c = self.distinct
        return a * b * c

    def packed(self, dtype) -> _Side:
        """The operand after `pack_launch`, batch by batch."""
        step = packed_step(dtype, self.k)
        _, n1, n2 = self.distinct
        size = self.rows * step
        full = (n1 * n2 * size, n2 * size, size)
        a, b, c = (f if s else 0 for f, s in zip(full, self.steps, strict=True))
        return _Side(self.rows, self.k, 0, step, 1, self.batch, (a, b, c))

    def fetch_clocks(self, layout: str, rows: int, dtype) -> float:
        """Clocks for TMA to fetch the rows of a stage at least where they are short and begin
        anywhere in lines of the cache: fewer where they begin at sectors of 32 bytes."""
        step = {"k": self.row, "mn": 0, "pack": packed_step(dtype, self.k)}[layout]
        nbytes = step * dtype.itemsize
        if nbytes > 512 or nbytes % 64 == 0:
            return 0.0
        return min(rows, self.rows) * (21.8 if nbytes % 32 else 11.1)

    def words(
        self, dtype, box_rows: int, mn: bool, batched: bool, rounded: bool = True
    ) -> tuple[int, ...]:
        size, deep = dtype.itemsize, depth_of(dtype)
        sizes: tuple[int, ...]
        steps: tuple[int, ...]
        box: tuple[int, ...]
        if mn:
            sizes, steps, box = (self.rows, self.k), (self.depth,), (deep, deep)
        else:
            sizes, steps, box = (self.k, self.rows), (self.row,), (deep, box_rows)
        if batched:
            sizes, box = (*sizes, *reversed(self.distinct)), (*box, 1, 1, 1)
            steps = (*steps, *reversed(self.steps))
        # A dimension of one element may have any step; TMA wants multiples of 16 bytes.
        steps = tuple(s * size if n > 1 else 16 for s, n in zip(steps, sizes[1:], strict=True))
        return map_words(dtype, sizes, steps, box, rounded)


def _sides(p: MatmulProblem) -> tuple[_Side, _Side]:
    batch: Any = tuple(p.batch)
    steps: Any = tuple(p.a_strides[:3]), tuple(p.b_strides[:3])
    a = _Side(p.m, p.k, p.a_offset, p.a_strides[-2], p.a_strides[-1], batch, steps[0])
    b = _Side(p.n, p.k, p.b_offset, p.b_strides[-1], p.b_strides[-2], batch, steps[1])
    return a, b


@functools.lru_cache(maxsize=4096)
def layouts(p: MatmulProblem, turnable: tuple[bool, bool]) -> tuple[str, str]:
    """How TMA is to read either operand, see `_Side.layout`."""
    a, b = _sides(p)
    return a.layout(p.a.itemsize, turnable[0]), b.layout(p.b.itemsize, turnable[1])


SUMS = "wgmma_sum"  # the self-test of sums of products
SEVERAL = "wgmma_several"  # of several products in a launch
DENSE = "wgmma_dense"  # of products with the sums of b's columns


class NoTile(LookupError):
    """All tiles of a solver have failed, one after the other, since it was taken to apply."""


class HopperMatmul(MomentsSolver):
    """TMA and wgmma: large products of bfloat16, float16 and (rounded to tf32) float32.

    float32 in precision "highest" is the sum of three tf32 products (3xTF32): of the rounded
    operands and of each with what the other lost.
    """

    run = Run
    shapes: tuple[Shape, ...] = SHAPES
    alternating: tuple[Shape, ...] = pingpong.SHAPES  # considered without moments
    store_clocks = STORE_CLOCKS
    form: tuple[str, ...] = ()  # words that tell apart parts of self-tests that all kernels have

    def takes(self, p: MatmulProblem) -> bool:
        return (
            p.a is p.b
            and p.a.name in KINDS
            and p.acc.name == "float32"
            and min(p.m, p.n, p.k) > 0
            and len(p.batch) == 3
            and p.batches < 65536
            and not (self.tile and _low(p) and self.tile not in PROMOTED)
            and not (p.count > 1 and (_low(p) or "pack" in self.layouts(p)))
            and not (self._alternates and self.splits not in (None, 1))
            and not (p.sums_columns and not self._takes_sums(p))
        )

    def _takes_sums(self, p: MatmulProblem) -> bool:
        """Whether this kernel reads b so that it can sum its columns."""
        mine = p.batches == 1 and not _low(p) and not self._alternates
        return mine and self.layouts(p)[1] == "mn"

    def applies(self, p: MatmulProblem, info) -> bool:
        if not self.takes(p):  # before a part is asked for that self-tests may not have
            return False
        if self.tile is not None:
            own = self.proven(self.tile, p, info)
        else:
            own = p.count == 1 or hopper_probe.available(info, SUMS, part.named(p.a))
        if p.sums_columns:
            own = own and hopper_probe.available(info, DENSE, self.form_part(p))
        return own and super().applies(p, info)

    def cost(self, p: MatmulProblem, info) -> float:
        adding = machine.of(info).launch if p.sums_columns else 0.0
        return super().cost(p, info) + adding

    def proven(self, shape: Shape, p: MatmulProblem, info) -> bool:
        """Whether the self-tests pass that a tile needs besides this solver's own."""
        own = [pingpong.SELF_TEST] * (shape.pingpong > 1) + [SUMS] * (p.count > 1)
        return all(hopper_probe.available(info, name, part.named(p.a)) for name in own)

    @property
    def _alternates(self) -> bool:
        """Whether the tile that was given is one of `pingpong`."""
        return self.tile is not None and self.tile.pingpong > 1

    def moments(self, p: MatmulProblem) -> bool:
        return p.batches == 1 and not self._alternates

    def brings(self, p: MatmulProblem, epilogue: Epilogue) -> tuple[int, ...]:
        found = (brought.bring(epilogue, shape, p.n).brought for shape in self.alternating)
        return tuple(load.dtype.itemsize for load in next(found, ()))

    def layouts(self, p: MatmulProblem) -> tuple[str, str]:
        """`layouts` of what the kernel can read."""
        turnable = p.a.itemsize == 2
        return layouts(p, (turnable, turnable))

    def cut(self, shape: Shape) -> tuple[int, int]:
        """Rows and columns of a tile of the output."""
        return shape.bm, shape.bn

    def best(self, p: MatmulProblem, info) -> tuple[float, Shape, int]:
        rates, low = machine.of(info), _low(p)
        passes = 3 if low else 1
        deep = depth_of(p.a)
        packing, read = 0.0, p.nbytes
        sides = tuple(zip(_sides(p), self.layouts(p), strict=True))
        for side, layout in sides:
            if layout == "pack" or low:
                # Read once; written anew, or its low parts, or both.
                passes_over = 3 if layout == "pack" and low else 2
                nbytes = side.batches * side.rows * side.k * p.a.itemsize
                packing += pack_time(nbytes * passes_over // 2, info)
                read += nbytes if low else 0
        store = self.store_clocks * (ONE_BY_ONE if p.n % 4 else 1.0)
        choices = []
        for shape in self._candidates(p, info):
            cut = rows, columns = self.cut(shape)
            tiles = ceil_div(p.m, rows) * ceil_div(p.n, columns) * p.batches
            fetch = sum(side.fetch_clocks(how, n, p.a) for (side, how), n in zip(sides, cut))
            wanted = 1 if shape.pingpong > 1 else self.splits
            chunks = p.count * ceil_div(p.k, deep)
            depth = p.k if p.count == 1 else chunks * deep
            counts = set(slice_counts(wanted, p.total, chunks))
            filling = info.compute_units * shape.groups // tiles  # all compute units, once
            if wanted is None and 4 <= 4 * filling <= chunks:
                counts |= set(slice_counts(filling, p.total, chunks))
            for splits in sorted(counts):
                if shape.pingpong > 1:
                    more = self.more - READ * len(self.brought)
                    time = pingpong.time(
                        shape, KINDS[p.a.name], tiles, depth, info, store, more
                    )
                    time += rates.moving(p.total * sum(self.brought))
                else:
                    time = tiles_time(
                        shape, KINDS[p.a.name], tiles * splits, ceil_div(depth, splits), passes,
                        info, store, self.more, self.reads,
                    )  # fmt: skip
                stages = ceil_div(ceil_div(depth, splits), deep)
                fetching = rates.clocks(tiles * splits * stages * fetch / info.compute_units)
                time = max(time, fetching, rates.moving(read))
                time += reduction_time(p.total, splits, info) + packing
                choices.append((time, shape, splits))
        if not choices:
            raise NoTile(f"no tile of {self.name} has passed its self-test")
        return min(choices, key=lambda c: c[0])

    def _candidates(self, p: MatmulProblem, info) -> tuple[Shape, ...]:
        """The tiles of which `best` takes one."""
        if self.tile:
            return (self.tile,)
        if _low(p):
            return PROMOTED
        turns = self.turns and self.splits in (None, 1) and not p.sums_columns
        every = (*self.shapes, *self.alternating) if turns else self.shapes
        with asked.comparing():
            return tuple(shape for shape in every if self.proven(shape, p, info))

    def choice(self, problem: MatmulProblem, info, epilogue: Epilogue) -> tuple:
        while True:
            found = super().choice(problem, info, epilogue)
            # Of a tile that was given, who gave it has asked.
            if self.tile or self.proven(found[1], problem, info):
                return found

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, splits = self.choice(p, info, epilogue)
        low = _low(p)
        launches: list[Launch] = []
        workspace = Workspace()
        room = workspace.room
        index = index_type(
            p.total + 2**16,
            *(
                abs(s.offset)
                + sum((n - 1) * abs(t) for n, t in zip(s.batch, s.steps, strict=True))
                + (s.rows + 32) * max(abs(s.row), 1)
                + (s.k + 32) * max(abs(s.depth), 1)
                for s in _sides(p)
            ),
        )
        sides, slots, lows, transposed = [], [], [], []
        for slot, side, layout in zip("ab", _sides(p), self.layouts(p), strict=True):
            packed = side.packed(p.a)
            # What tf32 loses of an operand is read like the operand itself.
            dense = (side.row, side.steps) == (packed.row, packed.steps)
            copied = layout == "pack" or (low and not dense)
            nbytes = packed.batches * side.rows * packed.row * p.a.itemsize
            copy_slot = room(nbytes) if copied else None
            low_slot = room(nbytes) if low else None
            if copied or low:
                matrix = Matrix(
                    slot, side.rows, side.k, side.row, side.depth, side.offset, side.distinct,
                    side.steps,
                )  # fmt: skip
                launches.append(pack_launch(matrix, p.a, index, copy_slot, low_slot))
            sides.append(packed if copied else side)
            slots.append(copy_slot or slot)
            lows.append(low_slot)
            transposed.append(layout == "mn" and not copied)
        a, b = sides
        batched = p.batches > 1
        deep = depth_of(p.a)
        term = ceil_div(p.k, deep)
        chunks = p.count * term
        slice_ = ceil_div(chunks, splits)
        splits = ceil_div(chunks, slice_)
        rows, columns = self.cut(shape)
        tiles_m, tiles_n = ceil_div(p.m, rows), ceil_div(p.n, columns)
        tiles = tiles_m * tiles_n * p.batches * splits
        exact = p.sums_columns and p.a.itemsize == 4
        made = self.run if shape.pingpong == 1 else pingpong.PingpongRun
        epilogue = brought.bring(epilogue, shape, p.n)
        loads = epilogue.brought
        run = made(
            brought.Brought.ring(shape) if loads else shape, p.a, index, slots[0], slots[1],
            a.words(p.a, rows, transposed[0], batched),
            b.words(p.a, columns, transposed[1], batched, not exact),
            transposed[0], transposed[1], lows[0], lows[1], columns=p.n,
            flags=(("BATCHED", int(batched)),),
            brought=brought.Brought(loads, p.batches * p.m, p.n) if loads else None,
            terms=tuple(slots_of(p)[1:]), sums="sums" if p.sums_columns else None,
        )  # fmt: skip
        params = Params().add(
            "int", M=p.m, N=p.n, TILES=tiles, TILES_M=tiles_m, TILES_N=tiles_n, SPLITS=splits,
            CHUNKS=chunks, SLICE=slice_, BATCH1=p.batch[1], BATCH2=p.batch[2],
        )  # fmt: skip
        if p.count > 1:
            params.add("int", TERM_CHUNKS=term)
        for name, side in (("A", a), ("B", b)):
            flags = {f"{name}_BATCH{n}": int(s != 0) for n, s in enumerate(side.steps)}
            params.add("int", **flags)
        params.add("long", A_OFFSET=a.offset * p.a.itemsize, B_OFFSET=b.offset * p.a.itemsize)
        adding = []
        if run.sums:
            parts = run.sum_parts(splits, tiles_m)
            slot, store = room(4 * parts * p.n), store_epilogue(p.b, "sums")
            run = replace(run, sums=slot)
            adding = [vector_reduction_launch(p.n, parts, p.acc, index, store, info, slot)]
        proof = functools.partial(hopper_probe.available, info, SEVERAL, self.form_part(p))
        launches += run.launches(tiles, splits, p.total, params, epilogue, workspace, info, proof)
        return Plan(launches + adding, workspace)

    def form_part(self, p: MatmulProblem) -> str:
        """The part that proves this kernel, of self-tests that all have."""
        return part.named(p.a, "high", *self.form)


def _low(p: MatmulProblem) -> bool:
    """Whether float32 inputs are to be multiplied as exactly as float32 allows."""
    return p.a.name == "float32" and p.precision == "highest"
