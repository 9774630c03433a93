"""A kernel as a function of one of its work-groups, so that a launch can run the groups of several.

The work-items of the launch stand in teams, each as large as the kernel's work-groups: a team runs
a group, then the next that is left to it.  What the kernel asks of its place is arithmetic over
the number of its group, its local memory is a part of the launch's, and where several teams stand
side by side, its barriers are the team's alone.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kerascl.compiler.program.expand import Unsupported, constant, expanded, is_word

GROUP, POOL = "kr_group", "kr_pool"  # parameters of such functions
# A macro that is defined for parts alone: a kernel's body calls it, with the names of what it has
# read so far, before it reads what other kernels may have written.  Behind a & stand names of which
# it has used the address alone.
EARLY, _EARLY = "KCL_EARLY", "kr_early"  # and what it is defined as
ALIGNMENT = 128  # bytes, of a team's local memory
WARP = 32  # a named barrier counts whole warps
MOST_TEAMS = 15  # larger ones that meet alone: one of sixteen barriers is the work-group's
_SIZES = {
    "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4,
    "long": 8, "ulong": 8, "double": 8, "size_t": 8,
}  # fmt: skip
SIZES = _SIZES | {
    f"{base}{n}": size * (4 if n == 3 else n)
    for base, size in _SIZES.items() if base != "size_t" for n in (2, 3, 4, 8, 16)
}  # fmt: skip
_LOCAL = ("__local", "local")
_KERNEL = ("__kernel", "kernel")
# What a declaration begins with that is no function, and nothing that launches could change.
_LASTING = frozenset({"typedef", "struct", "union", "enum", "__constant", "constant"})
_RESTRICT = frozenset({"restrict", "__restrict", "__restrict__"})
_UNREACHED = _RESTRICT | {"__global", "global"}
_BARRIERS = frozenset({"barrier", "work_group_barrier"})
_PLACES = frozenset({
    "get_group_id", "get_global_id", "get_local_id", "get_num_groups", "get_global_size",
    "get_local_size", "get_enqueued_local_size", "get_global_offset", "get_work_dim",
    "get_global_linear_id", "get_local_linear_id",
})  # fmt: skip
_OF_ALL = frozenset({"get_global_id", "get_global_size", "get_global_offset", "get_work_dim"})
_OF_GROUP = frozenset({"get_group_id", "get_global_id", "get_global_linear_id"})
# What a team cannot do for a work-group, and instructions that name a work-group's own barriers
# (a warp's are its own: kernels that have them have whole warps).
_REFUSED = re.compile(
    r"async_work_group\w*|wait_group_events|work_group_(?!barrier)\w+|\w*sub_group\w*|enqueue_\w+"
    r'|".*(?:bar\.(?!warp)|barrier|wgmma|cp\.async\.bulk|exit).*"'
)


@dataclass(frozen=True)
class Param:
    """A parameter: its type, and whether that is a pointer to global or to local memory."""

    ctype: str
    is_pointer: bool = False
    is_local: bool = False


@dataclass(frozen=True)
class Part:
    """A kernel's function.

    Attributes:
        name: of the function.
        items: names and texts of all that must stand in a translation unit, in order; equal names
            have equal texts.
        pragmas: lines before these.
        params: those of the kernel; before them the function takes GROUP and POOL.
        local_bytes: of a team's memory that it uses itself.
        local_args: where there its pointers to local memory point.
        meets: whether it has barriers.
        by_group: whether it asks for more than a work-item's number among all.
        itself: whether it waits by itself.
        early: the parameters that it reads before that.
    """

    name: str
    items: tuple[tuple[str, str], ...]
    pragmas: tuple[str, ...]
    params: tuple[Param, ...]
    local_bytes: int
    local_args: tuple[int, ...]
    meets: bool
    itself: bool = False
    early: tuple[int, ...] = ()
    by_group: bool = True


class Wait(NamedTuple):
    """How a kernel's function waits by itself: its last parameters, and the statement."""

    params: str
    statement: str


