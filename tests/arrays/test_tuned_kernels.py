"""Kernels of one's own with macros to tune: what is tried, left out, kept and taken."""

import warnings

import numpy as np
import pytest

import kerascl as kc
from kerascl.kernels.tuning import choices

SCALE = """
__kernel void scale(__global const x_T* x, __global y_T* y) {
  const int first = get_global_id(0) * EACH;
  for (int i = first; i < min(first + EACH, x_SIZE); ++i) y_STORE(i, 2 * x_LOAD(i) BODY);
}
"""
PLAIN = SCALE.replace("BODY", "")


@pytest.fixture
def times(monkeypatch, tmp_path):
    """Made-up seconds by the number of the variant that is timed; what was timed, in order."""
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    given, seen = [], []

    def seconds(run, repeats, device):
        run()
        seen.append(len(seen))
        return given[len(seen) - 1]

    monkeypatch.setattr(kc.engine, "seconds", seconds)
    return given, seen


def scale(source=PLAIN, tune=None, **options):
    return kc.kernel(
        source, "scale", "x", "y",
        grid=lambda x, EACH, GROUP: -(-x.size // (EACH * GROUP)) * GROUP,
        local=lambda x, *, GROUP: GROUP,
        tune=tune or {"EACH": (1, 3), "GROUP": (8, 16)}, **options,
    )  # fmt: skip


def taken(f, x):
    """The macros that `f` takes for x."""
    f(x).evaluate()
    (found,) = f._fastest.values()
    return {k: found[k] for k in ("EACH", "GROUP")}


def test_the_fastest_is_kept(rng, times):
    given, seen = times
    given += [4e-6, 3e-6, 1e-6, 2e-6]  # EACH=1 with both groups, then EACH=3
    x = rng.normal(size=100).astype(np.float32)
    f = scale()
    np.testing.assert_array_equal(f(kc.array(x)).numpy(), 2 * x)
    assert taken(f, kc.array(x)) == {"EACH": 3, "GROUP": 8} and len(seen) == 4
    np.testing.assert_array_equal(kc.jit(lambda x: f(x) + 1)(kc.array(x)).numpy(), 2 * x + 1)
    np.testing.assert_array_equal(f(kc.array(x), EACH=5, GROUP=4).numpy(), 2 * x)
    again = scale()  # as another process declares it
    assert taken(again, kc.array(x)) == {"EACH": 3, "GROUP": 8} and len(seen) == 4
    given += [1e-6, 2e-6, 3e-6, 4e-6]  # another source, and another shape, are tuned anew
    other = scale(SCALE.replace("BODY", "+ 0"))
    assert taken(other, kc.array(x)) == {"EACH": 1, "GROUP": 8} and len(seen) == 8
    given += [2e-6, 1e-6, 3e-6, 4e-6]
    f(kc.array(x[:50])).evaluate()
    assert len(seen) == 12 and len(f._fastest) == 2


def test_captured_functions_take_what_is_kept(rng, times):
    given, seen = times
    x = rng.normal(size=(5, 40)).astype(np.float32)
    f = scale()
    both = kc.jit(lambda x: (f(x), kc.vmap(f)(x), kc.scan(lambda c, r: (c, f(r)), 0.0, x)[1]))
    for found in both(kc.array(x)):
        np.testing.assert_array_equal(found.numpy(), 2 * x)
    np.testing.assert_array_equal(kc.vmap(f)(kc.array(x)).numpy(), 2 * x)
    assert not seen and not f._fastest  # the first variant, and nothing kept
    given += [4e-6, 3e-6, 2e-6, 1e-6]
    f(kc.array(x)).evaluate()
    before = kc.engine.seconds
    launched = []
    kernel_launch = type(f)._launch

    def noted(self, given, results, macros):
        launched.append((macros["EACH"], macros["GROUP"]))
        return kernel_launch(self, given, results, macros)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(f), "_launch", noted)
        fresh = scale()
        kc.jit(lambda x: fresh(x))(kc.array(x)).evaluate()
    assert launched == [(3, 16)] and kc.engine.seconds is before and len(seen) == 4


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_what_is_wrong_is_left_out(rng, times, dtype):
    """A variant that does not build, one that is wrong, one that leaves elements as they were."""
    given, seen = times
    given += [9e-6, 1e-6]
    source = SCALE.replace(
        " BODY);",
        """);
  #if EACH == 2
  if (first == 0) y_STORE(0, 7);
  #elif EACH == 4
  nothing();
  #endif
  """,
    ).replace("x_SIZE", "(EACH == 8 ? x_SIZE - 1 : x_SIZE)")
    f = scale(source, tune={"EACH": (1, 2, 4, 8, 3), "GROUP": (8,)})
    x = (10 * rng.normal(size=64)).astype(dtype)
    x[0], x[-1] = 1, 99
    with warnings.catch_warnings(record=True) as seen_warnings:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(f(kc.array(x)).numpy(), 2 * x)
    told = [str(w.message) for w in seen_warnings if "left out" in str(w.message)]
    assert [t.split(" is left out")[0] for t in told] == [
        f"scale: EACH={k}, GROUP=8" for k in (2, 4, 8)
    ]
    assert "another than the first" in told[0] and "does not compile" in told[1]
    assert taken(f, kc.array(x)) == {"EACH": 3, "GROUP": 8} and len(seen) == 2


def test_other_orders_of_sums_and_nan_are_right(rng, times):
    given, _ = times
    given += [2e-6, 1e-6]
    f = kc.kernel(
        """
        __kernel void total(__global const float* x, __global float* y) {
          float part[LANES];
          for (int k = 0; k < LANES; ++k) part[k] = 0;
          for (int k = 0; k < x_DIM1; ++k) part[k % LANES] += x[get_global_id(0) * x_DIM1 + k];
          for (int k = 1; k < LANES; ++k) part[0] += part[k];
          y[get_global_id(0)] = part[0];
        }
        """,
        "total", "x", {"y": lambda x: (x.shape[:1], x.dtype)}, lambda x: x.shape[0],
        tune={"LANES": (1, 8)},
    )  # fmt: skip
    x = rng.normal(size=(6, 500)).astype(np.float32)
    x[1, 3], x[2, 2] = np.nan, np.inf
    found = f(kc.array(x)).numpy()
    np.testing.assert_allclose(found, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-4)
    assert next(iter(f._fastest.values()))["LANES"] == 8


def test_measured_times(rng, monkeypatch, tmp_path):
    """Nothing made up: all variants are timed on the device, and their times kept."""
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    kept = []
    monkeypatch.setattr(choices, "keep", lambda info, text, times: kept.append(times))
    x = rng.normal(size=1000).astype(np.float32)
    f = scale()
    np.testing.assert_array_equal(f(kc.array(x) + 0).numpy(), 2 * x)
    (times,) = kept
    assert len(times) == 4 and all(0 < t < 1e6 for t in times.values())


def test_damaged_times_are_refused():
    for data in (b"[1]", b'{"a": -1}', b'{"a": "x"}', b"{"):
        with pytest.raises((ValueError, TypeError)):
            choices._parse(data)


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"ABSENT": (1, 2)}, "ABSENT"),
        ({"EACH": ()}, "values to try"),
        ({"EACH": 4}, "values to try"),
        ({"EACH": "12"}, "values to try"),
    ],
)
def test_declarations_that_cannot_be(tune, message):
    with pytest.raises(ValueError, match=message):
        scale(tune=tune)
    with pytest.raises(ValueError, match="template"):
        scale(template={"EACH": 1})
