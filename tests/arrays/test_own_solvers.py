"""Users' kernels in place of the library's: against NumPy in float64, in layers, and when tuned."""

import argparse
import io

import numpy as np
import pytest
from rich.console import Console

import kerascl as kc
from kerascl.commands import tune
from kerascl.kernels.tuning import database
from kerascl.runtime import device
from tests.arrays.kernels import PRODUCT

CONV = """
__kernel void own_conv(__global const a_T* a, __global const b_T* b EPILOGUE_PARAMS) {
  const int filter = get_global_id(0), pixel = get_global_id(1), image = get_global_id(2);
  const int group = filter / (FILTERS / GROUPS);
  ACC_T sum = 0;
  for (int tap = 0; tap < TAPS; ++tap) {
    const int row = pixel / Y1 * STRIDE0 + tap / KERNEL1 * DILATION0 - PAD0;
    const int column = pixel % Y1 * STRIDE1 + tap % KERNEL1 * DILATION1 - PAD1;
    if (row < 0 || row >= X0 || column < 0 || column >= X1) continue;
    for (int c = 0; c < GROUP_CHANNELS; ++c)
      sum += (ACC_T)a_LOAD(x_AT(image, row * X1 + column, group * GROUP_CHANNELS + c))
           * (ACC_T)b_LOAD(w_AT(tap, c, filter));
  }
  EPILOGUE(sum, y_AT(image, pixel, filter));
}
"""


@pytest.fixture
def offer(monkeypatch):
    """offer(problem, source, …) adds a solver; `force` has it taken."""
    made = []

    def add(problem, source=PRODUCT, force=True, **options):
        name = "own_product" if "own_product" in source else "own_conv"
        options.setdefault("grid", lambda p: (p.n, p.m, p.batches))
        if "FACTOR" in source:
            options.setdefault("template", {"FACTOR": 1})
        found = kc.solver(problem, name, source, **options)
        made.append(found)
        if force:
            monkeypatch.setenv("KERASCL_SOLVERS", name)
        return found

    yield add
    for one in made:
        one.remove()
    database.forget()


def _close(found, wanted, tolerance=1e-5):
    found, wanted = np.asarray(found, "float64"), np.asarray(wanted, "float64")
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


@pytest.mark.parametrize("fused", [True, False])
def test_products(rng, offer, fused):
    source = PRODUCT
    if not fused:
        source = source.replace(" EPILOGUE_PARAMS", ", __global ACC_T* out")
        source = source.replace("EPILOGUE(sum * FACTOR, ", "out[").replace("));\n}", ")] = sum;\n}")
        source = source.replace("FACTOR", "1")
    offer("matmul", source, fused=fused)
    a, b = rng.normal(size=(2, 3, 5, 7)), rng.normal(size=(3, 7, 4))
    a, b = a.astype("f"), b.astype("f")
    wanted = np.maximum(a.astype("float64") @ b, 0) + 1
    y = kc.maximum(kc.array(a) @ kc.array(b), 0) + 1
    before = kc.engine.launches
    y.evaluate()
    assert kc.engine.launches == before + (1 if fused else 2)
    _close(y, wanted)
    _close(kc.jit(lambda a, b: kc.maximum(a @ b, 0) + 1)(kc.array(a), kc.array(b)), wanted)
    x = a[0, 0]  # strided operands
    _close(kc.array(x).T[::2] @ kc.array(x)[:, 1:], x.T[::2].astype("float64") @ x[:, 1:])
    half = kc.array(a).astype("bfloat16")
    rounded = half.astype("float32").numpy().astype("float64")
    _close((half @ half.mT).astype("float32"), rounded @ np.swapaxes(rounded, -1, -2), 1e-2)


def test_it_is_the_kernel_that_runs(rng, offer):
    a = rng.normal(size=(4, 6)).astype("f")
    offer("matmul", template={"FACTOR": 3})
    _close(kc.array(a) @ kc.array(a.T), 3 * a.astype("float64") @ a.T)
    offer("matmul", template={"FACTOR": 5})  # declared again, as by a notebook's cell
    _close(kc.array(a) @ kc.array(a.T), 5 * a.astype("float64") @ a.T)
    offer("matmul", template={"FACTOR": 7}, applies=lambda p, device: p.m > 100)
    _close(kc.array(a) @ kc.array(a.T), a.astype("float64") @ a.T)
    offer("matmul", template={"FACTOR": 7}, force=False).remove()
    _close(kc.array(a) @ kc.array(a.T), a.astype("float64") @ a.T)


