"""Python's collector of cycles waits while programs are made, and is then as before."""

import gc
import threading

import pytest

from kerascl.compiler.program import lower as lowering
from kerascl.core import collector
from tests.compiler.graphs import argument, nodes_of


@pytest.fixture(params=[True, False])
def enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_what_the_user_chose_holds_afterwards(enabled):
    with pytest.raises(ZeroDivisionError), collector.waits():
        with collector.waits():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled() == enabled


def test_the_last_thread_lets_it_begin(enabled):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with collector.waits():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with collector.waits():
        thread.start()
        assert inside.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled() == enabled


@pytest.mark.parametrize("generic", [True, False])
def test_programs_of_captured_functions(enabled, generic, dev, monkeypatch):
    seen = []
    made = lowering._lower
    monkeypatch.setattr(
        lowering, "_lower", lambda *args: (seen.append(gc.isenabled()), made(*args))[1]
    )
    result = argument(8) * 2
    lowering.lower(nodes_of(result), [result._node], dev.info, generic)
    assert seen == [enabled and generic] and gc.isenabled() == enabled
