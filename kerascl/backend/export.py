"""Exporting as a SavedModel, which needs TensorFlow's graphs."""

_MESSAGE = (
    "kerascl cannot export a SavedModel: the format holds TensorFlow graphs. Save the model with "
    "model.save('model.keras'), load it with KERAS_BACKEND=tensorflow, jax or torch, and export it "
    "there."
)


class SavedModelExportArchive:
    """Stands where Keras expects an export archive; every use raises.

    Raises:
        NotImplementedError: with the way around it.
    """

    def track(self, resource):
        raise NotImplementedError(_MESSAGE)

    def add_endpoint(self, name, fn, input_signature=None, **kwargs):
        raise NotImplementedError(_MESSAGE)
