"""Builds the kernels of many evaluations together, where a build costs more than a kernel.

Evaluation builds each kernel alone, so that graphs and shapes share it.  A rehearsal does all of it
but for building and launching; then the kernels it would have built are built in few translation
units, and each is known under the source it would have had alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

from kerascl.compiler.program import lower
from kerascl.compiler.run import ready
from kerascl.kernels.contract.source import Source, unit
from kerascl.runtime import device
from kerascl.runtime.errors import CompileError
from kerascl.runtime.programs import Built, Kernel

KERNELS = 32  # of one translation unit


class Part(Built):
    """One kernel of a joint program, as if it were a program alone."""

    def __init__(self, joined: Built, name: str):
        super().__init__()
        self.program = joined.program
        self._made = Kernel(joined, name)

    def kernel(self, name: str) -> Kernel:
        return self._made


class Rehearsal:
    """The kernels that evaluations wanted, by the source and options they have alone.

    What it built last stays for as long as it lives.
    """

    def __init__(self):
        self.programs = device.default().programs
        self._texts: dict[str, Source] = {}
        self._parts: list[Built] = []
        self.wanted: dict[tuple[str, tuple[str, ...]], Source] = {}

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Within, nothing is built or launched, and what is evaluated has any value."""
        queue = device.default().queue

        def noted(texts) -> str:
            texts = list(texts)
            source = unit(texts)
            if len(texts) == 1:
                self._texts[source] = texts[0]
            return source

        def want(source, name, options=()) -> None:
            key = source, self.programs._guarded(source, options)
            if source in self._texts and key not in self.programs._built:
                self.wanted[key] = self._texts[source]

        with (
            mock.patch.object(lower, "unit", noted),
            mock.patch.object(self.programs, "build", lambda programs: None),
            mock.patch.object(self.programs, "kernel", want),
            mock.patch.object(queue, "launch", lambda *args: None),
            mock.patch.object(ready, "ReadyLaunch", mock.MagicMock()),
        ):
            yield

    def build(self) -> None:
        """Build what was wanted; what does not build is left for its own evaluation to tell of."""
        self._parts.clear()
        alike: dict[tuple[str, ...], list] = {}
        for (source, options), text in self.wanted.items():
            alike.setdefault(options, []).append((source, text))
        for options, texts in alike.items():
            for start in range(0, len(texts), KERNELS):
                with contextlib.suppress(CompileError):
                    self._unit(options, texts[start : start + KERNELS])
        self.wanted.clear()

    def _unit(self, options: tuple[str, ...], texts: list[tuple[str, Source]]) -> None:
        names = [f"{text.name}_{k}" for k, (_, text) in enumerate(texts)]
        parts = [replace(t, name=name) for (_, t), name in zip(texts, names, strict=True)]
        joined = self.programs._make(unit(parts), options)
        for (source, _), name in zip(texts, names, strict=True):
            part = self.programs._built.setdefault((source, options), Part(joined, name))
            self._parts.append(part)
