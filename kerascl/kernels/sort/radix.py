"""Radix sorts for CPUs: digits of the keys, the lowest first (radix.cl)."""

from __future__ import annotations

from kerascl.kernels.contract.plan import Arg, Launch, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.source import cl_source, defines
from kerascl.kernels.sort.stages import Stages

_BITS = 11  # of a digit, at most: its places stay in the second cache
_SPLIT_FROM = 1 << 15  # elements of a row that several work-items share
_LEAST_PART = 1 << 12


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
