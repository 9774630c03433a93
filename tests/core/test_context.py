"""The context of operations: replaced for a block, one for each thread."""

import threading

import pytest

from kerascl.core.context import Context, current, steady


def test_a_block_replaces_what_it_names_only():
    with current.replaced(precision="highest", checks_indices=True):
        assert current.precision == "highest" and current.checks_indices
        with current.replaced(precision="high"):
            assert current.precision == "high" and current.checks_indices
        assert current.precision == "highest"
    assert current.precision is None and not current.checks_indices


def test_a_block_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), current.replaced(tapes=("tape",)):
        raise ZeroDivisionError
    assert current.tapes == ()


def test_a_field_that_does_not_exist_is_an_error():
    with pytest.raises(KeyError, match="tape"), current.replaced(tape=()):
        pass


def test_threads_begin_with_defaults_and_share_the_engine():
    seen = []
    with current.replaced(precision="highest", device="some device"):
        thread = threading.Thread(
            target=lambda: seen.append((current.precision, current.device, current.engine))
        )
        thread.start()
        thread.join()
    assert seen == [(None, None, Context.engine)]


def test_an_interrupted_function_leaves_the_context_as_it_was():
    @steady
    def interrupted():
        current.precision = "highest"  # as a block whose end did not run
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert current.precision is None
