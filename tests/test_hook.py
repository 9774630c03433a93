"""The import hook: what it splices into Keras, when, and what it says when it cannot.

A throw-away ``kerascl`` package of NumPy functions stands in for the backend, so that these tests
say something about the hook alone; each runs in an interpreter of its own.
"""

import ast
import importlib.util
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import kerascl_hook

ROOT = Path(__file__).resolve().parent.parent
KERAS = Path(importlib.util.find_spec("keras").origin).parent

STUB_BACKEND = """
import sys
import types

import numpy as np

from keras.src.backend.common import KerasVariable, standardize_dtype
from keras.src.backend.common.name_scope import name_scope

SUPPORTS_SPARSE_TENSORS = SUPPORTS_RAGGED_TENSORS = SUPPORTS_COMPLEX_DTYPES = False
IS_THREAD_SAFE = True


class Variable(KerasVariable):
    def _initialize(self, value):
        self._value = np.array(value, dtype=self._dtype)

    def _direct_assign(self, value):
        self._value = np.array(value, dtype=self._dtype)

    def _convert_to_tensor(self, value, dtype=None):
        return convert_to_tensor(value, dtype)

    def __array__(self):
        return self._value


def convert_to_tensor(x, dtype=None, sparse=None, ragged=None):
    if isinstance(x, Variable):
        x = x.value
    return np.asarray(x, dtype=standardize_dtype(dtype) if dtype else None)


def convert_to_numpy(x):
    return np.asarray(x)


def cast(x, dtype):
    return convert_to_tensor(x, dtype)


def shape(x):
    return tuple(x.shape)


def is_tensor(x):
    return isinstance(x, np.ndarray)


def stub(name):
    def function(*args, **kwargs):
        raise NotImplementedError(name)

    return function


compute_output_spec, cond, device_scope, random_seed_dtype, scatter, stop_gradient = map(
    stub, ("compute_output_spec", "cond", "device_scope", "seed_dtype", "scatter", "stop_gradient")
)
vectorized_map, rnn, lstm, gru, bidirectional_lstm, bidirectional_gru, cudnn_ok = map(
    stub, ("vectorized_map", "rnn", "lstm", "gru", "bi_lstm", "bi_gru", "cudnn_ok")
)

for _name in ("core", "numpy", "nn", "math", "linalg", "image", "random"):
    _module = types.ModuleType("kerascl.backend.ops." + _name)
    _module.__getattr__ = (lambda attribute: getattr(np, attribute)) if _name == "numpy" else stub
    globals()[_name] = sys.modules[_module.__name__] = _module
"""

STUB_CLASSES = {
    "layer": "class BackendLayer:\n    where = 'stub layer'\n",
    "trainer": "class Trainer:\n    def __init__(self):\n        super().__init__()\n",
    "export": "class SavedModelExportArchive:\n    pass\n",
    "optimizer": """
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        class BackendOptimizer(BaseOptimizer):
            where = 'stub optimizer'
        """,
}


@pytest.fixture
def site(tmp_path):
    """A folder with the hook and a stub of kerascl, to be put on PYTHONPATH."""
    (tmp_path / "kerascl_hook.py").write_text((ROOT / "kerascl_hook.py").read_text())
    package = tmp_path / "kerascl" / "backend"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("import kerascl_hook\nkerascl_hook.install()\n")
    (package / "__init__.py").write_text(STUB_BACKEND)
    for name, text in STUB_CLASSES.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text))
    return tmp_path


def python(code, site, *, with_pth=True, options=(), **variables):
    """Runs code with Keras and ``site`` at hand; gives the finished process."""
    if with_pth:  # the line that Python's site module runs from site-packages
        line = (ROOT / "kerascl.pth").read_text().splitlines()[-1]
        code = f"exec({line!r})\n" + textwrap.dedent(code)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KERAS")}
    environment |= {"PYTHONPATH": f"{site}{os.pathsep}{KERAS.parent}", "KERAS_HOME": str(site)}
    environment |= variables
    return subprocess.run(
        [sys.executable, "-S", *options, "-c", SITE_PACKAGES + textwrap.dedent(code)],
        env=environment, cwd=site, text=True, capture_output=True, timeout=120,
    )  # fmt: skip