DATA_GRAD = """
__kernel void own_conv(__global const a_T* a, __global const b_T* b EPILOGUE_PARAMS) {
  const int channel = get_global_id(0), pixel = get_global_id(1), image = get_global_id(2);
  const int group = channel / GROUP_CHANNELS, filters = FILTERS / GROUPS;
  ACC_T sum = 0;
  for (int tap = 0; tap < TAPS; ++tap) {
    const int row = pixel / X1 + PAD0 - tap / KERNEL1 * DILATION0;
    const int column = pixel % X1 + PAD1 - tap % KERNEL1 * DILATION1;
    if (row < 0 || row % STRIDE0 || row / STRIDE0 >= Y0) continue;
    if (column < 0 || column % STRIDE1 || column / STRIDE1 >= Y1) continue;
    const int from = row / STRIDE0 * Y1 + column / STRIDE1;
    for (int f = group * filters; f < (group + 1) * filters; ++f)
      sum += (ACC_T)a_LOAD(y_AT(image, from, f))
           * (ACC_T)b_LOAD(w_AT(tap, channel % GROUP_CHANNELS, f));
  }
  EPILOGUE(sum, x_AT(image, pixel, channel));
}
"""
FILTER_GRAD = """
__kernel void own_conv(__global const a_T* a, __global const b_T* b EPILOGUE_PARAMS) {
  const int filter = get_global_id(0), c = get_global_id(1), tap = get_global_id(2);
  const int channel = filter / (FILTERS / GROUPS) * GROUP_CHANNELS + c;
  ACC_T sum = 0;
  for (int image = 0; image < IMAGES; ++image)
    for (int pixel = 0; pixel < Y_PIXELS; ++pixel) {
      const int row = pixel / Y1 * STRIDE0 + tap / KERNEL1 * DILATION0 - PAD0;
      const int column = pixel % Y1 * STRIDE1 + tap % KERNEL1 * DILATION1 - PAD1;
      if (row < 0 || row >= X0 || column < 0 || column >= X1) continue;
      sum += (ACC_T)a_LOAD(x_AT(image, row * X1 + column, channel))
           * (ACC_T)b_LOAD(y_AT(image, pixel, filter));
    }
  EPILOGUE(sum, w_AT(tap, c, filter));
}
"""


def _reference(x, w, g, groups):
    """y, dx and dw in float64, by the definition: strides (2, 1), one row before and after, one
    column after."""
    padded = np.pad(x.astype("float64"), ((0, 0), (1, 1), (0, 1), (0, 0)))
    y, dx, dw = np.zeros(g.shape), np.zeros(padded.shape), np.zeros(w.shape)
    deep, wide = x.shape[-1] // groups, w.shape[-1] // groups
    for k in range(groups):
        channels, filters = slice(k * deep, (k + 1) * deep), slice(k * wide, (k + 1) * wide)
        for i, j in np.ndindex(w.shape[:2]):
            seen = np.s_[:, i : i + 2 * y.shape[1] : 2, j : j + y.shape[2], channels]
            y[..., filters] += padded[seen] @ w[i, j, :, filters]
            dx[seen] += g[..., filters] @ w[i, j, :, filters].T
            dw[i, j, :, filters] = np.tensordot(
                padded[seen], g[..., filters], ([0, 1, 2], [0, 1, 2])
            )
    return y, dx[:, 1:-1, :-1], dw


