"""Self-tests in a child process: which results speak of the device."""

import os
import subprocess
import sys

import pytest

from kerascl.runtime import children, selftest

CHILD = """
from kerascl.runtime import selftest_child

def good(dev):
    assert dev.info.name

def wrong(dev):
    raise ValueError("it is wrong\\nand more")

def full(dev):
    from kerascl.runtime.errors import OutOfDeviceMemory
    raise OutOfDeviceMemory("none left")

selftest_child.main({})
"""
CASES = {
    "good": ("", True),
    "good, wrong": ("it is wrong", True),
    "full": ("the device's memory was full at the self-test", False),
}


def result(folder, text: str) -> tuple[str, bool]:
    (folder / "child_of_selftest.py").write_text(text)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    return selftest.in_child("child_of_selftest", 0, PYTHONPATH=path)


@pytest.mark.parametrize("tests", CASES)
def test_the_child_has_the_last_word(tests, tmp_path):
    assert result(tmp_path, CHILD.format(tests)) == CASES[tests]


def test_a_child_that_cannot_begin_says_nothing_of_the_device(tmp_path):
    text, lasting = result(tmp_path, "import no_such_package_anywhere")
    assert not lasting
    assert "did not begin" in text and "no_such_package_anywhere" in text


def test_a_child_that_dies_is_a_result(tmp_path):
    text, lasting = result(
        tmp_path, "import os\nfrom kerascl.runtime import selftest\n"
        "print(selftest.BEGUN, flush=True)\nos._exit(9)\n",
    )  # fmt: skip
    assert lasting and "ended with 9" in text


def test_a_child_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    """As `python -m` would: another user may have put modules there."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    assert "planted" not in selftest.in_child("kerascl.runtime.addresses_selftest", 0)[0]
    text = "import numpy, sys; sys.stdin.read(); print(numpy.__file__)"
    begun = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, input="",
        env=children.environment(),
    )  # fmt: skip
    assert str(tmp_path) not in begun.stdout and begun.returncode == 0, begun.stderr
