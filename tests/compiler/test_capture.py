"""Captured functions: equal to eager ones, safe for values read earlier, clear when impossible."""

import gc

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.program import memory
from kerascl.compiler.run import capture as captures
from kerascl.runtime.errors import OutOfDeviceMemory
from kerascl.runtime.programs import Programs


def mlp(rng):
    """A two-layer network with momentum, as States."""
    shapes = [(12, 16), (16,), (16, 3), (3,)]
    weights = [kc.State(kc.array(rng.standard_normal(s).astype("f") * 0.3)) for s in shapes]
    momenta = [kc.State(kc.zeros(s)) for s in shapes]

    def step(x, y, rate):
        with kc.GradientTape() as tape:
            hidden = kc.tanh(x @ weights[0].value + weights[1].value)
            out = hidden @ weights[2].value + weights[3].value
            loss = kc.mean(kc.square(out - y))
        for w, m, g in zip(weights, momenta, tape.gradient(loss, weights), strict=True):
            velocity = m.value * 0.9 + g
            m.assign(velocity)
            w.assign(w.value - velocity * rate)
        return {"loss": loss, "out": (out,)}

    return weights, step


def data(rng):
    x = rng.standard_normal((32, 12)).astype("f")
    return x, (x[:, :3] * 2).astype("f")


@pytest.mark.slow
def test_captured_training_equals_eager_training():
    losses = []
    for capture in (False, True):
        rng = np.random.default_rng(3)
        x, y = data(rng)
        _, step = mlp(rng)
        run = kc.jit(step) if capture else step
        rate = np.float32(0.05)
        losses.append(
            [float(run(kc.array(x), kc.array(y), kc.array(rate))["loss"]) for _ in range(20)]
        )
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-6)
    assert losses[1][-1] < 0.5 * losses[1][0]


def test_values_read_before_a_step_stay_as_they_were():
    rng = np.random.default_rng(4)
    x, y = data(rng)
    weights, step = mlp(rng)
    run = kc.jit(step)
    held = []
    for _ in range(5):
        now = weights[0].value
        held.append((now, now.numpy(), now * 2))
        run(x, y, np.float32(0.1))
    for array, value, doubled in held:
        np.testing.assert_array_equal(array.numpy(), value)
        np.testing.assert_array_equal(doubled.numpy(), value * 2)
    assert not np.array_equal(held[0][1], held[1][1])


def test_results_of_one_call_survive_the_next():
    run = kc.jit(lambda x: x * 2)
    results = [run(np.full(5, k, "f")) for k in range(6)]
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), np.full(5, 2 * k, "f"))


def test_states_swapped_and_shared():
    a, b, c = (kc.State(kc.array(np.full(4, v, "f"))) for v in (1.0, 2.0, 3.0))

    @kc.jit
    def rotate():
        old = a.value
        a.assign(b.value)
        b.assign(c.value)
        c.assign(old)
        return old

    for _ in range(2):
        rotate()
    assert [s.value.numpy()[0] for s in (a, b, c)] == [3.0, 1.0, 2.0]

    @kc.jit
    def same():
        total = a.value + b.value
        a.assign(total)
        b.assign(total)
        return total

    assert same().numpy()[0] == 4.0
    assert a.value.numpy()[0] == b.value.numpy()[0] == 4.0


def test_eager_assignment_between_calls_is_seen():
    state = kc.State(kc.zeros(3))

    @kc.jit
    def bump():
        state.assign(state.value + 1)
        return state.value

    bump()
    state.assign(kc.array(np.array([10.0, 20.0, 30.0], "f")))
    np.testing.assert_array_equal(bump().numpy(), [11.0, 21.0, 31.0])
    np.testing.assert_array_equal(state.value.numpy(), [11.0, 21.0, 31.0])


def test_an_array_read_before_an_eager_assignment_stays():
    state = kc.State(kc.zeros(3))

    @kc.jit
    def bump():
        state.assign(state.value + 1)

    for _ in range(3):
        bump()
    old = state.value
    twice = old * 2
    state.assign(kc.full(3, 100.0))
    bump()
    np.testing.assert_array_equal(old.numpy(), np.full(3, 3.0))
    np.testing.assert_array_equal(twice.numpy(), np.full(3, 6.0))
    np.testing.assert_array_equal(state.value.numpy(), np.full(3, 101.0))


