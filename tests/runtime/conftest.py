"""What tests of processes share."""

import subprocess

import pytest


@pytest.fixture
def begun(monkeypatch):
    """The processes that are begun."""
    begun, popen = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **k: begun.append(popen(*a, **k)) or begun[-1]
    )
    return begun