@dataclass(frozen=True)
class Shape:
    """How a kernel's groups stand in a launch.

    Attributes:
        groups, local: work-groups and their work-items, by dimension.
        width: work-items of a work-group of the launch.
        stride: work-items from the first of a team to the first of the next.
        teams: groups at once in it; further work-items have nothing to do.
    """

    groups: tuple[int, ...]
    local: tuple[int, ...]
    width: int
    stride: int
    teams: int = 1

    @property
    def items(self) -> int:
        """Work-items of a team."""
        return math.prod(self.local)

    def lane(self) -> str:
        """A work-item's number in its team."""
        if self.stride == self.width:
            return "get_local_id(0)"
        return f"(get_local_id(0) % {self.stride}u)" if self.stride > 1 else "0u"

    def meeting(self) -> str:
        """A call at which a team's work-items meet."""
        if self.items == self.width:
            return "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)"
        return f"kr_meet_{self.items}()"

    def meeting_function(self) -> tuple[str, str] | None:
        """The name and text of what `meeting` calls where it is not OpenCL's own: NVIDIA's barriers
        of some warps, or of some lanes of one."""
        if self.items == self.width:
            return None
        if self.items <= WARP:
            text = f"bar.warp.sync {2**self.items - 1};"
            inside = f'asm volatile("{text}" ::: "memory");'
        else:
            # a warp is counted when the first of its lanes come
            number = f'"r"(1u + (uint)get_local_id(0) / {self.stride}u)'
            text = f"bar.warp.sync -1; bar.sync %0, {self.items};"
            inside = f'asm volatile("{text}" :: {number} : "memory");'
        name = f"kr_meet_{self.items}"
        return name, f"inline void {name}(void) {{\n  {inside}\n}}\n"

    def place(self, function: str, dimension: int) -> str:
        """What a function of a work-item's place gives."""
        if function == "get_global_offset" and self.width == 1:
            return f"get_global_offset({dimension}u)"  # CPUs' compilers must not know that it is 0
        at = dimension
        local = self.local[at] if at < len(self.local) else 1
        groups = self.groups[at] if at < len(self.groups) else 1
        if function in ("get_group_id", "get_global_id") and groups > 1:
            group = GROUP
            below = math.prod(self.groups[:at])
            if below > 1:
                group = f"{group} / {below}u"
            if math.prod(self.groups[at + 1 :]) > 1:
                group = f"{group} % {groups}u"
        else:
            group = "0u"
        lane = "0u"
        if local > 1:
            below = math.prod(self.local[:at])
            lane = self.lane() if below == 1 else f"{self.lane()} / {below}u"
            if math.prod(self.local[at + 1 :]) > 1 or self.stride > self.items:
                lane = f"{lane} % {local}u"
        values = {
            "get_group_id": group, "get_local_id": lane, "get_num_groups": f"{groups}u",
            "get_global_id": f"({group}) * {local}u + {lane}", "get_local_size": f"{local}u",
            "get_global_size": f"{groups * local}u", "get_global_offset": "0u",
            "get_enqueued_local_size": f"{local}u",
        }  # fmt: skip
        return f"((size_t)({values[function]}))"


