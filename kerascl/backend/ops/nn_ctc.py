"""Connectionist temporal classification: loss, greedy and beam-search decoding.

All of it stays on the device: the recursions over time are loops whose body is traced once.
"""

from __future__ import annotations

import math

from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core.array import Array
from kerascl.dtypes import float32, int32, promote
from kerascl.ops.control import loop
from kerascl.ops.creation import full, zeros
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import cast_to
from kerascl.ops.gather import take_along_axis
from kerascl.ops.movement import concatenate, expand_dims, iota, pad, transpose
from kerascl.ops.nn import log_softmax
from kerascl.ops.pointwise import equal, logaddexp, where
from kerascl.ops.reduction import all as every
from kerascl.ops.reduction import any as some
from kerascl.ops.reduction import argmax
from kerascl.ops.reduction import max as largest
from kerascl.ops.sorting import argsort, top_k
from kerascl.ops.views import expand_to, reshape_to

# Logarithm of a probability that stands for "impossible" and still has gradients.
_NEVER = -1e5


def _column(x: Array) -> Array:
    return reshape_to(x, (*x.shape, 1))


def ctc_loss(target, output, target_length, output_length, mask_index=0) -> Array:
    """-log P(target | output) for each sequence.

    Args:
        target: (batch, labels) integers.
        output: (batch, steps, classes) logits.
        target_length, output_length: (batch,) integers.
        mask_index: the class that is the blank.

    Returns:
        (batch,) in at least float32.
    """
    target = convert_to_tensor(target, "int32")
    output = convert_to_tensor(output)
    output = cast_to(output, promote(output.dtype, float32))
    target_length = convert_to_tensor(target_length, "int32")
    output_length = convert_to_tensor(output_length, "int32")
    batch, steps, classes = output.shape
    labels = target.shape[1]
    dtype = output.dtype
    log_p = transpose(log_softmax(output), (1, 0, 2))  # (steps, batch, classes)
    log_blank = log_p[:, :, mask_index % classes]
    # labels out of range have probability 0, as their one-hot code is empty
    valid = (target >= 0) & (target < classes)
    index = expand_to(reshape_to(where(valid, target, 0), (1, batch, labels)),
                      (steps, batch, labels))  # fmt: skip
    log_label = where(valid, take_along_axis(log_p, index, 2), 0)
    # where the next label is the same, a blank must lie between
    repeat = cast_to(equal(target[:, :-1], target[:, 1:]), dtype)
    repeat = pad(repeat, ((0, 0), (0, 1)))
    start = where(iota((batch, labels + 1), 1) == 0, full((), 0, dtype), full((), _NEVER, dtype))

    def enter(gaps: Array, log_more: Array) -> Array:
        return concatenate([gaps[:, :1], logaddexp(gaps[:, 1:], log_more)], 1)

    def step(carry, now):
        gaps, emits = carry  # ending in a blank after n labels, in label n
        blank, label, running = now
        entered = enter(gaps, emits + _NEVER * repeat)
        new_emits = logaddexp(entered[:, :-1], emits) + label
        blank = _column(blank)
        new_gaps = enter(entered + blank, emits + blank + _NEVER * (1.0 - repeat))
        running = _column(running)
        return [where(running, new_gaps, gaps), where(running, new_emits, emits)], []

    running = iota((steps, batch), 0) < reshape_to(output_length, (1, batch))
    (gaps, emits), _ = loop(
        step, [start, full((batch, labels), _NEVER, dtype)], [log_blank, log_label, running]
    )
    ends = enter(gaps, emits)
    length = _column(target_length)
    length = where(length < labels, where(length > 0, length, 0), labels)
    return -reshape_to(take_along_axis(ends, length, 1), (batch,))


def ctc_decode(
    inputs, sequence_lengths, strategy="greedy", beam_width=100, top_paths=1, merge_repeated=True,
    mask_index=0,
) -> tuple[Array, Array]:  # fmt: skip
    """The likeliest label sequences.

    Args:
        inputs: (batch, steps, classes) logits (greedy: any scores).
        sequence_lengths: (batch,) integers.
        strategy: "greedy" (the best class at each step) or "beam_search".
        beam_width, top_paths: of the beam search.
        merge_repeated: greedy: equal neighbours count once.
        mask_index: the class that is the blank; None is the last one.

    Returns:
        int32 sequences (paths, batch, steps), ended by -1, and their scores (batch, paths).
    """
    inputs = convert_to_tensor(inputs)
    inputs = cast_to(inputs, promote(inputs.dtype, float32))
    lengths = convert_to_tensor(sequence_lengths, "int32")
    blank = inputs.shape[2] - 1 if mask_index is None else mask_index
    if strategy == "greedy":
        return _greedy(inputs, lengths, merge_repeated, blank)
    if strategy == "beam_search":
        return _beam_search(inputs, lengths, beam_width, top_paths, blank)
    raise ValueError(
        f"Invalid strategy {strategy}. Supported values are 'greedy' and 'beam_search'."
    )


