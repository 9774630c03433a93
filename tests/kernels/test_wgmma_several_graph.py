"""Products of equal shapes become one launch on Hopper; its hardware emulated."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph import views
from kerascl.compiler.program.lower import lower
from kerascl.compiler.program.program import Use
from kerascl.dtypes import bfloat16, float32
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import probe
from kerascl.kernels.matmul import dense
from kerascl.kernels.selftests import asked
from tests import profiles
from tests.compiler.graphs import argument, nodes_of
from tests.kernels import emulator

ROWS, DEPTH, COLUMNS = 520, 136, 264
CTYPES = {"int32": "int", "int64": "long", "uint32": "uint", "float32": "float", "uint64": "ulong"}


@pytest.fixture
def hopper(cpu_dev, monkeypatch):
    """Facts of the device as a Hopper GPU of few compute units; the parts that were asked for."""
    given = profiles.disguise(cpu_dev.info, profiles.load()["rtx4090"].info)
    info = dataclasses.replace(
        given, name="NVIDIA H200", matrix="wgmma90", compute_units=6, nvidia_capability=(9, 0)
    )
    wrong = set()

    def passed(_, *tests):
        assert all(x.part in probe.parts(x.name) for x in tests), tests
        return wrong.isdisjoint(x.name for x in tests)

    monkeypatch.setattr(asked, "passed", passed)
    monkeypatch.setenv("KERASCL_SOLVERS", "wgmma")
    return info, wrong


def several(program):
    """Of each launch of products how many it has."""
    found = []
    for step in program.steps:
        if step.name.startswith("wgmma"):
            counts = re.findall(r"#define SEVERAL (\d+)\n", step.source)
            found.append(int(counts[0]) if len(counts) > 1 else 1)
    return found


def run(program, nodes, values, roots, dev):
    """What a program of whole products gives for the values of arguments, by node."""
    launches, inputs, outs = [], {}, {}
    for step in program.steps:
        args = []
        for arg in step.args:
            if type(arg) is Use:
                args.append(Ref(f"s{arg.index}", arg.offset))
            elif isinstance(arg, bytes):
                args.append(Scalar("ulong8", tuple(map(int, np.frombuffer(arg, np.uint64)))))
            else:
                args.append(Scalar(CTYPES[arg.dtype.name], arg.item()))
        launches.append(
            Launch(step.source, step.name, tuple(args), step.global_size, step.local_size,
                   step.options)
        )  # fmt: skip
    places = {id(node): k for k, node in enumerate(nodes)}
    for k, slot in enumerate(program.slots):
        node = nodes[slot.node] if slot.node >= 0 else None
        if slot.kind == "input":
            inputs[f"s{k}"] = values[id(node)]
        elif slot.kind == "output":
            outs[k] = np.full(slot.nbytes // 2, 0x7FC0, np.uint16).view(ml_dtypes.bfloat16)
        else:
            inputs[f"s{k}"] = np.full(slot.nbytes, 0xFF, np.uint8)
    got = emulator.run_outputs_of(
        Plan(launches), inputs, {f"s{k}": x for k, x in outs.items()}, dev
    )
    by_node = {program.slots[k].node: got[f"s{k}"] for k in outs}
    return [by_node[places[id(views.storage(root))]] for root in roots]


def graph(count, rng, last=None):
    """Arguments, their values, and products of one array with so many weights and biases."""
    x = argument(ROWS, DEPTH, dtype=bfloat16)
    values = {id(x._node): rng.normal(size=(ROWS, DEPTH)).astype(ml_dtypes.bfloat16)}
    made, wants = [], []
    for nth in range(count):
        w, b = (argument(*shape, dtype=bfloat16) for shape in ((DEPTH, COLUMNS), (COLUMNS,)))
        for array, shape in ((w, (DEPTH, COLUMNS)), (b, (COLUMNS,))):
            values[id(array._node)] = rng.normal(size=shape).astype(ml_dtypes.bfloat16)
        given = [values[id(a._node)].astype(np.float64) for a in (x, w, b)]
        own = x if last is None or nth < count - 1 else last(made)
        made.append(kc.matmul(own, w) + b)
        wants.append(given[0] @ given[1] + given[2])
    return made, values, wants


@pytest.mark.parametrize("count, launches", [(2, [2]), (3, [3]), (5, [4, 1])])
def test_products_of_one_array(cpu_dev, hopper, count, launches, rng):
    made, values, wants = graph(count, rng)
    roots, nodes = [x._node for x in made], nodes_of(*made)
    program = lower(nodes, roots, hopper[0], False)
    assert several(program) == launches
    for got, want in zip(run(program, nodes, values, roots, cpu_dev), wants, strict=True):
        got = got.astype(np.float64).reshape(want.shape)
        assert np.linalg.norm(got - want) < 6e-3 * np.linalg.norm(want)


def test_one_that_waits_for_another_stays_alone(hopper, rng):
    made, *_ = graph(3, rng, last=lambda made: made[0][:, :DEPTH] * 1)
    program = lower(nodes_of(*made), [x._node for x in made], hopper[0], False)
    assert several(program) == [2, 1]


def test_where_the_self_test_fails_each_has_its_own(hopper, rng):
    info, wrong = hopper
    wrong.add(hopper_matmul.SEVERAL)
    made, *_ = graph(3, rng)
    program = lower(nodes_of(*made), [x._node for x in made], info, False)
    assert several(program) == [1, 1, 1]


def test_parameters_that_have_no_room(hopper, rng):
    info = dataclasses.replace(hopper[0], max_parameter_bytes=512)
    made, *_ = graph(4, rng)
    program = lower(nodes_of(*made), [x._node for x in made], info, False)
    assert max(several(program)) < 4 and sum(several(program)) == 4


def dense_gradients(dtype, rng, count):
    """Arguments' values; of each layer the gradients of weights and bias; what they should be."""
    values, made, wants = {}, [], []
    x = argument(DEPTH, ROWS, dtype=dtype)
    values[id(x._node)] = rng.normal(size=(DEPTH, ROWS)).astype(dtype.numpy)
    for _ in range(count):
        slope = argument(DEPTH, COLUMNS, dtype=dtype)
        values[id(slope._node)] = rng.normal(size=(DEPTH, COLUMNS)).astype(dtype.numpy)
        made += [kc.transpose(x) @ slope, kc.sum(slope, 0)]
        left, right = (values[id(a._node)].astype(np.float64) for a in (x, slope))
        wants += [left.T @ right, right.sum(0)]
    return made, values, wants


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_of_dense_layers(cpu_dev, hopper, count, rng, monkeypatch):
    monkeypatch.setattr(dense, "WORTH", 0)
    made, values, wants = dense_gradients(bfloat16, rng, count)
    roots, nodes = [x._node for x in made], nodes_of(*made)
    program = lower(nodes, roots, hopper[0], False)
    assert several(program) == [count]
    assert {step.label for step in program.steps if step.name == "wgmma"} == {"dense_grad"}
    for got, want in zip(run(program, nodes, values, roots, cpu_dev), wants, strict=True):
        got = got.astype(np.float64).reshape(want.shape)
        assert np.linalg.norm(got - want) < 6e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_gradients_that_the_self_test_fails(hopper, dtype, rng, monkeypatch):
    monkeypatch.setattr(dense, "WORTH", 0)
    with kc.precision_scope("high"):
        made, *_ = dense_gradients(dtype, rng, 2)
    nodes, roots = nodes_of(*made), [x._node for x in made]
    program = lower(nodes, roots, hopper[0], False)
    assert "dense_grad" in [step.label for step in program.steps]
    hopper[1].add(hopper_matmul.DENSE)
    program = lower(nodes, roots, hopper[0], False)
    assert "dense_grad" not in [step.label for step in program.steps]
