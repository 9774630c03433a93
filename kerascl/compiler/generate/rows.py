"""How work-items share the rows of a reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kerascl.compiler.generate.blocked import rename
from kerascl.compiler.generate.builder import power_of_two
from kerascl.compiler.generate.emit import Scope, Writer
from kerascl.kernels.contract.sizes import last_power
from kerascl.runtime.device import DeviceInfo

# Work-items of a GPU's group at most for a row, and for one that is read again, if each then has so
# many of its elements: with larger groups fewer rows are under way, and may stay in the cache.
USUAL = 256
MOST_AGAIN = 512
MANY_EACH = 64


@dataclass
class Layout:
    """A group has `row_threads` work-items for each of `group_rows` rows, and a row has `splits`
    groups.  `threads_first` has neighbouring work-items read one row."""

    group_rows: int
    row_threads: int
    splits: int
    threads_first: bool
    per_thread: int = 0  # elements that a work-item keeps in registers, if it does
    lanes: int = 1  # elements of the vectors that it reads

    def header(self, writer: Writer, rows: int, length: int) -> list[str]:
        """A kernel's first lines: a work-item's place in its group, its row, and its part of it."""
        ctype = writer.index_type
        group_rows, threads = self.group_rows, self.row_threads
        lines = ["const int lid = get_local_id(0);"]
        # plain where they can be: compilers that see which neighbours read neighbours make vectors
        if group_rows == threads == 1:
            lines += ["const int rl = 0;", "const int ol = 0;"]
        elif group_rows == 1:
            lines += ["const int rl = lid;", "const int ol = 0;"]
        elif threads == 1:
            lines += ["const int rl = 0;", "const int ol = lid;"]
        elif self.threads_first:
            lines += [f"const int rl = lid % {threads};", f"const int ol = lid / {threads};"]
        else:
            lines += [f"const int ol = lid % {group_rows};", f"const int rl = lid / {group_rows};"]
        lines.append(f"const {ctype} row = ({ctype})get_group_id(0) * {group_rows} + ol;")
        if rows % group_rows:
            count = writer.number(rows)
            lines += [
                f"const int live = row < {count};",
                f"const {ctype} o = live ? row : {count} - 1;",
            ]
        else:
            lines += ["const int live = 1;", f"const {ctype} o = row;"]
        total = writer.number(length)
        if self.splits > 1:
            chunk = writer.number(-(-length // self.splits))
            lines += [
                f"{ctype} r_begin = ({ctype})get_group_id(1) * {chunk};",
                f"{ctype} r_end = min(({ctype})(r_begin + {chunk}), ({ctype}){total});",
            ]
        else:
            lines += [f"const {ctype} r_begin = 0;", f"const {ctype} r_end = {total};"]
        return lines

    def owner(self) -> str:
        """The condition of the one work-item that stores a row's results."""
        return "live" if self.row_threads == 1 else "live && rl == 0"

    def combine(self, scope: Scope, register: Any, local_lines: list[str]) -> None:
        """Merge the registers of a row's threads; all threads then hold the result."""
        if self.row_threads == 1:
            return
        spec, states = register
        size = self.group_rows * self.row_threads
        arrays = []
        for ctype, name in states:
            local_lines.append(f"__local {ctype} l{name}[{size}];")
            arrays.append(f"l{name}")
        stride = 1 if self.threads_first else self.group_rows
        scope.lines += [f"{a}[lid] = {name};" for a, (_, name) in zip(arrays, states, strict=True)]
        scope.lines.append("barrier(CLK_LOCAL_MEM_FENCE);")
        scope.lines.append(f"for (int d = {self.row_threads // 2}; d > 0; d >>= 1) {{")
        scope.lines.append("  if (rl < d) {")
        others = {}
        for k, (a, (ctype, name)) in enumerate(zip(arrays, states, strict=True)):
            scope.lines.append(f"    const {ctype} t{name} = {a}[lid + d * {stride}];")
            others[f"t{k}"] = f"t{name}"
        scope.lines.append("    " + rename(spec.combine, states, others))
        scope.lines += [
            f"    {a}[lid] = {name};" for a, (_, name) in zip(arrays, states, strict=True)
        ]
        scope.lines += ["  }", "  barrier(CLK_LOCAL_MEM_FENCE);", "}"]
        self.take(scope, states)

    def take(self, scope: Scope, states: list[tuple[str, str]]) -> None:
        """Read into each of a row's threads what `combine` has left."""
        base = f"lid - rl * {1 if self.threads_first else self.group_rows}"
        scope.lines += [f"{name} = l{name}[{base}];" for _, name in states]


