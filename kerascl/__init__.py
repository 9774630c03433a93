"""Keras on OpenCL."""
