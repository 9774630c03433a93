"""Exporting as a SavedModel, which needs TensorFlow's graphs."""

_MESSAGE = (
    "`export_saved_model` only currently supports the tensorflow, jax and torch backends. With "
    "kerascl, save the model with "
    "model.save('model.keras'), load it with KERAS_BACKEND=tensorflow, jax or torch, and export it "
    "there."
)


class SavedModelExportArchive:
    """Stands where Keras expects an export archive.

    Raises:
        NotImplementedError: always, with the way around it.
    """

    def __init__(self):
        raise NotImplementedError(_MESSAGE)
