"""Stable sorting, argsort and top-k along the last axis.

Values become unsigned keys that order as they do, joined with their position
(see sort.cl).  GPUs sort tiles in local memory by a bitonic network and merge
runs by merge paths; CPUs do the same with one work-item for each chunk, without
barriers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import WORDS, Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Ref, Scalar
from kerascl.kernels.contract.sizes import (
    ceil_div,
    index_type,
    last_power,
    next_power,
    round_up,
)
from kerascl.kernels.contract.source import cl_source, defines
from kerascl.kernels.contract.vectors import group_size
from kerascl.runtime.device import DeviceInfo

# the bits of the largest value that is not NaN
_INFINITY = {
    "float8_e4m3fn": "0x7e",
    "float8_e5m2": "0x7c",
    "float16": "0x7c00",
    "bfloat16": "0x7f80",
    "float32": "0x7f800000u",
    "float64": "0x7ff0000000000000ul",
}
_INSERTION_RUN = 16
_SELECT_MOST = 128


def is_wide(dtype: DType) -> bool:
    """Whether keys take 64 bits, and items of key and place 16 bytes."""
    return dtype.itemsize == 8


def key_bits(dtype: DType) -> int:
    """The bits by which keys of this dtype differ."""
    return 1 if dtype.is_bool else 8 * dtype.itemsize


def selects(length: int, keep: int) -> bool:
    """Whether so few of a row are kept that each work-item keeps its own few."""
    return keep <= _SELECT_MOST and keep * 4 <= length


def key_macros(dtype: DType, descending: bool) -> str:
    """The macros by which kernels make sortable integers of values: their type and order."""
    return defines(
        WIDE=int(is_wide(dtype)),
        RAW_T=WORDS[dtype.itemsize],
        KEY_BITS=8 * dtype.itemsize,
        KEY_FLOAT=int(dtype.is_float),
        KEY_SIGNED=int(dtype.kind == "i"),
        KEY_BOOL=int(dtype.is_bool),
        KEY_INFINITY=_INFINITY.get(dtype.name, "0"),
        DESCENDING=int(descending),
    )


@dataclass
class Final:
    """Where a sort's results go; None in its place keeps items in workspace."""

    epilogue: Epilogue
    outputs: tuple[str, ...]


