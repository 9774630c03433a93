"""Fourier transforms: vectors of lines for CPUs, lines in local memory for GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar, Workspace
from kerascl.kernels.contract.sizes import ceil_div, index_type, last_power, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import bounded, cl_source, defines, narrow, prelude
from kerascl.kernels.contract.vectors import vector_macros
from kerascl.kernels.fft.butterfly import butterfly, is_loop, tables
from kerascl.kernels.fft.problem import FftProblem
from kerascl.kernels.fft.stages import passes, radices, smooth, work
from kerascl.kernels.tuning import database, machine

_JOINED = ("complex",)


@dataclass(frozen=True)
class _Pass:
    """One launch: lines of `length`, `parts` of them to each stretch of length * parts elements.

    Attributes:
        step: how far apart the elements of a result are.
        done: what earlier passes transformed of the whole length.
        given, wanted: as of a problem.
        source, result: what real parts are read and stored as.
        scale: what results are multiplied by.
        inputs, outputs: slots.
    """

    problem: FftProblem
    length: int
    done: int
    given: str
    wanted: tuple[str, ...]
    source: DType
    result: DType
    scale: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    epilogue: Epilogue

    @property
    def parts(self) -> int:
        """Lines that a line of this pass and its like make up."""
        return self.problem.length // (self.done * self.length)

    @property
    def step(self) -> int:
        """How far apart the elements of a result are."""
        return self.problem.inner * self.done

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self.problem.elements // self.length

    @property
    def index(self) -> str:
        """The type of places."""
        return index_type(2 * self.problem.elements)

    def text(
        self, lanes: int, sizes: Mapping[str, object], stages: str, functions: Iterable[str]
    ) -> str:
        """The kernel's source, with the macros and functions of its solver."""
        p = self.problem
        double, real = p.acc.is_double, p.acc.compute
        joined = self.wanted == _JOINED
        acc = p.acc
        if joined:
            acc = dtypes.complex128 if double else dtypes.complex64
        text = prelude(self.index, B=self.source, OUT=self.result, ACC=acc)
        text += vector_macros(lanes, B=self.source) + _lane_macros(lanes, self.result)
        text += defines(
            R=real, R2=f"{real}2", V=real if lanes == 1 else f"{real}{lanes}", W=lanes,
            LENGTH=self.length, SIGN=f"({p.sign})", FINE=p.fine, LEVELS=p.levels,
            SCALE=f"{self.scale!r}{'' if double else 'f'}", STRIDE=p.length // self.length,
            TURN=int(self.parts > 1), TURN_STRIDE=self.done, WANT_RE=int("re" in self.wanted),
            WANT_IM=int("im" in self.wanted), WANT_COMPLEX=int(joined),
            **{f"GIVEN_{self.given.upper()}": 1}, **sizes, STAGES=stages,
        )  # fmt: skip
        if joined:
            text += self.epilogue.defines
        return text + "".join(functions) + cl_source("fft/fft.cl")

    def args(self, scratch: tuple[Arg, ...], *sizes: int) -> tuple[Arg, ...]:
        """The arguments of a kernel with these numbers."""
        numbers = (Scalar(self.index, size) for size in sizes)
        after = self.epilogue.args if self.wanted == _JOINED else map(Ref, self.outputs)
        return (Ref("a"), *map(Ref, self.inputs), *scratch, *numbers, *after)

    def function(self, r: int) -> str:
        """The butterfly of r values."""
        return butterfly(r, self.problem.sign, self.problem.acc.is_double)

    def stages(self, order: Iterable[int]) -> list[tuple[int, int, int]]:
        """(values of a butterfly, parts, step) of the stages inside a line, by their values."""
        found, step = [], 1
        for r in order:
            found.append((r, self.length // (r * step), step))
            step *= r
        return found


def _lane_macros(lanes: int, dtype: DType) -> str:
    """Loads and stores of vectors that `vector_macros` does not have."""
    if lanes == 1:
        return (
            "#define VLOAD(k, p) (p)[k]\n"
            "#define LANES_APART(re_, im_, low_, high_) re_ = low_; im_ = high_;\n"
            "#define OUT_STOREV(p, i, v) OUT_STORE(p, i, v)\n"
        )
    text = (
        f"#define VLOAD(k, p) vload{lanes}(k, p)\n"
        "#define LANES_APART(re_, im_, low_, high_) "
        "re_ = (V)((low_).even, (high_).even); im_ = (V)((low_).odd, (high_).odd);\n"
    )
    if dtype.itemsize >= 4:
        return text + f"#define OUT_STOREV(p, i, v) vstore{lanes}(v, 0, (p) + (i))\n"
    return text + (
        "#define OUT_STOREV(p, i, v) { union { V v_; R one[W]; } lanes_; lanes_.v_ = (v); "
        "UNROLL for (int j_ = 0; j_ < W; j_++) { OUT_STORE(p, (i) + j_, lanes_.one[j_]); } }\n"
    )


class _InPasses(Solver):
    """Passes over memory, as few as the lengths allow that one can do."""

    def applies(self, problem: FftProblem, info) -> bool:
        return smooth(problem.length)

    def lengths(self, problem: FftProblem, info) -> tuple[int, ...]:
        """What each pass transforms; their product is the whole length."""
        raise NotImplementedError

    def launch(self, one: _Pass, info, workspace: Workspace) -> Launch:
        """One pass."""
        raise NotImplementedError

    def plan(self, problem: FftProblem, info, epilogue: Epilogue) -> Plan:
        lengths = self.lengths(problem, info)
        workspace = Workspace()
        nbytes = problem.elements * problem.acc.itemsize
        between = [
            (workspace.room(nbytes), workspace.room(nbytes))
            for _ in range(min(len(lengths) - 1, 2))
        ]
        inputs: tuple[str, ...] = ("b", "c") if problem.given == "pair" else ("b",)
        launches, done = [], 1
        for k, length in enumerate(lengths):
            first, last = k == 0, k == len(lengths) - 1
            one = _Pass(
                problem=problem,
                length=length,
                done=done,
                given=problem.given if first else "pair",
                wanted=problem.wanted if last else ("re", "im"),
                source=problem.dtype if first else problem.acc,
                result=problem.dtype if last else problem.acc,
                scale=problem.scale if last else 1.0,
                inputs=inputs,
                outputs=problem.wanted if last else between[k % 2],
                epilogue=epilogue,
            )
            launches.append(self.launch(one, info, workspace))
            inputs = one.outputs
            done *= length
        return Plan(launches, workspace)

    def moved(self, problem: FftProblem, count: int) -> int:
        """Bytes of memory that so many passes move."""
        size = problem.dtype.itemsize
        ends = size * ((1 if problem.given == "real" else 2) + len(problem.wanted))
        return problem.elements * (ends + 4 * problem.acc.itemsize * (count - 1))


class Lines(_InPasses):
    """A work-item for some lines at a time, side by side in the lanes of vectors: CPUs."""

    name = "fft.lines"
    ON_CPU = 0.9  # share of the rate of multiply-adds, for operations of butterflies
    ON_GPU = 0.01
    CACHED = 2**18  # bytes of a work-item's stretch of scratch
    SIDE = 4  # vectors that are read side by side
    LONG = 32  # a few lines longer than this become many short ones

    def lanes(self, problem: FftProblem, info) -> int:
        """Lines that a work-item has in a vector."""
        wide = info.simd_width if info.simd_width in (4, 8, 16) else 8
        return max(2, wide * 4 // problem.acc.itemsize)

    def lengths(self, problem: FftProblem, info) -> tuple[int, ...]:
        lanes = self.lanes(problem, info)
        most = last_power(self.CACHED // (4 * lanes * problem.acc.itemsize))
        alone = problem.outer if problem.inner == 1 else problem.inner
        if alone < lanes and problem.length > self.LONG**2 // 2:
            return passes(problem.length, min(most, 2 * _root(problem.length)))
        return passes(problem.length, most)

    def launch(self, one: _Pass, info, workspace: Workspace) -> Launch:
        problem, wide = one.problem, self.lanes(one.problem, info)
        if one.step > 1:
            along, rows, count = "STEP", problem.outer * one.parts, one.step
        elif one.parts > 1:
            along, rows, count = "PARTS", problem.outer, one.parts
        else:
            along, rows, count = "OUTER", 1, problem.outer
        if count < wide <= one.lines:
            along, rows, count = "ALL", 1, one.lines
        lanes = min(wide, last_power(count))
        side = 1
        while along in ("STEP", "PARTS") and side < self.SIDE and 2 * side * lanes <= count:
            side *= 2
        blocks = ceil_div(count, lanes * side)
        workers = min(rows * blocks, 4 * info.compute_units)
        # two stretches of complex vectors each; numbers for each lane, and the line's own table
        aside = 4 * one.length
        room = side * aside + 2 * one.length + ceil_div(2 * one.length, lanes)
        fill = side > 1 or along in ("OUTER", "ALL")
        spill = side > 1 or along != "STEP"
        sizes: dict[str, object] = {
            "LINES": 1, f"ALONG_{along}": 1, "SIDE": side, "ASIDE": aside, "SCRATCH": room,
        }  # fmt: skip
        kinds = radices(one.length)
        stages, texts, where = one.stages(kinds), [], "HERE"
        for k, (r, m, step) in enumerate(stages):
            read = f"READ_{where}" if k or fill else "READ_SOURCE"
            if k or fill:
                where = "THERE" if where == "HERE" else "HERE"
            write = "WRITE_RESULT" if k == len(stages) - 1 and not spill else f"WRITE_{where}"
            texts.append(f"STAGE({r}, {m}, {step}, {read}, {write})")
        sizes["DONE"] = where.lower()
        scratch = workspace.room(workers * room * lanes * problem.acc.itemsize)
        args = one.args((Ref(scratch),), one.parts, one.step, rows, count, blocks)
        functions = map(one.function, dict.fromkeys(kinds))
        source = one.text(lanes, sizes, " ".join(texts), functions)
        return Launch(source, "fft_lines", args, (workers,), (1,))

    def cost(self, problem: FftProblem, info) -> float:
        rates, lengths = machine.of(info), self.lengths(problem, info)
        operations = problem.elements * sum(map(work, lengths))
        nbytes, count = self.moved(problem, len(lengths)), len(lengths)
        if info.kind == "cpu":
            return rates.roofline(operations, nbytes, problem.acc, self.ON_CPU, count)
        # few work-items, each of which waits for all that it reads
        workers, lanes = 4 * info.compute_units, self.lanes(problem, info)
        rounds = sum(ceil_div(problem.elements // n, lanes * workers) * n for n in lengths)
        waits = rounds * rates.latency / 4
        return waits + rates.roofline(operations, nbytes, problem.acc, self.ON_GPU, count)


class Local(_InPasses):
    """Work-groups with lines in local memory: GPUs."""

    name = "fft.local"
    ON_GPU, ON_CPU = 0.4, 0.15  # shares of the rate of multiply-adds
    HELD = 16  # values of a line that a work-item holds, in a quarter of its registers at most
    ACROSS = 16  # neighbouring lines that are read together
    GROUP = 256  # work-items

    def room(self, problem: FftProblem, info) -> int:
        """Values of lines that a work-group has place for; two groups fit a compute unit."""
        return last_power(min(info.local_mem_bytes, 2**16) // (4 * problem.acc.itemsize))

    def group(self, info) -> int:
        """Work-items of a group, at most."""
        return min(self.GROUP, last_power(info.max_work_group_size))

    def held(self, problem: FftProblem, info) -> int:
        """Values of a line that a work-item holds."""
        if not info.registers:
            return self.HELD
        words = 2 * problem.acc.itemsize // 4
        return min(self.HELD, last_power(info.registers // (4 * words)))

    def items(self, problem: FftProblem, length: int, info) -> int:
        """Work-items of a line."""
        written = [r for r in radices(length) if not is_loop(r)]
        held = max(self.held(problem, info), *written, 1)
        return min(ceil_div(length, held), self.group(info))

    def lengths(self, problem: FftProblem, info) -> tuple[int, ...]:
        room, held = self.room(problem, info), self.group(info) * self.held(problem, info)
        if problem.inner == 1 and problem.length <= max(64, min(room, held)):
            return (problem.length,)
        return passes(problem.length, max(64, min(room // 4, held // 4)))

    def launch(self, one: _Pass, info, workspace: Workspace) -> Launch:
        items = self.items(one.problem, one.length, info)
        count = min(
            self.group(info) // items,
            max(1, self.room(one.problem, info) // round_up(one.length, 32)),
        )
        across = one.step > 1 or one.parts > 1
        count = last_power(min(count, one.lines, self.ACROSS if across else count))
        # Loops read all values of a butterfly for each result: from the tile, so they come last.
        kinds = radices(one.length)
        loops = [r for r in kinds if is_loop(r)]
        written = [r for r in kinds if not is_loop(r)] or [1]
        stages, texts = one.stages([*written, *loops]), []
        for k, (r, m, step) in enumerate(stages):
            read = "READ_TILE" if k else "READ_SOURCE"
            write = "WRITE_TILE" if k < len(stages) - 1 else "WRITE_RESULT"
            if k < 2:
                texts.append(f"SHARE({int(one.step > 1 or (across and k == 0))})")
            kind = "SUMS" if is_loop(r) else "STAGE"
            texts.append(f"{kind}({r}, {m}, {step}, {read}, {write})")
        sizes = {"LOCAL": 1, "COUNT": count, "ITEMS": items, "GROUP": count * items}
        functions = [
            narrow(info), bounded(info), *map(one.function, dict.fromkeys(written)),
            *(tables(r, one.problem.sign, one.problem.acc.is_double) for r in dict.fromkeys(loops)),
        ]  # fmt: skip
        source = one.text(1, sizes, " ".join(texts), functions)
        args = one.args((), one.parts, one.step, one.lines)
        groups = ceil_div(one.lines, count)
        return Launch(source, "fft_local", args, (groups * count * items,), (count * items,))

    def cost(self, problem: FftProblem, info) -> float:
        rates, lengths = machine.of(info), self.lengths(problem, info)
        operations = problem.elements * sum(map(work, lengths))
        efficiency = self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        nbytes = self.moved(problem, len(lengths))
        return rates.roofline(operations, nbytes, problem.acc, efficiency, len(lengths))


def _root(n: int) -> int:
    return int(n**0.5) + 1


SOLVERS: tuple[Solver, ...] = (Lines(), Local())


def plan(problem: FftProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; complex results go through `epilogue`, others to their slots.

    Raises:
        NotImplementedError: for a length with a prime factor above 64.
    """
    if problem.elements == 0 or not problem.wanted:
        return Plan([])
    solver = database.choose("fft", SOLVERS, (), problem, info)
    return solver.plan(problem, info, epilogue)
