"""What happens to each result of a heavy kernel, as C text that the kernel calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kerascl.dtypes import DType
from kerascl.kernels.contract.plan import Arg, Ref
from kerascl.kernels.contract.source import FP64


@dataclass(frozen=True)
class VectorStore:
    """One stored value of an epilogue's vector form.

    Attributes:
        pointer: C expression, the address of element 0 (aligned to eight elements or 16 bytes).
        dtype: the dtype stored.
        value: C expression in its compute type, over the variables of `Epilogue.compute`.
        exact: whether `dtype` has that value.
        pairs: whether two neighbours are rounded to bfloat16 together, which is one instruction.
    """

    pointer: str
    dtype: DType
    value: str
    exact: bool = False
    pairs: bool = False

    def line(self, pointer: str, index: str) -> str:
        """The statement that stores it."""
        form = self.dtype.keep if self.exact and self.dtype.keep else self.dtype.store
        return form.format(p=pointer, i=index, v=self.value) + ";"


@dataclass(frozen=True)
class VectorLoad:
    """One value that an epilogue reads at the result's own index, or at one that is as many apart
    for neighbouring results, such as a bias.

    Attributes:
        pointer: C expression, the address of element 0 (aligned as a VectorStore's).
        dtype: the dtype read.
        name: the variable of its compute type that `Epilogue.compute` finds it in.
        at: C expression over the coordinates, where it is not the result's own index; of a vector's
            first result a multiple of eight.
        period: after so many results `at` repeats, as a bias does in each row; 0 if unknown.
        brought: its number among those that the kernel itself brings into local memory, whose
            vectors it gives by macros KCL_BROUGHT_VECTOR<W>_<word>(to, number); else -1.
    """

    pointer: str
    dtype: DType
    name: str
    at: str = ""
    period: int = 0
    brought: int = -1

    def line(self, pointer: str, index: str) -> str:
        """The statement that defines the variable."""
        value = self.dtype.load.format(p=pointer, i=index)
        return f"const {self.dtype.compute} {self.name} = {value};"


WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}  # bits as they lie, by bytes

# KCL_STORE_VECTOR<W>(word, to, from): W words from a private array to global memory at once.
STORE_VECTOR = """\
#define KCL_STORE_VECTOR4(word, to, from) \\
  *(__global word##4*)(to) = (word##4)((from)[0], (from)[1], (from)[2], (from)[3]);
#define KCL_STORE_VECTOR8(word, to, from) \\
  *(__global word##8*)(to) = (word##8)((from)[0], (from)[1], (from)[2], (from)[3], \\
                                       (from)[4], (from)[5], (from)[6], (from)[7]);
"""


# KCL_STORE_PAIRS<W>(to, from): W floats, rounded to bfloat16.
STORE_PAIRS = """\
#define KCL_STORE_PAIRS4(to, from) \\
  *(__global uint2*)(to) = (uint2)(kcl_pair_bf16((from)[0], (from)[1]), \\
                                   kcl_pair_bf16((from)[2], (from)[3]));
#define KCL_STORE_PAIRS8(to, from) \\
  *(__global uint4*)(to) = (uint4)(kcl_pair_bf16((from)[0], (from)[1]), \\
                                   kcl_pair_bf16((from)[2], (from)[3]), \\
                                   kcl_pair_bf16((from)[4], (from)[5]), \\
                                   kcl_pair_bf16((from)[6], (from)[7]));
"""


def _load_vector(count: int, word: str, nbytes: int) -> str:
    """KCL_LOAD_VECTOR<W>_<word>(to, from): W words from global memory to a private array, at most
    16 bytes at once."""
    lanes = min(count, 16 // nbytes)
    parts = []
    for first in range(0, count, lanes):
        words = " ".join(f"(to)[{first + j}] = part_.s{j};" for j in range(lanes))
        source = f"*(__global const {word}{lanes}*)((from) + {first})"
        parts.append(f"{{ const {word}{lanes} part_ = {source}; {words} }}")
    return f"#define KCL_LOAD_VECTOR{count}_{word}(to, from) {' '.join(parts)}\n"


LOAD_VECTOR = "".join(_load_vector(w, word, n) for w in (4, 8) for n, word in WORDS.items())


@dataclass(frozen=True)
class Epilogue:
    """What happens to each result of a heavy kernel.

    Attributes:
        params: kernel parameters, each with a leading comma
            (", __global float* restrict out").
        args: the arguments for `params`, in order; the solver appends them to
            those of the launch that calls EPILOGUE.
        body: C statements over `acc` (a value of the accumulator's compute
            type) and `i` (int or long linear output index); they store.
        helpers: C functions that `body` calls.
        loads, compute, stores: the same in three parts, where every store is at index `i`: what
            is read there, statements that store nothing, and what is stored.  Without `stores`
            there is no vector form.
        decode: C statements over `first`, the index of a vector's first result, that set its
            coordinates for all of the vector, and `column` instead of the last, where vectors of
            eight do not cross rows; `compute` then takes the last from `column` and `j_`.
        fours: variables of type uint2 that `compute` sets where `j_`, the number of a neighbour, is
            a multiple of four, and reads for that and the next three.
        lanes: the same as `body`, for kernels of CPUs, over a vector `acc` of `width` results of
            which `i` is the first's index; "" where there is no such form.
        width, vector: how many these are, and the C type of a vector of them.
        work: the costs of its pointwise operations together (1 is an addition).
        rounds: the dtype of 16 bits to which `acc` is rounded before all else, if it is.
        uses_double: whether `body` or `helpers` need fp64.
        moments: C statements over `col`, a column of the output (the last dimension), and of all
            accumulators of that column `mean` and `squares`, the sum of squared distances from
            the mean; they run once for each column.  Only solvers that say so take them.
    """

    params: str
    args: tuple[Arg, ...]
    body: str
    helpers: tuple[str, ...] = ()
    loads: tuple[VectorLoad, ...] = ()
    compute: str = ""
    stores: tuple[VectorStore, ...] = ()
    uses_double: bool = False
    moments: str = ""
    fours: tuple[str, ...] = ()
    decode: str = ""
    work: int = 0
    rounds: DType | None = None
    lanes: str = ""
    width: int = 0
    vector: str = ""

    @property
    def after_rounding(self) -> Epilogue:
        """The same for a kernel whose vectors of results are rounded to `rounds` already."""
        if self.rounds is None:
            return self
        acc = f"({self.rounds.compute})acc"

        def stored(s: VectorStore) -> VectorStore:
            own = s.value == f"({acc})" or f" {s.value} = {acc};" in self.compute
            return replace(s, exact=True, pairs=False) if own and s.dtype is self.rounds else s

        return replace(
            self,
            compute=self.compute.replace(self.rounds.round.format(v=acc), acc),
            stores=tuple(map(stored, self.stores)),
        )

    @property
    def reads(self) -> tuple[VectorLoad, ...]:
        """The loads of as many values as there are results that the kernel does not bring."""
        return tuple(load for load in self.loads if not load.at and load.brought < 0)

    @property
    def brought(self) -> tuple[VectorLoad, ...]:
        """The loads whose values the kernel brings, in their order there."""
        loads = (load for load in self.loads if load.brought >= 0)
        return tuple(sorted(loads, key=lambda load: load.brought))

    @property
    def defines(self) -> str:
        """The helpers and the macros EPILOGUE_PARAMS and EPILOGUE(acc, i) as source text.

        With a vector form also EPILOGUE_VECTOR(W, accs, i): the same for the W = 4 or 8 values
        of a private array, which belong to indices i to i + W - 1; i is a multiple of W.  All
        values are computed before the first store.  EPILOGUE_VECTORS(N, W, accs, i, step) is that
        for N such vectors at i, i + step, ... (a multiple of W): so many reads are under way at
        once, which memory-bound kernels need.  See `row_macros` for what all rows read.  With reads
        of as many values as there are results, EPILOGUE_PREFETCH(i) brings those at i near, a line
        of the cache each, by the kernel's own macro PREFETCH(address).  With `lanes`
        EPILOGUE_LANES(accs, i) takes a vector of EPILOGUE_WIDTH results, or a number that all of
        them are; i may be any.
        """
        text = (
            (FP64 if self.uses_double else "")
            + "".join(self.helpers)
            + f"#define EPILOGUE_PARAMS {self.params}\n"
            + self.macro
        )
        if self.moments:
            body = " ".join(line.strip() for line in self.moments.splitlines())
            text += (
                "#define MOMENTS(col_, mean_, squares_) { const INDEX_T given_i_ = (col_); "
                "const ACC_T given_mean_ = (mean_), given_squares_ = (squares_); "
                "{ const INDEX_T col = given_i_; const ACC_T mean = given_mean_, "
                f"squares = given_squares_; {body} }} }}\n"
            )
        if self.reads:
            near = " ".join(f"PREFETCH(({x.pointer}) + (i_));" for x in self.reads)
            text += f"#define EPILOGUE_PREFETCH(i_) {{ {near} }}\n"
        if self.lanes:
            body = " ".join(line.strip() for line in self.lanes.splitlines())
            text += (
                f"#define EPILOGUE_WIDTH {self.width}\n"
                f"#define EPILOGUE_LANES(acc_, i_) {{ const {self.vector} given_acc_ = (acc_); "
                f"const INDEX_T given_i_ = (i_); {{ const {self.vector} acc = given_acc_; "
                f"const INDEX_T i = given_i_; {body} }} }}\n"
            )
        if not self.has_vectors:
            return text
        vectors = self.vectors("##W_", "N_", "W_", "ACC_T", "INDEX_T", "acc_", "i_", "step_")
        return (
            text
            + "".join(self.vector_helpers)
            + f"#define EPILOGUE_VECTORS(N_, W_, acc_, i_, step_) {vectors}\n"
            "#define EPILOGUE_VECTOR(W_, acc_, i_) EPILOGUE_VECTORS(1, W_, acc_, i_, 0)\n"
            + self.row_macros
        )

    def repeats(self, columns: int) -> bool:
        """Whether rows of so many results read some of the same values, and `row_macros` serve."""
        periods = [load.period for load in self.loads if load.period]
        return self.has_vectors and bool(periods) and not any(columns % n for n in periods)

    @property
    def row_macros(self) -> str:
        """For kernels that compute one column of several rows and read what those share once.

        EPILOGUE_ROW(W, n) declares room for n vectors, EPILOGUE_READ_ROW(W, t, i) reads the t-th,
        of indices i to i + W - 1 of any row, EPILOGUE_NEXT_ROW(W) makes the second the first, and
        EPILOGUE_VECTOR_KEPT(W, accs, i, t) is EPILOGUE_VECTOR with the t-th.  Nothing where no load
        has a period.
        """
        rooms = reads = moves = ""
        for k, load in enumerate(self.loads):
            if load.period:
                word = WORDS[load.dtype.itemsize]
                rooms += f"{word} kept{k}_[(n_) * (W_)]; "
                source = f"(__global const {word}*)({load.pointer}) + ({load.at})"
                reads += f"KCL_LOAD_VECTOR##W_##_{word}((kept{k}_ + (t_) * W_), ({source})) "
                moves += f"kept{k}_[v_] = kept{k}_[(W_) + v_]; "
        if not rooms:
            return ""
        each = '_Pragma("unroll") for (int v_ = 0; v_ < (W_); ++v_)'
        decode = " ".join(line.strip() for line in self.decode.splitlines())
        vectors = self.vectors("##W_", "1", "W_", "ACC_T", "INDEX_T", "acc_", "i_", "0", "t_")
        return (
            f"#define EPILOGUE_ROW(W_, n_) {rooms}\n"
            "#define EPILOGUE_READ_ROW(W_, t_, i_) "
            f"{{ const INDEX_T first = (i_); {decode} {reads}}}\n"
            f"#define EPILOGUE_NEXT_ROW(W_) {each} {{ {moves}}}\n"
            f"#define EPILOGUE_VECTOR_KEPT(W_, acc_, i_, t_) {vectors}\n"
        )

    @property
    def macro(self) -> str:
        """The macro EPILOGUE(acc, i) alone."""
        body = " ".join(line.strip() for line in self.body.splitlines())
        # A kernel's own `acc` or `i` in the arguments must not read what is declared here.
        return (
            "#define EPILOGUE(acc_, i_) "
            "{ const ACC_T given_acc_ = (acc_); const INDEX_T given_i_ = (i_); "
            f"{{ const ACC_T acc = given_acc_; const INDEX_T i = given_i_; {body} }} }}\n"
        )

    @property
    def early(self) -> str:
        """The macro EPILOGUE(acc, i) for kernels whose work-items have one result each, and what
        reads for it before `acc` is known: the declarations EPILOGUE_KEPT, and EPILOGUE_READ(i).
        Only EPILOGUE where nothing is read."""
        lines = self.body.splitlines()
        reads = [load.line(load.pointer, load.at or "i") for load in self.loads]
        if not reads or not set(reads) <= set(lines):
            return self.macro
        kept = "".join(f"{x.dtype.compute} kept{k}_; " for k, x in enumerate(self.loads))
        before = " ".join(line.strip() for line in lines[: min(map(lines.index, reads))])
        taken = "".join(
            f"kept{k}_ = {x.dtype.load.format(p=x.pointer, i=x.at or 'i')}; "
            for k, x in enumerate(self.loads)
        )
        body = (line for line in lines if line not in reads)
        names = (f"const {x.dtype.compute} {x.name} = kept{k}_;" for k, x in enumerate(self.loads))
        return (
            f"#define EPILOGUE_KEPT {kept}\n"
            "#define EPILOGUE_READ(i_) { const INDEX_T given_i_ = (i_); "
            f"{{ const INDEX_T i = given_i_; {before} {taken}}} }}\n"
        ) + replace(self, body="\n".join((*names, *body))).macro

    @property
    def param_list(self) -> tuple[str, ...]:
        """Each of `params`."""
        return tuple(p for p in self.params.split(", ") if p)

    @property
    def aligned(self) -> frozenset[tuple[str, int]]:
        """(slot, bytes of an element) of the buffers that are read and stored at the result's own
        index only; none where there is no vector form, which says where values lie."""
        if not self.stores:
            return frozenset()
        used: dict[str, set[int]] = {}  # of each slot the bytes, 0 where it is used elsewhere, too
        for param, arg in zip(self.param_list, self.args, strict=True):
            if isinstance(arg, Ref):
                found = used.setdefault(arg.slot, set())
                name = param.rsplit(" ", 1)[1]
                places = [(x.pointer, x.dtype, x.at) for x in self.loads]
                places += [(x.pointer, x.dtype, "") for x in self.stores]
                places = [place for place in places if _has(name, place[0])]
                found |= {dtype.itemsize for _, dtype, _ in places}
                own = all(pointer == name and not at for pointer, _, at in places)
                if arg.offset or not own or _has(name, self.compute + self.moments):
                    found.add(0)
        return frozenset(
            (slot, max(sizes)) for slot, sizes in used.items() if len(sizes) == 1 and 0 not in sizes
        )

    @property
    def has_vectors(self) -> bool:
        """Whether there is a vector form."""
        return bool(self.stores) and all(s.dtype.itemsize in WORDS for s in self.stores)

    @property
    def vector_helpers(self) -> tuple[str, ...]:
        """The macros that `vectors` calls."""
        pairs = (STORE_PAIRS,) if any(s.pairs for s in self.stores) else ()
        return (STORE_VECTOR, *pairs, LOAD_VECTOR) if self.loads else (STORE_VECTOR, *pairs)

    def vectors(
        self, suffix: str, n: str, w: str, acc: str, index: str, accs: str, at: str, step: str,
        kept: str = "", made: Iterable[str] = (),
    ) -> str:  # fmt: skip
        """The block of EPILOGUE_VECTORS(n, w, accs, at, step), in one line, for C types `acc` and
        `index`; it calls STORE_VECTOR's and LOAD_VECTOR's macros with `suffix`, which is W.  Loads
        with a period are not made where vector `kept` of EPILOGUE_ROW has their values.  Statements
        that make `accs` may come after all reads: `made`."""
        arrays = f"const {index} given_i_ = ({at}), given_step_ = ({step}); "
        arrays += "".join(f"uint2 {name}; " for name in self.fours)
        known = inside = after = ""
        decode = " ".join(line.strip() for line in self.decode.splitlines())
        found = f"const {index} first = given_i_ + n_ * given_step_; {decode} " if decode else ""
        before = found if self.loads else ""
        for k, load in enumerate(self.loads):
            word = WORDS[load.dtype.itemsize]
            if kept and load.period:
                room = f"((const {load.dtype.storage}*)kept{k}_)"
                known += load.line(room, f"({kept}) * {w} + j_") + " "
                continue
            arrays += f"{word} read{k}_[({n}) * {w}]; "
            place = f"({load.at})" if load.at else "given_i_ + n_ * given_step_"
            source = f"(__global const {word}*)({load.pointer}) + {place}"
            macro, source = "KCL_LOAD_VECTOR", f"({source})"
            if load.brought >= 0:
                macro, source = "KCL_BROUGHT_VECTOR", str(load.brought)
            end = f"##_{word}" if suffix.startswith("#") else f"_{word}"
            before += f"{macro}{suffix}{end}((read{k}_ + n_ * {w}), {source}) "
            known += load.line(f"((const {load.dtype.storage}*)read{k}_)", f"n_ * {w} + j_") + " "
        for k, store in enumerate(self.stores):
            word = WORDS[store.dtype.itemsize]
            target = f"(__global {word}*)({store.pointer}) + given_i_ + n_ * given_step_"
            if store.pairs:
                arrays += f"float vec{k}_[({n}) * {w}]; "
                inside += f"vec{k}_[n_ * {w} + j_] = {store.value}; "
                after += f"KCL_STORE_PAIRS{suffix}({target}, vec{k}_ + n_ * {w}) "
                continue
            arrays += f"{word} vec{k}_[({n}) * {w}]; "
            place = f"(({store.dtype.storage}*)vec{k}_)"
            inside += store.line(place, f"n_ * {w} + j_") + " "
            after += f"KCL_STORE_VECTOR{suffix}({word}, {target}, vec{k}_ + n_ * {w}) "
        body = " ".join(line.strip() for line in self.compute.splitlines())
        unroll = '_Pragma("unroll") for (int'
        each = f"{unroll} n_ = 0; n_ < ({n}); ++n_)"
        return (
            f"{{ {arrays}{f'{each} {{ {before}}} ' if before else ''}"
            f"{''.join(f'{line} ' for line in made)}"
            f"{each} {{ {found}{unroll} j_ = 0; j_ < {w}; ++j_) {{ "
            f"const {acc} acc = ({accs})[n_ * {w} + j_]; "
            f"const {index} i = given_i_ + n_ * given_step_ + j_; {known}{body} {inside}}} }} "
            f"{each} {{ {after}}}}}"
        )


def _has(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def narrow(dtype: DType) -> DType | None:
    """The dtype if it is a float of 16 bits, else None."""
    return dtype if dtype.is_float and dtype.itemsize == 2 else None


def store_epilogue(dtype: DType, slot: str = "out") -> Epilogue:
    """The epilogue that only stores, converted to `dtype`, into buffer `slot`."""
    store = dtype.store.format(p="out", i="i", v=f"(({dtype.compute})acc)")
    return Epilogue(
        f", __global {dtype.storage}* restrict out",
        (Ref(slot),),
        f"{store};",
        stores=(VectorStore("out", dtype, f"(({dtype.compute})acc)"),),
        rounds=narrow(dtype),
    )
