"""The rules of operators; importing this fills the table."""

from kerascl.onnx.importer.operators import (  # noqa: F401
    attention,
    boxes,
    casts,
    control,
    convolution,
    elementwise,
    indexing,
    losses,
    normalization,
    pooling,
    products,
    quantized,
    recurrent,
    reductions,
    resampling,
    sequences,
    shapes,
    signals,
)
