"""Which values get memory, and which share a kernel; no device."""

import pytest

import kerascl as kc
from kerascl.compiler import library
from kerascl.compiler.fuse.rules import Part
from kerascl.compiler.fuse.targets import RECOMPUTE_ONE_LIMIT, choose_targets, reads_of
from kerascl.dtypes import bfloat16, int32
from kerascl.ops.gather import scatter_rows
from kerascl.ops.nn import moments
from tests.compiler.graphs import argument, epilogues_only, grouped, names, nodes_of


def targets(*arrays):
    return [n.op.name for n in choose_targets(nodes_of(*arrays), [x._node for x in arrays])[0]]


def everything(head, part):
    return True


# -- targets ------------------------------------------------------------------
def test_only_results_of_elementwise_operations_lie_in_memory():
    x = argument(64)
    assert targets(kc.exp(x) * 2 + 1) == ["add"]


def test_what_is_cheap_is_computed_again_what_is_dear_is_stored():
    x = argument(64)
    cheap = x * 2
    assert targets(cheap + 1, cheap - 1) == ["add", "subtract"]
    dear = kc.tanh(x)
    assert dear._node.op.cost > RECOMPUTE_ONE_LIMIT
    assert targets(dear + 1, dear - 1) == ["tanh", "add", "subtract"]


def test_what_is_dear_is_computed_before_it_is_broadcast():
    t, x = argument(), argument(64, 8)
    rate = kc.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    assert targets(x * rate) == ["divide", "multiply"]
    assert targets(x * kc.reshape(rate, (1, 1))) == ["divide", "multiply"]
    assert targets(x * kc.reshape(t + 1, (1, 1))) == ["multiply"]


def test_reductions_products_and_their_operands_lie_in_memory():
    x, w = argument(8, 16), argument(16, 4)
    assert targets(kc.sum(kc.exp(x), 1) + 1) == ["sum", "add"]
    assert targets(kc.exp(x) @ w) == ["exp", "matmul"]
    assert targets(kc.transpose(x, (1, 0)) @ kc.exp(argument(8, 3))) == ["exp", "matmul"]


def test_what_is_compared_with_a_reduction_of_it_is_computed_once():
    def largest(x):
        return kc.where(kc.equal(x, kc.max(x, 1, keepdims=True)), 1.0, 0.0)

    x = argument(8, 16)
    y = kc.sin(x)
    groups = names(grouped(largest(y)))
    assert groups[0] == ["map", "sin"] and not any("sin" in group for group in groups[1:])
    assert len(names(grouped(largest(kc.maximum(x, 0))))) == 1  # the same bits everywhere


def test_how_a_target_reads():
    x = kc.tanh(argument(8, 16))
    stored = {id(x._node)}

    def pattern(y):
        return reads_of(y._node, stored).patterns[id(x._node)]

    assert pattern(kc.reshape(x, (128,)) + 1) == {"same"}
    assert pattern(kc.transpose(x, (1, 0)) + 1) == {"other"}
    assert pattern(kc.pad(x, 1) + 1) == {"other"}
    wide = kc.broadcast_to(kc.reshape(x, (8, 1, 16)), (8, 5, 16))
    assert pattern(wide + argument(8, 5, 16)) == {("row", (8, 5, 16), (1,))}


# -- maps ---------------------------------------------------------------------
def test_values_of_one_size_share_a_map():
    x = argument(8, 4)
    y = kc.tanh(x)
    assert names(grouped(y, y + x, kc.reshape(y, (32,)) * 2)) == [
        ["map", "tanh", "add", "multiply"]
    ]
    assert names(grouped(y, kc.transpose(y, (1, 0)) + 1)) == [["map", "tanh"], ["map", "add"]]


def test_neighbours_that_read_the_same_array_share_a_map():
    x = argument(64)
    assert names(grouped(kc.tanh(x), kc.sin(x))) == [["map", "tanh", "sin"]]
    assert names(grouped(kc.tanh(x), kc.sin(argument(64)))) == [["map", "tanh"], ["map", "sin"]]


