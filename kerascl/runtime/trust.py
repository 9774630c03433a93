"""The cache folder, and which files in it may be believed: those that nobody else can write.

A program's binary, an `.icd` file or a self-test's result that another user made would run that
user's code as ours.  So the folder, all above it and each file in it belong to this user or to
root, and nobody else may write there.  Windows keeps a user's folders by access lists, which are
not looked at.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

import platformdirs

from kerascl import config

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_POSIX = hasattr(os, "geteuid")
# Neither links nor pipes that another user left are waited for or followed.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY


def cache_root() -> Path | None:
    """The folder for everything that kerascl keeps on disk, made if need be; None: there is none.

    One that others can write is refused with a warning, and replaced by the user's own cache folder
    or, if that is no better, by one that ends with the process.
    """
    asked = config.cache_dir()
    if asked == "":
        return None
    return _root(asked or _own())


def _own() -> str:
    return platformdirs.user_cache_dir("kerascl", appauthor=False)


@functools.cache
def _root(asked: str) -> Path | None:
    problem, folder = _prepare(asked)
    if not problem:
        return folder
    instead = _private(asked)
    _refuse(asked, problem, f"{instead} is used instead" if instead else "nothing is kept")
    if instead is not None:
        config.set_cache_dir(str(instead))  # for this process' children too
    return instead


def subfolder(name: str) -> Path | None:
    """A folder below `cache_root`, None if there is no cache or others can write there."""
    root = cache_root()
    return None if root is None else _below(root / name)


@functools.cache
def _below(folder: Path) -> Path | None:
    with contextlib.suppress(OSError):
        make(folder)
    problem = danger(folder) if os.path.lexists(folder) else ""
    if problem:
        _refuse(folder, problem, "nothing is kept there")
        return None
    return folder


def _refuse(folder: str | Path, problem: str, instead: str) -> None:
    warnings.warn(
        f"the cache folder {folder} is refused: {problem}; {instead}. Make it yours alone (chown, "
        "chmod go-w), or name another folder in KERASCL_CACHE_DIR",
        RuntimeWarning,
        stacklevel=4,
    )


def _prepare(asked: str) -> tuple[str, Path | None]:
    """Why a folder is refused, or "" and the folder without links; None: it cannot be made."""
    # Links are resolved once, and only what they led to is looked at and used.
    folder = Path(os.path.realpath(asked))
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    problem = danger(there, above=there != folder)  # before anything is made below it
    if problem:
        return problem, None
    try:
        make(folder)
    except OSError:
        return "", None
    return danger(folder), folder


def _private(refused: str) -> Path | None:
    own = _own()
    if os.path.realpath(own) != os.path.realpath(refused):
        problem, folder = _prepare(own)
        if not problem and folder is not None:
            return folder
    try:
        folder = Path(tempfile.mkdtemp(prefix="kerascl-"))
    except OSError:
        return None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def danger(folder: Path, above: bool = False) -> str:
    """Why files of a folder (absolute, without links) may be another user's, or "".

    Args:
        above: it is only a folder above the one whose files count.
    """
    if not _POSIX:
        return ""
    for place in (folder, *folder.parents):
        try:
            status = os.lstat(place)
        except OSError as error:
            return f"{place} cannot be looked at ({error.strerror})"
        problem = _problem(status, above)
        if problem:
            return f"{place} {problem}"
        above = True
    return ""


def sound(folder: Path) -> bool:
    """Whether a folder below one without danger has none either."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and not _problem(status)


def make(folder: Path) -> None:
    """Make a folder and all above it, never for others to write, whatever the umask.

    Raises:
        OSError: it cannot be made.
    """
    for place in (*reversed(folder.parents), folder):
        if not place.is_dir():
            with contextlib.suppress(FileExistsError):  # another process may have made it now
                place.mkdir(0o755)


def read(file: Path) -> bytes | None:
    """A file's content, None if it cannot be read or may be another user's."""
    try:
        handle = os.open(file, _READ | _BINARY)
    except OSError:
        return None
    try:
        status = os.fstat(handle)  # of what was opened, whatever has its name by now
        if not stat.S_ISREG(status.st_mode) or _problem(status):
            return None
        with open(handle, "rb", closefd=False) as stream:
            return stream.read()
    except OSError:
        return None
    finally:
        os.close(handle)


def write(file: Path, data: bytes) -> None:
    """Replace a file in one go, readable for whom the umask lets read.

    Raises:
        OSError: it cannot be written.
    """
    temporary = file.with_name(f"{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, _NEW, 0o644), "wb") as stream:
            stream.write(data)
        os.replace(temporary, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _problem(status: os.stat_result, above: bool = False) -> str:
    """Why somebody else may have written what has this status, or moved what lies below, or ""."""
    if not _POSIX:
        return ""
    owners = (0, os.geteuid(), _hidden_root()) if above else (0, os.geteuid())
    if status.st_uid not in owners:
        return f"belongs to another user ({status.st_uid})"
    if not status.st_mode & _OTHERS:
        return ""
    if above and status.st_mode & stat.S_ISVTX:  # where others cannot move what is ours
        return ""
    if not status.st_mode & stat.S_IWOTH and _alone(status.st_gid):
        return ""
    return "can be written by others"


@functools.cache
def _alone(group: int) -> bool:
    """Whether a group is this user's own: many systems give each user one of the same name."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}


@functools.cache
def _hidden_root() -> int | None:
    """The number that root's files have in a user namespace without root, else None."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        if any(int(line.split()[0]) == 0 for line in lines):
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError, IndexError):
        return None
