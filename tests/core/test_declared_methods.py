"""What type checkers are told of Array's methods is what there is."""

import ast
import inspect
from pathlib import Path

import pytest

import kerascl as kc
from kerascl.core import array, methods
from kerascl.ops import methods as makers

TREE = ast.parse(Path(methods.__file__).read_text(encoding="utf-8"))
CLASSES = [node for node in ast.walk(TREE) if isinstance(node, ast.ClassDef)]
DECLARED = next(
    {f.name: f for f in cls.body if isinstance(f, ast.FunctionDef)}
    for cls in CLASSES
    if cls.name == "Methods" and any(isinstance(f, ast.FunctionDef) for f in cls.body)
)


def test_every_declared_method_exists():
    assert not [name for name in DECLARED if name not in vars(kc.Array)]


def test_every_method_made_is_declared():
    own = ast.parse(Path(array.__file__).read_text(encoding="utf-8"))
    (cls,) = [c for c in own.body if isinstance(c, ast.ClassDef) and c.name == "Array"]
    hidden = [f for part in cls.body if isinstance(part, ast.If) for f in part.body]
    written = {f.name for f in [*cls.body, *hidden] if isinstance(f, ast.FunctionDef)}
    made = {
        name
        for name, value in vars(kc.Array).items()
        if (callable(value) or isinstance(value, property)) and name not in written
    }
    assert made - set(DECLARED) <= {"__class__", "__new__"}
    assert set(makers._METHODS) <= set(DECLARED)


@pytest.mark.parametrize(
    "name", [n for n, f in DECLARED.items() if not n.startswith("__") and not f.decorator_list]
)
def test_declared_parameters_exist(name):
    made = inspect.signature(getattr(kc.Array, name))
    taken = set(made.parameters)
    free = any(p.kind is p.VAR_KEYWORD for p in made.parameters.values())
    positional = any(p.kind is p.VAR_POSITIONAL for p in made.parameters.values())
    arguments = DECLARED[name].args
    for argument in [*arguments.args[1:], *arguments.kwonlyargs]:
        assert argument.arg in taken or free or positional, argument.arg
