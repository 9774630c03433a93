"""Sorted (row number, position) pairs for other kernels."""

from __future__ import annotations

from kerascl.dtypes import DType
from kerascl.kernels.contract.plan import Launch, Ref
from kerascl.kernels.contract.sizes import INT_MAX
from kerascl.kernels.contract.source import defines, prelude
from kerascl.kernels.sort.radix import sort_by_digits, sort_by_groups
from kerascl.kernels.sort.stages import Stages, index_for, sort_by_tiles


def item_sort(
    info,
    count: int,
    index_dtype: DType,
    limit: int,
    source: Ref,
    workspace: list[int],
    by_digits: bool,
) -> tuple[list[Launch], Ref]:
    """Sort the `count` row numbers in `source` together with their positions, stably.

    Returns the launches and the workspace of `count` ulong items, ascending:
    row number (or 0xffffffff where it is outside 0 … limit - 1) << 32 | position.
    Buffers that it needs are appended to `workspace` (their sizes in bytes).  `by_digits` says how
    GPUs sort, where work-groups of digits fit; else by tiles.

    Raises:
        NotImplementedError: for more than 2**31 - 1 updates or 2**32 - 2 rows.
    """
    if count > INT_MAX or limit > 2**32 - 2:
        raise NotImplementedError(f"{count} updates of {limit} rows are too many to sort")
    index = index_for(1, count, info)
    head = prelude(index, A=index_dtype, ACC=index_dtype) + defines(
        WIDE=0, KEY_ROW=1, KEY_SIGNED=int(index_dtype.kind == "i")
    )
    stages = Stages(
        info,
        1,
        count,
        index_dtype,
        head,
        index,
        False,
        limit,
        source,
        workspace,
        None,
        [],
        now=count,
    )
    # what lies outside has ones in all bits, so it stays behind all rows
    if info.kind == "cpu":
        sort_by_digits(stages, count, limit.bit_length())
    elif by_digits:
        sort_by_groups(stages, count, limit.bit_length())
    else:
        sort_by_tiles(stages, count)
    assert stages.items is not None
    return stages.launches, stages.items
