"""The import rules of docs/architecture.md, held by reading the sources; nothing is imported."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kerascl"

# room -> the rooms it may import from; "" is kerascl/__init__.py.
ROOMS = {
    "config": set(),
    "dtypes": set(),
    "philox": set(),
    "typing": {"dtypes", "core"},
    "runtime": {"config", "dtypes"},
    "kernels": {"config", "dtypes", "philox", "runtime"},
    "core": {"config", "dtypes"},
    "ops": {"config", "dtypes", "philox", "core"},
    "compiler": {"config", "dtypes", "core", "ops", "kernels", "runtime"},
    "backend": {"config", "dtypes", "core", "ops", "compiler", "runtime.device", "runtime.profile"},
    "checks": {"config", "dtypes", "philox", "core", "ops", "compiler", "runtime"},
    "": {"config", "dtypes", "core", "ops", "compiler", "runtime", "checks"},
    "onnx": {
        "", "config", "dtypes", "core", "ops", "compiler", "backend", "runtime.device",
        "runtime.tables",
    },
    "commands": {"", "config", "dtypes", "kernels", "runtime", "checks"},
    "__main__": {"commands", "runtime.tables"},
}
# `tune` builds networks of keras.applications.
IMPORTERS = {
    "pyopencl": {"runtime"}, "keras": {"backend", "commands", "onnx"}, "onnx": {"onnx", "commands"},
}  # fmt: skip
MOST_LINES = 700

FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree_of(file: Path) -> ast.AST:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def parts_of(file: Path) -> tuple[str, ...]:
    """kerascl/core/node.py -> ("core", "node"); a package's __init__ counts as the package."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def room_of(parts: tuple[str, ...]) -> str:
    return parts[0] if parts else ""


MODULES = {parts_of(file) for file in FILES}


def imports(file: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in a tree, relative imports resolved."""
    package = ("kerascl", *parts_of(file))
    if file.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield node.lineno, ".".join((*base, alias.name))


def ours(name: str) -> tuple[str, ...] | None:
    """The module of ours that an imported name lies in, as parts below kerascl, or None."""
    parts = tuple(name.split("."))
    if parts[0] != "kerascl":
        return None
    parts = parts[1:]
    while parts and parts not in MODULES:  # names inside a module
        parts = parts[:-1]
    return parts


# Each test reads all files: a case for each would take pytest longer than the reading.


def test_every_file_has_a_room():
    assert [name_of(file) for file in FILES if room_of(parts_of(file)) not in ROOMS] == []


def test_imports_run_downward():
    wrong = []
    for file in FILES:
        here = room_of(parts_of(file))
        for line, name in imports(file, tree_of(file)):
            parts = ours(name)
            if parts is None or (here != "" and room_of(parts) == here):
                continue
            allowed = ROOMS[here]
            if room_of(parts) not in allowed and ".".join(parts[:2]) not in allowed:
                wrong.append(f"{name_of(file)}:{line}: {here or 'kerascl/__init__'} imports {name}")
    assert not wrong


def test_one_room_owns_each_outside_library():
    wrong = []
    for file in FILES:
        here = room_of(parts_of(file))
        for line, name in imports(file, tree_of(file)):
            owners = IMPORTERS.get(name.split(".")[0], {here})
            if here not in owners:
                wrong.append(f"{name_of(file)}:{line}: only {owners} may import {name}")
    assert not wrong


def test_no_imports_of_ours_inside_functions():
    """A function-level import hides a cycle; importlib would hide it better."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    wrong = []
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, functions):
                wrong += [
                    f"{name_of(file)}:{line}: {name}"
                    for line, name in imports(file, node)
                    if ours(name) is not None
                ]
            match node:
                case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="__import__")):
                    wrong.append(f"{name_of(file)}:{node.lineno}: a dynamic import")
    assert not wrong


def test_files_stay_short():
    files = [
        file
        for folder in ("kerascl", "tests", "examples", "benchmarks")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".cl", ".h"}
    ]
    lines = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def environment_reads(tree: ast.AST) -> Iterator[tuple[int, str | None]]:
    """(line, variable) of each read of the process environment; None if that cannot be told."""
    constants = {
        target.id: node.value.value
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get" | "pop"),
                    args=[name, *_],
                )
                | ast.Call(func=ast.Attribute(attr="getenv"), args=[name, *_])
                | ast.Subscript(value=ast.Attribute(attr="environ"), slice=name, ctx=ast.Load())
                | ast.Compare(left=name, comparators=[ast.Attribute(attr="environ")])
            ):
                match name:
                    case ast.Constant(value=value):
                        yield node.lineno, value
                    case ast.Name(id=identifier):
                        yield node.lineno, constants.get(identifier)
                    case _:
                        yield node.lineno, None


def test_only_config_reads_our_environment():
    wrong = [
        f"{name_of(file)}:{line}: {name or 'a computed name'}"
        for file in FILES
        if file != PACKAGE / "config.py"
        for line, name in environment_reads(tree_of(file))
        if name is None or name.startswith("KERASCL_")
    ]
    assert not wrong


def table(text: str) -> dict[str, tuple[str, str]]:
    """The rows of a Markdown table about KERASCL_ variables."""
    rows = re.findall(r"^\| `?(KERASCL_\w+)`? \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    return {name: (default, meaning) for name, default, meaning in rows}


def test_config_documents_what_it_reads():
    tree = tree_of(PACKAGE / "config.py")
    literals = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"KERASCL_[A-Z_]+", node.value)
    }
    assert literals == set(table(ast.get_docstring(tree)))


def test_readme_shows_the_table_of_config():
    documented = table(ast.get_docstring(tree_of(PACKAGE / "config.py")))
    assert table((ROOT / "README.md").read_text(encoding="utf-8")) == documented


def test_the_files_that_changes_touch_exist():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = text.split("## Ten changes\n")[1].split("\n## ")[0].splitlines()
    paths = {p for row in rows if row.startswith("| a") for p in re.findall(r"`([\w./]+)`", row)}
    named = {p for p in paths if "." in p and not re.search(r"[A-Z]{4}", p) and "/" in p}
    assert len(named) >= 8
    missing = [p for p in named if not (PACKAGE / p).exists() and not (ROOT / p).exists()]
    assert not missing
