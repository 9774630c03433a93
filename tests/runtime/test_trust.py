"""Whose files the cache believes: what another user may have written is never used."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from kerascl import config
from kerascl.runtime import icd, trust
from kerascl.runtime.diskcache import DiskCache
from kerascl.runtime.programs import Programs

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows keeps access lists, not modes")
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to others"
)
STRANGER = 65534


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder of one's own, and another place for the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(0o755)
    return tmp_path / "cache"


def refused(folder) -> str:
    """The one warning about a folder that is used for the first time; "" if there is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            trust.cache_root()
    assert len(caught) <= 1
    return str(caught[0].message) if caught else ""


def test_a_folder_of_one_s_own_is_used_in_silence(folder):
    assert refused(folder) == "" and trust.cache_root() == folder


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_folder_that_others_can_write_is_replaced_by_the_user_s_own(folder, mode):
    folder.chmod(mode)
    text = refused(folder)
    assert str(folder) in text and "written by others" in text and "chmod go-w" in text
    own = trust.cache_root()
    assert own == folder.parent / "own" / "kerascl" and str(own) in text
    assert config.cache_dir() == str(own)  # so that children do not ask again


@pytest.mark.parametrize(("mode", "fine"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_a_folder_above_that_others_can_write(folder, mode, fine):
    folder.parent.chmod(mode)
    text = refused(folder)
    folder.parent.chmod(0o700)
    assert (text == "") == fine


def test_nothing_is_made_below_a_folder_that_others_can_write(folder, monkeypatch):
    folder.chmod(0o777)
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(folder / "a" / "b"))
    assert refused(folder) and not list(folder.iterdir())


def test_when_all_are_writable_a_folder_ends_with_the_process(folder, monkeypatch):
    folder.chmod(0o777)
    (folder.parent / "own").mkdir()
    (folder.parent / "own").chmod(0o777)
    assert refused(folder)
    made = trust.cache_root()
    assert folder.parent not in made.parents and made.stat().st_mode & 0o777 == 0o700


@as_root
@pytest.mark.parametrize("which", ["cache", "programs"])
def test_another_user_s_folder_is_refused(folder, which):
    place = folder if which == "cache" else folder / which
    place.mkdir(exist_ok=True)
    os.chown(place, STRANGER, STRANGER)
    with pytest.warns(RuntimeWarning, match="another user") as caught:
        cache = DiskCache.open("programs", "salt")
        DiskCache.open("programs", "salt")
    assert len(caught) == 1
    assert (cache is None) == (which == "programs")


def test_a_link_leads_to_the_folder_that_counts(folder, monkeypatch):
    link = folder.parent / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(link))
    assert trust.cache_root() == folder
    folder.chmod(0o777)
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(link) + "/")
    assert "written by others" in refused(folder)


def test_the_user_s_own_group_may_write(folder, monkeypatch):
    folder.chmod(0o775)
    monkeypatch.setattr(trust, "_alone", lambda group: group == folder.stat().st_gid)
    assert refused(folder) == "" and trust.cache_root() == folder


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0, 0o644)])
def test_files_follow_the_umask_but_nobody_else_writes_them(folder, umask, mode):
    before = os.umask(umask)
    try:
        cache = DiskCache.open("programs", "salt")
        cache.put(key := cache.key("x"), b"payload")
    finally:
        os.umask(before)
    assert cache.path(key).stat().st_mode & 0o777 == mode
    assert all(not place.stat().st_mode & 0o022 for place in folder.rglob("*"))
    assert cache.get(key) == b"payload"


@as_root
def test_a_shared_folder_of_root_s_is_read_by_everyone(folder):
    """Root fills it; another user reads from it, and cannot write."""
    cache = DiskCache.open("programs", "salt")
    cache.put(key := cache.key("x"), b"payload")
    folder.parent.chmod(0o755)
    top = folder.parent.parent
    opened = [place for place in (top, *top.parents) if not place.stat().st_mode & 0o001]
    for place in opened:
        place.chmod(place.stat().st_mode | 0o011)
    text = (
        "import os, sys\n"
        f"os.setgid({STRANGER}); os.setuid({STRANGER})\n"
        "from kerascl.runtime import trust\n"
        "from pathlib import Path\n"
        "assert str(trust.cache_root()) == sys.argv[2], trust.cache_root()\n"
        "print(trust.read(Path(sys.argv[1]))[-7:].decode())\n"
    )
    # trust.py alone: nobody may read this user's other folders.
    ready = "import sys, kerascl.runtime.trust\n" + text
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", ready, str(cache.path(key)), str(folder)],
            capture_output=True, text=True,
        )  # fmt: skip
    finally:
        for place in opened:
            place.chmod(place.stat().st_mode & ~0o011)
    assert done.stdout.strip() == "payload", done.stderr


