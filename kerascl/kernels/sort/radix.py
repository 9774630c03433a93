"""Radix sorts: digits of the keys, the lowest first (radix.cl on CPUs, radix_groups.cl)."""

from __future__ import annotations

from kerascl.kernels.contract.plan import Arg, Launch, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, last_power
from kerascl.kernels.contract.source import cl_source, defines
from kerascl.kernels.contract.vectors import group_size
from kerascl.kernels.sort.stages import Stages
from kerascl.runtime.device import DeviceInfo

_BITS = 11  # of a digit, at most: its places stay in the second cache
_SPLIT_FROM = 1 << 15  # elements of a row that several work-items share
_LEAST_PART = 1 << 12
_GROUP_BITS = 8  # of a digit that work-groups sort by: twice four
_GROUP_TILE = 1 << 14  # bytes of the elements that a work-group sorts in local memory, at most
_GROUP_ITEMS = 16  # elements of a work-item, at most: they stay in registers


def digits(bits: int) -> tuple[int, int]:
    """How many digits a key of so many bits has, and the bits of each."""
    passes = ceil_div(bits, _BITS)
    return passes, ceil_div(bits, passes)


def sort_by_digits(stages: Stages, keep: int, key_bits: int) -> None:
    """The launches that leave the first `keep` of each row sorted by the lowest `key_bits` bits."""
    final = stages.final
    # Elements whose places nobody asks for move alone.
    raw = final is not None and final.outputs == ("values",)
    stages.head += defines(RAW=int(raw))
    if _split(stages):
        _by_parts(stages, keep, key_bits, raw)
    else:
        _by_rows(stages, keep, key_bits, raw)


def _split(stages: Stages) -> bool:
    return stages.rows < stages.info.compute_units and stages.length >= _SPLIT_FROM


def _unit_bytes(stages: Stages, raw: bool) -> int:
    return stages.dtype.itemsize if raw else stages.item_bytes


def _results(stages: Stages, raw: bool) -> tuple[tuple[Arg, ...], str, dict[str, object]]:
    """The last arguments of a launch that leaves results, the epilogue's text and macros."""
    assert stages.final is not None
    epilogue, outputs = stages.final.epilogue, stages.final.outputs
    flags: dict[str, object] = {
        "FINAL": 1,
        "WANT_VALUES": int("values" in outputs),
        "WANT_INDICES": int("indices" in outputs),
    }
    if raw:
        return tuple(epilogue.args), epilogue.defines, flags
    args: tuple[Arg, ...] = ()
    if "values" in outputs:
        args += (stages.source, Scalar(stages.index, stages.length))
    if "indices" in outputs:
        args += (Ref("indices"),)
    if "values" not in outputs:
        return args, "", flags
    return (*args, *epilogue.args), epilogue.defines, flags


def _launch(
    stages: Stages, name: str, flags: dict[str, object], tail: str, args: tuple[Arg, ...], size: int
) -> None:
    flags = flags | {name.upper(): 1}
    text = cl_source("sort/sort.cl") + cl_source("sort/radix.cl")
    source = stages.head + defines(**flags) + tail + text
    stages.launches.append(Launch(source, name, args, (size,), (1,)))


def _by_rows(stages: Stages, keep: int, key_bits: int, raw: bool) -> None:
    passes, bits = digits(key_bits)
    workers = min(stages.rows, 4 * stages.info.compute_units)
    scratch = stages.buffer(workers * 2 * stages.length * _unit_bytes(stages, raw))
    flags: dict[str, object] = {"BITS": bits, "PASSES": passes, "FROM_ITEMS": 0}
    sizes = (stages.rows, stages.length, keep)
    args: tuple[Arg, ...] = (stages.source, Scalar("long", stages.limit))
    args += (*(Scalar(stages.index, s) for s in sizes), scratch)
    if not raw:
        args += (Scalar(stages.index, stages.length),)
    if stages.final is None:
        stages.items = stages.buffer(stages.rows * stages.length * stages.item_bytes)
        _launch(stages, "radix_rows", flags, "", (*args, stages.items), workers)
        return
    results, tail, more = _results(stages, raw)
    _launch(stages, "radix_rows", flags | more, tail, (*args, *results), workers)


