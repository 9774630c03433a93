"""Name scopes that also say, while a step is captured, which layer the work belongs to."""

from __future__ import annotations

from keras.src.backend.common import name_scope as keras_scopes

from kerascl.core.context import current
from kerascl.core.labels import mark


class name_scope(keras_scopes.name_scope):
    """Keras' own name scope; profiles of captured steps list work by its path."""

    def __enter__(self):
        super().__enter__()
        if current.labels is not None:
            mark(keras_scopes.current_path())
        return self

    def __exit__(self, *args, **kwargs):
        super().__exit__(*args, **kwargs)
        if current.labels is not None:
            mark(keras_scopes.current_path())
