"""The program texts of graphs as they are lowered for devices that need not be there.

A graph is traced on any driver, once, and lowered by the facts of each profile, for a card with
matrix units as if these worked and as if not. Nothing is built or launched: `Lowered` ends a call
before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from kerascl.compiler.program import lower as lowering
from kerascl.compiler.run import capture, execute
from kerascl.kernels.units import attention_fragment, known
from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.launch import LocalMemory
from kerascl.runtime.programs import always


class Lowered(Exception):
    """A graph has been lowered for all profiles; it is not run."""


@dataclass
class Text:
    """A program text, who needs it, and what its kernels are launched with.

    Attributes:
        options: build options.
        profiles: names of those whose graphs need it.
        origins: what was lowered, as "resnet50 fit".
        arguments: of each kernel, bytes of its arguments, at most.
        labels: of each kernel, the operation that it computes.
    """

    source: str
    options: tuple[str, ...]
    profiles: set[str] = field(default_factory=set)
    origins: set[str] = field(default_factory=set)
    arguments: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def standard(self) -> bool:
        """Whether it is OpenCL C, without what only one vendor's compiler knows."""
        return not re.search("__builtin_amdgcn_|intel_sub_group_", self.source)

    @property
    def key(self) -> str:
        """A short name of the text."""
        whole = "\0".join((self.source, *self.options))
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def join(self, other: Text) -> None:
        """Add whoever else needs the same text."""
        self.profiles |= other.profiles
        self.origins |= other.origins
        self.labels |= other.labels
        for name, nbytes in other.arguments.items():
            self.arguments[name] = max(nbytes, self.arguments.get(name, 0))


class Texts:
    """All texts, each once, and what could not be lowered.

    Attributes:
        refused: (what, profile, why) of graphs that no kernel serves there.
    """

    def __init__(self, infos: dict[str, DeviceInfo]) -> None:
        self.infos = infos
        self.by_text: dict[tuple[str, tuple[str, ...]], Text] = {}
        self.refused: set[tuple[str, str, str]] = set()

    def ways(self) -> Iterator[tuple[str, DeviceInfo]]:
        """Profiles, those of cards with matrix units once more without these."""
        for name, own in self.infos.items():
            yield name, own
            if own.matrix:
                yield name, dataclasses.replace(own, matrix="")

    @contextlib.contextmanager
    def collecting(self, origin: str, eager: bool = False) -> Iterator[None]:
        """Within, the first graph that is captured, or evaluated, is lowered and ends the block."""

        def lower(nodes, roots, info, generic, streamed=frozenset(), labels=None, meanwhile=None):
            for name, own in self.ways():
                try:
                    program = lowering.lower(nodes, roots, own, generic, streamed, labels)
                except NotImplementedError as error:
                    self.refused.add((origin, name, str(error)))
                    continue
                for step in program.steps:
                    self.add(origin, name, step.source, step.options, step)
            raise Lowered

        room = execute if eager else capture
        with mock.patch.object(room, "lower", lower), contextlib.suppress(Lowered):
            yield

    def add(self, origin: str, profile: str, source: str, options: Iterable[str], step) -> None:
        """Note a launch (a Step of a program or a Launch of a plan)."""
        options = (*options, *always(self.infos[profile]))
        label = getattr(step, "label", "") or origin.split()[0]
        text = Text(
            source, options, {profile}, {origin}, {step.name: argument_bytes(step.args)},
            {step.name: label},
        )  # fmt: skip
        self.by_text.setdefault((source, options), text).join(text)

    def join(self, others: Iterable[Text]) -> None:
        """Add texts that were collected elsewhere."""
        for text in others:
            self.by_text.setdefault((text.source, text.options), text).join(text)


def units_work() -> None:
    """From now on the matrix units of AMD's and Intel's cards have passed their self-tests."""
    for module in (known, attention_fragment):
        module.available = lambda unit, info, *_: info.matrix in unit.matrix


def argument_bytes(args: Iterable) -> int:
    """What a kernel's arguments take: eight bytes for memory, nothing for local memory."""

    def size(arg) -> int:
        if isinstance(arg, LocalMemory):
            return 0
        if isinstance(arg, np.generic):
            return arg.nbytes
        return len(arg) if isinstance(arg, bytes) else 8

    return sum(map(size, args))
