"""Runs one program in one form, from a clean start."""

from __future__ import annotations

import contextlib
import re
import tempfile
import warnings
from collections.abc import Iterator

from tests.parity.compare import Leaf, leaves
from tests.parity.kit import Program


@contextlib.contextmanager
def _compiled(keras, **settings) -> Iterator[None]:
    """Models compiled in the block get these attributes."""
    owner = next(c for c in keras.Model.__mro__ if "compile" in vars(c))
    original = owner.compile

    def compile(model, *args, **options):
        original(model, *args, **options)
        for name, value in settings.items():
            setattr(model, name, value)

    owner.compile = compile
    try:
        yield
    finally:
        owner.compile = original


def run(program: Program, form: str, keras) -> list[Leaf]:
    """All that the program sees, in one of `kit.FORMS`."""
    settings = {
        "captured": {},
        "eager": {"run_eagerly": True},
        "several": {"steps_per_execution": program.several},
    }[form]
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        _compiled(keras, **settings),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        found = leaves(program.run(keras), keras)
    said = [
        str(w.message) for w in told
        if w.category is UserWarning and re.search("keras|parity", w.filename)
        and "jax_enable_x64" not in str(w.message)
    ]  # fmt: skip
    return [*found, ("warnings", "list", list(dict.fromkeys(said)))]