# -S leaves out the site-packages' own .pth files, an installed kerascl.pth among them.
SITE_PACKAGES = f"import sys; sys.path += {[p for p in sys.path if 'site-packages' in p]!r}\n"


def check(process):
    assert process.returncode == 0, process.stderr
    return process.stdout


def last_line(process):
    assert process.returncode != 0, process.stdout
    return process.stderr.strip().splitlines()[-1]


PROBE = """
    import keras
    assert keras.config.backend() == "kerascl"
    from keras.src import backend
    from keras.src.backend.common.variables import Variable as Base
    import kerascl.backend
    assert backend.numpy is kerascl.backend.numpy and backend.distribution_lib is None
    assert issubclass(keras.Variable, kerascl.backend.Variable)
    assert keras.layers.Layer.where == "stub layer"
    assert keras.optimizers.SGD.where == "stub optimizer"
    from kerascl.backend.trainer import Trainer
    from kerascl.backend.export import SavedModelExportArchive
    assert Trainer in keras.Model.__mro__
    from keras.src.export import saved_model
    assert SavedModelExportArchive in vars(saved_model).values()
    v = keras.Variable([1.0, 2.0])
    print(keras.ops.add(v, 1.0), type(v.value).__name__)
    """


@pytest.mark.parametrize("module", sorted(kerascl_hook._CHAINS))
def test_splice_adds_one_arm_and_changes_nothing_else(module):
    file = KERAS.parent / (module.replace(".", "/") + ".py")
    if not file.exists():
        file = file.with_suffix("") / "__init__.py"
    if not file.exists():
        pytest.skip("this Keras comes without its tests")
    source = file.read_text()
    spliced = kerascl_hook.splice(source, module, str(file))
    original = ast.parse(source)
    changed = [i for i, (a, b) in enumerate(zip(original.body, spliced.body, strict=True))
               if ast.dump(a) != ast.dump(b)]  # fmt: skip
    assert len(changed) == 1
    new, old = spliced.body[changed[0]], original.body[changed[0]]
    assert ast.unparse(new.test).endswith("backend() == 'kerascl'")
    assert ast.dump(new.orelse[0]) == ast.dump(old) and len(new.orelse) == 1
    assert new.lineno == old.lineno  # tracebacks keep their line numbers
    ours = {alias.asname for line in new.body if isinstance(line, ast.ImportFrom)
            for alias in line.names if alias.asname}  # fmt: skip
    theirs = {alias.asname for line in old.body if isinstance(line, ast.ImportFrom)
              for alias in line.names if alias.asname}  # fmt: skip
    assert ours == theirs
    compile(spliced, str(file), "exec")


def test_splice_refuses_a_module_without_the_chain():
    with pytest.raises(ImportError, match=r"no backend choice .* in layer.py: this Keras is not"):
        kerascl_hook.splice("x = 1\n", "keras.src.layers.layer", "layer.py")


def test_splice_skips_a_lone_if_on_the_backend():
    source = 'if backend() == "torch":\n    import torch\n'
    with pytest.raises(ImportError):
        kerascl_hook.splice(source, "keras.src.backend", "backend.py")


def test_clearing_adds_one_arm_and_changes_nothing_else():
    file = KERAS / "src/backend/common/global_state.py"
    source = file.read_text()
    original, spliced = ast.parse(source), kerascl_hook.clear_ourselves(source, str(file))
    function = next(f for f in spliced.body if getattr(f, "name", "") == "clear_session")
    arms = [s for s in function.body if "'kerascl'" in ast.unparse(s)]
    assert len(arms) == 1
    function.body[function.body.index(arms[0])] = arms[0].orelse[0]
    assert ast.dump(spliced) == ast.dump(original)


