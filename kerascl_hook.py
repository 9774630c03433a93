"""Makes ``KERAS_BACKEND=kerascl`` work in an unmodified Keras.

Keras chooses its backend in a few module-level ``if backend() == "tensorflow": … elif …`` chains
that know only the built-in names. A finder on ``sys.meta_path`` serves those modules with one more
arm, spliced into their syntax tree while they are imported; nothing on disk changes. Keras'
``DynamicBackend``, which preprocessing layers use, learns the name in the same way.  The modules of
keras-hub that capture what generates text and images only for backends that they name are handed
to ``kerascl.backend.generation`` as they are imported.

This is a top-level module of its own, with nothing but the standard library in it, because it must
run before Keras and without importing kerascl: ``kerascl.pth`` loads it when Keras is imported, in
every program of the environment, and kerascl itself is only imported if it was chosen.
"""

import ast
import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

BACKEND = "kerascl"
SUPPORTED = ((3, 12), (3, 15))  # first and last Keras release, as (major, minor)

_ROOT = "keras.src.backend"
_DYNAMIC = "keras.src.utils.backend_utils"
_TENSORBOARD = "keras.src.callbacks.tensorboard"  # names the backends that can profile
_STATE = "keras.src.backend.common.global_state"  # clears what backends keep
_ONNX = "keras.src.export.onnx"  # each backend's way to an ONNX file

# Keras module -> (the module of ours, the name in it) that its chain imports. The name it gets
# there is read from Keras' own arms, since it differs between releases.
_CHAINS = {
    _ROOT: ("kerascl.backend", "Variable"),
    "keras.src.layers.layer": ("kerascl.backend.layer", "BackendLayer"),
    "keras.src.models.model": ("kerascl.backend.trainer", "Trainer"),
    "keras.src.export.saved_model": ("kerascl.backend.export", "SavedModelExportArchive"),
    "keras.src.optimizers.optimizer": ("kerascl.backend.optimizer", "BackendOptimizer"),
    "keras.src.trainers.trainer_test": ("kerascl.backend.trainer", "Trainer"),
}
_MODEL_ARM = "jax"  # the arm whose imported names ours copies; every chain has it


def install() -> None:
    """Puts the finder first on ``sys.meta_path``; calling it again only moves it to the front.

    Nothing happens until Keras is imported, and then only if kerascl is the chosen backend.
    """
    sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "is_kerascl_finder", False)]
    sys.meta_path.insert(0, Finder())


class Finder:
    """Serves the Keras modules that choose a backend, when that backend is kerascl."""

    is_kerascl_finder = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python's protocol for finders of modules."""
        if fullname not in _CHAINS and fullname not in _LOADERS:
            return None
        return find_spec(fullname, path)


