"""Source and options -> built kernel, with a memory cache and a disk cache of binaries."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from kerascl import config
from kerascl.runtime import (
    addresses,
    compiler_pool,
    compilers,
    integers,
    manifest,
    out_of_process,
)
from kerascl.runtime.diskcache import DiskCache
from kerascl.runtime.dropped import Dropped
from kerascl.runtime.errors import LOST, CompileError
from kerascl.runtime.opencl import EXIT, RAW, Program, cl, code_name
from kerascl.runtime.recent import Recent

if TYPE_CHECKING:
    from kerascl.runtime.device import Device, DeviceInfo

_Key = tuple[str, tuple[str, ...]]  # source and options
_Texts = tuple[str, Sequence[str]]

#: Binary-to-binary steps by name.  The option "--rewrite=<name>" builds the source, passes its
#: binary through the function and builds the result (NVIDIA: text of PTX in, text of PTX out).
REWRITES: dict[str, Callable[[bytes], bytes]] = {
    addresses.REWRITE: addresses.plain,
    integers.REWRITE: integers.plain,
}

_REWRITE_OPTION = "--rewrite="

# Built programs that nobody uses are kept for whoever asks again, in so large a part of a device's
# memory: the binaries on disk make them again in milliseconds.
_KEPT_PART = 1 / 256
_PROGRAM_BYTES = 1 << 20  # about what CPU drivers take for one
_FEWEST, _MOST = 64, 256

#: A device -> options for each program that is built for it (or an exception), or None: asked once
#: for a device, when its first program is wanted.
Guard = Callable[[str], tuple[str, ...]]
first_use: Callable[[Device], Guard | None] | None = None

EXACT_DIVISION = "-cl-fp32-correctly-rounded-divide-sqrt"


# Kernel objects, released when the next one is made, and their programs, which must outlive them.
_dropped = Dropped()


def release_kernels() -> None:
    """Give kernels that nobody holds any more back to the driver, then their programs."""
    if not EXIT.begun and RAW is not None:
        for arg, _ in _dropped.take():
            RAW.release_kernel(arg)


class Built:
    """A program that is built or being built; who holds it, or a kernel of it, keeps it.

    Attributes:
        lock: held while building.
        program: the pyopencl program, None before.
        stored: the key of the file that it was loaded from, or "".
        kernels: weak references to those made, by name.
    """

    __slots__ = ("__weakref__", "kernels", "lock", "program", "stored")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.program: Any = None
        self.stored = ""
        self.kernels: dict[str, weakref.ref[Kernel]] = {}

    def kernel(self, name: str) -> Kernel | None:
        """The kernel object made for this name, if somebody holds it."""
        reference = self.kernels.get(name)
        return None if reference is None else reference()


class Kernel:
    """One kernel of a built program, with the arguments it was last launched with.

    Attributes:
        built: its program.
        name: the function's name.
        num_args: how many arguments it takes.
        arg: the OpenCL kernel object as a ctypes pointer.
    """

    __slots__ = ("__weakref__", "_handle", "arg", "bound", "built", "name", "num_args")

    def __init__(self, built: Built, name: str) -> None:
        self._handle = None
        self.built = built
        self.name = name
        if RAW is None:
            self._handle = cl.Kernel(built.program, name)
            self.num_args = self._handle.get_info(cl.kernel_info.NUM_ARGS)
            self.arg = None
        else:
            self.arg, self.num_args = RAW.create_kernel(built.program, name)
            _dropped.watch(self, (self.arg, built.program))
            release_kernels()
        self.bound: list[Any] = [None] * self.num_args

    @property
    def handle(self) -> cl.Kernel:
        """The pyopencl.Kernel, made when first asked for; it has the same arguments."""
        if self._handle is None:
            assert self.arg is not None
            self._handle = cl.Kernel.from_int_ptr(self.arg.value)
        return self._handle

    def clone(self) -> Kernel:
        """A kernel object of its own (own arguments) of the same program."""
        return Kernel(self.built, self.name)

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {self.num_args} arguments)"


def _preferences(info: DeviceInfo) -> tuple[str, ...]:
    """Which of `dtypes.PRELUDE`'s ways to round floats to 16 bits, and to write NaN, and of
    `philox.SOURCE`'s to multiply serve best, and whether `ops.clibrary` may use PTX."""
    options = ["-DKCL_HALF"] if info.fp16 else []
    if not info.fp16 and "native_half_conversion" in info.quirks:
        options.append("-DKCL_HALF_MEMORY")
    if "native_bfloat16_conversion" in info.quirks:
        options.append("-DKCL_CVT_BF16")
    if "wide_products" in info.quirks:
        options.append("-DKCL_WIDE_PRODUCTS")
    if "inline_ptx" in info.quirks:
        options.append("-DKCL_PTX")
    if "undefined_constant_nan" in info.quirks:
        options.append("-DKCL_HIDE_NAN")
    if "negates_wrongly" in info.quirks:
        options.append("-DKCL_HIDE_NEGATION")
    return tuple(options)


