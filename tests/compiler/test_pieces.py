"""Large products of which only losses and gradients are made, computed in pieces of rows: small
ones pass for large ones."""

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph import pieces
from kerascl.compiler.graph import rewrite as rewriting
from kerascl.compiler.program import memory, schedule
from kerascl.compiler.program.lower import lower
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.core.node import topological
from kerascl.core.tape import GradientTape, stop_gradient
from kerascl.ops.contraction import DENSE_GRAD, MATMUL
from tests import profiles
from tests.compiler.graphs import argument

DEPTH, WORDS = 24, 301
TOLERANCES = {"float32": 3e-6, "bfloat16": 1e-2, "float16": 2e-3}
ROUNDED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(pieces, "LEAST_ROWS", 32)


@pytest.fixture
def found(monkeypatch):
    """The rows of the pieces of each product that was taken apart."""
    seen = []
    inner = pieces.sizes

    def noted(product, most):
        seen.append(inner(product, most))
        return seen[-1]

    monkeypatch.setattr(pieces, "sizes", noted)
    return seen


def limit(monkeypatch, nbytes):
    monkeypatch.setenv("KERASCL_PIECE_BYTES", str(nbytes))


def loss_of(h, e, bias, labels, weights, smoothing):
    """Cross-entropy of words, a weighted mean over the rows."""
    words = e.shape[0]
    z = (h @ e.T).astype("float32") + bias
    log_p = z - kc.max(z, -1, keepdims=True)
    log_p = log_p - kc.log(kc.sum(kc.exp(log_p), -1, keepdims=True))
    hot = (kc.arange(words) == labels[..., None]).astype("float32")
    target = hot * (1 - smoothing) + smoothing / words
    return -kc.sum(target * log_p, -1) * weights, z


def step(h, e, bias, labels, weights, smoothing=0.0):
    """The loss of each row, the words that score most, and the gradients of the mean loss."""
    with GradientTape() as tape:
        each, z = loss_of(h, e, bias, labels, weights, smoothing)
        loss = kc.sum(each) / kc.sum(weights)
    grads = tape.gradient(loss, [h, e, bias])
    return each, kc.argmax(z, -1), loss, *(g.astype("float32") * 0.5 for g in grads)


def reference(h, e, bias, labels, weights, smoothing=0.0, dtype="float32"):
    shape, words = labels.shape, len(e)
    h = h.reshape(-1, h.shape[-1])
    labels, weights = labels.ravel(), weights.ravel()
    z = h @ e.T
    if dtype != "float32":
        z = z.astype(ROUNDED[dtype]).astype(np.float64)
    z = z + bias
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    target = (np.arange(words) == labels[:, None]) * (1 - smoothing) + smoothing / words
    each = -(target * np.log(p)).sum(-1) * weights
    g = (p - target) * weights[:, None] / weights.sum() * 0.5
    own = z.argmax(-1)
    return (
        each.reshape(shape), own.reshape(shape), each.sum() / weights.sum(),
        (g @ e).reshape(*shape, -1), g.T @ h, g.sum(0),
    )  # fmt: skip


def drawn(rng, shape, dtype="float32", words=WORDS):
    sizes = (*shape, DEPTH), (words, DEPTH), (words,)
    arrays = [kc.array((rng.standard_normal(s) * 0.5).astype(np.float32)) for s in sizes]
    arrays[:2] = [x.astype(dtype) for x in arrays[:2]]
    labels = rng.integers(0, words, shape).astype(np.int32)
    weights = (rng.random(shape) < 0.7).astype(np.float32) * rng.random(shape).astype(np.float32)
    values = [x.astype("float32").numpy().astype(np.float64) for x in arrays]
    return (
        [*arrays, kc.array(labels), kc.array(weights)],
        [*values, labels, weights.astype(np.float64)],
    )


def check(made, wanted, dtype="float32"):
    for x, value in zip(made, wanted, strict=True):
        x = x.numpy().astype(np.float64)
        assert x.shape == np.shape(value)
        assert np.linalg.norm(x - value) <= TOLERANCES[dtype] * np.linalg.norm(value)


