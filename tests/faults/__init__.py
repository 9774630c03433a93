"""Faults from outside, each as a script with a progress bar: `python -m tests.faults.NAME`."""