def test_assigning_a_state_its_own_value_and_swaps():
    a, b = (kc.State(kc.array(np.arange(3, dtype="f") + k)) for k in (0, 10))

    @kc.jit
    def bump(itself=False):
        if itself:
            a.assign(a.value)
        a.assign(a.value + 1)
        b.assign(b.value + 2)

    for k in range(1, 4):
        a.assign(a.value)
        bump(itself=k == 2)
        b.assign(b.value.reshape(1, 3).reshape(3))
        np.testing.assert_array_equal(a.value.numpy(), np.arange(3) + k)
        np.testing.assert_array_equal(b.value.numpy(), np.arange(3) + 10 + 2 * k)
    old = a.value
    a.assign(b.value)
    b.assign(old)
    bump()
    np.testing.assert_array_equal(a.value.numpy(), np.arange(3) + 17)
    np.testing.assert_array_equal(b.value.numpy(), np.arange(3) + 5)
    np.testing.assert_array_equal(old.numpy(), np.arange(3) + 3)


def test_a_view_read_from_a_state_stays():
    state = kc.State(kc.ones((2, 3)))
    bump = kc.jit(lambda: state.assign(state.value + 1))
    bump()
    flat = state.value.reshape(6)
    flat.evaluate()
    bump()
    np.testing.assert_array_equal(flat.numpy(), np.full(6, 2.0))


def test_a_value_that_a_captured_function_closes_over_stays():
    state = kc.State(kc.ones(3))
    bump = kc.jit(lambda: state.assign(state.value + 1))
    bump()
    value = state.value
    more = kc.jit(lambda x: x + value)
    for k in range(3):
        np.testing.assert_array_equal(more(np.full(3, k, "f")).numpy(), np.full(3, k + 2.0))
        bump()


def test_memory_of_results_nobody_holds_is_used_again():
    buffers = kc.zeros(1).device.buffers
    double = kc.jit(lambda x: x * 2)
    x = np.ones(1000, "f")
    held = double(x)
    double(x)  # `held` keeps its memory, so this one took more
    before = buffers.stats().allocations
    for k in range(5):
        assert double(k * x).numpy()[0] == 2 * k
    assert buffers.stats().allocations == before
    assert held.numpy()[0] == 2


def test_programs_that_made_room_go_on_running(monkeypatch):
    device = kc.zeros(1).device
    monkeypatch.setattr(device.programs._built, "most", 3)
    monkeypatch.setattr(kc.engine.programs, "most", 3)
    run = kc.jit(lambda x: kc.sum(x * 3) + 1)
    for _ in range(2):
        for n in range(1, 9):
            x = np.arange(n, dtype="f")
            assert run(x).numpy() == 3 * x.sum() + 1
            assert kc.sum(kc.array(x) * 2).numpy() == 2 * x.sum()
            assert len(device.programs._built) <= 3 and len(kc.engine.programs) <= 3


@pytest.fixture
def bounds(monkeypatch):
    """Only 4 built programs, 8 kernels of compiled graphs and 5 signatures; gives the device."""
    device = kc.zeros(1).device
    kc.engine.let_go()
    monkeypatch.setattr(device.programs._built, "most", 4)
    monkeypatch.setattr(kc.engine.programs, "most", 8)
    monkeypatch.setattr(captures, "MOST_SIGNATURES", 5)
    return device