@pytest.mark.parametrize(
    "shape, dtype, smoothing, sizes",
    [
        ((256,), "float32", 0.0, [64] * 4),
        ((250,), "float32", 0.1, [50] * 5),
        ((257,), "float32", 0.0, [128, 128, 1]),
        ((269,), "bfloat16", 0.1, [128, 128, 13]),
        ((7, 39), "float32", 0.0, [91] * 3),
        ((5, 8, 8), "bfloat16", 0.0, [80] * 4),
        ((8, 40), "float16", 0.1, [80] * 4),
    ],
)
@pytest.mark.parametrize("captured", [True, False])
def test_losses_and_gradients(
    shape, dtype, smoothing, sizes, captured, found, rng, monkeypatch
):  # fmt: skip
    arrays, values = drawn(rng, shape, dtype)
    rows = np.prod(shape)
    itemsize = arrays[0].dtype.itemsize
    limit(monkeypatch, -(-rows * WORDS * itemsize // min(len(sizes), 4)))
    if len(sizes) == 3:
        limit(monkeypatch, 100 * WORDS * itemsize)

    def function(*given):
        return step(*given, smoothing)

    made = (kc.jit(function) if captured else function)(*arrays)
    wanted = reference(*values, smoothing, dtype)
    if dtype == "float32":
        assert (made[1].numpy() == wanted[1]).all()
    check([made[0], *made[2:]], [wanted[0], *wanted[2:]], dtype)
    if captured:
        assert found == [sizes]


def program_of(function, *arrays, info):
    roots = [x._node for x in function(*arrays)]
    return lower(topological(roots), roots, info, generic=False)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_one_piece_is_alive_at_a_time(count, dev, rng, monkeypatch):
    rows, words = 1024, 2003
    arrays, _ = drawn(rng, (rows,), words=words)
    logits = 4 * rows * words

    def peak(nbytes):
        limit(monkeypatch, nbytes)
        program = program_of(lambda *a: step(*a)[2:], *arrays, info=dev.info)
        return schedule.lives(program.steps, program.slots).peak

    whole, apart = peak(0), peak(logits // count)
    assert whole >= 2 * logits  # they and their slopes
    # three values of a piece's size, twice the weights (packed, and their gradient), the gradient
    # of the rows, joined and in parts, and a few values of each row and each word
    few = 4 * 8 * (rows + words)
    packed = 4 * (words + 64) * (DEPTH + 64)
    assert apart <= 3 * logits // count + 2 * packed + 2 * 4 * rows * DEPTH + few
    assert apart < whole - logits


def test_sums_of_pieces_are_made_in_place(dev, rng, monkeypatch):
    rows, words = 512, 1003
    arrays, _ = drawn(rng, (rows,), words=words)
    limit(monkeypatch, rows * words)
    program = program_of(lambda *a: step(*a)[4:5], *arrays, info=dev.info)
    nbytes = 4 * words * DEPTH
    used = {k for step in program.steps for k in step.used}
    sums = [k for k in used if program.slots[k].kind == "temporary"]
    sums = [k for k in sums if program.slots[k].nbytes == nbytes]
    users = [sum(k in step.used for step in program.steps) for k in sums]
    assert max(users) >= 4  # each piece adds to it
    assert len({step.phase for step in program.steps}) >= 4


def test_who_wants_the_logits_gets_them_at_once(found, rng, monkeypatch):
    arrays, values = drawn(rng, (256,))
    limit(monkeypatch, 64 * WORDS * 4)

    def function(*given):
        each, z = loss_of(*given, 0.0)
        return each, z

    each, z = kc.jit(function)(*arrays)
    assert not found
    check([each, z], [reference(*values)[0], values[0] @ values[1].T + values[2]])


@pytest.mark.parametrize(
    "mix",
    [
        lambda z: kc.softmax(z, 0),
        lambda z: kc.flip(z, 0) * z,
        lambda z: kc.cumsum(z, 0),
        lambda z: z[1:] * z[:-1],
        lambda z: kc.sort(z, -1)[:, :5],
        lambda z: z.reshape((-1, 2 * WORDS)),
    ],
)
def test_what_mixes_rows_is_computed_at_once(mix, found, rng, monkeypatch):
    arrays, values = drawn(rng, (256,))
    limit(monkeypatch, 64 * WORDS * 4)
    h, e, *_ = arrays
    made = kc.jit(lambda h, e: kc.sum(mix(h @ e.T), -1))(h, e)
    assert not found
    z = kc.array((values[0] @ values[1].T).astype(np.float32))
    wanted = kc.sum(mix(z), -1).numpy()
    assert np.linalg.norm(made.numpy() - wanted) <= 2e-5 * np.linalg.norm(wanted)


def test_slopes_that_wait_for_the_loss_are_computed_at_once(found, rng, monkeypatch):
    arrays, values = drawn(rng, (256,))
    limit(monkeypatch, 64 * WORDS * 4)

    def function(h, e, bias, labels, weights):
        with GradientTape() as tape:
            each, _ = loss_of(h, e, bias, labels, weights, 0.0)
            loss = kc.sum(each) / kc.sum(weights)
            scaled = loss / stop_gradient(loss)
        return tape.gradient(scaled, [h, e, bias])

    made = kc.jit(function)(*arrays)
    assert not found
    _, _, loss, *grads = reference(*values)
    check(made, [2 * g / loss for g in grads])


def test_a_loss_that_weighs_itself(found, rng, monkeypatch):
    """Focal loss: what a row's loss is weighted by depends on it, but on no other row's."""
    arrays, values = drawn(rng, (256,))
    limit(monkeypatch, 64 * WORDS * 4)

    def function(h, e, bias, labels, weights):
        with GradientTape() as tape:
            each, _ = loss_of(h, e, bias, labels, weights, 0.0)
            loss = kc.sum(stop_gradient(1 - kc.exp(-each)) * each)
        return tape.gradient(loss, [e])

    (made,) = kc.jit(function)(*arrays)
    assert found == [[64] * 4]
    h, e, bias, labels, weights = values
    each = reference(*values)[0]
    focus = weights * (1 - np.exp(-each))
    check([made], [reference(h, e, bias, labels, focus)[4] * 2 * focus.sum()])


def test_a_teacher(found, rng, monkeypatch):
    """Another model's logits are computed in the same pieces."""
    arrays, values = drawn(rng, (256,))
    h, e, *_ = arrays
    g = kc.array((rng.standard_normal((256, DEPTH)) * 0.5).astype(np.float32))
    limit(monkeypatch, 64 * WORDS * 4)

    def function(h, e, g):
        target = kc.softmax(g @ e.T, -1)
        with GradientTape() as tape:
            z = h @ e.T
            z = z - kc.max(z, -1, keepdims=True)
            loss = -kc.sum(target * (z - kc.log(kc.sum(kc.exp(z), -1, keepdims=True))))
        return tape.gradient(loss, [h])

    (made,) = kc.jit(function)(h, e, g)
    assert found == [[64] * 4]
    hv, ev, gv = values[0], values[1], g.numpy().astype(np.float64)
    p, t = ((lambda x: x / x.sum(-1, keepdims=True))(np.exp(x @ ev.T)) for x in (hv, gv))
    check([made], [(p - t) @ ev])


def test_two_losses(found, rng, monkeypatch):
    (h, e, bias, labels, weights), values = drawn(rng, (256,))
    limit(monkeypatch, 64 * WORDS * 4)

    def function(h, e, bias, labels, weights):
        one = kc.sum(loss_of(h, e, bias, labels, weights, 0.0)[0])
        return one + kc.sum(loss_of(h * 0.5 + one * 1e-9, e, bias, labels, weights, 0.0)[0])

    made = kc.jit(function)(h, e, bias, labels, weights)
    assert found == [[64] * 4] * 2
    hv, *rest = values
    check([made], [sum(reference(x, *rest)[0].sum() for x in (hv, hv * 0.5))])


def test_nothing_is_taken_apart_without_a_limit(found, rng, monkeypatch):
    arrays, _ = drawn(rng, (256,))
    limit(monkeypatch, 0)
    kc.jit(step)(*arrays)
    assert not found


def test_a_32nd_of_the_memory_is_the_limit(found, dev, rng, monkeypatch):
    arrays, _ = drawn(rng, (256,))
    monkeypatch.delenv("KERASCL_PIECE_BYTES", raising=False)
    info = profiles.disguise(dev.info, dev.info)
    for nbytes, wanted in ((256 * WORDS * 4, []), (64 * WORDS * 4, [[64] * 4])):
        object.__setattr__(info, "global_mem_bytes", 32 * nbytes)
        roots = [x._node for x in step(*arrays)]
        rewriting.rewrite(topological(roots), roots, info)
        assert found == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_as_on_a_gpu(dtype, found, dev, rng, monkeypatch):
    """Rows of odd lengths get longer there, and each piece's gradients are made together."""
    from kerascl.compiler.graph import pitch

    monkeypatch.setattr(pitch, "LEAST_SIZE", 1 << 12)
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, profiles.load()["rtx4090"].info))
    words = 1037
    arrays, values = drawn(rng, (256,), dtype, words)
    limit(monkeypatch, 64 * words * arrays[0].dtype.itemsize)
    roots = [x._node for x in step(*arrays)]
    nodes, _, _ = rewriting.rewrite(topological(roots), roots, dev.info)
    products = [x for x in nodes if x.op is MATMUL or x.op is DENSE_GRAD]
    assert sum(x.shape == (64, 1088) for x in products) == 4
    assert max(x.size for x in products) < 256 * words
    found.clear()
    made = kc.jit(step)(*arrays)
    wanted = reference(*values, dtype=dtype)
    check([made[0], *made[2:]], [wanted[0], *wanted[2:]], dtype)
    assert found == [[64] * 4]


@pytest.mark.parametrize(
    "rows, most, wanted",
    [
        (4096, 1024, [1024] * 4),
        (4096, 1400, [1024] * 4),
        (4098, 1400, [1366] * 3),
        (4099, 1400, [1408, 1408, 1283]),
        (4095, 1100, [819] * 5),
        (700, 64, [350, 350]),  # as few bytes as 256 rows allow
        (1 << 15, 1, [1408] * 23 + [384]),
    ],
)
def test_sizes_of_pieces(rows, most, wanted, monkeypatch):
    monkeypatch.setattr(pieces, "LEAST_ROWS", 256)
    product = (argument(rows, 2) @ argument(2, 8))._node
    assert pieces.sizes(product, most * 32) == wanted


def test_steps_of_a_phase_wait_for_those_before():
    def made(slot, phase):
        return Step("", "k", (), [Use(slot)], (1,), (1,), writes=frozenset((slot,)), phase=phase)

    steps = [made(0, 0), made(1, 1), made(2, 1), made(3, 2)]
    assert schedule.dependencies(steps) == [0, 0b1, 0b1, 0b111]


@pytest.mark.parametrize("late", [False, True])
def test_a_sum_is_replaced_where_nobody_reads_it_later(late):
    slots = [Slot("temporary", 8, -1)] * 3 + [Slot("output", 8, 0)]

    def made(*used, writes):
        args = [Use(slot) for slot in used]
        return Step("", "k", (), args, (1,), (1,), writes=frozenset((writes,)))

    steps = [made(0, writes=0), made(0, 1, writes=1), made(1, 2, writes=2)]
    steps.append(made(2, 0 if late else 2, 3, writes=3))
    memory.replace(steps, slots, {(0, 1), (1, 2)})
    first = 1 if late else 0
    assert [a.index for a in steps[1].args] == [0, first]
    assert [a.index for a in steps[2].args] == [first, first]
    assert steps[2].writes == {first} and steps[3].args[0].index == first
    assert steps[3].args[1].index == 0
