"""Compilers that end their process or never return, and what is left of them."""

import dataclasses
import gc
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from kerascl.runtime import compiler_pool, device
from kerascl.runtime.errors import CompileError
from kerascl.runtime.programs import Programs

SOURCE = """
__kernel void add(__global int* a, const int b) { a[get_global_id(0)] += b + OFFSET; }
"""

# What the compiler does at a program that says so, as often as there are files to remove.
FATE = """
import os, signal, time
from kerascl.runtime.programs import Programs
right = Programs.compile
def compile(self, source, options):
    if "FATAL" in source:
        for name in os.listdir({folder!r}):
            os.remove(os.path.join({folder!r}, name))
            {fate}
    return right(self, source, options)
Programs.compile = compile
"""
FATES = {
    "signal": ("os.kill(os.getpid(), signal.SIGKILL)", r"ended \(-9\)"),
    "exit": ("os._exit(3)", r"ended \(3\)"),
    "hang": ("time.sleep(1000)", r"did not return in 8 s"),
}


@pytest.fixture
def fatal(dev, tmp_path, monkeypatch):
    """The device, as if its compiler could be fatal."""
    if "no_binaries" in dev.info.quirks:
        pytest.skip("a simulator, whose binaries are not loaded")
    quirks = (dev.info.quirks | {"fatal_compiler"}) - {"serial_compilation"}
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, quirks=quirks))
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERASCL_BUILD_THREADS", "3")
    monkeypatch.setattr(compiler_pool, "TRIES", ((8, ()), (60, ()), (60, ("-cl-opt-disable",))))
    return dev


@pytest.fixture
def meet(fatal, tmp_path, monkeypatch):
    """Has compilers meet such a fate so often."""

    def meet(fate, times):
        (tmp_path / "fates").mkdir()
        for k in range(times):
            (tmp_path / "fates" / str(k)).touch()
        begin, end = compiler_pool._PROCESS.rsplit("compiler_process.answer", 1)
        text = FATE.replace("{folder!r}", repr(str(tmp_path / "fates"))).replace("{fate}", fate)
        text = text.replace("{", "{{").replace("}", "}}")
        monkeypatch.setattr(compiler_pool, "_PROCESS", f"{begin}{text}compiler_process.answer{end}")

    return meet


def adds(dev, store, source=SOURCE, offset=2):
    """Whether the program adds what it says."""
    buffer = dev.buffers.allocate(4)
    dev.queue.write(buffer, np.ones(1, np.int32))
    kernel = store.kernel(source, "add", (f"-DOFFSET={offset}",))
    dev.queue.launch(kernel, (1,), (1,), (buffer, np.int32(5)))
    return dev.queue.read(buffer, np.empty(1, np.int32))[0] == 6 + offset


@pytest.mark.parametrize("fate", FATES)
def test_a_program_is_compiled_again(fatal, meet, begun, fate):
    what, told = FATES[fate]
    meet(what, 1)
    store = Programs(fatal)
    assert adds(fatal, store) and len(begun) == 1
    with pytest.warns(RuntimeWarning, match=told):
        assert adds(fatal, store, SOURCE + "// FATAL")
    assert len(begun) == 2 and begun[0].poll() is not None
    assert adds(fatal, store, SOURCE + "// FATAL", 3) and len(begun) == 2
    assert store.built_from_source == 3


def test_a_program_that_is_fatal_twice(fatal, meet, begun):
    """The last time nothing is optimised, and what comes of it is not kept on disk."""
    meet(FATES["exit"][0], 2)
    store = Programs(fatal)
    with pytest.warns(RuntimeWarning, match=r"ended \(3\)") as told:
        assert adds(fatal, store, SOURCE + "// FATAL")
    assert len(told) == 2 and len(begun) == 3
    assert adds(fatal, store)
    again = Programs(fatal)
    assert adds(fatal, again, SOURCE + "// FATAL") and adds(fatal, again)
    assert (again.built_from_source, again.loaded_from_disk) == (1, 1)


