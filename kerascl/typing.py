"""Types for annotations of programs that use kerascl.

```python
from kerascl.typing import Array, ArrayLike

def norm(x: ArrayLike) -> Array:
    return kerascl.sqrt(kerascl.sum(kerascl.square(x)))
```

`ArrayLike` is what operations take: an Array, a State, a NumPy array, a number or a nested sequence
of these. `DTypeLike` is what names a dtype, `Axes` an axis, several or None for all, `ShapeLike` an
integer or several.
"""

from kerascl.core.array import Array, ArrayLike, State
from kerascl.core.types import Axes, Device, Shape, ShapeLike
from kerascl.dtypes import DType, DTypeLike, DTypeName

__all__ = [
    "Array", "ArrayLike", "Axes", "DType", "DTypeLike", "DTypeName", "Device", "Shape", "ShapeLike",
    "State",
]  # fmt: skip