@pytest.mark.parametrize(
    "source",
    ["x = 1\n", "def clear_session():\n    pass\n", "def clear_session(free_memory):\n    pass\n"],
)
def test_clearing_leaves_another_form_of_keras_as_it_is(source):
    assert ast.unparse(kerascl_hook.clear_ourselves(source, "x.py")) == source.strip()


def test_exporting_adds_one_arm_and_changes_nothing_else():
    file = KERAS / "src/export/onnx.py"
    source = file.read_text()
    original, spliced = ast.parse(source), kerascl_hook.export_ourselves(source, str(file))
    function = next(f for f in spliced.body if getattr(f, "name", "") == "export_onnx")
    arms = [s for s in function.body if "'kerascl'" in ast.unparse(s)]
    assert len(arms) == 1
    function.body[function.body.index(arms[0])] = arms[0].orelse[0]
    assert ast.dump(spliced) == ast.dump(original)


OLDER = """
def export_onnx(model, filepath, input_signature=None, opset_version=None, **kwargs):
    if input_signature is None:
        pass
    if backend.backend() in ("tensorflow", "jax"):
        pass
    elif backend.backend() == "torch":
        pass
    else:
        raise NotImplementedError
"""


def test_exporting_knows_the_chain_of_older_releases():
    text = ast.unparse(kerascl_hook.export_ourselves(OLDER, "x.py"))
    assert text.count("if backend.backend() == 'kerascl'") == 1
    assert "elif backend.backend() in ('tensorflow', 'jax')" in text


@pytest.mark.parametrize("source", ["x = 1\n", "def export_onnx(model):\n    pass\n"])
def test_exporting_leaves_another_form_of_keras_as_it_is(source):
    assert ast.unparse(kerascl_hook.export_ourselves(source, "x.py")) == source.strip()


def test_clear_session_calls_ours(site):
    (site / "kerascl/backend/session.py").write_text("def clear(free): print('freed', free)\n")
    code = """
        import keras
        keras.utils.clear_session()
        keras.backend.clear_session(free_memory=False)
        """
    assert check(python(code, site, KERAS_BACKEND="kerascl")) == "freed True\nfreed False\n"


def test_environment_variable_selects_kerascl(site):
    assert check(python(PROBE, site, KERAS_BACKEND="kerascl")) == "[2. 3.] ndarray\n"


def test_variable_set_by_the_program_selects_kerascl(site):
    code = 'import os\nos.environ["KERAS_BACKEND"] = "kerascl"\n' + textwrap.dedent(PROBE)
    assert "ndarray" in check(python(code, site))


def test_keras_json_selects_kerascl(site):
    (site / "keras.json").write_text('{"backend": "kerascl", "floatx": "float32"}')
    assert "ndarray" in check(python(PROBE, site))


def test_keras_json_in_the_home_folder_selects_kerascl(site):
    (site / ".keras").mkdir()
    (site / ".keras" / "keras.json").write_text('{"backend": "kerascl"}')
    code = 'import os\ndel os.environ["KERAS_HOME"]\n' + textwrap.dedent(PROBE)
    assert "ndarray" in check(python(code, site, HOME=str(site)))


def test_import_before_keras_replaces_the_pth(site):
    code = "import kerascl\n" + textwrap.dedent(PROBE)
    assert "ndarray" in check(python(code, site, with_pth=False, KERAS_BACKEND="kerascl"))


def test_dynamic_backend_knows_the_name(site):
    code = """
        import keras, kerascl.backend
        from keras.src.utils.backend_utils import DynamicBackend
        dynamic = DynamicBackend()
        assert dynamic.name == "kerascl" and dynamic.numpy is kerascl.backend.numpy
        dynamic.set_backend("jax")
        assert dynamic.name == "jax"
        dynamic.set_backend("kerascl")
        assert dynamic.cast is kerascl.backend.cast
        try:
            dynamic.set_backend("nonesuch")
        except ValueError:
            print("refused")
        """
    assert check(python(code, site, KERAS_BACKEND="kerascl")) == "refused\n"