def test_a_program_that_is_always_fatal(fatal, meet, begun):
    meet(FATES["exit"][0], 3)
    store = Programs(fatal)
    with pytest.warns(RuntimeWarning), pytest.raises(CompileError, match=r"ended \(3\)"):
        adds(fatal, store, SOURCE + "// FATAL")
    assert adds(fatal, store) and len(begun) == 4


def test_errors_are_told_as_if_compiled_here(fatal, begun):
    store = Programs(fatal)
    with pytest.raises(CompileError, match="undeclared_name") as told:
        store.kernel("__kernel void f(__global int* a) {\n  a[0] = undeclared_name;\n}", "f")
    assert "BUILD_PROGRAM_FAILURE" in str(told.value) and "undeclared_name" in told.value.log
    assert adds(fatal, store) and len(begun) == 1


def test_interrupted_while_compiling(fatal, meet, begun, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_pool, "TRIES", ((60, ()),))
    meet(FATES["hang"][0], 1)
    store = Programs(fatal)

    def interrupt():
        while any((tmp_path / "fates").iterdir()):
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        adds(fatal, store, SOURCE + "// FATAL")
        time.sleep(20)
    thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert adds(fatal, store, SOURCE + "// FATAL")


def test_a_finalizer_does_not_wait_for_processes(fatal, begun, monkeypatch):
    # a Ctrl-C that came meanwhile would be lost
    threads, close = [], compiler_pool.Compiler.close

    def noted(self):
        if self._process in begun:  # not those of an earlier test, which end when idle for long
            threads.append(threading.current_thread())
        close(self)

    monkeypatch.setattr(compiler_pool.Compiler, "close", noted)
    store = Programs(fatal)
    assert adds(fatal, store) and not threads
    del store
    gc.collect()
    assert all(process.wait(30) is not None for process in begun)
    while len(threads) < len(begun):
        time.sleep(0.01)
    assert threading.main_thread() not in threads


def test_where_no_process_can_begin(fatal, monkeypatch):
    for executable in ("false", "/nowhere", ""):
        monkeypatch.setattr(sys, "executable", executable)
        assert adds(fatal, Programs(fatal), SOURCE + f"// {executable}")


def test_processes_whose_compiler_needs_precautions_are_not_used(fatal, monkeypatch, begun):
    text = compiler_pool._PROCESS.replace(
        "compiler_process.answer",
        "from kerascl.runtime import compilers\n"
        "compilers.options = lambda device: ('-cl-opt-disable',)\ncompiler_process.answer",
    )
    monkeypatch.setattr(compiler_pool, "_PROCESS", text)
    store = Programs(fatal)
    assert adds(fatal, store)
    assert all(process.poll() == 0 for process in begun)
    count = len(begun)
    assert adds(fatal, store, offset=3) and len(begun) == count  # none is waited for again


def test_processes_are_as_many_as_programs_and_end(fatal, begun, monkeypatch):
    monkeypatch.setattr(compiler_pool, "IDLE", 0.5)
    store = Programs(fatal)
    held = store.build([(SOURCE, (f"-DOFFSET={k}",)) for k in range(12)])
    assert len(held) == 12 and 1 <= len(begun) <= 3
    assert all(process.wait(30) is not None for process in begun)
    count = len(begun)
    assert adds(fatal, store, SOURCE + "// more") and len(begun) == count + 1
    del store


def test_a_process_ends_after_many_programs(fatal, begun, monkeypatch):
    monkeypatch.setattr(compiler_pool, "PROGRAMS", 2)
    store = Programs(fatal)
    for k in range(5):
        assert adds(fatal, store, offset=k)
    assert len(begun) == 3


def test_processes_end_with_their_program(tmp_path):
    text = (
        "import kerascl as kc\nfrom kerascl.runtime import device\n"
        "assert kc.sum(kc.ones(3)).numpy() == 3\n"
        "pool = device.default().programs._pool\n"
        "print(*(c._process.pid for c in pool._idle) if pool else ())"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    expected = "fatal_compiler" in device.default().info.quirks
    found = [int(pid) for pid in done.stdout.split()]
    assert len(found) == expected
    for pid in found:
        assert subprocess.run(["kill", "-0", str(pid)], capture_output=True).returncode != 0
