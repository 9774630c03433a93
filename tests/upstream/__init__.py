"""Keras' own test suite, from the installed Keras, under kerascl: ``python -m tests.upstream``."""
