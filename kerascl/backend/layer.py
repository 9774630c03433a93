"""What every Keras layer inherits from this backend."""


class BackendLayer:
    """Nothing: Keras' own layer does all that kerascl needs."""
