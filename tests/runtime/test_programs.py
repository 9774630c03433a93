"""Building: caches in memory and on disk, damaged files, errors that help."""

import ast
import dataclasses
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kerascl.runtime import diskcache, out_of_process, programs
from kerascl.runtime.errors import CompileError
from kerascl.runtime.programs import Programs

SOURCE = """
__kernel void add(__global int* a, int value) {
    a[get_global_id(0)] += value + OFFSET;
}
"""

BROKEN = """
// a first line
__kernel void fine(__global int* a) { a[0] = 1; }
__kernel void broken(__global int* a) {
    a[0] = undeclared_name + 1;
}
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    return tmp_path


def unique(text=SOURCE):
    return f"// {time.time_ns()}\n{text}"


def run(dev, source, offset=0):
    owner = Programs(dev)
    kernel = owner.kernel(source, "add", (f"-DOFFSET={offset}",))
    buffer = dev.buffers.allocate(40)
    dev.queue.write(buffer, np.arange(10, dtype=np.int32))
    dev.queue.launch(kernel, (10,), None, (buffer, np.int32(5)))
    got = dev.queue.read(buffer, np.zeros(10, np.int32))
    np.testing.assert_array_equal(got, np.arange(10) + 5 + offset)
    return owner


def files(folder):
    return sorted(folder.glob("programs/*/*.bin"))


def test_one_object_for_the_same_request(dev):
    source = unique()
    first = dev.programs.kernel(source, "add", ("-DOFFSET=1",))
    assert dev.programs.kernel(source, "add", ["-DOFFSET=1"]) is first
    assert dev.programs.kernel(source, "add", ("-DOFFSET=2",)) is not first
    assert first.num_args == 2
    assert first.clone().handle != first.handle


def test_programs_may_stay_off_the_disk(dev, cache):
    store = Programs(dev)
    store.keep_on_disk(False)
    store.kernel(unique(), "add", ("-DOFFSET=0",))
    assert not files(cache)
    store.keep_on_disk(True)
    store.kernel(unique(), "add", ("-DOFFSET=0",))
    assert len(files(cache)) == ("no_binaries" not in dev.info.quirks)


def made(owner):
    """How often a program was built or loaded."""
    return owner.built_from_source + owner.loaded_from_disk


def few(dev, most):
    """Programs that keep so many."""
    owner = Programs(dev)
    owner._built.most = most
    return owner


def test_programs_are_kept_up_to_a_number_or_while_they_are_used(dev, cache):
    owner, source = few(dev, 3), unique()
    held = owner.kernel(source, "add", ("-DOFFSET=0",))
    copy = owner.kernel(source, "add", ("-DOFFSET=1",)).clone()
    for offset in range(2, 12):
        owner.kernel(source, "add", (f"-DOFFSET={offset}",))
    assert owner.alive() == 5 and made(owner) == 12
    assert owner.kernel(source, "add", ("-DOFFSET=0",)) is held
    assert owner.kernel(source, "add", ("-DOFFSET=1",)).built is copy.built
    assert made(owner) == 12
    del held, copy
    for offset in range(9, 12):
        owner.kernel(source, "add", (f"-DOFFSET={offset}",))
    assert owner.alive() == 3
    owner.let_go()
    assert owner.alive() == 0


def test_what_is_built_together_is_not_built_again_for_its_kernels(dev, cache):
    owner, source = few(dev, 2), unique()
    wanted = [(source, (f"-DOFFSET={offset}",)) for offset in range(6)]
    built = owner.build(wanted)
    kernels = [owner.kernel(source, "add", options) for _, options in wanted]
    assert made(owner) == 6 and {kernel.built for kernel in kernels} == set(built)
    del built
    assert owner.alive() == 6
    owner.build(wanted)
    assert made(owner) == 6
    kernels.clear()
    assert owner.alive() == 2


def test_programs_freed_while_their_kernels_run(dev, cache):
    owner, source = few(dev, 1), unique()
    buffer = dev.buffers.allocate(4 * 2**16)
    dev.queue.write(buffer, np.zeros(2**16, np.int32))
    for offset in range(40):
        kernel = owner.kernel(source, "add", (f"-DOFFSET={offset % 8}",))
        dev.queue.launch(kernel, (2**16,), None, (buffer, np.int32(1)))
        del kernel
        owner.let_go()
    got = dev.queue.read(buffer, np.zeros(2**16, np.int32))
    np.testing.assert_array_equal(got, 40 + sum(offset % 8 for offset in range(40)))


def test_binaries_are_reloaded(dev, cache):
    source = unique()
    assert run(dev, source, 3).built_from_source == 1
    if "no_binaries" in dev.info.quirks:
        assert not files(cache)
        return
    assert len(files(cache)) == 1
    again = run(dev, source, 3)
    assert (again.built_from_source, again.loaded_from_disk) == (0, 1)
    assert run(dev, source, 4).built_from_source == 1


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "wrong content"])
def test_a_damaged_file_is_rebuilt(dev, cache, damage):
    if "no_binaries" in dev.info.quirks:
        pytest.skip("this device keeps no binaries")
    source = unique()
    run(dev, source)
    (path,) = files(cache)
    data = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        # Well formed for us, nonsense for the driver.
        owner = Programs(dev)
        owner._disk.put(path.parent.name + path.stem, b"no program" * 20)
    rebuilt = run(dev, source)
    assert rebuilt.built_from_source == 1
    assert path.read_bytes() == data or len(path.read_bytes()) > 100
    assert run(dev, source).loaded_from_disk == 1


def test_a_binary_without_the_kernel_is_rebuilt(dev, cache):
    """Sound for us and for the driver, but of another program."""
    if "no_binaries" in dev.info.quirks:
        pytest.skip("this device keeps no binaries")
    source, other = unique(), unique("__kernel void other(__global int* a) { a[0] = 1; }")
    owner = Programs(dev)
    owner.kernel(other, "other")
    binary = owner._disk.get(owner._key(other, ()))
    owner._disk.put(owner._key(source, ("-DOFFSET=3",)), binary)
    assert run(dev, source, 3).built_from_source == 1
    assert run(dev, source, 3).loaded_from_disk == 1


def test_no_cache(dev, tmp_path, monkeypatch):
    monkeypatch.setenv("KERASCL_CACHE_DIR", "")
    monkeypatch.chdir(tmp_path)
    run(dev, unique())
    assert not list(tmp_path.rglob("*"))


def test_an_unwritable_cache_is_no_error(dev, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(file / "below"))
    assert run(dev, unique()).built_from_source == 1


CHILD = """
import sys, numpy as np
from kerascl.runtime import device
dev = device.default()
for n in range(6):
    kernel = dev.programs.kernel(sys.argv[1] + f"// {n}", "add", (f"-DOFFSET={n}",))
    buffer = dev.buffers.allocate(40)
    dev.queue.write(buffer, np.arange(10, dtype=np.int32))
    dev.queue.launch(kernel, (10,), None, (buffer, np.int32(5)))
    got = dev.queue.read(buffer, np.zeros(10, np.int32))
    assert (got == np.arange(10) + 5 + n).all()
