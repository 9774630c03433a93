"""The examples in docstrings of public functions give what they say."""

import contextlib
import doctest
import inspect

import pytest

import kerascl as kc

ROOMS = {"": kc, "linalg.": kc.linalg, "fft.": kc.fft, "random.": kc.random}


def names(owner):
    return dir(kc) if owner is kc else owner.__all__



EXAMPLES = {
    f"{room}{name}": inspect.getdoc(getattr(owner, name))
    for room, owner in ROOMS.items()
    for name in names(owner)
    if ">>>" in (inspect.getdoc(getattr(owner, name)) or "")
    and callable(getattr(owner, name))
    and not hasattr(getattr(owner, name), "mro")
}


@pytest.mark.every(7)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path):
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"kc": kc}, name, None, 0)
    with contextlib.chdir(tmp_path):
        found = doctest.DocTestRunner(verbose=False).run(example)
    assert found.attempted and not found.failed


def test_public_functions_have_docstrings():
    without = [
        f"{room}{name}"
        for room, owner in ROOMS.items()
        for name in names(owner)
        if callable(getattr(owner, name)) and not inspect.getdoc(getattr(owner, name))
    ]
    assert not without