@pytest.mark.slow
def test_many_shapes_keep_a_bounded_number_of_programs(bounds):
    programs = bounds.programs
    traced, alive = [], []

    @kc.jit
    def run(x):
        traced.append(x.shape)
        return kc.cumsum(x * 3), kc.sum(kc.sort(x)) + 1

    gc.collect()
    before = programs.alive()
    for n in range(2, 42):
        x = np.arange(n, dtype="f")
        np.testing.assert_array_equal(run(x)[0].numpy(), np.cumsum(3 * x))
        assert float(kc.prod(kc.array(x[:3]) - n)) == np.prod(x[:3] - n)
        alive.append(programs.alive() - before)
    assert max(alive[20:]) <= max(alive[:20])
    per_signature = run.captured(x).kernels
    # of signatures, of eager graphs, and kept for whoever asks again
    assert max(alive) <= 5 * per_signature + 8 + 4
    made = programs.built_from_source + programs.loaded_from_disk
    assert len(traced) == 40
    for n in range(37, 42):  # the five used last
        assert run(np.ones(n, "f"))[1].numpy() == n + 1
    assert len(traced) == 40
    assert programs.built_from_source + programs.loaded_from_disk == made
    run.clear()
    kc.engine.let_go()
    assert programs.alive() <= before


def test_signatures_of_many_kernels_make_room_sooner(monkeypatch):
    run = kc.jit(lambda x: kc.cumsum(kc.sort(x)))
    each = run.captured(np.ones(3, "f")).kernels
    monkeypatch.setattr(captures, "MOST_KERNELS", 2 * each)
    for n in range(3, 12):
        run(np.ones(n, "f"))
        assert len(run._captured) <= 3
    assert len(run._captured) == 3