print("ok", dev.programs.built_from_source, dev.programs.loaded_from_disk)
"""


def test_many_processes_share_the_cache(dev, cache):
    command = [sys.executable, "-c", CHILD, unique()]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for child in children:
        out, err = child.communicate(timeout=300)
        assert child.returncode == 0 and out.startswith("ok"), err
    assert not list(cache.rglob("*.tmp"))
    if "no_binaries" not in dev.info.quirks:
        assert len(files(cache)) == 6
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert out.split() == ["ok", "0", "6"]


def test_the_error_shows_the_line_and_the_log(dev):
    with pytest.raises(CompileError) as error:
        dev.programs.kernel(BROKEN, "broken", ("-DX=1",))
    text = str(error.value)
    assert ">    5 |     a[0] = undeclared_name + 1;" in text
    assert "     4 | __kernel void broken" in text
    assert "undeclared_name" in error.value.log
    assert "-DX=1" in text and dev.info.name in text
    assert error.value.source == BROKEN


def test_a_failed_build_does_not_stop_the_next(dev):
    for _ in range(2):
        with pytest.raises(CompileError):
            dev.programs.kernel(BROKEN, "fine")
    run(dev, unique())


def test_a_missing_kernel_names_those_there(dev):
    with pytest.raises(CompileError, match=r"no kernel 'sub'.*add"):
        dev.programs.kernel(unique(), "sub", ("-DOFFSET=0",))


def test_building_several(dev, monkeypatch):
    monkeypatch.setenv("KERASCL_BUILD_THREADS", "3")
    owner = Programs(dev)
    wanted = [(unique(), (f"-DOFFSET={n}",)) for n in range(5)]
    owner.build([*wanted, wanted[0]])
    made = owner.built_from_source
    assert made == 5
    for source, options in wanted:
        owner.kernel(source, "add", options)
    assert owner.built_from_source == made
    with pytest.raises(CompileError, match="undeclared_name"):
        owner.build([(BROKEN, ()), (unique(), ("-DOFFSET=7",))])
    assert owner.built_from_source == made + 1


@pytest.mark.parametrize("alone", [True, False])
def test_compilers_that_must_be_alone(dev, monkeypatch, alone):
    quirks = dev.info.quirks - {"compiles_in_turn"} | ({"compiles_in_turn"} if alone else set())
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, quirks=frozenset(quirks)))
    monkeypatch.setenv("KERASCL_BUILD_THREADS", "4")
    here, met = set(), []

    def build(self, options):
        here.add(id(self))
        time.sleep(0.05)
        met.append(len(here))
        here.discard(id(self))

    monkeypatch.setattr(programs.Program, "build", build)
    made = programs.Programs(dev)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: made._compiled(f"__kernel void k{k}() {{}}", ()), range(4)))
    assert (max(met) == 1) == alone


@pytest.fixture
def in_turn(dev, cache, monkeypatch):
    """The device, as if its driver compiled one program at a time in a process."""
    if "no_binaries" in dev.info.quirks:
        pytest.skip("a simulator, whose binaries are not kept")
    quirks = (dev.info.quirks | {"serial_compilation"}) - {"fatal_compiler"}
    taken = dataclasses.replace(dev.info, quirks=quirks)
    monkeypatch.setattr(dev, "info", taken)
    monkeypatch.setenv("KERASCL_BUILD_THREADS", "3")
    return dev


def different(count):
    return [(SOURCE, (f"-DOFFSET={k}",)) for k in range(count)]


@pytest.mark.parametrize("ahead", [False, True])
def test_other_processes_build_what_is_not_on_disk(in_turn, begun, ahead):
    store = Programs(in_turn)
    wanted = different(out_of_process.FEWEST)
    with store.compiler_processes(9 * ahead) as build:
        assert len(begun) == 3 * ahead
        with pytest.raises(CompileError, match="undeclared_name"):
            build([*wanted, (BROKEN, ())])
    assert len(begun) == 3 and all(process.poll() is not None for process in begun)
    assert (store.built_from_source, store.loaded_from_disk) == (0, len(wanted))
    buffer = in_turn.buffers.allocate(4)
    in_turn.queue.write(buffer, np.zeros(1, np.int32))
    kernel = store.kernel(SOURCE, "add", ("-DOFFSET=5",))
    in_turn.queue.launch(kernel, (1,), (1,), (buffer, np.int32(5)))
    assert in_turn.queue.read(buffer, np.empty(1, np.int32))[0] == 10


@pytest.mark.parametrize("ahead", [False, True])
def test_this_process_builds_while_others_do(in_turn, begun, ahead):
    store = Programs(in_turn)
    *wanted, one, other = different(out_of_process.FEWEST + 2)
    seen = []

    def meanwhile():
        seen.append([process.poll() for process in begun])
        store.build([one, other])

    with store.compiler_processes(9 * ahead) as build:
        build(wanted, meanwhile=meanwhile)
    assert seen == [[None] * 3] and len(begun) == 3  # the two were built here
    assert (store.built_from_source, store.loaded_from_disk) == (2, len(wanted))
    build(wanted, meanwhile=lambda: pytest.fail("nothing is left to build"))


def test_processes_that_die_leave_their_work(in_turn, begun, monkeypatch):
    monkeypatch.setattr(out_of_process.sys, "executable", "false")
    store = Programs(in_turn)
    store.build(different(out_of_process.FEWEST))
    assert len(begun) == 3 and store.built_from_source == out_of_process.FEWEST


def test_processes_go_on_while_a_program_loads(in_turn):
    store = Programs(in_turn)
    wanted = different(3)
    paths = [store._disk.path(store._key(source, options)) for source, options in wanted]
    seen = []

    def ended(program, seconds):
        end = time.monotonic() + 20
        while not all(path.exists() for path in paths) and time.monotonic() < end:
            time.sleep(0.01)
        seen.append((program, [path.exists() for path in paths]))

    processes = out_of_process.CompilerProcesses(in_turn.index, 1, ["kerascl.runtime.addresses"])
    try:
        processes.build(wanted, ended)
        with pytest.raises(ZeroDivisionError):
            processes.build(wanted, lambda *_: 1 / 0)
    finally:
        processes.close()
    assert sorted(program for program, _ in seen) == wanted
    assert all(all(there) for _, there in seen)


@pytest.mark.parametrize("problems, count", [(1, 2), (31, 2), (32, 3), (99, 3)])
def test_few_processes_serve_few_problems(in_turn, begun, monkeypatch, problems, count):
    """Their contexts are made one after the other."""
    monkeypatch.setattr(out_of_process, "FEW", 2)
    with Programs(in_turn).compiler_processes(problems):
        assert len(begun) == count


def test_long_programs_are_begun_first_then_what_somebody_waits_for(in_turn, monkeypatch):
    order = []
    monkeypatch.setattr(
        out_of_process.CompilerProcesses, "_feed",
        lambda self, process, work, tell: order.extend(len(text) for text, _ in work),
    )  # fmt: skip
    processes = out_of_process.CompilerProcesses(in_turn.index, 1, ["kerascl.runtime.addresses"])
    try:
        lengths = 7, 30, out_of_process.LONG, 5, 20, out_of_process.LONG + 9
        waited = {("x" * n, ()) for n in (5, 7)}
        processes.build([("x" * n, ()) for n in lengths], lambda *_: None, waited)
    finally:
        processes.close()
    assert order == [out_of_process.LONG + 9, out_of_process.LONG, 7, 5, 30, 20]


@pytest.mark.parametrize("graph", [None, "graph"])
def test_processes_end_when_nothing_will_follow(in_turn, begun, graph):
    with Programs(in_turn).compiler_processes(graph=graph) as build:
        build(different(out_of_process.FEWEST))
        if graph is None:
            assert all(process.poll() is None for process in begun)
            build(different(2 * out_of_process.FEWEST))
            assert all(process.poll() is None for process in begun)
        else:
            assert all(process.wait(60) is not None for process in begun)
    assert len(begun) == 3 and all(process.poll() is not None for process in begun)


def test_processes_know_rewrites_and_import_little(in_turn, begun):
    with Programs(in_turn).compiler_processes():
        text = begun[0].args[-1]
    assert "compiler_process.main(" in text
    text = text.replace("compiler_process.main", "print") + PROBE
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    known, rooms, keras = ast.literal_eval(told.stdout.splitlines()[-1])
    assert known == sorted(programs.REWRITES) and len(known) > 1
    assert rooms == ["config", "dtypes", "kernels", "runtime"] and not keras


# Run in such a process instead of its work.
PROBE = """
from kerascl.runtime.programs import REWRITES
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("kerascl.")}
print((sorted(REWRITES), sorted(rooms), "keras" in sys.modules))
"""


def test_processes_begun_ahead_end_with_a_failure(in_turn, begun):
    store = Programs(in_turn)
    with pytest.raises(ZeroDivisionError), store.compiler_processes():
        raise ZeroDivisionError
    assert len(begun) == 3 and all(process.poll() is not None for process in begun)
    store.build(different(out_of_process.FEWEST - 1))
    assert len(begun) == 3


def test_processes_are_begun_ahead_for_graphs_not_met_before(in_turn, begun, cache):
    def meet(graph, wanted):
        """How many processes a new store begins for a graph before it knows the programs."""
        before = len(begun)
        with Programs(in_turn).compiler_processes(graph=graph) as build:
            count = len(begun) - before
            build(wanted)
        return count

    wanted = different(3)
    assert meet("graph", wanted) == 3
    assert meet("graph", wanted) == 0
    assert meet("other", wanted[:2]) == 3  # though all is on disk
    # An object's address is another in each process.
    first, second = object(), object()
    assert meet((first, 1), wanted) == 3 and meet((second, 1), wanted) == 0
    # The code that turns it into programs has changed, which is noted.
    assert meet("graph", different(4)) == 0
    assert meet("graph", different(4)) == 0
    store = Programs(in_turn)
    store._disk.remove(store._key(*different(4)[3]))
    assert meet("graph", different(4)) == 3
    assert meet("graph", different(4)) == 0


def test_a_failed_build_leaves_no_manifest(in_turn, begun):
    for _ in range(2):
        with (
            pytest.raises(CompileError),
            Programs(in_turn).compiler_processes(graph="broken") as build,
        ):
            build([(BROKEN, ())])
    assert len(begun) == 6


@pytest.mark.parametrize("folder", ["", "file"])
def test_no_processes_where_nothing_can_be_left_on_disk(in_turn, begun, cache, monkeypatch, folder):
    (cache / "file").write_text("")
    monkeypatch.setenv("KERASCL_CACHE_DIR", folder and str(cache / folder))
    store = Programs(in_turn)
    with store.compiler_processes(graph="graph") as build:
        build(different(out_of_process.FEWEST))
    assert not begun and store.built_from_source == out_of_process.FEWEST


def test_few_programs_are_built_here(in_turn, begun):
    few = different(out_of_process.FEWEST)
    Programs(in_turn).build(few[1:])
    store = Programs(in_turn)
    store.build(few)  # all but one are on disk
    with store.compiler_processes(0, graph="few"):
        pass
    assert not begun


def test_threads_that_want_one_program_build_it_once(dev):
    owner = Programs(dev)
    source = unique()
    found = []

    def want():
        found.append(owner.kernel(source, "add", ("-DOFFSET=0",)))

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len({id(kernel) for kernel in found}) == 1
    assert owner.built_from_source == 1


def test_a_rewrite_gets_the_binary_and_its_result_is_built(dev, cache, monkeypatch):
    if "no_binaries" in dev.info.quirks:
        pytest.skip("this device keeps no binaries")
    seen = []

    def same(binary):
        seen.append(binary)
        return binary

    monkeypatch.setitem(programs.REWRITES, "same", same)
    source = unique()
    owner = Programs(dev)
    owner.kernel(source, "add", ("-DOFFSET=0", "--rewrite=same"))
    assert len(seen) == 1 and len(seen[0]) > 50
    monkeypatch.setitem(programs.REWRITES, "nonsense", lambda binary: b"nonsense")
    with pytest.raises(CompileError, match="nonsense"):
        owner.kernel(source, "add", ("-DOFFSET=0", "--rewrite=nonsense"))


def test_building_is_silent(dev, capfd, recwarn):
    source = unique("#warning something to see\n" + SOURCE)
    dev.programs.kernel(source, "add", ("-DOFFSET=0",))
    out = capfd.readouterr()
    assert out.out == "" and "kerascl" not in out.err
    assert not recwarn.list


def test_debug_shows_programs(dev, capfd, monkeypatch):
    monkeypatch.setenv("KERASCL_DEBUG", "2")
    dev.programs.kernel(unique(), "add", ("-DOFFSET=0",))
    err = capfd.readouterr().err
    assert "building add" in err and "    3 | __kernel void add" in err


def test_the_sweep_keeps_what_was_used_last(tmp_path, monkeypatch):
    monkeypatch.setattr(diskcache.DiskCache, "LIMIT", 2500)
    cache = diskcache.DiskCache(tmp_path, "salt")
    keys = [cache.key(str(n)) for n in range(4)]
    for n, key in enumerate(keys):
        cache.put(key, bytes([n]) * 1000)
        path = cache.path(key)
        old = time.time() - 7200 + n

        os.utime(path, (old, old))
    assert cache.get(keys[0]) == b"\0" * 1000
    cache.sweep()
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True]


def test_keys_tell_texts_devices_and_borders_apart(tmp_path):
    one, two = diskcache.DiskCache(tmp_path, "a"), diskcache.DiskCache(tmp_path, "b")
    keys = {
        one.key("x", "y"),
        one.key("xy", ""),
        one.key("x"),
        two.key("x", "y"),
        one.key("y", "x"),
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("1:12:5: error: use of undeclared identifier", 12),
        ("<kernel>:7:1: error: expected ';'", 7),
        ("/tmp/a/tempfile.cl:9:3: error: unknown type", 9),
        ('"/tmp/x.cl", line 4: error: bad', 4),
        ("<kernel>(8): error: bad", 8),
        ("error: /a/tempfile_x.cl:4:7: use of undeclared identifier", 4),
        ("ptxas error : no line", None),
        ("3:1: warning: unused\n5:1: error: bad", 5),
    ],
)
def test_places_in_build_logs(log, line):
    assert programs.error_lines(log, 20) == ([] if line is None else [line])


def test_kernel_names():
    source = """
    __attribute__((x)) __kernel void a(int b) {}
    kernel __attribute__((reqd_work_group_size(8, 1, 1))) void c(void) {}
    void not_a_kernel(void) {}
    __kernel ONE_THREAD void d(int e) {}
    """
    assert programs.kernel_names(source) == ["a", "c", "d"]


def test_a_light_program_takes_the_place_of_a_heavy_one(dev, monkeypatch):
    """Where sources weigh, the program kept is the one made from the binary, and it works."""
    if "no_binaries" in dev.info.quirks:
        pytest.skip("its binaries are not reloaded")
    monkeypatch.setenv("KERASCL_CACHE_DIR", "")
    quirks = dev.info.quirks | {"retains_compiler_memory"}
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, quirks=quirks))
    made = []
    original = Programs._from_binary
    monkeypatch.setattr(Programs, "_from_binary", lambda *a: made.append(original(*a)) or made[-1])
    run(dev, unique())
    assert len(made) == 1