def find_spec(fullname: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """The spec of one of the hooked Keras modules, or None when another backend is chosen.

    Raises:
        ImportError: Keras is of an unsupported version or form, or kerascl cannot be imported.
    """
    source = chosen()
    if source is None:
        return None
    spec = PathFinder.find_spec(fullname, path)
    if spec is None:
        return None
    if not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
        raise ImportError(
            f"{BACKEND} needs the source of {fullname}, but {spec.origin or 'it'} is not a .py file"
        )
    if fullname == _ROOT:
        _check_version(spec.origin)
        _import_ourselves(source)
        install()  # in front of later finders too, such as pytest's
    spec.loader = _LOADERS.get(fullname, _SpliceLoader)(fullname, spec.origin)
    return spec


def chosen() -> str | None:
    """Where kerascl was chosen as Keras' backend, in words, or None if it was not.

    Follows ``keras.src.backend.config``: KERAS_BACKEND, else ``backend`` in keras.json.
    """
    config = sys.modules.get("keras.src.backend.config")
    if config is not None and hasattr(config, "backend"):  # Keras has decided already
        return "keras.config.backend()" if config.backend() == BACKEND else None
    name = os.environ.get("KERAS_BACKEND")
    if name:
        return f"KERAS_BACKEND={name}" if name == BACKEND else None
    home = os.environ.get("KERAS_HOME")
    if home is None:
        base = os.path.expanduser("~")
        home = os.path.join(base if os.access(base, os.W_OK) else "/tmp", ".keras")
    file = os.path.expanduser(os.path.join(home, "keras.json"))
    try:
        with open(file) as stream:
            found = json.load(stream).get("backend") == BACKEND
    except (OSError, ValueError, AttributeError):
        return None
    return f'"backend" in {file}' if found else None


def splice(source: str, fullname: str, filename: str) -> ast.Module:
    """The syntax tree of a Keras module with an arm for kerascl at the head of its chain.

    Args:
        source: the module's text.
        fullname: its dotted name, one of the hooked modules.
        filename: its path, for messages.

    Raises:
        ImportError: there is no such chain in it.
    """
    tree = ast.parse(source, filename)
    for position, statement in enumerate(tree.body):
        model = _arm(statement, _MODEL_ARM)
        if model is None:
            continue
        bound = [
            alias.asname
            for line in model
            if isinstance(line, ast.ImportFrom)
            for alias in line.names
            if alias.asname
        ]
        if len(bound) != 1:
            break
        module, name = _CHAINS[fullname]
        text = f"from {module} import {name} as {bound[0]}"
        if fullname == _ROOT:
            # The star may bring a distribution_lib; Keras imports the name either way.
            text = f"distribution_lib = None\nfrom {module} import *\n{text}"
        tree.body[position] = _with_arm(statement, text)
        return tree
    raise ImportError(
        f"{BACKEND} found no backend choice that it knows in {filename}: this Keras is not "
        f"{_supported()} as released"
    )


def _with_arm(chain: ast.stmt, text: str) -> ast.If:
    """A chain with an arm for kerascl, of the statements in `text`, at its head."""
    assert isinstance(chain, ast.If) and isinstance(chain.test, ast.Compare)  # as `_arm` found
    arm = ast.parse(text).body
    test = ast.Compare(left=chain.test.left, ops=[ast.Eq()], comparators=[ast.Constant(BACKEND)])
    new = ast.If(test=test, body=arm, orelse=[chain])
    for node in [new, *(n for line in arm for n in ast.walk(line))]:
        ast.copy_location(node, chain)
    return ast.fix_missing_locations(new)


def _arm(statement: ast.stmt, name: str) -> list[ast.stmt] | None:
    """The body of the arm ``backend() == name`` of an if-chain that also has one for torch."""
    arms: dict[str, list[ast.stmt]] = {}
    chain: ast.stmt | None = statement
    while isinstance(chain, ast.If):
        match chain.test:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id="backend") | ast.Attribute(attr="backend")),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=str(key))],
            ):
                arms[key] = chain.body
            case _:
                return None
        chain = chain.orelse[0] if len(chain.orelse) == 1 else None
    return arms.get(name) if "torch" in arms else None


class _SpliceLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        # Not SourceLoader.get_code: the module's .pyc must be neither read nor written.
        filename = self.get_filename(fullname)
        source = self.get_source(fullname) or ""
        return compile(splice(source, fullname, filename), filename, "exec", dont_inherit=True)


def name_ourselves(source: str, filename: str) -> ast.Module:
    """The syntax tree of a module with kerascl in its lists of supported backends.

    Such a list is the tuple in ``backend() not in ("jax", …)``.  A module without one stays as it
    is: nothing but an optional feature hangs on it.
    """
    tree = ast.parse(source, filename)
    for node in ast.walk(tree):
        match node:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id="backend") | ast.Attribute(attr="backend")),
                ops=[ast.NotIn()],
                comparators=[ast.Tuple(elts=names) | ast.List(elts=names)],
            ) if any(isinstance(n, ast.Constant) and n.value == _MODEL_ARM for n in names):
                names.append(ast.copy_location(ast.Constant(BACKEND), names[-1]))
    return tree


class _ListLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        filename = self.get_filename(fullname)
        tree = name_ourselves(self.get_source(fullname) or "", filename)
        return compile(tree, filename, "exec", dont_inherit=True)


def clear_ourselves(source: str, filename: str) -> ast.Module:
    """The syntax tree of a module whose `clear_session` frees what kerascl keeps, too.

    A module without a chain of backends there stays as it is: memory is bounded without it.
    """
    tree = ast.parse(source, filename)
    for function in tree.body:
        match function:
            case ast.FunctionDef(name="clear_session", args=args) if any(
                a.arg == "free_memory" for a in args.args
            ):
                for position, statement in enumerate(function.body):
                    if _arm(statement, "torch"):
                        function.body[position] = _with_arm(
                            statement,
                            f"from {BACKEND}.backend import session\nsession.clear(free_memory)",
                        )
    return tree


