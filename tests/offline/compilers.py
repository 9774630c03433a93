"""Vendors' compilers on a machine without their devices, and what they say of each kernel."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

SECONDS = 600  # that one text may take


@dataclass
class Kernel:
    """What a compiler says of one kernel.

    Attributes:
        registers: of 32 bits, that each work-item takes.
        spills: registers of a work-item that did not fit (of a hardware thread on Intel's GPUs).
        private: bytes of a work-item in memory, for what has no register.
        local: bytes of local memory.
        lanes: work-items that run in lockstep.
        occupancy: hardware threads at once on each SIMD unit, 0 where unknown.
    """

    registers: int = 0
    spills: int = 0
    private: int = 0
    local: int = 0
    lanes: int = 0
    occupancy: int = 0


@dataclass
class Outcome:
    """Of one text for one target: the first error, or all kernels by name."""

    error: str = ""
    kernels: dict[str, Kernel] = field(default_factory=dict)

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Outcome:
        return cls(data["error"], {k: Kernel(**v) for k, v in data["kernels"].items()})


class Compiler(ABC):
    """One program that compiles OpenCL C.

    Attributes:
        program: its name.
        packages: Debian's, that bring it.
        targets: the devices it compiles for.
    """

    program: str
    packages: str
    targets: tuple[str, ...]

    @property
    def missing(self) -> str:
        """What to install, or ""."""
        return "" if shutil.which(self.program) else f"apt-get install {self.packages}"

    @property
    @abstractmethod
    def version(self) -> str:
        """Changes when outcomes may."""

    @abstractmethod
    def compile(self, source: str, options: tuple[str, ...], target: str) -> Outcome: ...

    def key(self, source: str, options: tuple[str, ...], target: str) -> str:
        """Where an outcome may be kept."""
        parts = (source, *options, target, self.program, self.version)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _version(program: str) -> str:
    path = shutil.which(program)
    asked = subprocess.run([path or program, "--version"], capture_output=True, text=True)
    stamp = Path(path).resolve().stat() if path else None
    return f"{asked.stdout.splitlines()[:1]} {stamp.st_size if stamp else 0} 1"


def _first_error(log: str) -> str:
    """The first line that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((x for x in lines if "error" in x.lower()), lines[-1] if lines else "no message")


class Amd(Compiler):
    """ROCm's compiler is clang; Debian's has AMD's GPUs too."""

    program = "clang-19"
    packages = "clang-19 libclc-19"
    targets = ("gfx803", "gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201")
    library = Path("/usr/lib/clc/amdgcn--amdhsa.bc")

    @property
    def missing(self) -> str:
        return super().missing or ("" if self.library.exists() else "apt-get install libclc-19")

    @property
    def version(self) -> str:
        return _version(self.program)

    def compile(self, source: str, options: tuple[str, ...], target: str) -> Outcome:
        try:
            done = self._run(source, options, target)
        except subprocess.TimeoutExpired:
            return Outcome(f"took more than {SECONDS} s")
        if done.returncode:
            return Outcome(_first_error(done.stderr))
        return Outcome("", amd_kernels(done.stdout))

    def assembly(self, source: str, options: tuple[str, ...], target: str) -> str:
        """The text of the instructions; "" where there are errors."""
        return self._run(source, options, target).stdout

    def _run(self, source: str, options: tuple[str, ...], target: str):
        command = [
            self.program, "-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header",
            "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-O3", "-nogpulib", "-w", "-Xclang",
            "-mlink-builtin-bitcode", "-Xclang", str(self.library), *options, "-S", "-", "-o", "-",
        ]  # fmt: skip
        return subprocess.run(
            command, input=source, capture_output=True, text=True, timeout=SECONDS
        )


def amd_kernels(assembly: str) -> dict[str, Kernel]:
    """The kernels of an assembly text, by its metadata and remarks."""
    occupied = dict(re.findall(r"\.amdhsa_kernel (\w+)\n.*?; Occupancy: (\d+)", assembly, re.S))
    kernels = {}
    metadata = assembly[assembly.rfind("amdhsa.kernels:") :]
    for part in re.split(r"^  - ", metadata, flags=re.M)[1:]:
        facts = dict(re.findall(r"^ {0,4}\.(\w+): +(\S+)$", part, re.M))
        if "name" not in facts:  # the version, behind the kernels
            continue
        name = facts["name"].strip("'")

        def number(key: str, facts=facts) -> int:
            return int(facts.get(key, 0))

        kernels[name] = Kernel(
            number("vgpr_count"), number("vgpr_spill_count"), number("private_segment_fixed_size"),
            number("group_segment_fixed_size"), number("wavefront_size"),
            int(occupied.get(name, 0)),
        )  # fmt: skip
    return kernels


class Intel(Compiler):
    """ocloc, which lies in the package of Intel's driver."""

    program = "ocloc"
    packages = "intel-opencl-icd"
    targets = ("skl", "tgllp", "dg2", "pvc")

    @property
    def version(self) -> str:
        return _version(self.program)

    def assembly(self, source: str, options: tuple[str, ...], target: str) -> tuple[Outcome, str]:
        """What `compile` finds, and the text of the instructions of the last kernel."""
        with tempfile.TemporaryDirectory(prefix="kerascl-assembly-") as folder:
            outcome = self.compile(source, options, target, dump=folder)
            found = sorted(Path(folder).glob("*.asm"))
            texts = [path for path in found if "Symbol_Table" not in path.name]
            return outcome, texts[-1].read_text() if texts else ""

    def compile(
        self, source: str, options: tuple[str, ...], target: str, dump: str = ""
    ) -> Outcome:
        asked = {"IGC_ShaderDumpEnable": "1", "IGC_DumpToCustomDir": dump} if dump else {}
        with tempfile.TemporaryDirectory(prefix="kerascl-offline-") as folder:
            text = Path(folder, "text.cl")
            text.write_text(source)
            command = [
                self.program, "compile", "-file", str(text), "-device", target, "-options",
                " ".join(("-cl-std=CL1.2", *options)), "-output", "text", "-output_no_suffix",
                "-out_dir", folder, "--format", "zebin",
            ]  # fmt: skip
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=SECONDS,
                    env=os.environ | asked,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return Outcome(f"took more than {SECONDS} s")
            binary = Path(folder, "text")
            if done.returncode or not binary.exists():
                return Outcome(_first_error(done.stdout + done.stderr))
            return Outcome("", intel_kernels(binary.read_bytes(), done.stdout + done.stderr))


def intel_kernels(binary: bytes, log: str) -> dict[str, Kernel]:
    """The kernels of a binary, by the YAML within, with the spills that the log warns of."""
    spills = dict(re.findall(r"kernel (\w+) .*?spilled around (\d+)", log))
    begin = binary.find(b"\nkernels:")
    ends = (binary.find(end, begin) for end in (b"\nkernels_misc_info:", b"\0"))
    yaml = binary[begin : min(end for end in ends if end > 0)].decode(errors="replace")
    kernels = {}
    for part in re.split(r"^ {2}- name: +", yaml, flags=re.M)[1:]:
        name = part.split()[0]

        def number(key: str, part=part) -> int:
            found = re.search(rf"^ {{6}}{key}: +(\d+)$", part, re.M)
            return int(found[1]) if found else 0

        lanes = number("simd_size") or 1
        private = sum(
            int(size)
            for usage, size in re.findall(r"usage: +(\w+)\n +size: +(\d+)", part)
            if usage != "spill_fill_space"
        )
        kernels[name] = Kernel(
            number("grf_count"), int(spills.get(name, 0)), private // lanes, number("slm_size"),
            lanes,
        )  # fmt: skip
    return kernels


# No file of a program may give another meaning to a name of another file.
ONE_MACRO = ("-Wno-everything", "-Werror=macro-redefined")


class Standard(Compiler):
    """clang's front end, which takes nothing beyond OpenCL C 1.2 and the extensions it is told of.

    A target is a "+"-joined list of extensions, after "nvidia", whose compiler knows asm, or "any".
    """

    program = "clang-19"
    packages = "clang-19"
    targets = ()

    @property
    def version(self) -> str:
        return _version(self.program) + " asm macros"

    def compile(self, source: str, options: tuple[str, ...], target: str) -> Outcome:
        known = ["-all", *(f"+{name}" for name in target.split("+")[1:])]
        nvidia = target.startswith("nvidia")
        machine = "nvptx64--nvcl" if nvidia else "spir64"
        command = [
            self.program, "-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header",
            "-Xclang", "-fdeclare-opencl-builtins", "-target", machine, "-Xclang",
            f"-cl-ext={','.join(known)}", "-fsyntax-only", *ONE_MACRO,
            *(["-Dasm=__asm__"] if nvidia else []), *options, "-",
        ]  # fmt: skip
        done = subprocess.run(command, input=source, capture_output=True, text=True)
        return Outcome(_first_error(done.stderr) if done.returncode else "")


AMD, INTEL, STANDARD = Amd(), Intel(), Standard()


def compiler(target: str) -> Compiler | None:
    """Who compiles for a target, None where nobody here does."""
    return next((c for c in (AMD, INTEL) if target in c.targets), None)
