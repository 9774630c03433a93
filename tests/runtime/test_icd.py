"""Making pip-installed drivers findable: folders, user settings, bad files, many processes."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from kerascl.runtime import icd

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the loader has no folders on Windows")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A system with one good and three bad .icd files, and a pip-installed driver."""
    system = tmp_path / "vendors"
    system.mkdir()
    good = tmp_path / "libgood.so.1"
    good.write_text("")
    (system / "good.icd").write_text(f"{good}\n")
    (system / "byname.icd").write_text("libbyname.so.1\n")
    (system / "gone.icd").write_text(f"{tmp_path}/libgone.so\n")
    (system / "empty.icd").write_text("\n")
    library = tmp_path / "lib" / "libintelocl.so"
    library.parent.mkdir()
    library.write_text("")
    monkeypatch.setattr(icd, "intel_cpu_library", lambda: library)
    monkeypatch.setattr(icd, "_SYSTEM_FOLDER", str(system))
    monkeypatch.setattr(icd, "_setup", None)
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(icd.VENDORS, "")
    monkeypatch.delenv("OPENCL_VENDOR_PATH", raising=False)
    monkeypatch.delenv(icd.FILENAMES, raising=False)
    monkeypatch.setattr(icd, "_NVIDIA", ())
    return tmp_path


def lines(folder):
    return sorted(path.read_text().strip() for path in folder.glob("*.icd"))


def test_the_folder_has_the_system_s_drivers_and_the_pip_one(place):
    setup = icd.prepare()
    folder = icd.Path(os.environ[icd.VENDORS])
    assert place in folder.parents
    wanted = [f"{place}/libgood.so.1", "libbyname.so.1", f"{place}/lib/libintelocl.so"]
    assert lines(folder) == sorted(wanted)
    problems = {icd.Path(d.origin).name: d.problem for d in setup.drivers if d.problem}
    assert set(problems) == {"gone.icd", "empty.icd"}
    assert "does not exist" in problems["gone.icd"]
    assert icd.prepare() is setup


def test_one_file_of_a_folder_names_its_driver(place, monkeypatch):
    monkeypatch.setenv(icd.VENDORS, f"{place}/vendors/good.icd")
    (driver,) = icd.prepare().drivers
    assert driver.library == f"{place}/libgood.so.1" and not driver.problem


def test_a_child_process_sees_the_same_folder(place, monkeypatch):
    icd.prepare()
    first = os.environ[icd.VENDORS]
    monkeypatch.setattr(icd, "_setup", None)
    icd.prepare()
    assert os.environ[icd.VENDORS] == first


def test_the_user_s_setting_is_kept(place, monkeypatch):
    own = place / "own"
    own.mkdir()
    (own / "x.icd").write_text("libx.so\n")
    monkeypatch.setenv(icd.VENDORS, str(own))
    setup = icd.prepare()
    assert os.environ[icd.VENDORS] == str(own)
    assert [d.library for d in setup.drivers] == ["libx.so"]
    assert "not offered" in setup.remarks[0]


def test_without_a_pip_driver_nothing_is_set(place, monkeypatch):
    monkeypatch.setattr(icd, "intel_cpu_library", lambda: None)
    setup = icd.prepare()
    assert os.environ[icd.VENDORS] == ""
    assert len(setup.drivers) == 4


def test_libraries_that_no_icd_file_names(place, monkeypatch):
    monkeypatch.setattr(icd, "intel_cpu_library", lambda: None)
    monkeypatch.setattr(icd, "load_problem", lambda library: "" if library == "libnv.so" else "no")
    monkeypatch.setattr(icd, "_NVIDIA", ("libother.so", "libnv.so"))
    monkeypatch.setenv(icd.FILENAMES, "/usr/lib/libbyname.so:libextra.so")
    icd.prepare()
    folder = icd.Path(os.environ[icd.VENDORS])
    wanted = [f"{place}/libgood.so.1", "libbyname.so.1", "libextra.so", "libnv.so"]
    assert lines(folder) == sorted(wanted)


def test_a_system_copy_of_the_driver_is_preferred(place):
    other = place / "libintelocl.so.7"
    other.write_text("")
    (place / "vendors" / "intel.icd").write_text(f"{other}\n")
    setup = icd.prepare()
    assert os.environ[icd.VENDORS] == ""
    assert "system driver" in setup.remarks[0]


@pytest.mark.parametrize("cache", ["", "file/below"])
def test_without_a_cache_folder_a_temporary_one_serves(place, monkeypatch, cache):
    (place / "file").write_text("")
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(place / cache) if cache else "")
    icd.prepare()
    folder = icd.Path(os.environ[icd.VENDORS])
    assert place not in folder.parents and len(lines(folder)) == 3


def test_many_at_once_never_see_half_a_file(place):
    drivers = icd.read_folder(place / "vendors")

    def write(_):
        folder = icd._write_folder(drivers)
        return lines(folder)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(write, range(40)))
    assert all(result == results[0] for result in results)
    assert not list(place.rglob("*.tmp"))


def test_the_linker_s_words_are_passed_on(tmp_path):
    broken = tmp_path / "libbroken.so"
    broken.write_text("no library")
    assert "libbroken.so" in icd.load_problem(str(broken))


def test_the_pip_installed_driver_is_found():
    try:
        icd.importlib.metadata.distribution("intel-opencl-rt")
    except icd.importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")
    assert icd.intel_cpu_library().name.startswith("libintelocl")


def test_drivers_with_a_shared_llvm_are_loaded_apart(monkeypatch):
    """TensorFlow's LLVM, in the process' global scope, must not serve PoCL."""
    loaded = []
    monkeypatch.setattr(icd.ctypes, "CDLL", lambda name, mode: loaded.append((name, mode)))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    drivers = (
        icd.Driver("a", "/usr/lib/libpocl.so.2.10.0"),
        icd.Driver("b", "libnvidia-opencl.so.1"),
        icd.Driver("c", "libRusticlOpenCL.so.1", "broken"),
    )
    assert icd.load_apart(drivers) == ["/usr/lib/libpocl.so.2.10.0"]
    assert [name for name, mode in loaded if mode & os.RTLD_DEEPBIND] == [drivers[0].library]
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so")
    assert icd.load_apart(drivers) == []
