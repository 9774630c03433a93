"""What there is: the inspection interface of the array API standard."""

from __future__ import annotations

from typing import Any

from kerascl.core import context
from kerascl.core.types import Device
from kerascl.dtypes import BY_NAME, DType, complex64, float32, int32
from kerascl.ops.dtype_functions import is_kind

__all__ = ["__array_namespace_info__"]

# those that the standard names; the others are additions of ours
_STANDARD = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip


class Information:
    """The devices, dtypes and capabilities of kerascl."""

    def capabilities(self) -> dict[str, Any]:
        """What of the standard's optional parts there is."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": None,
        }

    def default_device(self) -> Any:
        """The device for arrays where none is named."""
        return context.device()

    def devices(self) -> list[Any]:
        """All devices, the default one first."""
        found = context.current.engine.devices()
        default = self.default_device()
        return [default, *(d for d in found if d is not default)]

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, DType]:
        """The dtypes of arrays where none is named; the same on all devices."""
        return {
            "real floating": float32,
            "complex floating": complex64,
            "integral": int32,
            "indexing": int32,
        }

    def dtypes(
        self, *, device: Device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes by name, as far as a device has them.

        Args:
            device: by default the current one.
            kind: as for `isdtype`; by default all.

        Raises:
            ValueError: for a name that is no kind.
        """
        place: Any = context.device() if device is None else device
        if isinstance(device, str):
            place = context.current.engine.find_device(device)
        kinds = (kind,) if isinstance(kind, str) else kind
        return {
            name: dtype
            for name, dtype in ((name, BY_NAME[name]) for name in _STANDARD)
            if (kinds is None or any(is_kind(dtype, k) for k in kinds))
            and (place.info.fp64 or not dtype.is_double)
        }


def __array_namespace_info__() -> Information:
    """The devices, dtypes and capabilities of kerascl, as the array API standard asks for them."""
    return Information()
