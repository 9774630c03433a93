"""Damaged, swapped and planted files of the cache: none may raise, give a wrong value or stay.

`python -m tests.faults.cache [--rounds N] [--seed N]` damages each kind of file in every way, N
times each, and exits 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import track

from kerascl.checks import first
from kerascl.kernels.tuning import database
from kerascl.runtime import device, icd, peaks, selftest
from kerascl.runtime.diskcache import DiskCache, _header
from kerascl.runtime.manifest import Manifest
from kerascl.runtime.programs import Programs

STRANGER = 65534
SOURCE = """
__kernel void add_{n}(__global int* a) {{ a[get_global_id(0)] += VALUE; }}
"""
WEIRD = (None, [], {}, 3, "text", [1], {"a": 1}, {"flops": 3}, {"records": []}, float("nan"), [[]])


@dataclass(frozen=True)
class Kind:
    """One kind of cache file: `use(n)` needs the value number n, checks it, and keeps it."""

    name: str
    use: Callable[[int], None]
    file: Callable[[int], Path]


def kinds(dev: device.Device) -> list[Kind]:
    """Every kind, for a device."""
    salt = dev.info.cache_key

    def same(got, want) -> None:
        if got != want:
            raise AssertionError(f"{got!r} instead of {want!r}")

    # Two programs differ in an option only, two in the kernel's name: swapped, the first compute
    # something else and the others do not build.
    def program(n: int) -> tuple[str, str, tuple[str, ...]]:
        return SOURCE.format(n=n // 2), f"add_{n // 2}", (f"-DVALUE={5 + n}",)

    def run_program(n: int) -> None:
        source, name, options = program(n)
        kernel = Programs(dev).kernel(source, name, options)
        buffer = dev.buffers.allocate(40)
        dev.queue.write(buffer, np.arange(10, dtype=np.int32))
        dev.queue.launch(kernel, (10,), None, (buffer,))
        got = dev.queue.read(buffer, np.zeros(10, np.int32))
        same(got.tolist(), (np.arange(10) + 5 + n).tolist())

    def program_file(n: int) -> Path:
        source, _, options = program(n)
        programs = Programs(dev)
        return programs._disk.path(programs._key(source, options))

    def cache(name: str) -> DiskCache:
        return DiskCache.open(name, salt)

    def note(n: int) -> None:
        disk = cache("programs")
        keys = [disk.key("of", str(n), str(k)) for k in range(3)]
        found = Manifest(disk, f"graph {n}")
        if found._found not in (None, sorted(keys)):
            raise AssertionError(f"the note says {found._found}")
        found.complete()
        found.keep(keys)

    def note_file(n: int) -> Path:
        disk = cache("programs")
        return disk.path(disk.key("note", repr(f"graph {n}")))

    def result(n: int) -> None:
        text = f"failed {n}" if n else ""
        same(selftest.kept(dev.info, f"test {n}", "1", lambda: (text, True)), text)

    def result_file(n: int) -> Path:
        return cache("probes").path(cache("probes").key(f"test {n}", "1"))

    measured = peaks.Peaks({"float32": 3.0}, 2.0, 1e-6, 4.0, 5.0)

    def rates(n: int) -> None:
        found = peaks.load(dev)
        same(found if found is not None else measured, measured)
        peaks.save(dev, measured)

    def records(n: int) -> None:
        own = database.own_records(dev.info)
        same(own or {"gemm x": "tile"}, {"gemm x": "tile"})
        database.records(dev.info)
        database.keep(dev.info, {"gemm x": "tile"})

    def statuses(n: int) -> None:
        disk = cache("checks")
        found = disk.load(first._key(disk), first._parse)
        same(found or {"map": "ok"}, {"map": "ok"})
        first.keep(dev.info, {"map": "ok"})

    drivers = [icd.Driver("test", "/nowhere/libone.so"), icd.Driver("test", "libtwo.so.1")]

    def folder(n: int) -> None:
        found = icd.read_folder(icd._write_folder(drivers))
        same(sorted(d.library for d in found), sorted(d.library for d in drivers))

    def folder_file(n: int) -> Path:
        made = icd._write_folder(drivers)
        return sorted(made.glob("*.icd"))[n % 2]

    return [
        Kind("program", run_program, program_file),
        Kind("note", note, note_file),
        Kind("result", result, result_file),
        Kind("rates", rates, lambda n: cache("peaks").path(cache("peaks").key(peaks.KEY))),
        Kind("records", records, lambda n: cache("tuned").path(cache("tuned").key("records"))),
        Kind("statuses", statuses, lambda n: cache("checks").path(first._key(cache("checks")))),
        Kind("driver", folder, folder_file),
    ]


Damage = Callable[[Path, bytes, list[Path], np.random.Generator], None]


def _another(file: Path, others: list[Path], rng: np.random.Generator) -> Path:
    found = [other for other in others if other != file and other.is_file()]
    return found[rng.integers(len(found))]


def _swap(file: Path, data: bytes, others: list[Path], rng: np.random.Generator) -> None:
    other = _another(file, others, rng)
    file.write_bytes(other.read_bytes())
    other.write_bytes(data)


def _link(file: Path, data: bytes, others: list[Path], rng: np.random.Generator) -> None:
    other = _another(file, others, rng)
    file.unlink()
    file.symlink_to(other)


def _flip(file: Path, data: bytes, others: list[Path], rng: np.random.Generator) -> None:
    found = bytearray(data)
    for at in rng.integers(len(found), size=int(rng.integers(1, 5))):
        found[at] ^= int(rng.integers(1, 256))
    file.write_bytes(bytes(found))


def _signed(payload: Callable[[bytes, np.random.Generator], bytes]) -> Damage:
    """Content that a file of this key could have: only its reader can see that it is nonsense."""

    def damage(file: Path, data: bytes, others: list[Path], rng: np.random.Generator) -> None:
        content = payload(data, rng)
        if file.suffix == ".bin":
            key = file.parent.name + file.stem
            content = _header(key, content) + content
        file.write_bytes(content)

    return damage


def _stranger(file: Path, data: bytes, others: list[Path], rng: np.random.Generator) -> None:
    _swap(file, data, others, rng)
    os.chown(file, STRANGER, STRANGER)


def _open_to_all(file: Path, data: bytes, others: list[Path], rng: np.random.Generator) -> None:
    _swap(file, data, others, rng)
    file.chmod(0o666)


DAMAGES: dict[str, Damage] = {
    "truncated": lambda file, data, others, rng: file.write_bytes(data[: rng.integers(len(data))]),
    "longer": lambda file, data, others, rng: file.write_bytes(data + rng.bytes(9)),
    "zero": lambda file, data, others, rng: file.write_bytes(bytes(len(data))),
    "empty": lambda file, data, others, rng: file.write_bytes(b""),
    "random": lambda file, data, others, rng: file.write_bytes(rng.bytes(len(data))),
    "flipped": _flip,
    "swapped": _swap,
    "a link": _link,
    "other content": _signed(lambda data, rng: rng.bytes(int(rng.integers(200)))),
    "other JSON": _signed(lambda data, rng: json.dumps(WEIRD[rng.integers(len(WEIRD))]).encode()),
    "deep JSON": _signed(lambda data, rng: b"[" * 100_000),
    "open to all": _open_to_all,
}
if hasattr(os, "mkfifo"):
    DAMAGES["a pipe"] = lambda file, data, others, rng: (file.unlink(), os.mkfifo(file))
if hasattr(os, "geteuid") and os.geteuid() == 0:
    DAMAGES["a stranger's"] = _stranger
# A result is any text, and whoever writes it under its own key is this user.
NOT_SEEN = {("result", "other content"), ("result", "other JSON"), ("result", "deep JSON")}


def attack(
    dev: device.Device, rounds: int, rng: np.random.Generator, bar: bool = False
) -> list[str]:
    """Damage every kind of file in every way; gives what went wrong. The cache folder is used."""
    wrong = []
    found = kinds(dev)
    count = 4
    work = [(kind, how) for kind in found for how in DAMAGES if (kind.name, how) not in NOT_SEEN]
    work *= rounds
    for kind, how in track(work, "Damaging files", disable=not bar):
        for other in found:
            for n in range(count):
                if not other.file(n).is_file():
                    other.use(n)
        n = int(rng.integers(count))
        file = kind.file(n)
        # Any other for a file with a key; drivers' names are all that theirs hold.
        others = [k.file(m) for k in found for m in range(count) if k.name != "driver"]
        if kind.name == "driver":
            others = [kind.file(m) for m in range(count)]
        try:
            DAMAGES[how](file, file.read_bytes(), others, rng)
            for _ in range(2):  # the second time what the first has kept
                for other in found:
                    for m in range(count):
                        other.use(m)
        except Exception as error:
            wrong.append(f"{kind.name} {n}, {how}: {type(error).__name__}: {error}"[:300])
            if file.is_symlink() or not file.is_dir():
                file.unlink(missing_ok=True)
        if file.is_symlink() or not file.is_file():
            wrong.append(f"{kind.name} {n}, {how}: it was not made anew")
            file.unlink(missing_ok=True)
    return wrong


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    entropy = np.random.SeedSequence().entropy % 2**32
    seed = entropy if options.seed is None else options.seed
    folder = tempfile.mkdtemp(prefix="kerascl-faults-")
    os.environ["KERASCL_CACHE_DIR"] = folder
    try:
        dev = device.default()
        wrong = attack(dev, options.rounds, np.random.default_rng(seed), bar=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in wrong:
        print(line)
    count = options.rounds * (7 * len(DAMAGES) - len(NOT_SEEN))
    print(f"{count} damaged files on {dev.info.name}, seed {seed}: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
