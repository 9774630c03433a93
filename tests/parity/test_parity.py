"""Whole programs see under kerascl what they saw under JAX or torch: see `__main__.py`."""

import warnings
import zlib

import keras
import numpy as np
import pytest

import kerascl
from tests.parity import compare, kit
from tests.parity.running import run

PROGRAMS = kit.programs()
REFERENCES = {}
for group in {p.group for p in PROGRAMS.values()}:
    found, about = compare.load(compare.FOLDER / f"{group}.npz")
    REFERENCES |= {name: (result, about["keras"]) for name, result in found.items()}


def quick(program, form) -> bool:
    """Whether pytest runs the form, in half of the trees; `python -m tests.parity` runs all."""
    turn = zlib.crc32(program.name.encode()) % 8
    return form == "captured" or (form, turn) in {("eager", 0), ("several", 1)}


@pytest.fixture(autouse=True)
def clean_session():
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("program", "form"),
    [
        pytest.param(p, form, id=f"{p.name}-{form}")
        for p in PROGRAMS.values() for form in p.forms if quick(p, form)
    ],
)  # fmt: skip
def test_program(program, form):
    """True float32, as the references are, also where matrix units would round inputs to TF32."""
    name = f"{program.name} {form}"
    expected, version = REFERENCES.get(name) or REFERENCES[f"{program.name} captured"]
    with kerascl.precision_scope("highest"):
        seen = run(program, form, keras)
    if version != keras.__version__:
        warnings.warn(f"text not compared: the reference is of Keras {version}", stacklevel=1)
    _, _, wrong = compare.difference(
        seen, expected, program.tolerance, text=version == keras.__version__
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["first_program captured", "lines_of_verbose_2 captured"])
def test_every_leaf_counts(name):
    """The comparison sees any one value, name, type or line that differs."""
    expected, _ = REFERENCES[name]
    tolerance = PROGRAMS[name.split()[0]].tolerance
    assert not compare.difference(expected, expected, tolerance)[2]
    for at, (path, kind, content) in enumerate(expected):
        if isinstance(content, np.ndarray):
            other = content.copy()
            other[-1] += 4 * tolerance * max(np.linalg.norm(content), 1e-6)
        elif isinstance(content, str):
            other = content.replace("loss: 0.", "loss: 1.", 1) + "."
        elif isinstance(content, list):
            other = [*content, "more"]
        else:
            other = not content
        changed = [*expected[:at], (path, kind, other), *expected[at + 1 :]]
        assert len(compare.difference(changed, expected, tolerance)[2]) == 1, path
    assert compare.difference(expected[1:], expected, tolerance)[2]
    assert compare.difference([*expected[1:], expected[0]], expected, tolerance)[2]


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        ("loss: 0.1234", "loss: 0.1235", True),
        ("loss: 0.1234", "loss: 0.1237", False),
        ("loss: 1.2e-05", "loss: 1.3e-05", True),
        ("Epoch 1/2", "Epoch 2/2", False),
        ("loss: nan", "loss: 0.5000", False),
    ],
)
def test_text_is_equal_but_for_last_digits(text, other, same):
    assert compare.same_text(text, other, 1e-5) is same