def test_clusters_never_wait_for_each_other():
    x = argument(8, 8)
    y = kc.tanh(x)
    z = kc.sum(kc.transpose(y, (1, 0)), 1)  # reads y elsewhere
    last = y + kc.reshape(z, (8, 1))
    order = grouped(y, last)
    place = {id(m): k for k, c in enumerate(order) for m in c.members}
    assert place[id(y._node)] < place[id(z._node.inputs[0])] <= place[id(last._node)]


def test_nor_joins_a_target_what_must_run_before_something_it_reads():
    y = kc.tanh(argument(8, 8))
    z = kc.sum(kc.transpose(y, (1, 0))[:4], 1)  # reads y, and last reads it
    last = y + kc.reshape(z[:1], (1, 1))
    assert names(grouped(y, last)) == [["map", "tanh"], ["reduction", "sum"], ["map", "add"]]


# -- reductions ---------------------------------------------------------------
def test_a_map_that_is_reduced_at_once_is_stored_on_the_way():
    y = kc.tanh(argument(64, 8))
    (cluster,) = grouped(y, kc.sum(y, 1))
    assert names([cluster]) == [["reduction", "tanh", "sum"]]
    assert cluster.axes == (1,) and cluster.rows == 64 and not cluster.staged


def test_what_follows_a_reduction_shares_its_kernel():
    x = argument(64, 8)
    assert names(grouped(kc.sum(x, 1) * 2)) == [["reduction", "sum", "multiply"]]
    assert names(grouped(kc.sum(x, 1), kc.max(x, 1))) == [["reduction", "sum", "max"]]
    assert names(grouped(kc.sum(x, 1), kc.sum(x, 0))) == [
        ["reduction", "sum"],
        ["reduction", "sum"],
    ]


def test_a_row_that_is_read_again_stays_with_its_work_group():
    x = argument(64, 8)
    (cluster,) = grouped(x / kc.sum(x, 1, keepdims=True))
    assert cluster.staged and names([cluster]) == [["reduction", "sum", "divide"]]
    # not a column, nor a row longer than a work-group goes through
    assert len(grouped(x / kc.sum(x, 0, keepdims=True))) == 2
    long = argument(2, 1 << 14)
    assert len(grouped(long / kc.sum(long, 1, keepdims=True), busy_rows=8)) == 2
    assert len(grouped(long / kc.sum(long, 1, keepdims=True), busy_rows=2)) == 1


def test_a_rows_result_is_no_columns():
    x = argument(8, 8)
    assert len(grouped(x / kc.reshape(kc.sum(x, 1), (8, 1)))) == 1
    assert len(grouped(x / kc.reshape(kc.sum(x, 1), (1, 8)))) == 2


# -- library operations -------------------------------------------------------
def test_elementwise_operations_follow_a_product():
    x, w, b = argument(64, 8), argument(8, 16), argument(16)
    assert names(grouped(kc.tanh(x @ w + b))) == [["library", "matmul", "tanh"]]
    turned = kc.transpose(x @ w, (1, 0))
    assert names(grouped(turned + 1)) == [["library", "matmul"], ["map", "add"]]


def test_a_products_bias_is_added_in_its_epilogue_before_rows_are_repeated():
    """As that of keys and values before they are put into a cache."""
    x, w, bias, rows = argument(1, 8), argument(8, 6), argument(6), argument(9, dtype=int32)
    ended = x @ w + bias
    assert names(grouped(kc.take(ended, rows, axis=0)))[0] == ["library", "matmul", "add"]
    alone = argument(1, 6) + bias
    assert len(grouped(kc.take(alone, rows, axis=0))) == 1


def test_unless_its_record_takes_none():
    x, w = argument(64, 8), argument(8, 16)
    assert len(grouped(kc.tanh(x @ w), accepts=lambda head, part: False)) == 2
    places = kc.argsort(x, 1)
    assert names(grouped(places + 1)) == [["library", "sort", "pick"], ["map", "add_int"]]


def test_the_update_of_a_large_state_is_a_pass_of_its_own():
    x, w, state = argument(64, 8), argument(8, 16), argument(64, 16)
    assert len(grouped(state + x @ w)) == 1
    assert len(grouped(state + x @ w, update_limit=64 * 16)) == 2