@dataclass
class Stages:
    """The launches of one sort as they are planned; the state is where the items lie now."""

    info: DeviceInfo
    rows: int
    length: int
    dtype: DType
    head: str
    index: str
    wide: bool
    limit: int
    source: Ref
    workspace: list[int]
    final: Final | None
    launches: list[Launch]
    items: Ref | None = None
    now: int = 0
    spare: Ref | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of a key with its place."""
        return 16 if self.wide else 8

    def buffer(self, nbytes: int) -> Ref:
        """So many more bytes of workspace."""
        self.workspace.append(nbytes)
        return Ref(f"ws{len(self.workspace) - 1}")

    def stage(
        self,
        name: str,
        macros: dict[str, object],
        keep: int,
        chunks: int,
        out_length: int,
        middle: tuple[Arg, ...],
        global_size: int,
        local_size: int | None,
        finish: bool,
    ) -> None:
        """Append one launch: from the input, or the items so far, to items or results."""
        flags = dict(macros)
        flags[name.upper()] = 1
        flags["FROM_ITEMS"] = int(self.items is not None)
        reads: tuple[Arg, ...]
        reads = (self.source, Scalar("long", self.limit)) if self.items is None else (self.items,)
        sizes = (self.rows, self.now, out_length, keep, chunks)
        writes: tuple[Arg, ...]
        tail = ""
        if finish:
            assert self.final is not None
            epilogue, outputs = self.final.epilogue, self.final.outputs
            flags.update(
                FINAL=1,
                WANT_VALUES=int("values" in outputs),
                WANT_INDICES=int("indices" in outputs),
            )
            writes = ()
            if "values" in outputs:
                writes += (self.source, Scalar(self.index, self.length))
                tail = epilogue.defines
            if "indices" in outputs:
                writes += (Ref("indices"),)
            if "values" in outputs:
                writes += tuple(epilogue.args)
            result = None
        else:
            nbytes = self.rows * out_length * self.item_bytes
            if self.spare is not None and self.workspace[int(self.spare.slot[2:])] >= nbytes:
                result, self.spare = self.spare, None
            else:
                result = self.buffer(nbytes)
            writes = (result,)
        self.launches.append(
            Launch(
                self.head + defines(**flags) + tail + cl_source("sort/sort.cl"),
                name,
                (*reads, *middle, *(Scalar(self.index, s) for s in sizes), *writes),
                (global_size,),
                None if local_size is None else (local_size,),
            )
        )
        self.spare, self.items, self.now = self.items, result, out_length


def _cut_length(length: int, span: int, keep: int) -> int:
    """Items left of a row when each chunk of `span` leaves its first `keep`."""
    full, rest = divmod(length, span)
    return full * keep + min(rest, keep)


def sort_by_tiles(stages: Stages, keep: int) -> None:
    """Local-memory schedule: tiles by a bitonic network, then merges (or, for few, cuts)."""
    info = stages.info
    # Half of local memory, so that two groups share a compute unit.
    span = last_power(min(info.local_mem_bytes // 2 // stages.item_bytes, 2048))
    group = group_size(info, 256)
    to_items = stages.final is None

    def tile(keep: int, finish: bool) -> None:
        width = min(span, next_power(max(stages.now, 2)))
        chunks = ceil_div(stages.now, width)
        packed = max(1, min(group * 2, span) // width) if chunks == 1 else 1
        packed = min(packed, next_power(stages.rows))
        threads = min(group, max(1, packed * width // 2))
        units = ceil_div(stages.rows * chunks, packed)
        stages.stage(
            "sort_tile",
            {"SPAN": width, "ROWS": packed, "GROUP": threads},
            keep,
            chunks,
            _cut_length(stages.now, width, keep),
            (),
            units * threads,
            threads,
            finish,
        )

    while keep * 4 <= span < stages.now:
        tile(keep, False)
    if stages.now <= span:
        tile(keep, not to_items)
        return
    tile(span, False)
    run = span
    threads = min(group, span // 2)
    while run < stages.length:
        finish = 2 * run >= stages.length and not to_items
        wanted = keep if finish else stages.length
        chunks = ceil_div(wanted, span)
        stages.stage(
            "sort_merge",
            {"SPAN": span, "GROUP": threads},
            wanted,
            chunks,
            stages.length,
            (Scalar(stages.index, run),),
            stages.rows * chunks * threads,
            threads,
            finish,
        )
        run *= 2


def sort_by_chunks(stages: Stages, keep: int) -> None:
    """Schedule without barriers: a work-item for each chunk."""
    info = stages.info
    to_items = stages.final is None
    workers = 4 * info.compute_units
    if selects(stages.length, keep):
        while True:
            chunks = 1
            if stages.rows < workers:
                chunks = min(ceil_div(workers, stages.rows), stages.now // (32 * keep))
            span = ceil_div(stages.now, max(chunks, 1))
            chunks = ceil_div(stages.now, span)
            last = chunks == 1
            stages.stage(
                "sort_select",
                {"KEEP": keep},
                keep,
                chunks,
                _cut_length(stages.now, span, keep),
                (Scalar(stages.index, span),),
                stages.rows * chunks,
                None,
                last and not to_items,
            )
            if last:
                return
    span = min(4096, next_power(max(stages.length, 2)))
    chunks = ceil_div(stages.length, span)
    count = min(stages.rows * chunks, workers)
    scratch = stages.buffer(count * 2 * span * stages.item_bytes)
    alone = chunks == 1
    stages.stage(
        "sort_chunk",
        {"SPAN": span, "RUN": _INSERTION_RUN},
        keep if alone else span,
        chunks,
        min(keep, stages.length) if alone else stages.length,
        (scratch,),
        count,
        1,
        alone and not to_items,
    )
    run = span
    while run < stages.length:
        finish = 2 * run >= stages.length and not to_items
        wanted = keep if finish else stages.length
        chunks = ceil_div(wanted, span)
        stages.stage(
            "sort_merge",
            {"SPAN": span, "SERIAL": 1},
            wanted,
            chunks,
            stages.length,
            (Scalar(stages.index, run),),
            stages.rows * chunks,
            1,
            finish,
        )
        run *= 2


def index_for(rows: int, length: int, info) -> str:
    """The index type of a sort of `rows` rows of `length` elements."""
    # Grids are rounded up to whole work-groups and scratch counts both stretches.
    return index_type(round_up(2 * rows * length, 4096))