@pytest.mark.slow
def test_other_signatures_make_room_where_memory_runs_out(monkeypatch):
    buffers = kc.zeros(1).device.buffers
    gc.collect()
    buffers.trim()
    size = 2**20
    run = kc.jit(lambda x: kc.cumsum(kc.sort(x) * 2))
    first = np.linspace(0, 1, size, dtype="f")
    run(first)
    needed = buffers.stats().reserved
    # enough for one and a half
    monkeypatch.setattr(buffers, "limit", needed + needed // 2)
    for n in (size - 1, size - 2, size - 3, size):
        y = run(first[:n])
        expected = np.cumsum(2.0 * first[:n].astype("f8"))
        np.testing.assert_allclose(y[:: n // 7].numpy(), expected[:: n // 7], rtol=1e-5)
    monkeypatch.setattr(buffers, "limit", needed // 4)
    run.clear()
    buffers.trim()
    with pytest.raises(OutOfDeviceMemory):
        run(first)


def test_equal_sources_are_one_string():
    run = kc.jit(lambda x: kc.sort(x))
    steps = [step for n in (2000, 2001) for step in run.captured(np.ones(n, "f")).program.steps]
    sources = {}
    for step in steps:
        assert sources.setdefault(step.source, step.source) is step.source
    assert len(sources) < len(steps)


def test_new_shapes_trace_again_and_other_arguments_are_constants():
    traces = []

    @kc.jit
    def scale(x, factor, flag=True):
        traces.append(x.shape)
        return x * factor if flag else x

    assert scale(np.ones(3, "f"), 2).numpy().sum() == 6
    assert scale(np.ones(3, "f"), 2).numpy().sum() == 6
    assert scale(np.ones(4, "f"), 2).numpy().sum() == 8
    assert scale(np.ones(3, "f"), 5, flag=False).numpy().sum() == 3
    assert len(traces) == 3


def test_a_host_read_while_tracing_is_refused_and_harms_nothing():
    state = kc.State(kc.ones(2))

    @kc.jit
    def bad(x):
        state.assign(state.value * 5)
        return x * 2 if kc.sum(x) > 0 else x

    with pytest.raises(kc.CaptureError, match="on the host"):
        bad(np.ones(3, "f"))
    np.testing.assert_array_equal(state.value.numpy(), [1.0, 1.0])
    np.testing.assert_array_equal((kc.ones(2) + 1).numpy(), [2.0, 2.0])


def test_no_growth_of_device_memory_over_many_steps():
    rng = np.random.default_rng(5)
    x, y = data(rng)
    _, step = mlp(rng)
    run = kc.jit(step)
    buffers = kc.zeros(1).device.buffers
    for _ in range(3):
        run(x, y, np.float32(0.01))
    gc.collect()
    before = buffers.stats().in_use
    for _ in range(200):
        run(x, y, np.float32(0.01))
    gc.collect()
    assert buffers.stats().in_use == before


def test_the_train_step_of_an_mlp_is_few_launches():
    rng = np.random.default_rng(6)
    x, y = data(rng)
    _, step = mlp(rng)
    captured = kc.jit(step).captured(x, y, np.float32(0.1))
    # the loss, and a column sum for each bias; everything else rides on the products
    assert sum(step.label != "matmul" for step in captured.program.steps) == 3
    assert captured.copies == 0
    rounding = memory.ALIGNMENT * len(captured.program.slots)  # parts of an arena begin at such
    assert captured.planned_bytes <= captured.program.intermediate_bytes + rounding


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_equal_their_unrolled_form(reverse):
    rng = np.random.default_rng(7)
    x = kc.array(rng.standard_normal((6, 3, 4)).astype("f"))
    w = kc.array((rng.standard_normal((4, 5)) * 0.5).astype("f"))
    u = kc.array((rng.standard_normal((5, 5)) * 0.5).astype("f"))
    h = kc.array(rng.standard_normal((3, 5)).astype("f"))

    def body(state, now):
        state = kc.tanh(now @ w2 + state @ u2)
        return state, state * 2

    def looped():
        return kc.scan(body, h, x, reverse=reverse)

    def unrolled():
        state, results = h, [None] * 6
        for k in reversed(range(6)) if reverse else range(6):
            state, results[k] = body(state, x[k])
        return state, kc.stack(results)

    def loss(a, b, run):
        nonlocal w2, u2
        w2, u2 = a, b
        final, results = run()
        return kc.sum(results * results) + kc.sum(final)

    w2, u2 = w, u
    for run in (looped, unrolled):
        final, results = run()
        value, grads = kc.value_and_grad(loss, (0, 1))(w, u, run)
        if run is looped:
            first = [final, results, value, *grads]
        else:
            for got, expected in zip(first, [final, results, value, *grads], strict=True):
                np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_loop_may_exchange_what_it_carries():
    start = [kc.array(np.float32(0)), kc.array(np.float32(1))]
    (a, b), _ = kc.loop(lambda c, _: ([c[1], c[0] + c[1]], []), start, [], 6)
    assert (float(a), float(b)) == (8.0, 13.0)


def test_states_may_be_exchanged_in_one_kernel():
    a, b = (kc.State(kc.array(np.arange(5, dtype="f") + 10 * k)) for k in range(2))

    @kc.jit
    def exchange():
        old = a.value
        a.assign(b.value * 2)
        b.assign(old * 3)

    exchange()
    np.testing.assert_array_equal(a.value.numpy(), 2 * (np.arange(5) + 10))
    np.testing.assert_array_equal(b.value.numpy(), 3 * np.arange(5))


def test_sums_assigned_beside_what_reads_the_old_ones():
    total, copy = kc.State(kc.ones(4)), kc.State(kc.zeros(4))

    @kc.jit
    def step(x):
        column = kc.sum(x, 0)
        copy.assign(column * 0 + total.value)
        total.assign(column)

    step(np.full((3, 4), 2.0, "f"))
    np.testing.assert_array_equal(total.value.numpy(), np.full(4, 6.0))
    np.testing.assert_array_equal(copy.value.numpy(), np.ones(4))


@pytest.mark.slow
def test_the_oldest_signatures_go_with_their_memory(monkeypatch):
    monkeypatch.setattr(captures, "MOST_SIGNATURES", 3)
    traced = []

    @kc.jit
    def run(x):
        traced.append(x.shape[0])
        y = kc.cumsum(x * 2)
        return kc.sum(y * kc.sort(y))

    buffers = kc.zeros(1).device.buffers
    used = []
    for k in range(12):
        run(np.ones(50_000 + k, "f"))
        used.append(buffers.stats().in_use)
    assert len(traced) == 12
    assert max(used[3:]) <= used[2] + 4 * 50_000
    before = len(traced)
    run(np.ones(50_011, "f"))
    run(np.ones(50_009, "f"))  # used now, so 50_010 is the oldest
    assert len(traced) == before
    run(np.ones(50_020, "f"))
    run(np.ones(50_009, "f"))
    run(np.ones(50_011, "f"))
    assert len(traced) == before + 1
    run(np.ones(50_010, "f"))
    assert len(traced) == before + 2


def run_scan(body, start, x):
    return kc.sum(kc.scan(body, start, x)[0])


@pytest.mark.parametrize("captured", [False, True])
def test_derivatives_of_ones_own_count_in_loops(captured):
    @kc.custom_gradient
    def f(v):
        return v * v, lambda g: g * 100

    def slope(x):
        return kc.grad(lambda x: run_scan(lambda c, v: (c + f(v), c), kc.array(0.0), x))(x)

    run = kc.jit(slope) if captured else slope
    np.testing.assert_array_equal(run(kc.array([1.0, 2.0, 3.0])).numpy(), [100, 100, 100])


def test_loops_in_loops_and_second_derivatives():
    def looped(x):
        def outer(c, v):
            c, _ = kc.scan(lambda d, u: (d * kc.cos(u) + v, d), c, x)
            return c, c

        return run_scan(outer, kc.array(1.0), x)

    def plain(x):
        c = kc.array(1.0)
        for v in range(3):
            for u in range(3):
                c = c * kc.cos(x[u]) + x[v]
        return c

    x = kc.array([0.3, -0.2, 0.5])
    for f in (lambda g: g, lambda g: lambda x: kc.grad(lambda x: kc.sum(kc.grad(g)(x) ** 2))(x)):
        np.testing.assert_allclose(
            np.asarray(f(looped)(x).numpy()), f(plain)(x).numpy(), rtol=1e-5, atol=1e-5
        )
    np.testing.assert_allclose(
        kc.grad(looped)(x).numpy(), kc.grad(plain)(x).numpy(), rtol=1e-5, atol=1e-6
    )


def test_loops_hold_no_arrays_after_use():
    buffers = kc.zeros(1).device.buffers

    def use(k):
        w = kc.array(np.full(100_000, 1.0 + k, "f"))
        x = kc.array(np.ones((6, 100_000), "f"))
        return kc.grad(lambda x: kc.sum(kc.scan(lambda c, v: (c * w + v, c), x[0], x)[0]))(x)

    use(0).evaluate()
    gc.collect()
    before = buffers.stats().in_use
    for k in range(3):
        use(k).evaluate()
    gc.collect()
    assert buffers.stats().in_use <= before


def test_objects_that_can_be_called_are_captured():
    """Keras' layers have locks and the like of their own."""

    class Scaled:
        """Multiplies."""

        def __init__(self):
            self._lock, self._engine, self._captured, self.captured = False, 1, 2, 3
            self.factor = kc.State(kc.array([2.0, 3.0]))

        def __call__(self, x):
            return x * self.factor.value

    scaled = Scaled()
    function = kc.jit(scaled)
    assert function(kc.array([1.0, 1.0])).tolist() == [2, 3]
    scaled.factor.assign(kc.array([4.0, 5.0]))
    assert function(kc.array([1.0, 2.0])).tolist() == [4, 10]
    assert function.__doc__ == "Multiplies." and not hasattr(function, "factor")

    def plain(x):
        return x

    plain.note = "kept"
    assert kc.jit(plain).note == "kept"


def test_new_weights_are_computed_while_programs_are_built(monkeypatch):
    state = kc.State(kc.cos(kc.arange(4, dtype="float32")))
    build, seen = Programs.build, []

    def building(self, programs, beside=(), done=lambda: None, meanwhile=lambda: None):
        before = state.pending
        meanwhile()
        seen.append((before is None, state.pending is None))
        return build(self, programs, beside, done)

    monkeypatch.setattr(Programs, "build", building)
    found = kc.jit(lambda x: x * state.value)(kc.ones(4))
    np.testing.assert_allclose(found.numpy(), np.cos(np.arange(4)), rtol=1e-6)
    assert (False, True) in seen