@functools.lru_cache(maxsize=1024)
def part(
    source: str,
    kernel: str,
    options: tuple[str, ...],
    shape: Shape,
    local_args: tuple[int, ...] = (),
    wait: Wait | None = None,
) -> Part:
    """The function of a kernel.

    Args:
        source: its translation unit.
        options: of its build, with the macros that every build of the device defines.
        local_args: bytes behind its pointers to local memory, in order.
        wait: what takes the place of EARLY.

    Raises:
        Unsupported: a team cannot run it.
    """
    items = _unit(source, (*options, f"-D{EARLY}={_EARLY}"))
    entry = next((item for item in items if item.is_kernel and item.name == kernel), None)
    if entry is None:
        raise Unsupported(f"there is no kernel {kernel}")
    needed = _needed(entry, items)
    of_group = _of_group(needed)
    sizes = dict(SIZES)
    renamed: dict[str, str] = {}
    texts: dict[str, str] = {}
    meeting = shape.meeting_function() if any(item.meets for item in needed) else None
    if meeting is not None:
        texts[meeting[0]] = meeting[1]
    for item in needed:
        if item is entry:
            continue
        item.note_size(sizes)
        words = item.words
        if not renamed.keys().isdisjoint(item.names) or (item.is_function and words[-1] == ";"):
            raise Unsupported(f"{item.name} is declared twice")
        if not item.is_function and words[0] not in _LASTING:
            raise Unsupported(f"{item.name} is no constant")
        if item.is_function:
            words = _placed(words, shape)
            if item.name in of_group:
                words = _with_group(words, item.name)
        words = _called(words, of_group, renamed)
        mark = hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]
        own = {name: f"{name}_{mark}" for name in item.names}
        words = [own.get(word, word) for word in words]
        renamed |= own
        texts[own.get(item.name, mark)] = _text(words)
    meets = any(item.meets for item in needed)
    parameters, body = entry.kernel_parts()
    parameters = [[renamed.get(word, word) for word in words] for words in parameters]
    params = tuple(_param(words) for words in parameters)
    sizes |= {new: sizes[old] for old, new in renamed.items() if old in sizes}
    body, nbytes = _hoisted(_called(body, of_group, renamed), sizes)
    places = []
    for size in local_args:
        places.append(nbytes)
        nbytes = _aligned(nbytes + size, ALIGNMENT)
    body = _placed(body, shape)
    listed = [f"const uint {GROUP}", f"__local uchar* {POOL}"]
    listed += [" ".join(_reachable(words)) for words in parameters]
    early: tuple[int, ...] = ()
    itself = wait is not None and _EARLY in body
    if _EARLY in body:
        body, early = _waiting(body, parameters, wait)
        listed += [wait.params] if wait is not None else []
    text = f"({', '.join(listed)}) {_text(body)}"
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"{kernel}_{mark}"
    texts[name] = f"static void {name}{text}"
    pragmas = tuple(item.words[0] for item in items if item.words[0].startswith("#"))
    if not all(line.startswith("#pragma OPENCL EXTENSION") for line in pragmas):
        raise Unsupported("a pragma that holds for all that follows")
    by_group = any(not item.used.isdisjoint(_PLACES - _OF_ALL) for item in needed)
    return Part(
        name, tuple(texts.items()), pragmas, params, nbytes, tuple(places), meets, itself, early,
        by_group,
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _unit(source: str, options: tuple[str, ...]) -> tuple[_Item, ...]:
    return tuple(_Item(words) for words in _items(expanded(source, options)))


def _items(words: Sequence[str]) -> Iterable[list[str]]:
    """A translation unit's functions, types and values, in order."""
    found: list[str] = []
    depth = 0
    for word in words:
        if depth == 0 and not found and word.startswith("#"):
            yield [word]
            continue
        if not found and word == ";":
            continue
        found.append(word)
        depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(word, 0)
        if depth:
            continue
        ends = word == "}" and found[0] not in ("typedef", "struct", "enum", "union")
        if word == ";" or (ends and "=" not in found[: found.index("{")]):
            yield found
            found = []
    if found:
        raise Unsupported("a declaration has no end")


class _Item:
    """A function, a type or a value of a translation unit."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        head = words[: words.index("{")] if "{" in words else words
        self.is_function = "(" in head and "=" not in head and head[0] not in ("typedef", "struct")
        self.is_kernel = self.is_function and any(word in _KERNEL for word in head)
        self.open = _parameters_at(head) if self.is_function else 0
        self.names = (words[self.open - 1],) if self.is_function else _declared(words)
        self.name = self.names[0] if self.names else ""
        self.used = {w for w in set(words) if is_word(w)}
        self.meets = not self.used.isdisjoint(_BARRIERS)

    def kernel_parts(self) -> tuple[list[list[str]], list[str]]:
        """A kernel's parameters and its body with its braces."""
        found: list[list[str]] = [[]]
        depth = 0
        for at in range(self.open, len(self.words)):
            word = self.words[at]
            if word == "(":
                depth += 1
                if depth == 1:
                    continue
            depth -= word == ")"
            if depth == 0:
                body = self.words[self.words.index("{", at) :]
                return [words for words in found if words and words != ["void"]], body
            if word == "," and depth == 1:
                found.append([])
            else:
                found[-1].append(word)
        raise Unsupported("a kernel's parameters have no end")

    def note_size(self, sizes: dict[str, int]) -> None:
        """Add the bytes of a type that is another's name."""
        if self.words[0] == "typedef" and len(self.words) == 4 and self.words[1] in sizes:
            sizes[self.words[2]] = sizes[self.words[1]]


def _parameters_at(head: Sequence[str]) -> int:
    """Where a function's parameters begin: behind a word that is no attribute."""
    at, depth = 0, 0
    while at < len(head):
        if head[at] == "(":
            if depth == 0 and at and is_word(head[at - 1]) and head[at - 1] != "__attribute__":
                return at
            depth += 1
        depth -= head[at] == ")"
        at += 1
    raise Unsupported("a function without parameters")


def _declared(words: Sequence[str]) -> tuple[str, ...]:
    """The names that a type or a value makes known."""
    if words[0].startswith("#"):
        return ()
    names: list[str] = []
    depth = 0
    for at, word in enumerate(words):
        if depth == 0 and is_word(word) and words[at + 1] in (";", "[", "=", ","):
            names.append(word)
        tagged = at and words[at - 1] in ("struct", "union", "enum") and is_word(word)
        if tagged and at + 1 < len(words) and words[at + 1] == "{":
            names.append(word)
        if depth == 1 and words[0] in ("enum", "typedef") and "enum" in words[:2]:
            if is_word(word) and words[at - 1] in ("{", ","):
                names.append(word)
        depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(word, 0)
    return tuple(dict.fromkeys(names))


def _needed(entry: _Item, items: Sequence[_Item]) -> list[_Item]:
    """What a kernel is made of, in order, the kernel last.

    Raises:
        Unsupported: there is something in it that a team cannot do.
    """
    wanted = set(entry.used)
    found = [entry]
    for item in reversed(items[: items.index(entry)]):
        if item.is_kernel or wanted.isdisjoint(item.names):
            continue
        wanted |= item.used
        found.append(item)
    for item in found:
        bad = next((w for w in item.words if _REFUSED.fullmatch(w)), None)
        if bad is not None:
            raise Unsupported(bad)
    kernels = {item.name for item in items if item.is_kernel and item is not entry}
    if not wanted.isdisjoint(kernels):
        raise Unsupported("a kernel that calls another")
    return found[::-1]


def _of_group(needed: Sequence[_Item]) -> set[str]:
    """The functions that ask which group they are in, or call such."""
    found: set[str] = set()
    for item in needed[:-1]:
        if item.is_function and not item.used.isdisjoint(_OF_GROUP | found):
            found.add(item.name)
    return found


def _reachable(words: Sequence[str]) -> list[str]:
    """Without what would let a compiler read global memory past the caches' coherence: on NVIDIA
    what nobody else writes and no one writes through it is read by instructions (ld.global.nc) that
    need not see what other groups of the same launch have written."""
    if _UNREACHED.isdisjoint(words):
        return list(words)
    out: list[str] = []
    for word in words:
        if word in _RESTRICT:
            continue
        if word == "const" and out and out[-1] in ("__global", "global"):
            continue
        if word in ("__global", "global") and out and out[-1] == "const":
            out.pop()
        out.append(word)
    return out


def _placed(words: Sequence[str], shape: Shape) -> list[str]:
    """Text of a function in which a team stands for a work-group."""
    words = _reachable(words)
    if _BARRIERS.isdisjoint(words) and _PLACES.isdisjoint(words):
        return words
    out: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word in _BARRIERS:
            close = _closing(words, at + 1)
            out.append(shape.meeting())
            at = close + 1
        elif word in _PLACES:
            inside = words[at + 2 : _closing(words, at + 1)]
            out.append(_place(word, inside, shape))
            at += 3 + len(inside)
        else:
            out.append(word)
            at += 1
    return out


def _place(function: str, inside: Sequence[str], shape: Shape) -> str:
    if function == "get_work_dim":
        return f"{len(shape.local)}u"
    if function == "get_local_linear_id":
        return f"((size_t){shape.lane()})"
    if function == "get_global_linear_id":
        if len(shape.local) > 1:
            raise Unsupported(function)
        return shape.place("get_global_id", 0)
    return shape.place(function, constant(inside))


def _closing(words: Sequence[str], start: int) -> int:
    """Where the parenthesis at `start` is closed."""
    depth = 0
    for at in range(start, len(words)):
        depth += {"(": 1, ")": -1}.get(words[at], 0)
        if depth == 0:
            return at
    raise Unsupported("a parenthesis has no end")


def _waiting(
    body: list[str], parameters: Sequence[Sequence[str]], wait: Wait | None
) -> tuple[list[str], tuple[int, ...]]:
    """A body that waits where it calls EARLY, and which of its parameters it has read by then; or
    one that does not wait, which leaves out the call."""
    at = body.index(_EARLY)
    close = _closing(body, at + 1)
    if wait is None:
        return [*body[:at], *body[close + 2 :]], ()
    names = [words[-1] for words in parameters]
    given = list(zip(body[at + 1 :], body[at + 2 : close], strict=False))
    read = {word for before, word in given if is_word(word) and before != "&"}
    addresses = {word for before, word in given if before == "&"}
    # where kernels share a launch, each has its own, which is then given the name
    for target, equals, value in zip(body, body[1:at], body[2:at], strict=False):
        if target in read and equals == "=" and value in names:
            read.add(value)
    others = {words[-1] for words in parameters if "*" in words}.difference(read, addresses)
    for before, word, after in zip(body, body[1:at], body[2:], strict=False):
        if word in others and (before, after) != ("=", ";"):
            raise AssertionError(f"{word} is read before {EARLY}, which does not name it")
    early = tuple(k for k, name in enumerate(names) if name in read)
    return [*body[:at], wait.statement, *body[close + 1 :]], early


def _with_group(words: Sequence[str], name: str) -> list[str]:
    """A function with the parameter GROUP in front."""
    at = list(words).index(name) + 1
    close = _closing(words, at)
    rest = list(words[at + 1 :])
    if words[at + 1 : close] == ["void"]:
        rest = rest[1:]
    comma = [","] if rest[0] != ")" else []
    return [*words[: at + 1], "const", "uint", GROUP, *comma, *rest]


def _called(
    words: Sequence[str], of_group: set[str], renamed: dict[str, str]
) -> list[str]:
    """Calls by the functions' new names, with the group for those that ask for it."""
    out: list[str] = []
    for at, word in enumerate(words):
        if word not in renamed or (at and words[at - 1] in (".", "->")):
            out.append(word)
            continue
        out.append(renamed[word])
        if word in of_group:
            if at + 1 >= len(words) or words[at + 1] != "(":
                raise Unsupported(f"{word} is not called")
            # what stands behind the parenthesis follows; a comma unless that closes it
            comma = "" if words[at + 2] == ")" else ","
            out.append(f"KR_OPEN {GROUP}{comma}")
    return _opened(out) if of_group else out


def _opened(words: Sequence[str]) -> list[str]:
    """Put arguments that stand before a call's parenthesis behind it."""
    out: list[str] = []
    waiting = ""
    for word in words:
        if word.startswith("KR_OPEN "):
            waiting = word.removeprefix("KR_OPEN ")
            continue
        out.append(word)
        if waiting:
            out.append(waiting)
            waiting = ""
    return out


def _param(words: Sequence[str]) -> Param:
    """A kernel's parameter; its name is the last word.

    Raises:
        Unsupported: it is no value, and no pointer to global or local memory.
    """
    ctype = _reachable(words[:-1])
    if "*" not in ctype:
        return Param(" ".join(w for w in ctype if w != "const"))
    if any(word in _LOCAL for word in ctype):
        return Param(" ".join(ctype), is_local=True)
    if not any(word in ("__global", "global") for word in ctype):
        raise Unsupported(f"a parameter {' '.join(words)}")
    return Param(" ".join(ctype), is_pointer=True)


def _aligned(n: int, to: int) -> int:
    return -(-n // to) * to


def _hoisted(body: Sequence[str], sizes: dict[str, int]) -> tuple[list[str], int]:
    """A kernel's body whose own local memory lies in POOL, and the bytes of that."""
    out: list[str] = []
    values: dict[str, str] = {}
    arrays: set[str] = set()
    nbytes = at = 0
    while at < len(body):
        word = body[at]
        before = body[at - 1] if at else ";"
        begins = word in _LOCAL and (before in (";", "{", "}") or before.startswith("#"))
        if not begins:
            if (word in arrays or word in values) and before not in (".", "->"):
                if word in arrays:
                    _check_array(body, at)
                word = values.get(word, word)
            out.append(word)
            at += 1
            continue
        end = list(body).index(";", at)
        found = _local_variables(body[at + 1 : end], sizes)
        if found is None:  # a pointer
            out.append(word)
            at += 1
            continue
        ctype, size, variables, alignment = found
        for name, counts in variables:
            nbytes = _aligned(nbytes, max(32, alignment))
            place = f"({POOL} + {nbytes})"
            nbytes += size * math.prod(counts)
            rest = "".join(f"[{n}]" for n in counts[1:])
            if rest:
                out.append(f"__local {ctype} (*{name}){rest} = (__local {ctype} (*){rest}){place}")
            elif counts:
                out.append(f"__local {ctype}* {name} = (__local {ctype}*){place}")
            else:
                out.append(f"__local {ctype}* kr_{name} = (__local {ctype}*){place}")
                values[name] = f"(*kr_{name})"
            if counts:
                arrays.add(name)
            out.append(";")
        at = end + 1
    return out, _aligned(nbytes, ALIGNMENT)


def _check_array(body: Sequence[str], at: int) -> None:
    """An array that became a pointer has no size of its own, and no address."""
    before = body[at - 1]
    address = before == "&" and body[at - 2] in ("(", ",", "=", "return", ";")
    if (address and body[at + 1] != "[") or body[at - 2 : at] == ["sizeof", "("]:
        raise Unsupported("the address or size of an array in local memory")


def _local_variables(
    words: Sequence[str], sizes: dict[str, int]
) -> tuple[str, int, list[tuple[str, list[int]]], int] | None:
    """The type, its bytes, and names and lengths of variables in local memory; None for a pointer
    to there.

    Raises:
        Unsupported: of a type or length that is not known.
    """
    words = list(words)
    volatile = "volatile " if "volatile" in words[:2] else ""
    words = [w for w in words if w not in ("volatile", "const")]
    alignment = 1
    while "__attribute__" in words:
        at = words.index("__attribute__")
        close = _closing(words, at + 1)
        inside = words[at + 3 : close - 1]
        if inside[0] != "aligned":
            raise Unsupported("an attribute of local memory")
        alignment = max(alignment, constant(inside[2:-1], sizes))
        del words[at : close + 1]
    ctype = words[0]
    if "*" in words[1:] and words[1] == "*":
        return None
    if ctype == "unsigned" and words[1] in sizes:
        ctype = f"u{words.pop(1)}"
    if ctype not in sizes:
        raise Unsupported(f"local memory of {ctype}")
    variables: list[tuple[str, list[int]]] = []
    at = 1
    while at < len(words):
        name = words[at]
        if not is_word(name):
            raise Unsupported("a declaration of local memory")
        at += 1
        counts = []
        while at < len(words) and words[at] == "[":
            close, depth = at, 0
            while True:
                depth += {"[": 1, "]": -1}.get(words[close], 0)
                if depth == 0:
                    break
                close += 1
            counts.append(constant(words[at + 1 : close], sizes))
            at = close + 1
        variables.append((name, counts))
        if at < len(words) and words[at] != ",":
            raise Unsupported("a declaration of local memory")
        at += 1
    return volatile + ctype, sizes[ctype], variables, alignment


def _text(words: Sequence[str]) -> str:
    """Text of tokens, a line for each statement."""
    out: list[str] = []
    for word in words:
        if word.startswith("#"):
            out.append(f"\n{word}\n")
        else:
            out.append(word + ("\n" if word in (";", "{", "}") else " "))
    return "".join(out) + "\n"
