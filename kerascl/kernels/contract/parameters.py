"""A kernel's numbers by name: parameters of its text and arguments of its launch."""

from __future__ import annotations

from kerascl.kernels.contract.plan import Scalar


class Params:
    """Kernel parameters collected once as declarations (the PARAMS macro) and as arguments."""

    def __init__(self) -> None:
        self._items: list[tuple[str, str, int]] = []

    def add(self, ctype: str, **values: int) -> Params:
        """Add parameters of a C type by name; gives itself."""
        self._items += [(ctype, name, value) for name, value in values.items()]
        return self

    def axes(self, rank: int, **values: tuple[int, ...]) -> Params:
        """name=tuple makes int parameters name0, name1, name2, ones in front where rank is 2."""
        for name, numbers in values.items():
            numbers = (*((0,) if name == "PAD" else (1,)) * (3 - rank), *numbers)
            self.add("int", **{f"{name}{n}": v for n, v in enumerate(numbers)})
        return self

    @property
    def source(self) -> str:
        """The text that defines the macro PARAMS."""
        return "#define PARAMS " + "".join(f", const {t} {n}" for t, n, _ in self._items) + "\n"

    @property
    def args(self) -> tuple[Scalar, ...]:
        """The values, in the order of the parameters."""
        return tuple(Scalar(t, v) for t, _, v in self._items)