def layout_of(
    rows: int,
    length: int,
    threads_first: bool,
    whole: bool,
    info: DeviceInfo,
    per_thread: int = 0,
    lanes: int = 1,
    again: bool = False,
) -> Layout:
    """The layout of `rows` rows of `length` elements on a device.

    Args:
        threads_first: whether neighbouring elements of memory belong to one row.
        whole: whether a row must not be split.
        per_thread: how many elements a work-item may keep in registers, if rows are short.
        lanes: elements of the vectors that one work-item a row reads, if it reads vectors.
        again: whether a row is read several times.
    """
    cpu = info.kind == "cpu"
    most = info.max_work_group_size
    if rows == 1:
        threads_first = True
    if threads_first:
        if again and not cpu:
            most = min(max(USUAL, min(MOST_AGAIN, last_power(length // MANY_EACH))), most)
        else:
            most = min(USUAL, most)
        if lanes > 1:
            group_rows = threads = 1
        elif cpu:
            threads = 16 if length >= 32 else 1
            group_rows = 1 if threads > 1 else min(64, power_of_two(rows))
        else:
            threads = min(most, max(1, power_of_two(length) // 4))
            group_rows = max(1, min(most // threads, power_of_two(rows)))
        kept = _register_layout(rows, length, most, info, per_thread)
        if kept is not None and lanes == 1:
            return kept
    elif cpu:
        group_rows, threads = min(64, power_of_two(rows)), 1
    else:
        # 32 neighbours read whole lines of memory: a third faster than eight on an H200
        most = min(512, most)
        group_rows = min(32, power_of_two(rows))
        threads = max(1, min(most // group_rows, power_of_two(length) // 4))
    splits = 1
    if not whole:
        groups = -(-rows // group_rows)
        wanted = info.compute_units * (4 if cpu else 8)
        if groups < wanted:
            # a second kernel costs a launch: split only where each part is long
            shortest = threads * lanes * 32
            splits = max(1, min(-(-wanted // groups), length // shortest))
    return Layout(group_rows, threads, splits, threads_first, lanes=lanes)


def few_rows(rows: int, info: DeviceInfo) -> bool:
    """Whether each row has a compute unit for itself, so that it counts how long one takes."""
    return info.kind == "gpu" and rows <= info.compute_units


def _register_layout(
    rows: int, length: int, most: int, info: DeviceInfo, per_thread: int
) -> Layout | None:
    """The layout where a row is read once, if it is short enough, and there are many rows or so few
    that each has a compute unit for itself.

    On GPUs fewer threads take fewer steps and barriers to agree on a sum, and eight neighbours
    still read a whole sector of memory.  On CPUs a row has one or two vectors of threads.
    """
    if info.kind == "cpu":
        threads = 16 if length <= 256 else 32
        count = -(-length // threads)
        fits = 2 <= count <= per_thread and threads <= most
        return Layout(1, threads, 1, True, count) if fits and rows >= 16 else None
    if few_rows(rows, info):
        threads = min(most, max(1, power_of_two(length) // 4))
        count = -(-length // threads)
        group_rows = max(1, min(most // threads, power_of_two(rows)))
        fits = 2 <= count <= per_thread
        return Layout(group_rows, threads, 1, True, count) if fits else None
    while per_thread >= 4:
        threads = max(8, power_of_two(length) // per_thread)
        group_rows = most // threads
        if group_rows and length > threads and rows >= group_rows * 2 * info.compute_units:
            return Layout(group_rows, threads, 1, True, -(-length // threads))
        per_thread //= 2
    return None
