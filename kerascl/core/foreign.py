"""What other frameworks' autograd asks of its tensors: errors that say what to use here."""

from __future__ import annotations

from typing import NoReturn

ADVICE = "use kerascl.GradientTape, kerascl.grad or kerascl.value_and_grad with the kerascl backend"


class Absent:
    """An attribute of other frameworks' tensors that arrays of ours do not have.

    Args:
        framework: who asks for it.
    """

    def __init__(self, framework: str):
        self._framework = framework

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        if instance is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        raise AttributeError(
            f"{owner.__name__!r} object of kerascl has no attribute {self._name!r}: "
            f"{self._framework} cannot differentiate through it; {ADVICE}"
        )


class Differentiable:
    """What is differentiated by `kerascl.GradientTape` and nothing else."""

    __slots__ = ()
    _id = Absent("TensorFlow's GradientTape")
    backward = Absent("PyTorch's autograd")
    grad = Absent("PyTorch's autograd")
