"""The functions behind `keras.ops`, one module for each of Keras' own."""
