"""ONNX models as Keras models.

`reading` checks a file before anything is built, `graph` holds what it says, `rules` is the table
of operators that `operators/` fill, `layer` is the Keras layer that runs a graph, and `loading`
puts it into a model.
"""