@pytest.mark.every(3)
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(rng, offer, channels_first, groups):
    x = rng.normal(size=(2, 7, 6, 4)).astype("f")
    w = rng.normal(size=(3, 2, 4 // groups, 6)).astype("f")
    g = rng.normal(size=(2, 4, 6, 6)).astype("f")
    wanted = _reference(x, w, g, groups)

    def laid(x):
        return x.transpose(0, 3, 1, 2) if channels_first else x

    def weighed(x, w):
        y = kc.conv(x, w, strides=(2, 1), padding=[(1, 1), (0, 1)], channels_first=channels_first)
        return kc.sum(y * kc.array(laid(g))), y

    sizes = {
        "conv": (CONV, lambda p: (p.w_shape[-1], int(np.prod(p.y_shape[1:-1])), p.x_shape[0])),
        "conv_data_grad": (
            DATA_GRAD, lambda p: (p.x_shape[-1], int(np.prod(p.x_shape[1:-1])), p.x_shape[0])
        ),
        "conv_filter_grad": (
            FILTER_GRAD, lambda p: (p.w_shape[-1], p.w_shape[-2], int(np.prod(p.w_shape[:-2])))
        ),
    }  # fmt: skip
    for problem, (source, grid) in sizes.items():
        offer(problem, source, grid=grid)
    given = kc.array(laid(x)), kc.array(w)
    with kc.GradientTape() as tape:
        for one in given:
            tape.watch(one)
        loss, y = weighed(*given)
    _close(y, laid(wanted[0]))
    dx, dw = tape.gradient(loss, given)
    _close(dx, laid(wanted[1]))
    _close(dw, wanted[2])


def test_tuning_trusts_what_is_right(rng, offer, tmp_path, monkeypatch):
    """The tuner times a right kernel and leaves a wrong one out; a record has it taken."""
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "kerascl")  # which the command sets
    database.forget()
    script = tmp_path / "script.py"
    script.write_text("import kerascl as kc\n(kc.ones((24, 40)) @ kc.ones((40, 16))).evaluate()\n")
    options = argparse.Namespace(
        script=str(script), arguments=[], network=None, problems=None, record=None, export=None,
        times=None, seconds=60, repeats=1, candidates=1,
    )  # fmt: skip
    a, b = rng.normal(size=(24, 40)).astype("f"), rng.normal(size=(40, 16)).astype("f")
    info = device.default().info
    races, race = [], tune.race

    def noted(*args):
        races.append((args[2], race(*args)))
        return races[-1][1]

    monkeypatch.setattr(tune, "race", noted)
    for factor, right in ((2, False), (1, True)):
        found = offer("matmul", template={"FACTOR": factor}, force=False)
        kc.engine.programs.clear()
        assert tune.run(options, Console(file=io.StringIO(), width=200)) == 0
        ((problem, outcome),) = races
        races.clear()
        (own,) = (n for n in {**outcome.times, **outcome.wrong} if n.startswith("own_product@"))
        assert (own in outcome.times) == right
        assert (own in outcome.wrong) != right
        found.remove()
    # taken where the record has it as the fastest, and only the kernel of this text
    database.keep(info, {f"gemm {database.key(problem)}": {own: 1.0}})
    offer("matmul", template={"FACTOR": 9}, force=False)
    _close(kc.array(a) @ kc.array(b), a.astype("float64") @ b)
    offer("matmul", template={"FACTOR": 1}, force=False)
    chosen = database.choose("gemm", *tune.KINDS["gemm"].candidates(problem, info), problem, info)
    assert chosen.name == own
    _close(kc.array(a) @ kc.array(b), a.astype("float64") @ b)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"problem": "fft"}, ValueError, "conv_data_grad"),
        ({"name": "no name"}, ValueError, "no name"),
        ({"name": "other"}, ValueError, "void other"),
        ({"source": PRODUCT.replace(" EPILOGUE_PARAMS", "")}, ValueError, "EPILOGUE_PARAMS"),
        ({"fused": False}, ValueError, "fused=False"),
        ({"applies": True}, TypeError, "applies"),
        ({"grid": "many"}, TypeError, "grid"),
        ({"grid": (1, 2, 3, 4)}, TypeError, "grid"),
        ({"template": {"FACTOR": [1]}}, TypeError, "FACTOR"),
        ({"template": {"A B": 1}}, ValueError, "A B"),
    ],
)
def test_wrong_declarations(change, error, match):
    given = {
        "problem": "matmul", "name": "own_product", "source": PRODUCT, "grid": 1,
        "template": {"FACTOR": 1},
    }  # fmt: skip
    with pytest.raises(error, match=match):
        kc.solver(**(given | change))


def test_errors_where_it_is_taken(offer):
    a = kc.ones((3, 3))
    offer("matmul", local=(2, 1, 1))
    with pytest.raises(ValueError, match="no multiple of local"):
        (a @ a).numpy()
    offer("matmul", PRODUCT.replace("ACC_T sum = 0", "ACC_T sum = nothing"))
    with pytest.raises(kc.CompileError, match="nothing"):
        (a @ a).numpy()


@pytest.mark.parametrize("fused", [True, False])
def test_names_of_the_kernel_are_its_own(offer, rng, fused):
    """A kernel's `acc`, `i` and the like are not those of the operations fused into it."""
    source = """
    __kernel void own_product(__global const a_T* a, __global const b_T* b EPILOGUE_PARAMS) {
      const int column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
      ACC_T acc = 0;
      for (int k = 0; k < K; ++k)
        acc += (ACC_T)a_LOAD(a_AT(batch, row, k)) * (ACC_T)b_LOAD(b_AT(batch, k, column));
      const INDEX_T i = out_AT(batch, row, column);
      EPILOGUE(acc, i);
    }
    """
    if not fused:
        source = source.replace(" EPILOGUE_PARAMS", ", __global ACC_T* out")
        source = source.replace("EPILOGUE(acc, i)", "out[i] = acc")
    offer("matmul", source, fused=fused)
    a, b = rng.standard_normal((2, 33, 33), "float32")
    found = kc.jit(lambda a, b: kc.maximum(a @ b * 2, 0) + a)(kc.array(a), kc.array(b))
    _close(found, np.maximum(a.astype("float64") @ b * 2, 0) + a)
