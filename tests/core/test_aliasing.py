"""Arrays never change: random programs over States and what was read from them, against NumPy.

Every number is a small multiple of a power of two, and every function rounds in one place only, so
that values are compared exactly.
"""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    rule,
    run_state_machine_as_test,
)

import kerascl as kc

N = 6
numbers = st.integers(-8, 8).map(float)
which = st.integers(0, 3)

LAZY = {
    "halved": lambda x: x * 0.5,
    "negative": lambda x: -x,
    "more": lambda x: x + 3.0,
    "reshaped": lambda x: x.reshape(2, 3),
    "backwards": lambda x: x[::-1],
    "part": lambda x: x[1:4],
}


class Held:
    """An Array and what it must be; `plain` unless it is an expression over others."""

    def __init__(self, array, value, plain):
        self.array = array
        self.plain = plain
        self.value = np.array(value, "f")

    def check(self):
        np.testing.assert_array_equal(self.array.numpy(), self.value)


class Aliasing(RuleBasedStateMachine):
    """States a to d; `values` is what they hold, by NumPy."""

    held = Bundle("held")

    @initialize(shared=st.booleans())
    def begin(self, shared):
        self.values = [np.arange(N, dtype="f") + 10 * k for k in range(4)]
        arrays = [kc.array(v) for v in self.values]
        if shared:  # two states begin with one array
            arrays[3] = arrays[0]
            self.values[3] = self.values[0].copy()
        self.states = [kc.State(x, f"state {k}") for k, x in enumerate(arrays)]
        self.everything = []
        self.step = functools.cache(self._step)

    def hold(self, array, value, plain=True):
        held = Held(array, value, plain)
        self.everything.append(held)
        return held

    # -- arrays
    @rule(target=held, k=which)
    def read(self, k):
        return self.hold(self.states[k].value, self.values[k])

    @rule(target=held, of=held, how=st.sampled_from(sorted(LAZY)))
    def expression(self, of, how):
        if of.value.shape != (N,) or not of.plain:  # few programs, so little time to compile
            return self.hold(of.array, of.value, of.plain)
        return self.hold(LAZY[how](of.array), LAZY[how](of.value), plain=False)

    @rule(target=held, k=which)
    def recorded(self, k):
        """A gradient whose tape still needs the value."""
        with kc.GradientTape() as tape:
            x = self.states[k].value
            y = x * x
        self.later = getattr(self, "later", [])
        self.later.append((tape, x, y, 2 * self.values[k]))
        return self.hold(x, self.values[k])

    @rule()
    def differentiate(self):
        for tape, x, y, slope in self.__dict__.pop("later", []):
            np.testing.assert_array_equal(tape.gradient(y, x).numpy(), slope)

    @rule(of=held)
    def evaluate(self, of):
        of.array.evaluate()

    @rule(of=held)
    def check(self, of):
        of.check()

    @rule(of=consumes(held))
    def drop(self, of):
        if of in self.everything:
            self.everything.remove(of)
        of.array = kc.array(of.value)  # as the bundle's other names may still ask for it

    @rule(k=which)
    def check_state(self, k):
        np.testing.assert_array_equal(self.states[k].value.numpy(), self.values[k])

    # -- assignments outside captured functions
    @rule(k=which, x=numbers)
    def assign(self, k, x):
        self.values[k] = np.full(N, x, "f")
        self.states[k].assign(kc.array(self.values[k]))

    @rule(k=which, of=held)
    def assign_held(self, k, of):
        if of.value.shape == (N,):
            self.values[k] = of.value.copy()
            self.states[k].assign(of.array)

    @rule(k=which)
    def assign_itself(self, k):
        self.states[k].assign(self.states[k].value)

    @rule(k=which)
    def assign_itself_backwards(self, k):
        self.values[k] = self.values[k][::-1].copy()
        self.states[k].value.evaluate()
        self.states[k].assign(self.states[k].value[::-1])

    @rule(k=which)
    def assign_itself_reshaped(self, k):
        self.states[k].assign(self.states[k].value.reshape(3, 2).reshape(N))

    @rule(j=which, k=which)
    def swap(self, j, k):
        states, values = self.states, self.values
        old = states[j].value
        states[j].assign(states[k].value)
        states[k].assign(old)
        values[j], values[k] = values[k], values[j]

    @rule(k=which, x=numbers)
    def eager_step(self, k, x):
        more = np.full(N, x, "f")
        self.states[k].value.evaluate()
        self.states[k].assign(self.states[k].value * 0.5 + kc.array(more))
        self.values[k] = self.values[k] * np.float32(0.5) + more

    @rule(j=which, k=which)
    def replace_state(self, j, k):
        """As a copy of a variable does."""
        if j != k:
            self.states[j] = kc.State(self.states[k].value)
            self.values[j] = self.values[k].copy()
            self.step.cache_clear()

    # -- captured steps, each one program over one or two states
    def _step(self, kind, j, k):
        a, b = self.states[j], self.states[k]

        def bump(x):
            a.assign(a.value + x)

        def mix(x):
            old = a.value
            a.assign(a.value * 0.5 + x)
            b.assign(old)
            return old, a.value, old.reshape(2, 3)

        def exchange(x):
            old = a.value
            a.assign(b.value)
            b.assign(old)

        def itself(x):
            a.assign(a.value)
            return b.value - x

        def replace(x):
            a.assign(x)
            return x

        def look(x):
            return a.value * 0.5, b.value.reshape(2, 3)

        return kc.jit({f.__name__: f for f in (bump, mix, exchange, itself, replace, look)}[kind])

    def _run(self, kind, j, k, x, value):
        values = self.values
        result = self.step(kind, j, k)(x)
        before = values[j].copy(), values[k].copy()
        half = np.float32(0.5)
        if kind == "bump":
            values[j] = before[0] + value
            return []
        if kind == "mix":
            values[j] = before[0] * half + value
            after = values[j]
            values[k] = before[0]
            if j == k:
                after = before[0]
            return zip(result, (before[0], after, before[0].reshape(2, 3)), strict=True)
        if kind == "exchange":
            values[j], values[k] = before[1], before[0]
            return []
        if kind == "itself":
            return [(result, before[1] - value)]
        if kind == "replace":
            values[j] = np.broadcast_to(value, N).copy()
            return [(result, value)]
        return zip(result, (before[0] * half, before[1].reshape(2, 3)), strict=True)

    kinds = st.sampled_from(["bump", "mix", "exchange", "itself", "replace", "look"])

    @rule(kind=kinds, j=which, k=which, x=numbers, keep=st.booleans())
    def captured(self, kind, j, k, x, keep):
        value = np.full(N, x, "f")
        for array, expected in self._run(kind, j, k, value, value):
            if keep:
                self.hold(array, expected)

    @rule(target=held, kind=kinds, j=which, k=which, of=held)
    def captured_of_held(self, kind, j, k, of):
        if of.value.shape != (N,):
            return of
        results = [self.hold(*r) for r in self._run(kind, j, k, of.array, of.value.copy())]
        return results[-1] if results else of

    @rule(kind=st.sampled_from(["bump", "mix"]), k=which, x=numbers)
    def captured_with_another_signature(self, kind, k, x):
        value = np.full(1, x, "f")
        for array, expected in self._run(kind, k, (k + 1) % 4, value, value):
            self.hold(array, expected)

    @rule(target=held, k=which, x=numbers)
    def captured_over_value(self, k, x):
        """An array from outside is a constant of the captured function."""
        array, value = self.states[k].value, self.values[k]
        run = kc.jit(lambda x: array + x)
        first = self.hold(run(np.ones(1, "f")), value + 1)
        self._run("bump", k, k, np.full(N, x, "f"), np.full(N, x, "f"))
        np.testing.assert_array_equal(run(np.full(1, 2, "f")).numpy(), value + 2)
        return first

    def teardown(self):
        if hasattr(self, "everything"):
            self.differentiate()
            for of in self.everything:
                of.check()
            for state, value in zip(self.states, self.values, strict=True):
                np.testing.assert_array_equal(state.value.numpy(), value)


@pytest.mark.slow
def test_arrays_never_change():
    run_state_machine_as_test(
        Aliasing,
        settings=settings(
            max_examples=settings().max_examples,
            stateful_step_count=40,
            deadline=None,
            phases=set(Phase) - {Phase.explain},
            suppress_health_check=list(HealthCheck),
        ),
    )