def _greedy(inputs: Array, lengths: Array, merge: bool, blank: int) -> tuple[Array, Array]:
    batch, steps, _ = inputs.shape
    time = iota((batch, steps), 1)
    running = time < _column(lengths)
    labels = where(running, argmax(inputs, -1), blank)
    scores = -total(where(running, largest(inputs, -1), 0), 1, keepdims=True)
    found = labels != blank
    if merge:
        before = pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        found = found & (labels != before)
    order = argsort(where(found, time, steps), -1)
    labels = take_along_axis(where(found, labels, -1), order, -1)
    return expand_dims(labels, 0), scores


def _beam_search(
    inputs: Array, lengths: Array, width: int, top_paths: int, blank: int
) -> tuple[Array, Array]:
    """Prefix beam search: the probability of a prefix sums all alignments that give it."""
    batch, steps, classes = inputs.shape
    dtype = inputs.dtype
    log_p = transpose(log_softmax(inputs), (1, 0, 2))
    never = full((), -math.inf, dtype)
    first = iota((batch, width), 1) == 0
    carry = [
        full((batch, width, steps), -1, int32),  # prefixes, ended by -1
        zeros((batch, width), int32),  # their lengths
        where(first, full((), 0, dtype), never),  # log P(prefix, last step blank)
        full((batch, width), -math.inf, dtype),  # log P(prefix, last step its last label)
    ]
    place = iota((batch, width, steps), 2)
    class_of = iota((batch, width, classes), 2)

    def step(carry, now):
        prefixes, sizes, blanks, labels = carry
        log_now, running = now  # (batch, classes), (batch,)
        both = logaddexp(blanks, labels)
        alive = both > -math.inf
        size = _column(sizes)
        last = total(where(place == size - 1, prefixes, 0), 2)  # 0 for the empty prefix
        last = where(sizes > 0, last, -1)
        now_wide = expand_to(reshape_to(log_now, (batch, 1, classes)), (batch, width, classes))
        ends_same = class_of == _column(last)
        # a prefix goes on with a label: after the same one only if a blank lay between
        longer = where(ends_same, _column(blanks), _column(both)) + now_wide
        longer = where(class_of == blank, never, longer)
        stay_blank = both + reshape_to(log_now[:, blank], (batch, 1))
        now_last = total(where(ends_same, now_wide, 0), 2)
        stay_label = where(sizes > 0, labels + now_last, never)
        # parent[b, j, i]: prefix j is prefix i and one label more
        mine = reshape_to(prefixes, (batch, width, 1, steps))
        other = reshape_to(prefixes, (batch, 1, width, steps))
        other_size = reshape_to(sizes, (batch, 1, width, 1))
        within = iota((batch, width, width, steps), 3) < other_size
        parent = every((mine == other) | ~within, 3)
        parent = parent & (size == reshape_to(sizes, (batch, 1, width)) + 1)
        parent = parent & _column(alive) & reshape_to(alive, (batch, 1, width))
        # reaching prefix j from its parent is the same as staying there
        my_last = expand_to(_column(where(sizes > 0, last, 0)), (batch, width, width))
        gain = take_along_axis(longer, transpose(my_last, (0, 2, 1)), 2)  # (batch, i, j)
        gain = largest(where(parent, transpose(gain, (0, 2, 1)), never), 2)
        stay_label = logaddexp(stay_label, gain)
        shape = (batch, width, width, classes)
        taken = _column(parent) & (iota(shape, 3) == reshape_to(last, (batch, width, 1, 1)))
        longer = where(some(taken, 1), never, longer)
        stay = logaddexp(stay_blank, stay_label)
        scores = concatenate([stay, reshape_to(longer, (batch, width * classes))], 1)
        _, chosen = top_k(scores, width)
        stays = chosen < width
        new = where(stays, 0, chosen - width)
        source = where(stays, chosen, new // classes)
        label = where(stays, -1, new % classes)
        old_size = take_along_axis(sizes, source, 1)
        kept = take_along_axis(prefixes, _column(source), 1)
        at_end = (place == _column(old_size)) & ~_column(stays)
        best = take_along_axis(scores, chosen, 1)
        row, table = _column(running), reshape_to(running, (batch, 1, 1))
        return [
            where(table, where(at_end, _column(label), kept), prefixes),
            where(row, old_size + where(stays, 0, 1), sizes),
            where(row, where(stays, take_along_axis(stay_blank, source, 1), never), blanks),
            where(row, where(stays, take_along_axis(stay_label, source, 1), best), labels),
        ], []

    running = iota((steps, batch), 0) < reshape_to(lengths, (1, batch))
    (prefixes, _, blanks, labels), _ = loop(step, carry, [log_p, running])
    scores, order = top_k(logaddexp(blanks, labels), top_paths)
    paths = take_along_axis(prefixes, _column(order), 1)
    return transpose(paths, (1, 0, 2)), scores