PLANTED = """
__kernel void answer(__global int* a) { a[0] = VALUE; }
"""


def answer(dev) -> int:
    programs = Programs(dev)
    buffer = dev.buffers.allocate(4)
    kernel = programs.kernel(PLANTED, "answer", ("-DVALUE=42",))
    dev.queue.launch(kernel, (1,), None, (buffer,))
    return int(dev.queue.read(buffer, np.zeros(1, np.int32))[0])


def plant(dev, folder, owner=None, mode=0o644):
    """A sound file of the program's key with another program in it."""
    programs = Programs(dev)
    assert answer(dev) == 42
    wrong = Programs(dev)
    wrong.kernel(PLANTED, "answer", ("-DVALUE=666",))
    payload = wrong._disk.get(wrong._key(PLANTED, ("-DVALUE=666",)))
    key = programs._key(PLANTED, ("-DVALUE=42",))
    programs._disk.put(key, payload)
    path = programs._disk.path(key)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def test_a_planted_program_is_believed_only_if_it_is_one_s_own(dev, folder):
    """The plant works where it is this user's doing: the tests below show that it is refused."""
    plant(dev, folder)
    assert answer(dev) == 666


@as_root
def test_another_user_s_program_is_not_used(dev, folder):
    path = plant(dev, folder, owner=STRANGER)
    assert answer(dev) == 42
    assert path.stat().st_uid == 0  # built anew and kept


def test_a_program_that_others_can_write_is_not_used(dev, folder):
    path = plant(dev, folder, mode=0o666)
    assert answer(dev) == 42
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_program_in_a_folder_that_others_can_write_is_not_used(dev, folder):
    plant(dev, folder).parent.chmod(0o777)
    assert answer(dev) == 42


def test_a_program_in_a_cache_that_others_can_write_is_not_used(dev, folder, monkeypatch):
    plant(dev, folder)
    folder.chmod(0o777)
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(folder) + "/.")  # met for the first time
    with pytest.warns(RuntimeWarning, match="refused"):
        assert answer(dev) == 42


@pytest.mark.parametrize("open_to_all", ["the cache", "the drivers' folder", "only the file"])
def test_a_planted_driver_is_not_loaded(folder, monkeypatch, open_to_all):
    """Whatever an .icd file names is loaded by the next process that imports kerascl."""
    library = folder.parent / "libgood.so.1"
    library.write_text("")
    drivers = [icd.Driver("test", str(library))]
    made = icd._write_folder(drivers)
    assert folder in made.parents
    evil = made / "evil.icd"
    evil.write_text("/tmp/evil.so\n")
    if open_to_all == "the cache":
        folder.chmod(0o777)
        monkeypatch.setenv("KERASCL_CACHE_DIR", str(folder) + "/.")
    elif open_to_all == "the drivers' folder":
        made.chmod(0o777)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        found = icd.read_folder(icd._write_folder(drivers))
    assert [driver.library for driver in found] == [str(library)]


@as_root
def test_a_planted_driver_does_not_run_at_import(folder):
    """The whole attack: another user's folder of .icd files in a cache that all can write."""
    first = subprocess.run(
        [sys.executable, "-c", "import os, kerascl; print(os.environ.get('OCL_ICD_VENDORS', ''))"],
        capture_output=True, text=True, env=os.environ | {"OCL_ICD_VENDORS": ""},
    )  # fmt: skip
    used = icd.Path(first.stdout.strip())
    if folder not in used.parents:
        pytest.skip("no folder of .icd files is needed here")
    (used / "evil.icd").write_text(f"{folder}/evil.so\n")
    for place in (used, used / "evil.icd"):
        os.chown(place, STRANGER, STRANGER)
    folder.chmod(0o777)
    program = (
        "import os, kerascl\n"
        "folder = os.environ['OCL_ICD_VENDORS']\n"
        "print([open(f'{folder}/{n}').read() for n in os.listdir(folder) if n.endswith('.icd')])\n"
    )
    second = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env=os.environ | {"OCL_ICD_VENDORS": ""},
    )  # fmt: skip
    assert second.returncode == 0 and second.stdout and "evil" not in second.stdout
    assert second.stderr.count("is refused") == 1
