"""Ctrl-C in the middle of training, in short; `python -m tests.faults.interrupt` in full."""

from tests.faults import interrupt


def test_ctrl_c_stops_training_and_leaves_right_numbers():
    assert interrupt.campaign(len(interrupt.PHASES), seed=1) == []
