"""Large products with rows of an odd length, which GPUs compute with longer ones: a CPU passes for
a GPU, and small products for large ones."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph import pitch
from kerascl.compiler.graph.rewrite import rewrite
from kerascl.core.node import topological
from kerascl.core.op import Kind
from kerascl.core.tape import GradientTape
from kerascl.ops.contraction import MATMUL
from kerascl.ops.updates import update
from kerascl.ops.views import PAD, PERMUTE, SLICE
from tests import profiles
from tests.compiler.graphs import CPU, argument, nodes_of

GPU = SimpleNamespace(**vars(CPU) | {"kind": "gpu"})
ROWS, DEPTH, WORDS = 24, 16, 1037
LONGER = 1088  # the next multiple of pitch.COLUMNS
TOLERANCES = {"float32": 3e-6, "bfloat16": 1e-2, "float16": 2e-3}
ROUNDED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(pitch, "LEAST_SIZE", 1 << 12)


@pytest.fixture
def card(dev, monkeypatch):
    """The device with the schedules of a GPU."""
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, profiles.load()["rtx4090"].info))


def products(*arrays):
    """The products of a graph, as rewritten for a GPU."""
    _, roots, _ = rewrite(nodes_of(*arrays), [x._node for x in arrays], GPU)
    return [n for n in topological(roots) if n.op is MATMUL]


def widths(*arrays):
    """Elements of a row of each product."""
    return [n.shape[-1] for n in products(*arrays)]


def loss_of(x, w, labels, bias=None):
    """Cross-entropy of words, summed over the rows."""
    logits = (x @ w).astype("float32")
    if bias is not None:
        logits = logits + bias
    logits = logits - kc.max(logits, -1, keepdims=True)
    of_label = kc.sum(kc.where(kc.arange(w.shape[-1]) == labels[:, None], logits, 0.0), -1)
    return kc.sum(kc.log(kc.sum(kc.exp(logits), -1)) - of_label)


def step(x, w, labels, *bias):
    with GradientTape() as tape:
        loss = loss_of(x, w, labels, *bias)
    return loss, *(g.astype("float32") * 0.5 for g in tape.gradient(loss, [x, w, *bias]))


def trained(x, w, labels):
    """The loss, and the weights after a step of descent."""
    with GradientTape() as tape:
        loss = loss_of(x, w, labels)
    (g,) = tape.gradient(loss, [w])
    return loss, w - g * 0.5


def reference(x, w, labels, bias=0.0, dtype="float32"):
    """Of logits that are rounded to `dtype`, as a product's results are: by up to a 16th where
    words score 16, which changes their shares by as much."""
    logits = x @ w + bias
    if dtype != "float32":
        logits = logits.astype(ROUNDED[dtype]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    terms = np.exp(logits)
    rows = np.arange(len(labels))
    loss = (np.log(terms.sum(-1)) - logits[rows, labels]).sum()
    g = terms / terms.sum(-1, keepdims=True)
    g[rows, labels] -= 1
    return loss, g @ w.T * 0.5, x.T @ g * 0.5, g.sum(0) * 0.5


def drawn(rng, dtype, words=WORDS):
    arrays = [
        kc.array(rng.standard_normal(s).astype(np.float32)).astype(dtype)
        for s in ((ROWS, DEPTH), (DEPTH, words))
    ]
    labels = rng.integers(0, words, ROWS).astype(np.int32)
    labels[0] = words - 1
    values = [x.astype("float32").numpy().astype(np.float64) for x in arrays]
    return [*arrays, labels], [*values, labels]


def check(found, wanted, dtype):
    found = found.astype("float32").numpy()
    assert np.linalg.norm(found - wanted) <= TOLERANCES[dtype] * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    "words, dtype", [*((WORDS, t) for t in TOLERANCES), (WORDS + 1, "float32"), (50257, "bfloat16")]
)
def test_the_loss_of_many_words_and_its_gradients(words, dtype, card, rng):
    (x, w, labels), values = drawn(rng, dtype, words)
    function = kc.jit(step)
    wanted = reference(*values, dtype=dtype)
    for _ in range(2):
        for found, value in zip(function(x, w, kc.array(labels)), wanted):
            check(found, value, dtype)


def test_a_step_of_training(card, rng):
    (x, w, labels), values = drawn(rng, "float32")
    loss, _, of_w, _ = reference(*values)
    for found, value in zip(kc.jit(trained)(x, w, kc.array(labels)), (loss, values[1] - of_w)):
        check(found, value, "float32")


def test_with_a_bias_of_the_words(card, rng):
    (x, w, labels), values = drawn(rng, "float32")
    bias = rng.standard_normal(WORDS).astype(np.float32)
    found = kc.jit(step)(x, w, kc.array(labels), kc.array(bias))
    for f, value in zip(found, reference(*values, bias.astype(np.float64))):
        check(f, value, "float32")


def test_what_is_not_finite_stays_in_its_row(card, rng):
    (x, w, _), _ = drawn(rng, "float32")
    values = x.numpy()
    values[3, 2], values[7, 0] = np.inf, np.nan
    function = kc.jit(lambda x, w: (kc.max(x @ w, -1), kc.argmax(x @ w, -1), kc.sum(x @ w, -1)))
    with np.errstate(invalid="ignore"):
        product = values @ w.numpy()
    top, place, total = (y.numpy() for y in function(kc.array(values), w))
    np.testing.assert_allclose(top, product.max(-1), rtol=1e-5)
    np.testing.assert_array_equal(place, product.argmax(-1))
    np.testing.assert_allclose(total, product.sum(-1), rtol=1e-3, atol=1e-2)


def test_rows_of_negative_numbers_and_of_nothing(card, rng):
    """The columns beyond hold 0, which is more than these."""
    (x, w, _), _ = drawn(rng, "float32")
    x, w = kc.abs(x) + 0.5, -kc.abs(w) - 0.5
    lowest = kc.array(np.where(np.arange(ROWS)[:, None] == 1, -np.inf, 0).astype(np.float32))
    function = kc.jit(lambda x, w, b: [f(x @ w + b, -1) for f in (kc.max, kc.argmax, kc.min)])
    product = x.numpy().astype(np.float64) @ w.numpy() + lowest.numpy()
    top, place, least = function(x, w, lowest)
    np.testing.assert_allclose(top.numpy(), product.max(-1), rtol=1e-5)
    np.testing.assert_array_equal(place.numpy(), product.argmax(-1))
    np.testing.assert_allclose(least.numpy(), product.min(-1), rtol=1e-5)


@pytest.mark.parametrize(
    "f, g",
    [
        (lambda y: kc.sum(kc.tanh(y), 0), lambda y: np.tanh(y).sum(0)),
        (lambda y: kc.var(y, -1), lambda y: y.var(-1)),
        (lambda y: kc.prod(1 + y * 1e-3, -1), lambda y: np.prod(1 + y * 1e-3, -1)),
        (lambda y: kc.sum(kc.transpose(y) ** 2, 0), lambda y: (y**2).sum(-1)),
        (lambda y: kc.take_along_axis(y, kc.array([[5]] * ROWS), -1), lambda y: y[:, 5:6]),
        (lambda y: kc.sum(y.reshape(4, 6, -1), (0, 2)), lambda y: y.reshape(4, 6, -1).sum((0, 2))),
        (lambda y: kc.any(y > 9, -1) * 1.0, lambda y: (y > 9).any(-1)),
        (lambda y: kc.tanh(y) @ kc.ones((WORDS, 3)), lambda y: np.tanh(y) @ np.ones((WORDS, 3))),
        (lambda y: kc.transpose(y) @ kc.ones((ROWS, 3)), lambda y: y.T @ np.ones((ROWS, 3))),
    ],
    ids=["column sums", "variance", "product of all", "transposed", "picked", "reshaped", "any",
         "product", "transposed product"],
)  # fmt: skip
def test_whatever_reads_them(f, g, card, rng):
    assert LONGER in widths(f(argument(ROWS, DEPTH) @ argument(DEPTH, WORDS)) + 0.0)
    (x, w, _), (a, b, _) = drawn(rng, "float32")
    check(kc.jit(lambda x, w: f(x @ w) + 0.0)(x, w), g(a @ b), "float32")


def test_the_gradient_is_computed_in_longer_rows():
    x, w, labels = argument(ROWS, DEPTH), argument(DEPTH, WORDS), argument(ROWS, dtype=kc.int32)
    loss, of_x, of_w = step(x, w, labels)
    found = products(loss, of_x, argument(DEPTH, WORDS) - of_w)
    assert [p.shape for p in found] == [(ROWS, LONGER), (ROWS, DEPTH), (DEPTH, LONGER)]
    logits, of_x, of_w = found
    left, right = of_x.inputs
    assert left.op is SLICE and left.inputs[0] is of_w.inputs[1]  # the slopes lie once
    assert right.op is PERMUTE and right.inputs[0].op is SLICE
    assert right.inputs[0].inputs[0] is logits.inputs[1]  # the weights are padded once
    assert logits.inputs[1].op is PAD
    reduced = [n for n in topological([of_x]) if n.op.kind is Kind.REDUCTION]
    assert len(reduced) > 1 and all(n.inputs[0].shape == (ROWS, LONGER) for n in reduced)


def test_tied_weights_are_padded_where_they_lie(card, rng):
    words = argument(WORDS, DEPTH)
    (product,) = products(kc.max(argument(ROWS, DEPTH) @ kc.transpose(words), -1))
    turned = product.inputs[1]
    assert turned.op is PERMUTE and turned.inputs[0].op is PAD
    assert turned.inputs[0].shape == (LONGER, DEPTH)
    (x, w, labels), values = drawn(rng, "float32")
    function = kc.jit(lambda x, e, labels: step(x, kc.transpose(e), labels)[:2])
    found = function(x, kc.transpose(w) + 0.0, kc.array(labels))
    for f, value in zip(found, reference(*values)):
        check(f, value, "float32")


def test_products_stay_whose_values_are_wanted():
    x, w = argument(ROWS, DEPTH), argument(DEPTH, WORDS)
    y = x @ w
    for wanted in (y, kc.tanh(y), kc.reshape(y, (2, -1)), kc.sort(y, -1), kc.roll(y, 1, -1)):
        assert widths(kc.sum(y, -1), wanted) == [WORDS]
    assert widths(kc.sum(y, -1)) == [LONGER]
    other = argument(ROWS, DEPTH) @ w  # one stays, the other does not
    assert sorted(widths(kc.sum(y, -1), other)) == [WORDS, LONGER]
    added = kc.sum(y + argument(ROWS, WORDS), -1)  # reads a part of the rows
    assert widths(added) == [LONGER]


def test_only_odd_large_products_on_gpus():
    def width(words, rows=ROWS, info=GPU):
        y = kc.sum(argument(rows, DEPTH) @ argument(DEPTH, words), -1)
        _, roots, _ = rewrite(nodes_of(y), [y._node], info)
        return next(n.shape[-1] for n in topological(roots) if n.op is MATMUL)

    assert width(WORDS) == LONGER
    assert width(WORDS, info=CPU) == WORDS
    assert width(1040) == 1040  # whole vectors
    assert width(131, rows=512) == 131  # too short to be worth it
    assert width(WORDS, rows=2) == WORDS
    assert width(WORDS, rows=DEPTH // 2) == WORDS  # the padded weights are larger than the result


def test_what_loops_store_in_place_keeps_its_rows(card, rng):
    c, x = rng.normal(size=(2 * ROWS, WORDS)), rng.normal(size=(ROWS, DEPTH))
    w = rng.normal(size=(DEPTH, WORDS))

    @kc.jit
    def stored(c, x, w, n):
        def body(i, c):
            return i + 1, c.at[kc.cast(i, "int32")].set((x @ w)[0] + 1.0)

        def rows(i, c):
            return i + 1, update(c, x @ w + 1.0, [i, 0])

        c = kc.while_loop(lambda i, c: i < n, rows, (kc.array(np.int32(3)), c))[1]
        return kc.while_loop(lambda i, c: i < 1, body, (kc.array(np.int32(0)), c))[1]

    found = stored(*(kc.array(v.astype("float32")) for v in (c, x, w)), kc.array(np.int32(5)))
    for i in (3, 4):
        c[i : i + ROWS] = x @ w + 1
    c[0] = (x @ w)[0] + 1
    assert np.linalg.norm(found.numpy() - c) < 1e-5 * np.linalg.norm(c)


# Steps from one array of ROWS rows of WORDS to another, and ends that take no such array any more;
# each for a library and draws.
STEPS = [
    lambda np_, y, d: np_.tanh(y),
    lambda np_, y, d: y * 0.5 - 1.0,
    lambda np_, y, d: np_.where(y > d[0], y, d[1]),
    lambda np_, y, d: y + d[2],
    lambda np_, y, d: y * d[3],
    lambda np_, y, d: y - np_.max(y, -1, keepdims=True),
    lambda np_, y, d: y / (1.0 + np_.sum(np_.abs(y), -1, keepdims=True)),
    lambda np_, y, d: y - np_.mean(y, 0, keepdims=True),
    lambda np_, y, d: np_.reshape(np_.reshape(y, (4, -1, WORDS)) * 2.0, (ROWS, WORDS)),
    lambda np_, y, d: y * d[4],
]
ENDS = [
    lambda np_, y, d: np_.sum(y, -1),
    lambda np_, y, d: np_.max(y, (0, 1)),
    lambda np_, y, d: np_.mean(y * y, 0),
    lambda np_, y, d: np_.sum(y[:, 5:900:3], 1),
    lambda np_, y, d: np_.std(y, -1),
    lambda np_, y, d: y @ d[5],
    lambda np_, y, d: np_.transpose(y) @ d[6],
    lambda np_, y, d: d[4] + y,
]


@pytest.mark.parametrize("program", range(8))
def test_random_readers(program, card, rng):
    (x, w, _), (a, b, _) = drawn(rng, "float32")
    shapes = (1,), (1,), (WORDS,), (ROWS, 1), (ROWS, WORDS), (WORDS, 3), (ROWS, 3)
    draws = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    steps = [STEPS[k] for k in rng.integers(0, len(STEPS), 5)]
    ends = [ENDS[k] for k in rng.choice(len(ENDS), 3, replace=False)]

    largest = 1.0  # of the values on the way: an end that is 0 has their rounding

    def run(np_, y, d):
        nonlocal largest
        found = []
        for k, step in enumerate(steps):
            y = step(np_, y, d)
            if np_ is np:
                largest = max(largest, np.abs(y).max())
            if k % 2:
                found.append(ends[k // 2](np_, y, d))
        return [*found, ends[2](np_, y, d)]

    made = kc.jit(lambda x, w, d: run(kc, x @ w, d))(x, w, [kc.array(d) for d in draws])
    wanted = run(np, a @ b, [d.astype(np.float64) for d in draws])
    # and sums of what was close to a maximum that of all their terms: NumPy's own in float32
    single = run(np, (a @ b).astype(np.float32), draws)
    for found, value, own in zip(made, wanted, single):
        rounding = 1e-6 * largest * np.sqrt(value.size) + 2 * np.linalg.norm(own - value)
        assert np.linalg.norm(found.numpy() - value) <= 1e-5 * np.linalg.norm(value) + rounding