def always(info: DeviceInfo) -> tuple[str, ...]:
    """The options of every build on a device, after those that a program asks for."""
    # Division is approximate by default on GPUs; NumPy's and the host's is not.
    exact = info.exact_division and info.kind == "gpu"
    silent = ("-w",) if "prints_warnings" in info.quirks else ()
    return (*((EXACT_DIVISION,) if exact else ()), *_preferences(info), *silent)


_Build = Callable[..., list[Built]]  # `Programs.build`


class Programs:
    """`device.programs`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        kept = int(device.info.global_mem_bytes * _KEPT_PART) // _PROGRAM_BYTES
        self._built = Recent(min(max(kept, _FEWEST), _MOST))
        self._lock = threading.Lock()
        self._processes: out_of_process.CompilerProcesses | None = None
        self.keep_on_disk(True)
        self._always = always(device.info)
        self._guard_lock = threading.RLock()
        self._in_turn = threading.Lock()  # held by the one that compiles, where all cannot
        self._feeding = threading.Lock()  # held by the one that has other processes build
        self.built_from_source = 0
        self.loaded_from_disk = 0
        if first_use is not None and device.info.matrix:
            # The check of a driver takes as long as the self-tests of addresses and of matrix
            # units: all run at once.
            threading.Thread(target=self._ask_early, name="kerascl-check", daemon=True).start()
        # After those that a program asks for; memory objects become addresses last of all.
        self._rewrites = (
            *((integers.REWRITE,) if "miscompiles_integer_minmax" in device.info.quirks else ()),
            *((addresses.REWRITE,) if device.addresses is not None else ()),
        )

    def _ask_early(self) -> None:
        with contextlib.suppress(Exception):  # it is met again, by whom it belongs to
            _ = self.guard

    @functools.cached_property
    def guard(self) -> Guard | None:
        """Options that a program needs on this driver besides its own, if any ever does."""
        with self._guard_lock:
            if "guard" not in self.__dict__:
                self.__dict__["guard"] = first_use(self._device) if first_use else None
            found: Guard | None = self.__dict__["guard"]
            return found

    def _guarded(self, source: str, options: Sequence[str]) -> tuple[str, ...]:
        more = () if self.guard is None else self.guard(source)
        return (*options, *(option for option in more if option not in options))

    def kernel(self, source: str, name: str, options: Sequence[str] = ()) -> Kernel:
        """The kernel `name` of `source`; while somebody holds it, the same object each time.

        Raises:
            CompileError: the program does not build, or has no such kernel.
        """
        options = self._guarded(source, options)
        built = self._make(source, options)
        found = built.kernel(name)
        if found is None:
            with built.lock:
                found = built.kernel(name)
                if found is None:
                    found = self._kernel(built, name, source, options)
                    built.kernels[name] = weakref.ref(found)
        return found

    def build(
        self, programs: Iterable[_Texts], beside: Iterable[_Texts] = (),
        done: Callable[[], None] = lambda: None, meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Built]:  # fmt: skip
        """Build several (source, options) at once, in threads; those already built cost nothing.

        Args:
            beside: what another process will load, where other processes build: these begin with
                them.
            done: called when that is on disk, or will not be.
            meanwhile: called while other processes build, if they do; it may build, too.

        Returns:
            The programs. Who holds them until their kernels are made has none built twice, however
            many there are.

        Raises:
            CompileError: of the first that fails, after all have been tried.
        """
        programs, others = list(programs), [(s, tuple(o)) for s, o in beside]
        early: list[Built] = []
        tried: set[_Key] = set()
        known = "guard" in self.__dict__ and not getattr(self.guard, "asking", False)
        if others or not known:
            # Other processes need not wait for the check of the driver: only what is found wrong is
            # then built again.
            guarded = self._guarded if known else lambda _, options: options
            keys = {(source, tuple(guarded(source, options))) for source, options in programs}
            todo = [key for key in keys if self._built.get(key) is None]
            tried.update(todo)
            early = self._build_out_of_process(todo, others, done, meanwhile)
        done()
        held, todo = [], []
        for key in {(source, self._guarded(source, options)) for source, options in programs}:
            built = self._built.get(key)
            if built is None:
                todo.append(key)
            else:
                held.append(built)
        del early
        left = [key for key in todo if key not in tried]
        held += self._build_out_of_process(left, meanwhile=meanwhile)
        threads = min(config.build_threads(), len(todo))
        if threads <= 1:
            return held + [self._make(*key) for key in todo]
        pool = ThreadPoolExecutor(threads, thread_name_prefix="kerascl-build")
        try:
            futures = [pool.submit(self._make, *key) for key in todo]
            wait(futures)
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C, what has not begun
        return held + [future.result() for future in futures]

    @contextlib.contextmanager
    def compiler_processes(
        self, problems: int = out_of_process.MANY, graph: object = None
    ) -> Iterator[_Build]:
        """Start the processes that `build` uses inside the block, so that they are ready by then.

        None is started where threads serve as well, or if everything that was built for this graph
        before is on disk.

        Args:
            problems: how many different ones have kernels from a library, each of which takes a
                program and more; 0: too few to be worth starting processes for.
            graph: what the programs are for, with the same repr in every process; None: `build` is
                called several times, with programs that are probably new.

        Yields:
            `build`; for a graph it is to be called once, and keeps a manifest of the programs.
        """
        if not (problems and self._compiles_serially) or self._processes:
            yield self.build
            return
        known = None if graph is None else manifest.Manifest(self._disk, graph)

        def build(
            programs: Iterable[_Texts], beside: Iterable[_Texts] = (),
            done: Callable[[], None] = lambda: None, meanwhile: Callable[[], None] = lambda: None,
        ) -> list[Built]:  # fmt: skip
            programs = list(programs)
            built = self.build(programs, beside, done, meanwhile)
            if known is not None:
                known.keep(self._key(s, self._guarded(s, options)) for s, options in programs)
            return built

        if known is not None and known.complete():
            yield build
            return
        count = self._most_processes()
        if problems < out_of_process.MANY:
            count = min(count, out_of_process.FEW)
        made = self._processes = self._begin(count, graph is not None)
        try:
            yield build
        finally:
            self._processes = None
            made.close()

    def _begin(self, count: int, once: bool) -> out_of_process.CompilerProcesses:
        modules = sorted({rewrite.__module__ for rewrite in REWRITES.values()})
        index = self._device.index
        assert index is not None
        return out_of_process.CompilerProcesses(index, count, modules, once)

    @property
    def _compiles_serially(self) -> bool:
        """Whether threads would compile in turn, and other processes can leave binaries on disk."""
        device = self._device
        serially = "serial_compilation" in device.info.quirks and device.index is not None
        return serially and self._disk is not None and self._disk.writable

    def _most_processes(self) -> int:
        fit = self._device.info.global_mem_bytes // out_of_process.CONTEXT_BYTES
        return max(1, min(config.build_threads(), fit))

    def _build_out_of_process(
        self, todo: list[_Key], beside: Iterable[_Key] = (),
        done: Callable[[], None] = lambda: None, meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Built]:  # fmt: skip
        """Have other processes build what is not on disk, and load each as soon as it is there.

        Args: as of `build`.

        Returns:
            What was loaded.
        """
        loaded: list[Built] = []
        if not self._compiles_serially:
            return loaded
        missing, others = (
            {key: None for key in keys if not self._disk.path(self._key(*key)).exists()}
            for keys in (todo, beside)
        )
        every = list(others | missing)
        with contextlib.ExitStack() as stack:
            processes = self._processes
            if processes and not self._feeding.acquire(blocking=False):
                processes = None  # `meanwhile` builds, or another thread does
            elif processes:
                stack.callback(self._feeding.release)
            if len(every) < (2 if processes else out_of_process.FEWEST):
                return loaded
            waiting = set(others)

            def ended(key: _Key, seconds: float) -> None:
                if key in missing:
                    self._load(loaded, key, seconds)
                if waiting:
                    waiting.discard(key)
                    if not waiting:
                        done()

            if processes is None:
                processes = self._begin(min(self._most_processes(), len(every) // 2), True)
                stack.callback(processes.close)
            processes.build(every, ended, others, meanwhile)
        return loaded

    def _load(self, loaded: list[Built], key: _Key, seconds: float) -> None:
        """Load a program that another process has done with, unless it failed there."""
        source, options = key
        if config.debug():
            names = ", ".join(kernel_names(source)) or "?"
            print(f"kerascl: {names} built in another process in {seconds:.2f} s", file=sys.stderr)
        if self._disk.path(self._key(source, options)).exists():
            loaded.append(self._make(source, options))

    def _key(self, source: str, options: tuple[str, ...]) -> str:
        """Where the disk cache keeps a program."""
        told = self._device.info.compiler_options.split()
        key: str = self._disk.key(
            source, "\0".join((*options, *self._always, *self._rewrites, *told))
        )
        return key

    @functools.cached_property
    def _precautions(self) -> tuple[str, ...]:
        """Options for builds from source; what is built with them is not kept on disk."""
        with self._lock:
            return self.__dict__.get("_precautions") or compilers.options(self._device)

    def keep_on_disk(self, keep: bool) -> None:
        """Whether programs are written to the disk cache and read from it."""
        info = self._device.info
        keep = keep and "no_binaries" not in info.quirks
        # a DiskCache or None; who asks for a binary's place knows that there is one
        self._disk: Any = DiskCache.open("programs", info.cache_key) if keep else None

    def let_go(self) -> None:
        """Free every built program that nobody uses (the disk cache stays)."""
        release_kernels()
        self._built.let_go()

    def alive(self) -> int:
        """How many built programs there are in memory."""
        release_kernels()
        return self._built.alive()

    def _make(self, source: str, options: tuple[str, ...]) -> Built:
        key = (source, options)
        built: Built | None = self._built.get(key)
        if built is None:
            built = self._built.setdefault(key, Built())
        if built.program is None:
            with built.lock:
                if built.program is None:
                    try:
                        built.program, built.stored = self._program(source, options)
                    except BaseException:
                        self._built.pop(key)
                        raise
        return built

    def _program(self, source: str, options: tuple[str, ...]) -> tuple[Any, str]:
        """The program, and the key of the file that it comes from, if it does."""
        debug = config.debug()
        if debug:
            names = ", ".join(kernel_names(source)) or "?"
            print(f"kerascl: building {names} {' '.join(options)}", file=sys.stderr)
            if debug > 1:
                print(_numbered(source), file=sys.stderr)
        rewrites = [*_rewrites(options), *self._rewrites]
        plain = tuple(o for o in options if not o.startswith(_REWRITE_OPTION)) + self._always
        key = None
        if self._disk is not None:
            key = self._key(source, options)
            binary = self._disk.get(key)
            if binary is not None:
                try:
                    program = self._from_binary(binary, plain)
                    self.loaded_from_disk += 1
                    return program, key
                except cl.Error as error:
                    if error.code in LOST:
                        raise self._device.queue.failure(error.code, "a build") from error
                    self._disk.reject(key, "the driver refuses it")
        program, keep = self._from_source(source, plain)
        key = key if keep else None
        if rewrites:
            binary = given = _binary(program)
            try:
                for name in rewrites:
                    binary = REWRITES[name](binary)
                if binary != given:
                    program = self._from_binary(binary, plain)
            except cl.Error as error:
                names = ", ".join(rewrites)
                raise CompileError(f"rewriting ({names}) gave no program: {error}") from error
        self.built_from_source += 1
        binary = _binary(program) if key is not None else b""
        if binary:
            self._disk.put(key, binary)
        return program, ""

    def _from_source(self, source: str, options: tuple[str, ...]) -> tuple[Any, bool]:
        """The program, and whether its binary may be kept on disk."""
        try:
            if self._pool:
                binary, as_asked = self._pool.compile(source, options)
                if binary:
                    return self._from_binary(binary, options), as_asked
            program = self._compiled(source, options + self._precautions)
        except CompileError as error:
            text = _explain(source, options, error.log, str(error), self._device.info.name)
            raise CompileError(text, error.log, source) from None
        if config.debug():
            log = program.log()
            if log:
                print(f"kerascl: build log\n{log}", file=sys.stderr)
        built = program.handle
        if "retains_compiler_memory" in self._device.info.quirks:
            with contextlib.suppress(cl.Error):
                built = self._from_binary(_binary(built), options)
        return built, not self._precautions

    def _compiled(self, source: str, options: tuple[str, ...]) -> Program:
        """The program, compiled in this process.

        Raises:
            CompileError: its text is the name of the status code.
        """
        device = self._device
        program = Program(device.context, device.handle, source)
        in_turn = "compiles_in_turn" in device.info.quirks
        try:
            with self._in_turn if in_turn else contextlib.nullcontext():
                program.build(options)
        except cl.Error as error:
            if error.code in LOST:
                raise device.queue.failure(error.code, "a build") from error
            raise CompileError(code_name(error.code), program.log(), source) from None
        return program

    def compile(self, source: str, options: tuple[str, ...]) -> bytes:
        """The binary of a program, compiled in this process and with these options alone.

        Raises:
            CompileError: its text is the name of the status code.
        """
        return _binary(self._compiled(source, options).handle)

    @property
    def compiles_rightly(self) -> bool:
        """Whether this process' compiler needs no precautions."""
        return not self._precautions

    @functools.cached_property
    def _pool(self) -> compiler_pool.CompilerPool | None:
        """The processes that compile in this one's place, for drivers that need it."""
        device = self._device
        with self._lock:
            found = self.__dict__.get("_pool")
            if found is None and "fatal_compiler" in device.info.quirks:
                if device.index is not None:
                    most = self._most_processes()
                    found = compiler_pool.CompilerPool(device.index, device.info.name, most)
            return found

    def _from_binary(self, binary: bytes, options: tuple[str, ...]) -> Any:
        device = self._device
        # A binary has no macros left to define; they may only keep a driver from its own cache.
        options = tuple(option for option in options if not option.startswith("-D"))
        return Program(device.context, device.handle, binary).build(options)

    def _kernel(self, built: Built, name: str, source: str, options: tuple[str, ...]) -> Kernel:
        try:
            return Kernel(built, name)
        except cl.Error as error:
            if built.stored:
                self._disk.reject(built.stored, f"it lacks the kernel {name}")
                built.program, built.stored = self._program(source, options)
                built.kernels.clear()
                return self._kernel(built, name, source, options)
            have = ", ".join(kernel_names(source)) or "none"
            raise CompileError(
                f"the program has no kernel {name!r} ({code_name(error.code)}); it has: {have}",
                "",
                source,
            ) from None


