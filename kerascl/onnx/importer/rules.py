"""The table of operators: one rule each, filled by `operators/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rule:
    """How an operator is carried out.

    Attributes:
        function: gets the `Call` and its inputs (None where they are left out); returns a value,
            or a tuple of several.
        since: the first opset that it serves.
        host: places of inputs that it needs on the host, as NumPy arrays: shapes, axes, ...
        settings: places whose initialisers are settings, not weights: never trained.
        statistics: places of running statistics: variables that training updates but not trains.
        kernels: places of kernels of convolutions, whose variables have filters last.
        raw: whether inputs are given as they are, on host or device, sequences or nothing.
        layout: "elementwise" where inputs may be images with channels last, as long as all are
            laid out so; "own" where the rule takes a `ChannelsLast` as it is, "groups" where a
            `Grouped`, too; "" where it does not.
    """

    function: Callable[..., Any]
    since: int = 1
    host: frozenset[int] = frozenset()
    settings: frozenset[int] = frozenset()
    statistics: frozenset[int] = frozenset()
    kernels: frozenset[int] = frozenset()
    raw: bool = False
    layout: str = ""


@dataclass
class Table:
    """Rules by (domain, operator), each for an opset and those after it."""

    rules: dict[tuple[str, str], list[Rule]] = field(default_factory=dict)

    def find(self, domain: str, op: str, version: int) -> Rule | None:
        """The rule that serves an operator in an opset."""
        domain = "" if domain == "ai.onnx" else domain
        for rule in reversed(self.rules.get((domain, op), [])):
            if rule.since <= version:
                return rule
        return None

    def latest(self, domain: str, op: str) -> Rule | None:
        """The newest rule of an operator."""
        return self.find(domain, op, 1 << 30)


RULES = Table()


def operator(
    *names: str,
    since: int = 1,
    domain: str = "",
    host: tuple[int, ...] = (),
    settings: tuple[int, ...] = (),
    statistics: tuple[int, ...] = (),
    kernels: tuple[int, ...] = (),
    raw: bool = False,
    layout: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the rule of operators; see `Rule`."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        places = frozenset(host) | frozenset(settings)
        rule = Rule(
            function, since, frozenset(host), places, frozenset(statistics), frozenset(kernels),
            raw, layout,
        )  # fmt: skip
        for name in names:
            found = RULES.rules.setdefault((domain, name), [])
            found.append(rule)
            found.sort(key=lambda r: r.since)
        return function

    return declare
