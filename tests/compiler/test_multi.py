"""Equal small kernels over different tensors become one launch; no device."""

from types import SimpleNamespace

import pytest

from kerascl.compiler.program import multi
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.contract.source import Source

INFO = SimpleNamespace(max_parameter_bytes=4096)
BODY = "  const int i = get_global_id(0);\n  if (i < 64) out[i] = in[i];\n"
PARAMS = ("__global float* in", "__global float* out")


def copy(source: int, target: int, body: str = BODY, size: int = 64) -> tuple[Step, Source]:
    text = Source("copy", PARAMS, body, (), False)
    step = Step("", "copy", (), [Use(source), Use(target)], (size,), (64,))
    step.writes = frozenset((target,))
    return step, text


def merged(*pairs, nbytes=256, aliases=(), kinds=None, info=INFO):
    count = 1 + max(a.index for step, _ in pairs for a in step.args)
    kinds = kinds or ["temporary"] * count
    slots = [Slot(kind, nbytes, k) for k, kind in enumerate(kinds)]
    aliases = set(aliases)
    steps, generated = multi.merge([step for step, _ in pairs], list(pairs), slots, aliases, info)
    return steps, generated, aliases


def used(step: Step) -> list[int]:
    return [a.index for a in step.args]


def test_independent_launches_of_one_kernel_are_one():
    (step,), ((same, source),), _ = merged(copy(0, 1), copy(2, 3), copy(4, 5))
    assert used(step) == [0, 1, 2, 3, 4, 5] and step.global_size == (192,)
    assert same is step and step.writes == {1, 3, 5}
    assert "get_group_id(0) / 1" in source.body and source.body.count("case ") == 2


def test_sizes_may_differ():
    (step,), ((_, source),), _ = merged(copy(0, 1), copy(2, 3, size=128))
    assert step.global_size == (192,)
    assert "if (get_group_id(0) >= 1) { segment = 1; segment_start = 1; }" in source.body


def test_other_kernels_stay_apart():
    steps, _, _ = merged(copy(0, 1), copy(2, 3, BODY.replace("64", "63")))
    assert [used(s) for s in steps] == [[0, 1], [2, 3]]


def test_what_reads_the_others_result_stays_behind_it():
    steps, _, _ = merged(copy(0, 1), copy(1, 2))
    assert [used(s) for s in steps] == [[0, 1], [1, 2]]
    # one of a later pair, too: 1 -> 2 waits for 0 -> 1
    steps, _, _ = merged(copy(0, 1), copy(3, 4), copy(1, 2))
    assert sorted(map(len, map(used, steps))) == [2, 4]
    place = {target: k for k, s in enumerate(steps) for target in s.writes}
    assert place[1] < place[2]


def test_a_launch_has_room_for_its_arguments():
    info = SimpleNamespace(max_parameter_bytes=64 + 8 * 2 * 2)  # of two parts
    steps, _, _ = merged(*(copy(2 * k, 2 * k + 1) for k in range(4)), info=info)
    assert [len(used(s)) for s in steps] == [4, 4]


@pytest.mark.parametrize("steps", [1, 2])
def test_memory_shared_by_two_parts_is_not_overwritten(steps):
    # both parts read slot 0: neither may write there, as each part alone might
    pairs = [copy(0, 1), copy(0, 2)][:steps]
    _, _, aliases = merged(*pairs, aliases=[(0, 1)], kinds=["input", "output", "output"])
    assert aliases == ({(0, 1)} if steps == 1 else set())


def test_large_launches_stay_alone():
    steps, _, _ = merged(*(copy(2 * k, 2 * k + 1, size=multi.MOST_ITEMS + 64) for k in range(2)))
    assert len(steps) == 2


def test_putting_off_a_step_must_not_raise_the_peak():
    mib = 1 << 20
    early = copy(0, 1)
    middle = copy(2, 3, BODY.replace("64", "32"))
    late = copy(4, 5)
    steps, _, _ = merged(early, middle, late, nbytes=8 * mib)
    assert len(steps) == 3  # slots 0 and 1 would live on while 2 and 3 do
    steps, _, _ = merged(early, middle, late, nbytes=64)
    assert len(steps) == 2


FIRST = "#define EPILOGUE(acc_, i_) { out[i_] = acc_; }\n"
SCALED = "#define EPILOGUE(acc_, i_) { kept0_ = s[0]; out[i_] = acc_ * kept0_; }\n"
KEPT = "#define EPILOGUE_KEPT float kept0_; \n"
ENDS = "  EPILOGUE(in[0], 0)\n#undef EPILOGUE\n"


def ending(source: int, target: int, text: str, *more: int) -> tuple[Step, Source]:
    """A kernel that hands what it reads to an epilogue, which may have further parameters."""
    own = (*(f"__global int* s{k or ''}" for k in range(len(more))), "__global float* out")
    params = ("__global float* in", *own)
    args = [Use(source), *map(Use, more), Use(target)]
    step = Step("", "end", (), args, (64,), (64,), writes=frozenset((target,)))
    return step, Source("end", params, text + ENDS, (), False, epilogue=own)


def test_what_becomes_of_results_may_differ():
    (step,), ((_, source),), _ = merged(
        ending(0, 1, FIRST), ending(0, 2, KEPT + SCALED, 3), ending(0, 4, KEPT + SCALED, 5)
    )
    assert used(step) == [0, 1, 0, 3, 2, 0, 5, 4] and step.writes == {1, 2, 4}
    assert source.params[2:5] == (
        "__global float* in_1", "__global int* s_of1_1", "__global float* out_of1_1",
    )  # fmt: skip
    assert "  __global int* s_of1 = 0;\n" in source.body
    assert "if (epilogue_ == 0) { out[i_] = acc_; }" in source.body
    assert "else if (epilogue_ == 1) { kept0_of1_ = s_of1[0]; out_of1[i_] =" in source.body
    assert source.body.count("in = in_2; s_of1 = s_of1_2; out_of1 = out_of1_2; epilogue_ = 1;") == 1
    assert source.body.count("#define EPILOGUE(") == source.body.count("#undef EPILOGUE\n") == 1


def test_a_launch_has_few_epilogues():
    most = multi.epilogues.MOST
    texts = [FIRST.replace("acc_;", f"acc_ + {k};") for k in range(most + 2)]
    steps, _, _ = merged(*(ending(0, 1 + k, text) for k, text in enumerate(texts)))
    assert [len(step.writes) for step in steps] == [most, 2]


def test_kernels_that_differ_elsewhere_stay_apart():
    other = FIRST + "  in += 1;\n"
    steps, _, _ = merged(ending(0, 1, FIRST), ending(0, 2, other))
    assert len(steps) == 2
