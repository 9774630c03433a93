"""Whole Keras programs, and what a user sees of them under kerascl and under other backends."""