def test_the_update_of_a_large_state_follows_kernels_that_go_through_their_results_as_maps_do():
    rows, updates, state = argument(7, dtype=int32), argument(7, 16), argument(64, 16)

    def accepts(head, part):
        record = library.record(head.op)
        return part is Part.EPILOGUE or (part is Part.UPDATE and record.streams)

    table = scatter_rows(argument(64, 16), rows, updates, "add")
    assert len(grouped(state + table, accepts=accepts, update_limit=64 * 16)) == 1


@pytest.mark.parametrize("accepts", [everything, epilogues_only])
def test_moments_of_columns_follow_a_product_that_takes_them(accepts):
    y = argument(64, 8) @ argument(8, 16) + argument(16)
    mean, variance = moments(y, (0,))
    found = grouped(y, mean, variance, accepts=accepts)
    assert len(found) == (1 if accepts is everything else 2)
    if accepts is everything:
        assert found[0].axes == (0,) and found[0].rows == 16


def test_a_sum_without_a_variance_is_no_moment():
    y = argument(64, 8) @ argument(8, 16)
    assert len(grouped(y, kc.sum(y, 0), accepts=everything)) == 2


def test_records_are_asked_for_moments_only_where_they_would_serve():
    asked = []

    def accepts(head, part):
        asked.append(part)
        return True

    y = argument(64, 8) @ argument(8, 16)
    mean, variance = moments(kc.tanh(y), (0,))  # no shift of a column
    grouped(mean, variance, accepts=accepts)
    assert Part.MOMENTS not in asked


def stored(*arrays, **limits):
    """Names and dtypes of the large values that clusters store."""
    clusters = grouped(*arrays, **limits)
    return [(m.op.name, m.dtype.name) for c in clusters for m in c.stores if m.size > 10_000]


def test_where_memory_counts_values_made_of_as_few_bytes_are_computed_again():
    x, y, z = (argument(64, 768, dtype=bfloat16) for _ in range(3))
    wide = [v.astype("float32") for v in (x, y, z)]
    product = wide[0] * wide[1] + wide[0] * 3.0 - wide[1]
    readers = kc.sum(product, 0), kc.sum(kc.abs(product), 1)
    assert stored(*readers) == [("subtract", "float32")]
    assert not stored(*readers, memory_bound=True)
    more = product * wide[2]  # made of three values of 2 bytes
    readers = kc.sum(more, 0), kc.sum(kc.abs(more), 1)
    assert stored(*readers, memory_bound=True) == [("multiply", "float32")]
    costly = kc.exp(kc.tanh(product))
    readers = kc.sum(costly, 0), kc.sum(kc.abs(costly), 1)
    assert stored(*readers, memory_bound=True) == [("exp", "float32")]


def test_where_memory_counts_what_is_widened_is_stored_before():
    x, y, z = (argument(64, 768, dtype=bfloat16) for _ in range(3))
    narrow = kc.tanh(kc.tanh(x) * y) + z
    for value in (narrow, kc.reshape(narrow, (8, 8, 768))):
        wide = value.astype("float32")
        readers = kc.sum(wide, 0), kc.sum(kc.abs(wide), -1)
        assert stored(*readers) == [("cast", "float32")]
        assert stored(*readers, memory_bound=True) == [("add", "bfloat16")]


def test_where_memory_counts_epilogues_compute_what_is_broadcast():
    """A product's epilogue divides once, not every element of what it is broadcast to."""
    product, other = argument(128, 64) @ argument(64, 256), argument(128, 50, 256)
    flat = argument(128, 256)

    def broadcast(x):
        return kc.reshape(x, (128, 1, 256)) + other

    mean = broadcast(kc.abs(product / 50).astype(bfloat16))
    assert stored(mean)[0] == ("matmul", "float32")
    assert [name for name, _ in stored(mean, memory_bound=True)] == ["cast", "add"]
    for cheap in product + 1, flat / 50:  # which is of no product
        ways = [stored(broadcast(cheap), memory_bound=way) for way in (False, True)]
        assert ways[0] == ways[1]
    few = kc.reshape(product / 50, (128, 1, 256)) + argument(128, 3, 256)
    assert stored(few, memory_bound=True) == stored(few)