class _StateLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        filename = self.get_filename(fullname)
        tree = clear_ourselves(self.get_source(fullname) or "", filename)
        return compile(tree, filename, "exec", dont_inherit=True)


def export_ourselves(source: str, filename: str) -> ast.Module:
    """The syntax tree of a module whose `export_onnx` has an arm for kerascl.

    A module without a chain of backends there stays as it is: it refuses backends that it does not
    know.
    """
    tree = ast.parse(source, filename)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name != "export_onnx":
            continue
        for position, statement in enumerate(function.body):
            match statement:
                case ast.If(
                    test=ast.Compare(
                        left=ast.Call(func=ast.Name(id="backend") | ast.Attribute(attr="backend"))
                    )
                ):
                    function.body[position] = _with_arm(
                        statement,
                        f"from {BACKEND}.onnx import exporter\n"
                        "exporter.export_model("
                        "model, filepath, input_signature, opset_version, **kwargs)",
                    )
                    return tree
    return tree


class _OnnxLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        filename = self.get_filename(fullname)
        tree = export_ourselves(self.get_source(fullname) or "", filename)
        return compile(tree, filename, "exec", dont_inherit=True)


class _DynamicLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        try:
            dynamic = module.DynamicBackend
            set_backend, get_attribute = dynamic.set_backend, dynamic.__getattr__
        except AttributeError:
            raise ImportError(
                f"{BACKEND} found no DynamicBackend that it knows in {module.__file__}: this "
                f"Keras is not {_supported()} as released"
            ) from None

        def patched_set_backend(self: Any, backend: str) -> None:
            if backend == BACKEND:
                self._backend = BACKEND
            else:
                set_backend(self, backend)

        def patched_getattr(self: Any, name: str) -> Any:
            if self.__dict__.get("_backend") == BACKEND:
                return getattr(importlib.import_module("kerascl.backend"), name)
            return get_attribute(self, name)

        dynamic.set_backend = patched_set_backend
        dynamic.__getattr__ = patched_getattr


class _HubLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        importlib.import_module(f"{BACKEND}.backend.generation").teach(module)


_HUB = "keras_hub.src."
_LOADERS = {
    _DYNAMIC: _DynamicLoader,
    _TENSORBOARD: _ListLoader,
    _STATE: _StateLoader,
    _ONNX: _OnnxLoader,
    f"{_HUB}models.causal_lm": _HubLoader,  # and sequence-to-sequence models
    f"{_HUB}models.text_to_image": _HubLoader,
    f"{_HUB}models.image_to_image": _HubLoader,
    f"{_HUB}models.inpaint": _HubLoader,
    f"{_HUB}utils.keras_utils": _HubLoader,
}


def _supported() -> str:
    (major, first), (_, last) = SUPPORTED
    return f"Keras {major}.{first} to {major}.{last}"


def _check_version(origin: str) -> None:
    # From the file: nothing of Keras can be imported yet, and there may be no package metadata.
    file = os.path.join(os.path.dirname(os.path.dirname(origin)), "version.py")
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
    except OSError:
        text = ""
    match = re.search(r"^__version__ = \"((\d+)\.(\d+)[^\"]*)\"", text, re.MULTILINE)
    if match is None:
        raise ImportError(f"{BACKEND} needs {_supported()}, but finds no version in {file}")
    if not SUPPORTED[0] <= (int(match[2]), int(match[3])) <= SUPPORTED[1]:
        raise ImportError(
            f"{BACKEND} needs {_supported()}, but Keras {match[1]} is installed in "
            f"{os.path.dirname(os.path.dirname(file))}"
        )


def _import_ourselves(source: str) -> None:
    try:
        importlib.import_module(BACKEND)
    except Exception as error:
        raise ImportError(
            f"Keras was told to use {BACKEND} ({source}), but importing {BACKEND} failed: "
            f"{type(error).__name__}: {error}"
        ) from error