def test_set_backend_reloads_keras(site):
    code = "import keras\nkeras.config.set_backend('kerascl')\n" + textwrap.dedent(PROBE)
    assert "ndarray" in check(python(code, site, KERAS_BACKEND="kerascl"))


def test_another_backend_never_sees_kerascl(site):
    # No other backend's library need be installed: the chain fails only after the hook has looked.
    code = """
        try:
            import keras
        except (ImportError, ValueError):
            pass
        loader = type(sys.modules.get("keras.src.backend.config").__spec__.loader).__name__
        print(loader, sorted(m for m in sys.modules if m.split(".")[0] == "kerascl"))
        """
    for name in ("numpy", "nonesuch"):
        assert check(python(code, site, KERAS_BACKEND=name)) == "SourceFileLoader []\n"


def test_starting_python_loads_nothing(site):
    code = "print([m for m in sys.modules if m.startswith('keras')], 'ast' in sys.modules)"
    before = check(python(code, site, with_pth=False, KERAS_BACKEND="kerascl"))
    assert check(python(code, site, KERAS_BACKEND="kerascl")) == before == "[] False\n"


def test_pth_survives_a_missing_hook(site):
    (site / "kerascl_hook.py").unlink()
    process = python("import keras", site, KERAS_BACKEND="kerascl")
    assert last_line(process) == "ValueError: Unable to import backend : kerascl"


def test_failing_import_of_kerascl_is_named(site):
    (site / "kerascl" / "__init__.py").write_text("import module_that_is_missing")
    assert last_line(python("import keras", site, KERAS_BACKEND="kerascl")) == (
        "ImportError: Keras was told to use kerascl (KERAS_BACKEND=kerascl), but importing kerascl "
        "failed: ModuleNotFoundError: No module named 'module_that_is_missing'"
    )


@pytest.mark.parametrize("version", ["3.11.3", "3.16.0", "2.15.0"])
def test_unsupported_version_is_one_sentence(site, version):
    package = site / "old" / "keras" / "src"
    (package / "backend").mkdir(parents=True)
    (package.parent / "__init__.py").write_text("import keras.src.backend")
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text(f'__version__ = "{version}"\n')
    (package / "backend" / "__init__.py").write_text("")
    code = f"sys.path.insert(0, {str(site / 'old')!r})\nimport keras"
    assert last_line(python(code, site, KERAS_BACKEND="kerascl")) == (
        f"ImportError: kerascl needs Keras 3.12 to 3.15, but Keras {version} is installed in "
        f"{package.parent}"
    )


@pytest.mark.parametrize("module, name", sorted(set(kerascl_hook._CHAINS.values())))
def test_the_backend_defines_what_the_hook_imports(module, name):
    file = ROOT.joinpath(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    bound = {
        alias.asname or alias.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    bound |= {n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef)}
    assert name in bound


def test_the_backend_hides_no_module_of_keras():
    # The star import into keras.src.backend would replace its own submodules of these names.
    tree = ast.parse((ROOT / "kerascl" / "backend" / "__init__.py").read_text())
    (offered,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    )
    taken = {p.stem for p in (KERAS / "src" / "backend").iterdir()} | {"backend", "KerasTensor"}
    assert not taken - {"numpy"} & set(offered)


def test_requirement_agrees_with_the_hook():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (first_major, first), (last_major, last) = kerascl_hook.SUPPORTED
    assert f"keras>={first_major}.{first},<{last_major}.{last + 1}" in project["dependencies"]


def test_no_bytecode_of_a_spliced_module_is_used(site):
    # A .pyc of a spliced module would be served to every other backend as well.
    process = python(
        PROBE,
        site,
        KERAS_BACKEND="kerascl",
        PYTHONPYCACHEPREFIX=str(site / "pyc"),
        PYTHONDONTWRITEBYTECODE="",
    )
    check(process)
    written = {p.name.split(".")[0] for p in (site / "pyc").rglob("layers/layer*.pyc")}
    assert not written
    assert list((site / "pyc").rglob("variables*.pyc"))  # Keras' other modules do cache
