"""Keys of values: two values share one only if no function can tell them apart."""

import collections
import dataclasses
import enum
import math

import numpy as np
import pytest

import kerascl as kc
from kerascl.core.structure import exact


@dataclasses.dataclass
class Plain:
    rate: float
    names: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: object


class Open:
    """Compares by value, so it cannot be hashed."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Open and other.x == self.x


class Color(enum.IntEnum):
    RED = 1


ONES = [1, True, 1.0, 1 + 0j, np.float32(1), np.float64(1), np.int32(1), Color.RED, "1", b"1"]
ZEROS = [0, False, 0.0, -0.0, complex(0, 0), complex(-0.0, 0), complex(0, -0.0), np.float32(-0.0)]
WRAPS = [
    lambda x: x,
    lambda x: (x,),
    lambda x: ((2, x), "a"),
    lambda x: [x],
    lambda x: {x},
    lambda x: frozenset([x]),
    lambda x: {"k": [x]},
    lambda x: {x: "k"},
    lambda x: slice(0, x),
    lambda x: collections.deque([x]),
    lambda x: Frozen(x),
    lambda x: Plain(0.5, [x]),
    lambda x: np.array([x, None], object),
]


@pytest.mark.parametrize("values", [ONES, ZEROS])
@pytest.mark.parametrize("wrap", range(len(WRAPS)))
def test_what_only_compares_equal_is_apart(values, wrap):
    keys = [exact(WRAPS[wrap](x)) for x in values]
    assert len(set(keys)) == len(values)
    assert keys == [exact(WRAPS[wrap](x)) for x in values]


def test_what_is_alike_is_one():
    assert exact(math.nan) == exact(float("nan")) != exact(math.copysign(math.nan, -1))
    assert exact((1, (math.nan,))) == exact((1, (float("nan"),)))
    assert exact({1.5, 2}) == exact({2, 1.5})
    assert exact(Plain(1.0, ["a"])) == exact(Plain(1.0, ["a"]))
    assert exact(np.arange(3)) == exact(np.arange(3))
    assert exact([1, 2]) != exact((1, 2)) != exact({1, 2})


def test_a_key_keeps_what_it_identifies():
    assert len({exact(Open(1)) for _ in range(100)}) == 100
    x = Open(1)
    before = exact(x)
    assert before == exact(x)
    x.x = 2
    assert before != exact(x)


def run_counted():
    traces = []

    @kc.jit
    def f(x, static):
        traces.append(None)  # nothing that would keep the argument
        found = static.x if isinstance(static, Open) else static
        found = found.rate if isinstance(found, Plain) else found
        return x + (float(sum(found)) if isinstance(found, set | list | dict) else found)

    return (lambda static: f(np.zeros(2, "f"), static).numpy()[0]), traces


@pytest.mark.parametrize(
    "make",
    [
        lambda k: set(range(k)),
        lambda k: Plain(k),
        lambda k: Open(k),
        lambda k: {j: j for j in range(k)},
    ],
)
def test_static_arguments_made_in_a_loop(make):
    run, _ = run_counted()
    expected = (lambda k: k) if isinstance(make(1), Plain | Open) else (lambda k: sum(range(k)))
    assert [run(make(k)) for k in range(40)] == [expected(k) for k in range(40)]


def test_a_changed_static_argument_traces_again():
    run, traces = run_counted()
    for make, change in [
        (lambda: {1, 2}, lambda x: x.add(4)),
        (lambda: [1, 2], lambda x: x.append(4)),
        (lambda: Plain(3.0), lambda x: setattr(x, "rate", 7.0)),
        (lambda: Open(3.0), lambda x: setattr(x, "x", 7.0)),
    ]:
        value = make()
        traces.clear()
        assert run(value) == run(value) == 3
        change(value)
        assert run(value) == 7
        assert len(traces) == 2


def test_signs_and_types_of_numbers_trace_again():
    sign = kc.jit(lambda x, zero: x * zero)
    one = np.ones(2, "f")
    signs = [np.signbit(sign(one, zero).numpy()[0]) for zero in (0.0, -0.0, 0.0)]
    assert signs == [False, True, False]
    kinds = kc.jit(lambda x, k: x + {int: 1, bool: 2, float: 3}[type(k)])
    assert [kinds(one, k).numpy()[0] for k in (1, True, 1.0, 1)] == [2, 3, 4, 2]


def test_classes_of_the_same_name_trace_again():
    def run(k):
        pair = collections.namedtuple("Pair", "x y")
        pair.total = lambda self: (self.x + self.y) * k
        return total(pair(np.ones(2, "f"), np.ones(2, "f"))).numpy()[0]

    total = kc.jit(lambda pair: pair.total())
    assert [run(1), run(3)] == [2, 6]


def test_constants_of_graphs_keep_their_sign():
    x = kc.array(np.array([1.0, 2.0], "f"))
    for zero in (0.0, -0.0, 0.0):
        signs = np.signbit((x * kc.array(np.float32(zero))).numpy())
        assert signs.tolist() == [np.signbit(zero)] * 2
        padded = kc.pad(x, 1, constant_values=zero).numpy()
        assert np.signbit(padded).tolist() == [np.signbit(zero), False, False, np.signbit(zero)]


class Link:
    def __init__(self):
        self.next = self

    def __eq__(self, other):
        return True


def test_arguments_that_hold_themselves_are_named():
    ring = [1]
    ring.append(ring)
    run = kc.jit(lambda x, where: x)
    for endless in (Link(), ring, {"a": [Link()]}):
        with pytest.raises(ValueError, match=r"jit: argument where of .*lambda.* holds itself"):
            run(np.ones(2, "f"), endless)
        with pytest.raises(ValueError, match="argument where"):
            run(np.ones(2, "f"), where=endless)
    with pytest.raises(ValueError, match="argument more"):
        kc.jit(lambda *more: 1)(ring)
    assert run(np.ones(2, "f"), 3).numpy().tolist() == [1, 1]
