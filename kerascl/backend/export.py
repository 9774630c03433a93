"""Exporting as a SavedModel, which needs TensorFlow's graphs."""

_MESSAGE = (
    "kerascl cannot export a SavedModel: the format holds TensorFlow graphs. Save the model with "
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
