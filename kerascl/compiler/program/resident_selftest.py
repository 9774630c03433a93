"""Runs launches whose work-groups stay on one device, in a process of its own.

`python -m kerascl.compiler.program.resident_selftest <index>` with KERASCL_ADDRESSES=2 exits 0 and
prints OK, or fails in whatever way the driver fails.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kerascl.compiler.program import parts, staying
from kerascl.compiler.program.parts import Shape
from kerascl.compiler.program.staying import Address, Arrivals, Call, Launch, Team, Value
from kerascl.kernels.contract import arrival
from kerascl.runtime import device, programs, selftest_child
from kerascl.runtime.device import DeviceInfo

N = 14 * 512 * 3 * 7  # elements: whole groups of each size
# Launches one after the other, and how often they are made again from the same elements: what they
# leave is computed once by the host, which takes longer than all of them.
ROUNDS, REPLAYS = 20, 15
CALLS = 40  # of a launch
# Slots; 0 and 1 are the elements before and after a call, and _FIXED is what nobody writes.
_SPIN, _FLAG, _SUM, _FIXED = 2, 3, 4, 5

# A group needs what others wrote, and its own local memory; elements are integers modulo 2**32.
_MIX = """
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void mix(
    __global const uint* restrict from, __global uint* restrict to, const uint shift,
    const uint n) {
  __local uint part[ITEMS];
  const uint i = get_global_id(0), lane = get_local_id(0);
  part[lane] = from[(i + shift) % n] * 3u + lane;
  barrier(CLK_LOCAL_MEM_FENCE);
  to[i] = part[ITEMS - 1u - lane] + from[i];
}
"""
# It reads what nobody writes while others still write the rest.
_EARLY = """
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void early(
    __global const uint* restrict from, __global uint* restrict to, __global const uint* fixed,
    const uint shift, const uint n) {
  __local uint part[ITEMS];
  const uint i = get_global_id(0), lane = get_local_id(0);
  const uint own = fixed[i], other = fixed[n - 1u - i];
#ifdef KCL_EARLY
  KCL_EARLY(fixed);
#endif
  part[lane] = from[(i + shift) % n] ^ own;
  barrier(CLK_LOCAL_MEM_FENCE);
  to[i] = part[ITEMS - 1u - lane] * 5u + other;
}
"""
_PLAIN = """
__kernel void plain(__global const uint* restrict from, __global uint* restrict to,
                    const uint shift, const uint n) {
  const uint i = get_global_id(0);
  to[i] = from[(i + shift) % n] ^ (get_group_id(0) * 2654435761u);
}
"""
_LAST = """
__kernel void add_up(__global const uint* restrict from, volatile __global uint* sums,
                     volatile __global uint* arrivals, const int arrival) {
  __local uint part[ITEMS];
  __local int last;
  const uint lane = get_local_id(0), groups = get_num_groups(0);
  part[lane] = from[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lane == 0) {
    uint sum = 0;
    for (uint k = 0; k < ITEMS; ++k) sum += part[k];
    sums[1 + get_group_id(0)] = sum;
  }
  if (kcl_last_group(arrivals + arrival, groups, &last) && lane == 0) {
    uint sum = sums[0] * 5u;
    for (uint k = 0; k < groups; ++k) sum += sums[1 + k];
    sums[0] = sum;
  }
}
"""
_COUNT = """
__kernel void count_down(__global int* rest, __global int* flag) {
  *rest -= 1;
  *flag = *rest > 0;
}
"""


def _value(n: int) -> Value:
    return Value(n, f"{n}u")


def made(info: DeviceInfo, team: Team) -> tuple[Launch, list[tuple[str, int, int]]]:
    """A launch of all kinds of parts, and what each of its calls does: a name, the work-items of a
    group and a shift."""
    sizes = (32, 96, 256, 512, 7, 128) if team.named else (64,)
    width = team.width or sizes[0]
    options = programs.always(info)
    calls: list[Call] = []
    done: list[tuple[str, int, int]] = []

    def add(source: str, name: str, items: int, count: int, *args: Address | Value | Arrivals,
            waits: bool = True) -> None:  # fmt: skip
        text = source.replace("ITEMS", str(items))
        alone = Shape((count,), (items,), items, items)
        shape = staying.shape(parts.part(text, name, options, alone), alone, team, width, info)
        assert shape is not None
        wait = staying.WAIT if staying.may_wait(shape, team) else None
        part = parts.part(text, name, options, shape, (), wait)
        calls.append(Call(part, shape, args, waits, 37 * len(calls) % team.groups))

    helper = arrival.helper(info) if arrival.supported(info) else ""
    waits = True
    for k in range(CALLS):
        items, shift = sizes[k % len(sizes)], 7919 * k + 1
        source, name = (_PLAIN, "plain") if k % 7 == 3 else (_MIX, "mix")
        if k % 4 in (1, 2):
            source, name = _EARLY, "early"
        fixed = [Address(_FIXED)] if name == "early" else []
        add(source, name, items, N // items, Address(k % 2), Address(1 - k % 2), *fixed,
            _value(shift), _value(N), waits=waits)  # fmt: skip
        waits = True
        done.append((name, items, shift))
        if helper and k % 8 == 5:
            # what it reads the next one only reads too, by groups of another size
            waits = False
            add(helper + _LAST, "add_up", items, 77, Address(1 - k % 2), Address(_SUM), Arrivals(),
                Value(0, "0"))  # fmt: skip
            done.append(("add_up", items, 0))
    add(_COUNT, "count_down", 1, 1, Address(_SPIN), Address(_FLAG))
    # half of them have memory fetched ahead, which changes nothing
    ahead = [[Address(k % 2, 64 * k, 40 * k)] * (k % 3) for k in range(len(calls))]
    return Launch(calls, team, width, ahead), done


def _expected(
    x: np.ndarray, total: int, fixed: np.ndarray, done: list[tuple[str, int, int]]
) -> tuple[np.ndarray, int]:
    """The elements and the sum after a launch."""
    for name, items, shift in done:
        moved = np.roll(x, -shift)
        if name == "mix":
            lanes = np.arange(N, dtype=np.uint32) % np.uint32(items)
            mixed = (moved * np.uint32(3) + lanes).reshape(-1, items)[:, ::-1].reshape(-1)
            x = mixed + x
        elif name == "early":
            x = (moved ^ fixed).reshape(-1, items)[:, ::-1].reshape(-1) * np.uint32(5) + fixed[::-1]
        elif name == "plain":
            groups = (np.arange(N, dtype=np.uint64) // items).astype(np.uint32)
            x = moved ^ (groups * np.uint32(2654435761))
        else:
            sums = int(x[: 77 * items].astype(np.uint64).sum())
            total = (total * 5 + sums) % 2**32
    return x, total


def exercise(
    chosen: device.Device, team: Team, rounds: int = ROUNDS, replays: int = REPLAYS
) -> None:
    """Many rounds of a launch whose groups wait for each other, then some that do nothing.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    info = chosen.info
    launch, done = made(info, team)
    first = np.random.default_rng().integers(0, 2**32, N, dtype=np.uint32)
    fixed = np.random.default_rng().integers(0, 2**32, N, dtype=np.uint32)
    wanted = [(first, 0)]
    options = arrival.options(info) if team.standard else ()
    # what the host computes takes as long as what the driver's compiler does
    with ThreadPoolExecutor(1) as beside:
        built = beside.submit(chosen.programs.kernel, launch.source, Launch.NAME, options)
        for _ in range(rounds):
            wanted.append(_expected(*wanted[-1], fixed, done))
        kernel = built.result()
    allocate, queue = chosen.buffers.allocate, chosen.queue
    memory = [allocate(n) for n in (4 * N, 4 * N, 4, 4, 4 * 78, 4 * N)]
    queue.write(memory[_FIXED], fixed)
    table = allocate(8 * (staying.HEAD + len(launch.table)))
    text = staying.table_text(launch.table, range(len(memory)), True)
    queue.launch(chosen.programs.kernel(text, "resident_table"), (1,), (1,), (*memory, table))
    args = [memory[_FLAG], table]
    if launch.arrives:
        args.append(chosen.buffers.counters(1))
    width = kernel_width(team)
    for _ in range(replays):
        queue.write(memory[0], first)
        queue.write(memory[1], first)
        queue.write(memory[_SPIN], np.array([rounds], np.int32))
        queue.write(memory[_FLAG], np.array([1], np.int32))
        queue.write(memory[_SUM], np.zeros(78, np.uint32))
        for turn in range(rounds + 3):
            queue.launch(kernel, (team.groups * width,), (width,), args)
            if turn not in (0, rounds // 2, rounds - 1, rounds + 2):
                continue
            x, total = wanted[min(turn + 1, rounds)]
            found = queue.read(memory[CALLS % 2], np.empty_like(x))
            sums = queue.read(memory[_SUM], np.zeros(78, np.uint32))
            if not np.array_equal(found, x) or (launch.arrives and sums[0] != total):
                wrong = np.flatnonzero(found != x)
                raise device.DeviceError(
                    f"{info.name} computed a wrong result in round {turn}: {len(wrong)} of {N} "
                    f"elements from {wrong[:1]} on, and {sums[0]} for {total}"
                )


def kernel_width(team: Team) -> int:
    """Work-items of a group of the launch."""
    return team.width or 64


def launches(chosen: device.Device) -> None:
    """The self-test."""
    team = staying.known(chosen.info)
    if team is None:
        raise device.DeviceError("nothing is known that work-groups could wait by")
    exercise(chosen, team)


if __name__ == "__main__":
    selftest_child.main(launches)
