"""Processes that build programs are begun while a graph that is met for the first time compiles."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.run import capture
from kerascl.runtime import out_of_process
from kerascl.runtime.programs import Programs


def large(x):
    """More than enough nodes, few programs."""
    for k in range(capture.LARGE_GRAPH):
        x = x + k
    return x


@pytest.fixture
def in_turn(dev, tmp_path, monkeypatch):
    """The device, as if its driver compiled one program at a time, and nothing on disk."""
    if "no_binaries" in dev.info.quirks:
        pytest.skip("a simulator, whose binaries are not kept")
    taken = dataclasses.replace(dev.info, quirks=dev.info.quirks | {"serial_compilation"})
    monkeypatch.setattr(dev, "info", taken)
    monkeypatch.setenv("KERASCL_BUILD_THREADS", "2")
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    return dev


def test_processes_begin_with_the_first_compilation(in_turn, monkeypatch):
    count, lower, begun = 0, capture.lower, []

    class Counted(out_of_process.CompilerProcesses):
        def __init__(self, *args):
            nonlocal count
            count += 1
            super().__init__(*args)

    monkeypatch.setattr(out_of_process, "CompilerProcesses", Counted)
    monkeypatch.setattr(
        capture, "lower", lambda *args, **names: begun.append(count) or lower(*args, **names)
    )

    def compile_anew(shape, function=large):
        # as in another process
        monkeypatch.setattr(kc.engine, "programs", {})
        monkeypatch.setattr(in_turn, "_programs", Programs(in_turn))
        got = kc.jit(function)(np.ones(shape, np.float32))
        return np.asarray(got), begun[-1]

    got, before = compile_anew((3,))
    assert before == 1  # when lowering began
    np.testing.assert_array_equal(got, 1 + sum(range(capture.LARGE_GRAPH)))
    got, before = compile_anew((3,))
    assert before == 1
    np.testing.assert_array_equal(got, 1 + sum(range(capture.LARGE_GRAPH)))
    assert compile_anew((4,))[1] == 2
    assert compile_anew((4,), lambda x: x + 2)[1] == 2  # too small to pay


STEP = """
from pathlib import Path

import kerascl as kc
import numpy as np
from kerascl.compiler.run import capture
from kerascl.runtime.manifest import Manifest
from kerascl.runtime.diskcache import DiskCache

def step(x, seed):
    def cell(carry, xs):
        new = kc.tanh(kc.matmul(carry[0], x) + xs[0])
        return [new], [new]
    (last,), (each,) = kc.loop(cell, [x], [kc.stack([x, 2 * x])])
    return last + kc.sum(kc.random.dropout(seed, each, 0.5), 0)

known = capture.structure
def structure(*args):
    found = known(*args)
    print(Manifest(DiskCache(Path("none"), ""), found)._key, len(found[0]))
    return found
capture.structure = structure
kc.jit(step)(np.ones((4, 4), np.float32), kc.random.key(3))
"""


def test_a_graph_reads_the_same_in_every_process():
    told = []
    for seed in "12":  # of the hashes of strings
        found = subprocess.run(
            [sys.executable, "-c", STEP],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr
        told.append(found.stdout)
    assert told[0] == told[1] and told[0].strip()