_KERNEL = re.compile(
    r"\b(?:__)?kernel\b(?:\s*__attribute__\s*\(\(.*?\)\)\s*|\s+[A-Z]\w*)*\s+void\s+(\w+)", re.S
)


def _rewrites(options: Sequence[str]) -> list[str]:
    return [o[len(_REWRITE_OPTION) :] for o in options if o.startswith(_REWRITE_OPTION)]


def kernel_names(source: str) -> list[str]:
    """The names of the kernels declared in a source text."""
    return _KERNEL.findall(source)


def _binary(program: Any) -> bytes:
    binaries = program.get_info(cl.program_info.BINARIES)
    return bytes(binaries[0]) if binaries and binaries[0] else b""


def _numbered(source: str, first: int = 1) -> str:
    lines = source.split("\n")
    return "\n".join(f"{n:5d} | {line}" for n, line in enumerate(lines, first))


# "<source>:12:5: error", "<kernel>(12): error", "x.cl:12: error", "line 12: error",
# "error: x.cl:12:5:"
_PLACE = re.compile(
    r"(?:(\d+):\d+|[(:](\d+)\)?|\bline (\d+))\s*:\s*(?:fatal |syntax )?error"
    r"|^error: \S*?:(\d+):\d+:",
    re.I | re.M,
)


