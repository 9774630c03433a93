"""`python -m kerascl …`: what each command prints and writes."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from kerascl.runtime import device, tables

SCRIPT = """
import keras, numpy as np, sys
keras.utils.set_random_seed(0)
inputs = keras.Input((12, 12, 3), name="pixels")
x = keras.layers.Conv2D(8, 3, name="edges")(inputs)
x = keras.layers.Flatten()(x)
model = keras.Model(inputs, keras.layers.Dense(4, name="classes")(x), name="tiny")
model.compile("sgd", "mse")
model.fit(np.ones((8, 12, 12, 3), "f4"), np.ones((8, 4), "f4"), batch_size=4, verbose=0)
print("arguments", sys.argv[1:])
sys.exit(3)
"""


def kerascl(*arguments, **environment):
    environment = dict(os.environ, COLUMNS="200", **environment)
    command = [sys.executable, "-m", "kerascl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_profile_of_a_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    trace = tmp_path / "trace.json"
    done = kerascl("profile", "--copies", "--trace", trace, script, "--epochs", "2")
    assert done.returncode == 3, done.stderr
    assert "of copies" in done.stdout
    assert "arguments ['--epochs', '2']" in done.stdout
    for layer in ("edges", "edges (gradient)", "classes", "classes (gradient)"):
        assert f" {layer} " in done.stdout
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    # two steps: 100 pixels x 8 filters x 27 products and two operations for each of 4 images
    flops = sum(s["args"]["flops"] for s in spans if s["args"]["layer"] == "edges")
    assert flops == 2 * 4 * 100 * 8 * 27 * 2


@pytest.mark.slow
def test_profile_without_a_script(tmp_path):
    done = kerascl("profile", tmp_path / "none.py")
    assert done.returncode == 2 and "no script" in done.stdout


@pytest.mark.slow
def test_bench_measures_and_keeps_the_peaks(tmp_path):
    report = tmp_path / "report.json"
    done = kerascl("bench", "--only", "peaks", "--json", report, KERASCL_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    peaks = json.loads(report.read_text())["peaks"]
    assert peaks["flops"]["float32"] > 0 and peaks["bandwidth"] > 0 and peaks["launch"] > 0
    assert list((tmp_path / "peaks").rglob("*.bin"))


def test_devices_through_a_pipe_keeps_names_whole():
    info = device.default().info
    done = subprocess.run(
        [sys.executable, "-m", "kerascl", "devices", "--no-probe"],
        capture_output=True, text=True, env={k: v for k, v in os.environ.items() if k != "COLUMNS"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{info.name} ({info.kind})\n" in done.stdout
    assert f"{info.platform}, driver {info.driver_version}, OpenCL" in done.stdout


def test_tables_are_as_wide_as_their_cells(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "a problem with a name of many words " * 5
    made = tables.table("title", ["problem"], ["us"])
    made.add_row(name, "12.5")
    tables.console().print(made)
    printed = capsys.readouterr().out
    assert name.strip() in printed
    assert max(map(len, printed.splitlines())) < len(name) + 20

    narrow = Console(width=40, file=io.StringIO())
    narrow.print(made)
    assert " 12.5" in narrow.file.getvalue()
    assert max(map(len, narrow.file.getvalue().splitlines())) <= 40


@pytest.mark.parametrize("command", ["devices", "bench", "profile"])
def test_help(command):
    done = kerascl(command, "--help")
    assert done.returncode == 0 and command in done.stdout


def test_bench_refuses_an_unknown_dtype():
    done = kerascl("bench", "--dtypes", "float31")
    assert done.returncode == 2 and "float31" in done.stdout
