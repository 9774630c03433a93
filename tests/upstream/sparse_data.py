"""Sparse test data for kerascl where Keras' tests make it for JAX only.

The tests choose by name: ``elif backend.backend() == "jax": import … as jax_sparse; …``. Such a
chain gets an arm for kerascl, a copy of JAX's in which ``jax_sparse`` and ``jax`` are the names
below. What is asserted stays as it is.
"""

import ast
import inspect
import sys
import textwrap
import types
from importlib.machinery import PathFinder, SourceFileLoader

import numpy as np
from keras.src import backend, testing
from keras.src.testing import test_case

from kerascl.ops.sparse import SparseArray, from_dense

MODULES = frozenset(
    f"keras.src.{name}_test"
    for name in (
        "layers.core.dense",
        "layers.core.embedding",
        "layers.merging.merging",
        "layers.reshaping.flatten",
        "layers.reshaping.permute",
        "ops.core",
        "ops.numpy",
        "optimizers.optimizer_sparse",
    )
)


def _bcoo(data, shape) -> SparseArray:
    """A SparseArray from JAX's form, in which leading batch axes have indices of their own."""
    values, indices = (x if backend.is_tensor(x) else np.asarray(x) for x in data)
    shape, batch = tuple(shape), len(indices.shape) - 2
    if not batch:
        return SparseArray(
            backend.convert_to_tensor(values), backend.convert_to_tensor(indices, "int32"), shape
        )
    count, k = indices.shape[-2:]
    indices = np.broadcast_to(indices, (*shape[:batch], count, k)).reshape(-1, k)
    values = np.broadcast_to(values, (*shape[:batch], *values.shape[batch:]))
    lead = np.indices((*shape[:batch], count))[:batch].reshape(batch, -1).T
    return SparseArray(
        backend.convert_to_tensor(values.reshape(-1, *values.shape[batch + 1 :])),
        backend.convert_to_tensor(np.concatenate([lead, indices], 1), "int32"),
        shape,
    )


def _fromdense(x, n_batch=0) -> SparseArray:
    return from_dense(backend.convert_to_tensor(x))


def _numpy(name: str):
    """A function of jax.numpy, by NumPy."""
    run = getattr(np, name)
    return lambda x, *args, **named: run(np.asarray(x), *args, **named)


_bcoo.fromdense = _fromdense
jax_sparse = types.SimpleNamespace(BCOO=_bcoo, JAXSparse=SparseArray)
jax = types.SimpleNamespace(
    numpy=types.SimpleNamespace(
        **{name: _numpy(name) for name in ("expand_dims", "moveaxis", "squeeze", "take")}
    )
)


class _Arms(ast.NodeTransformer):
    """Adds the arms, and our class to the names by which numpy_test tells sparse arrays."""

    count = 0

    def visit_If(self, node):
        self.generic_visit(node)
        names = {n.id for n in ast.walk(ast.Module(node.body, [])) if isinstance(n, ast.Name)}
        imported = any(isinstance(line, ast.Import | ast.ImportFrom) for line in node.body)
        if not (_is_name(node.test, "jax") and imported and "jax_sparse" in names):
            return node
        self.count += 1
        body = [line for line in node.body if not isinstance(line, ast.Import | ast.ImportFrom)]
        arm = ast.parse(ast.unparse(ast.Module(body, []))).body
        arm[:0] = ast.parse(f"from {__name__} import jax, jax_sparse").body
        test = ast.parse(ast.unparse(node.test).replace("'jax'", "'kerascl'"), mode="eval").body
        new = ast.If(test=test, body=arm, orelse=[node])
        for part in [test, *arm]:
            for n in ast.walk(part):
                ast.copy_location(n, node)
        return ast.copy_location(new, node)

    def visit_Compare(self, node):
        if ast.unparse(node) == "x.__class__.__name__ == 'BCOO'":
            node = ast.parse("x.__class__.__name__ in ('BCOO', 'SparseArray')", mode="eval").body
        return node


def _is_name(test, name: str) -> bool:
    return isinstance(test, ast.Compare) and ast.unparse(test).endswith(f"backend() == {name!r}")


def _compiled(source, filename: str):
    arms = _Arms()
    tree = ast.fix_missing_locations(arms.visit(ast.parse(source)))
    if not arms.count:
        raise ImportError(f"no sparse data of JAX's in {filename}")
    return compile(tree, filename, "exec")


class _Loader(SourceFileLoader):
    def get_code(self, fullname):
        return _compiled(self.get_data(self.path), self.path)


class Finder:
    """Serves the test modules of `MODULES` with the arms."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname not in MODULES:
            return None
        spec = PathFinder.find_spec(fullname, path)
        spec.loader = _Loader(fullname, spec.origin)
        return spec


def install() -> None:
    """Test modules imported from now on, and Keras' own TestCase, know our sparse arrays."""
    sys.meta_path[:] = [Finder, *(f for f in sys.meta_path if f is not Finder)]
    for owner, name in ((testing.TestCase, "assertSparse"), (test_case, "create_eager_tensors")):
        function = getattr(owner, name)
        if function.__code__.co_filename.startswith("kerascl arms of"):
            continue
        source = textwrap.dedent(inspect.getsource(function))
        space = {}
        code = _compiled(source, f"kerascl arms of {name}")
        exec(code, test_case.__dict__, space)
        setattr(owner, name, space[name])