def error_lines(log: str, last: int) -> list[int]:
    """The source lines (from 1) that a build log's error messages point at."""
    found = []
    for match in _PLACE.finditer(log):
        line = int(next(filter(None, match.groups())))
        if 1 <= line <= last and line not in found:
            found.append(line)
    return found


def _explain(source: str, options: Sequence[str], log: str, code: str, device: str) -> str:
    lines = source.split("\n")
    names = ", ".join(kernel_names(source)) or "a program without kernels"
    parts = [f"{names} did not build on {device} ({code})"]
    if options:
        parts.append(f"options: {' '.join(options)}")
    for number in error_lines(log, len(lines))[:5]:
        near = range(max(1, number - 2), min(len(lines), number + 2) + 1)
        parts += [f"{'>' if n == number else ' '}{n:5d} | {lines[n - 1]}" for n in near]
        parts.append("")
    parts.append("build log:\n" + (log or "(empty)"))
    return "\n".join(parts)


def of_user(error: CompileError, title: str, device: str) -> CompileError:
    """An error of a program whose parts begin with `#line 1 "<part>"`, told in their lines.

    Args:
        title: what the user calls the program.
    """
    parts = re.split(r'^#line 1 "([^"\n]*)"\n', error.source, flags=re.M)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    told = []
    for message in re.findall(r"^.*\berror\b.*$", error.log, re.M):
        for part in sorted(texts, key=len, reverse=True):
            # 'part:12:3: error: text', 'error: part:12:3: text' or '"part", line 12: error: text'
            at = re.escape(part) + r'"?(?::|, line |\()(\d+)(?:[:,]\d+)?\)?:?'
            place = re.search(at, message)
            if place is None:
                continue
            lines = texts[part].split("\n")
            last = texts[part].rstrip(" \n);}").count("\n") + 1  # what follows is not the user's
            number = min(int(place.group(1)), last)
            text = message.replace(place.group(), "").replace("error:", "").strip(" :")
            told.append(f"{part}, line {number}: {text}")
            told.append(f"    {number} | {lines[number - 1].strip()}")
            break
    if not told:
        told = ["build log:\n" + (error.log or str(error))]
    message = "\n".join([f"{title} does not compile on {device}", *told[:10]])
    return CompileError(message, error.log, error.source)