def _by_parts(stages: Stages, keep: int, key_bits: int, raw: bool) -> None:
    passes, bits = digits(key_bits)
    rows, length = stages.rows, stages.length
    parts = max(1, min(2 * stages.info.compute_units, length // _LEAST_PART))
    part = ceil_div(length, parts)
    counts = stages.buffer(4 * rows * parts << bits)
    nbytes = rows * length * _unit_bytes(stages, raw)
    last_moves = stages.final is None
    spare = [stages.buffer(nbytes) for _ in range(min(2, passes - 1 + last_moves))]
    source: tuple[Arg, ...] = (stages.source, Scalar("long", stages.limit))
    for number in range(passes):
        finish = number == passes - 1 and not last_moves
        from_items = int(number > 0 and not raw)
        flags: dict[str, object] = {"BITS": bits, "FROM_ITEMS": from_items}
        sizes = (length, keep if finish else length, part)
        shared = (*source, *(Scalar(stages.index, s) for s in sizes))
        shared += (Scalar("int", parts), Scalar("int", number * bits), counts)
        _launch(stages, "radix_count", flags, "", shared, rows * parts)
        if not raw:
            shared += (Scalar(stages.index, length),)
        if finish:
            results, tail, more = _results(stages, raw)
            _launch(stages, "radix_move", flags | more, tail, (*shared, *results), rows * parts)
            return
        target = spare[number % 2]
        _launch(stages, "radix_move", flags, "", (*shared, target), rows * parts)
        source = (target, Scalar("long", stages.limit)) if raw else (target,)
        stages.items = target


def group_digits(bits: int) -> tuple[int, int]:
    """How many digits a key of so many bits has for work-groups, and the bits of each."""
    return ceil_div(bits, _GROUP_BITS), 4 if bits <= 4 else _GROUP_BITS


def group_tile(info: DeviceInfo, unit_bytes: int) -> tuple[int, int]:
    """Work-items of a group, and elements of `unit_bytes` bytes of each; 0 where local memory is
    too small."""
    group = group_size(info, 256)
    while group:
        # counts of sixteen digits, two sums, where 256 digits go
        room = info.local_mem_bytes - group * (2 * 16 + 2 * 4) - (4 << _GROUP_BITS)
        room = min(_GROUP_TILE, room * 32 // 33) // unit_bytes  # gaps between banks
        items = min(_GROUP_ITEMS, last_power(room) // group) if room >= group else 0
        if items and group * items >= 32:
            return group, items
        group //= 2
    return 0, 0


def sort_by_groups(stages: Stages, keep: int, key_bits: int) -> None:
    """As `sort_by_digits`, by work-groups with local memory."""
    final = stages.final
    raw = final is not None and final.outputs == ("values",)
    passes, bits = group_digits(key_bits)
    unit_bytes = _unit_bytes(stages, raw)
    group, items = group_tile(stages.info, unit_bytes)
    rows, length, index = stages.rows, stages.length, stages.index
    parts = ceil_div(length, group * items)
    counts, totals = stages.buffer(4 * rows * parts << bits), stages.buffer(4 * rows << bits)
    moves = passes - (final is not None)  # to memory
    spare = [stages.buffer(rows * length * unit_bytes) for _ in range(min(2, moves))]
    stages.head += defines(RAW=int(raw), BITS=bits, GROUP=group, ITEMS=items)
    source: tuple[Arg, ...] = (stages.source, Scalar("long", stages.limit))
    tiles = Scalar(index, length), Scalar(index, parts)

    def launch(
        name: str, flags: dict[str, object], tail: str, args: tuple[Arg, ...], groups: int
    ) -> None:
        names = ("sort", "radix", "radix_groups")
        text = "".join(cl_source(f"sort/{part}.cl") for part in names)
        head = stages.head + defines(**flags, **{name.upper(): 1}) + tail
        stages.launches.append(Launch(head + text, name, args, (groups * group,), (group,)))

    for number in range(passes):
        flags: dict[str, object] = {"FROM_ITEMS": int(number > 0 and not raw)}
        shift = Scalar("int", number * bits)
        launch("radix_group_count", flags, "", (*source, *tiles, shift, counts), rows * parts)
        launch("radix_group_scan", flags, "", (tiles[1], counts, totals), rows << bits)
        last = number == moves
        shared = (*source, *tiles, shift, Scalar(index, keep if last else length), counts, totals)
        if not raw:
            shared += (Scalar(index, length),)
        if last:
            results, tail, more = _results(stages, raw)
            launch("radix_group_move", flags | more, tail, (*shared, *results), rows * parts)
            return
        target = spare[number % 2]
        launch("radix_group_move", flags, "", (*shared, target), rows * parts)
        source = (target, Scalar("long", stages.limit)) if raw else (target,)
        stages.items = target
