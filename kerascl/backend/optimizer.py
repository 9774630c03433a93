"""What every Keras optimizer inherits from this backend."""

from keras.src.optimizers import base_optimizer


class BackendOptimizer(base_optimizer.BaseOptimizer):
    """Keras' own optimizer.

    Its conditions on device values (gradient accumulation, loss scaling, weight averages) go
    through `cond`, which becomes a selection of values in captured steps.
    """
