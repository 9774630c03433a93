"""Exceptions that users of the array API may meet."""


class KerasclError(RuntimeError):
    """Base of kerascl's own errors."""


class CaptureError(KerasclError):
    """A captured function needed a value on the host, or leaked a traced array."""


class DeviceMismatchError(KerasclError, ValueError):
    """An operation mixed arrays of different devices."""
