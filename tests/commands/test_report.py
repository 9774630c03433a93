"""The report: what is in the file, what a failing part leaves, and what must not be in it."""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import kerascl as kc
from kerascl.commands import devices, report
from kerascl.commands.reports import checking, document, operations, parts, private, running
from kerascl.commands.reports import child as child_module
from kerascl.commands.reports.parts import Setting
from kerascl.commands.reports.running import Fault, Outcome, Runner
from kerascl.kernels.selftests import asked
from kerascl.kernels.units import selftests
from kerascl.runtime import device, sources
from tests import profiles

# A part whose items do what drivers do.
CHILD = """
import importlib.util, json, os, sys, time

# Alone, as the package would take a second to import.
spec = importlib.util.spec_from_file_location("parts", sys.argv[2])
sys.modules["parts"] = parts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(parts)
Item, Setting, serve = parts.Item, parts.Setting, parts.serve

def say(*words):
    print(json.dumps(words), flush=True)

def raises(tell):
    raise ValueError("the driver said no\\nand why")

def dies(tell):
    print("last words", file=sys.stderr, flush=True)
    os._exit(77)

def items():
    yield Item("first", lambda tell: tell({"name": "first"}))
    yield Item("raises", raises)
    yield Item("dies", dies)
    yield Item("hangs", lambda tell: time.sleep(100))
    yield Item("lies", lambda tell: tell({"name": "lies", "wrong": "3, not 4"}))
    yield Item("last", lambda tell: tell({"name": "last"}))

wanted = sys.argv[1].split(",")
serve([i for i in items() if i.name in wanted], Setting(**json.load(sys.stdin)), say)
"""
# A driver whose products are wrong: a kernel that returns at once.
FAULTY = """
import re
from kerascl.runtime import programs

right = programs.Programs._from_source

def wrong(self, source, options):
    text = re.sub(r"(void (?:gemm|mma|wgmma)\\w*\\([^{]*\\{)", r"\\1 if (get_global_size(0)) return;", source)
    return right(self, text, options)

programs.Programs._from_source = wrong
"""  # noqa: E501


def child(*names: str) -> list[str]:
    return [sys.executable, "-c", CHILD, ",".join(names), parts.__file__]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of all tables."""
    found, table = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append([c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif table:
            found.append(table)
            table = []
    return found


def test_what_fails_does_not_stop_what_follows(monkeypatch):
    monkeypatch.setattr(running, "_PATIENCE", 1.0)
    monkeypatch.setattr(running, "_SHARE", 0.05)
    names = ("first", "raises", "dies", "hangs", "lies", "last")
    seen = []
    setting = Setting(None, seconds=60.0)
    runner = Runner("part", child(*names), setting, lambda *state: seen.append(state))
    outcome = runner.run()
    assert [row["name"] for row in outcome.rows] == ["first", "lies", "last"]
    assert (outcome.items, outcome.done, outcome.remarks) == (6, 6, [])
    found = {fault.item: fault.text for fault in outcome.faults}
    assert list(found) == ["raises", "dies", "hangs", "lies"]
    assert found["raises"].startswith("ValueError: the driver said no\nand why")
    assert found["dies"] == "its process ended (77)\nlast words"
    assert re.fullmatch(r"it took more than \d s", found["hangs"]) and found["lies"] == "3, not 4"
    assert seen[-1] == (6, 6, "")


@pytest.mark.slow
def test_no_item_is_begun_after_the_time(monkeypatch):
    outcome = Runner("part", child("first", "last"), Setting(None, seconds=0.0)).run()
    assert not outcome.rows and not outcome.faults
    assert outcome.remarks == ["2 of 2 left out: the time was up before first, last"]
    monkeypatch.setattr(running, "_LEAST_GRACE", 8.0)
    outcome = Runner("part", child("hangs", "last"), Setting(None, seconds=0.5)).run()
    assert not outcome.rows and not outcome.faults  # the time's end is no fault
    assert outcome.remarks[-1] == "1 of 2 left out: the time was up"


def test_a_process_that_cannot_begin_is_a_fault():
    outcome = Runner("part", [sys.executable, "-c", "import no_such"], Setting(None)).run()
    (fault,) = outcome.faults
    assert fault.item == "before anything began" and "No module named 'no_such'" in fault.text


def run(tmp_path, **more) -> tuple[int, str, str]:
    """The command; its status, the file and what it printed."""
    usual = dict(
        output=str(tmp_path / "report.md"), json=False, quick=True, minutes=1.0, device=None,
        parts=["checks", "rates"],
    )  # fmt: skip
    console = Console(record=True, width=200)
    status = report.run(argparse.Namespace(**(usual | more)), console)
    return status, (tmp_path / "report.md").read_text(), console.export_text()


@pytest.fixture
def scripted(monkeypatch):
    """Parts that do what CHILD does."""
    items = {"facts": ("first",), "checks": ("raises",), "rates": ("last",)}
    monkeypatch.setattr(report, "command", lambda part: child(*items[part]))
    monkeypatch.setenv("KERASCL_CACHE_DIR", os.environ["KERASCL_CACHE_DIR"])  # set back after


def test_a_failed_part_is_in_the_file(tmp_path, scripted):
    status, text, printed = run(tmp_path, json=True)
    assert status == 1
    assert "**1 fault was found**" in text
    assert "- **checks**, raises: ValueError: the driver said no" in text
    assert "checks, raises: ValueError: the driver said no" in printed
    found = json.loads((tmp_path / "report.json").read_text())
    assert found == document.machine_form(text)
    assert [len(found[part]["faults"]) for part in ("facts", "checks", "rates")] == [0, 1, 0]


def test_ctrl_c_writes_what_there_is(tmp_path, scripted, monkeypatch):
    class Stopped(Runner):
        def _hear(self, line):
            if self.outcome.part == "rates":
                raise KeyboardInterrupt
            return super()._hear(line)

    monkeypatch.setattr(report, "Runner", Stopped)
    status, text, printed = run(tmp_path, parts=["checks", "rates", "products"])
    assert status == 130 and "Interrupted" in printed
    found = document.machine_form(text)
    assert found["facts"]["rows"] == [{"name": "first"}] and found["checks"]["faults"]
    assert found["rates"]["remarks"] == ["interrupted"] and "(interrupted)" in text
    assert found["products"]["remarks"] == ["not begun: interrupted"]


def test_where_output_goes_elsewhere_each_part_has_a_line_that_says_what_is_left_out(
    tmp_path, scripted
):
    _, _, printed = run(tmp_path, minutes=0.01)
    for part in ("facts", "checks", "rates"):
        assert f"{part}: the time is up" in printed
    assert report._ended(Outcome("rates", items=9, done=6)) == "done, 3 of 9 left out"
    assert report._ended(Outcome("rates", items=9, done=9)) == "done"
    outcome = Outcome("rates", faults=[Fault("rates", "float16", "no")], items=9, done=8)
    assert report._ended(outcome) == "1 fault, 1 of 9 left out"


def test_a_wrong_folder_is_refused_before_anything_runs(tmp_path):
    console = Console(record=True, width=200)
    options = argparse.Namespace(
        output=str(tmp_path / "none" / "report.md"), quick=True, minutes=None, device=None
    )
    assert report.run(options, console) == 2 and "--output" in console.export_text()


def test_without_a_device_the_file_says_what_was_found(tmp_path, monkeypatch):
    def none():
        raise device.DeviceError("no OpenCL device")

    monkeypatch.setattr(device, "default", none)
    monkeypatch.setattr(device, "find_devices", lambda: (device.Found("a driver", problem="x"),))
    monkeypatch.setattr(report, "command", lambda part: child("first"))
    monkeypatch.setenv("KERASCL_CACHE_DIR", os.environ["KERASCL_CACHE_DIR"])
    status, text, printed = run(tmp_path)
    assert status == 2 and "no OpenCL device" in printed
    found = document.machine_form(text)
    assert "no device was found" in text and found["facts"]["rows"] == [{"name": "first"}]
    assert "checks" not in found


def test_an_unknown_device_is_refused(tmp_path):
    console = Console(record=True, width=200)
    options = argparse.Namespace(output=None, quick=True, minutes=None, device="no such card")
    assert report.run(options, console) == 2
    assert "no such card" in console.export_text()
    options.minutes = 0.0
    assert report.run(options, console) == 2 and "--minutes" in console.export_text()


def test_texts_lose_names_and_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: Path("/srv/people/ada"))
    monkeypatch.setattr(private.getpass, "getuser", lambda: "lovelace")
    monkeypatch.setattr(private.platform, "node", lambda: "engine7.example.org")
    monkeypatch.chdir(tmp_path)
    scrub = private.Scrubber()
    for text, wanted in {
        "/srv/people/ada/.cache/x failed": "~/.cache/x failed",
        f"{tmp_path}/train.py": "<folder>/train.py",
        f"{sys.prefix}/lib/a.py": "<python>/lib/a.py",
        f"{sources.PACKAGE}/ops/a.py": "<kerascl>/kerascl/ops/a.py",
        "/home/charles/x, C:\\Users\\Charles\\x, /Users/charles/x": "~/x, ~\\x, ~/x",
        "engine7.example.org and engine7 of lovelace": "<machine> and <machine> of <user>",
        "engine75 at /usr/lib/libOpenCL.so": "engine75 at /usr/lib/libOpenCL.so",
    }.items():
        assert scrub.text(text) == wanted
    nested = {"a": ["/home/charles/x", 3, None, {"b": "lovelace"}], "c": True}
    assert scrub.everything(nested) == {"a": ["~/x", 3, None, {"b": "<user>"}], "c": True}


def test_tables_and_records_of_the_file():
    solver = {
        "kind": "gemm", "problem": "1 2 3", "chosen": "a|b", "fastest": "c",
        "times": {"a|b": 4.0, "c": 2.0}, "measured": {"a|b": 4.0, "c": 2.0},
        "predicted": {"a|b": 2.0},
    }  # fmt: skip
    outcome = Outcome("solvers", [solver], [Fault("solvers", "x", "no\n| good")], 1, 1)
    text = document.markdown(document.to_json("a device", "2030-01-01", [outcome]))
    (summary, kinds, table) = tables(text)
    assert all(len(row) == len(table[0]) for row in table)
    row = dict(zip(table[0], table[2], strict=True))
    assert row["chosen"] == "a\\|b" and row["slower"] == "2.00" and row["predicted us"] == "2"
    assert kinds[2] == ["gemm", "1", "100%", "100%", "0%"]
    # it takes twice what was predicted, and twice the fastest solver's time
    assert "0%" in summary[2][1] and "100%" in summary[2][1]
    assert document.records(document.machine_form(text)) == {"gemm 1 2 3": {"a|b": 4.0, "c": 2.0}}
    assert document.chosen(document.machine_form(text)) == {"gemm 1 2 3": "a|b"}
    with pytest.raises(ValueError, match="not known well enough"):
        document.device(document.machine_form(text))
    with pytest.raises(ValueError, match="no report"):
        document.machine_form("# something else")


def test_rows_that_nobody_thought_of_leave_the_rest():
    outcomes = [Outcome("rates", [{"name": "float32", "rate": 2e9}]), Outcome("networks", [{}])]
    text = document.markdown(document.to_json("a device", "2030-01-01", outcomes))
    assert "float32 2 GFLOP/s" in text and "## Networks\n\n(KeyError(" in text
    assert document.machine_form(text)["networks"]["rows"] == [{}]


def test_shares_of_the_best_rate():
    rows = [
        dict(dtype="float32", seconds=2.0, flops=8.0, nbytes=1.0, peak=10.0, bandwidth=1.0),
        dict(dtype="float32", seconds=1.0, flops=20.0, nbytes=0.5, peak=10.0, bandwidth=1.0),
        dict(dtype="float16", seconds=1.0, flops=4.0, nbytes=0.9, peak=10.0, bandwidth=1.0),
    ]
    # the second row shows that the first one's peak is 20; the third is of another dtype
    assert document._shares(rows) == [(0.5, "memory"), (1.0, "arithmetic"), (0.9, "memory")]


@pytest.mark.parametrize(
    "sizes", [(9, 4, 3, 1, 6), (8, 6, 3, 2, 4, 2), (7, 5, 1, 2, 3), (6, 4, 3, 1, 8, 4)], ids=str
)
def test_samples_of_convolutions_see_a_wrong_pixel(sizes, rng):
    layer = operations._Conv(*sizes, batch=2)
    for way in operations._WAYS:
        work = operations._convolution(layer, way, "float32", rng)
        right = work.call().numpy().astype(np.float64)
        assert work.error(right) < 2e-3
        moved = np.roll(right, 1, -1 if way == "filter gradient" else 1)
        assert work.error(moved) > 0.05


def test_samples_of_products(rng):
    work = operations._product(19, 33, 7, "float16", rng)
    right = np.asarray(work.call().numpy(), np.float64)
    assert work.error(right) < 2e-3 and work.error(right * 1.01) > 5e-3
    assert work.flops == 2 * 19 * 33 * 7 and work.nbytes == 2 * (19 * 33 + 33 * 7 + 19 * 7)


@pytest.mark.parametrize("way", ["forward", "with gradients"])
def test_samples_of_attention_see_a_wrong_row(way, rng):
    work = operations._attend(operations._Attention(1, 23, 1, 8), way, 1.0, "float32", rng)
    right = np.asarray(work.call().numpy(), np.float64)
    assert right.shape == (1, 23, 1, 8 if way == "forward" else 24) and work.error(right) < 2e-5
    assert work.error(np.roll(right, 1, 1)) > 0.05
    if way != "forward":
        assert work.error(np.concatenate([right[..., :16], 1.01 * right[..., 16:]], -1)) > 5e-3


def test_every_part_has_a_child_and_a_place_in_the_file():
    assert list(report.PARTS) == list(child_module.ITEMS)
    outcomes = [Outcome(part, remarks=["not begun"]) for part in report.PARTS]
    text = document.markdown(document.to_json("a device", "2030-01-01", outcomes))
    assert text.count("Nothing was found out.") == len(report.PARTS) - 1  # but for the facts


def test_self_tests_of_matrix_units_are_told(monkeypatch):
    """Those of a card's own units, AMD's and Intel's too, and why one did not pass."""
    cards = {name: profile.info for name, profile in profiles.load().items()}
    ran = {"product_selftest": "", "attention_fragment_selftest": "row 3 is wrong"}
    monkeypatch.setattr(
        asked, "_run", lambda _, tests: [(ran[x.module.rpartition(".")[2]], False) for x in tests]
    )
    for name in ("rx7900xtx", "mi300x", "a770"):
        found = selftests.results(cards[name])
        assert found == {"products and convolutions": "", "attention": "row 3 is wrong"}
        said = devices._matrix(cards[name], True)
        assert said == f"{cards[name].matrix}, no attention: row 3 is wrong"
    assert selftests.results(cards["rx580"]) == {}
    rows = []
    monkeypatch.setattr(device, "_default", argparse.Namespace(info=cards["a770"]))
    assert "self-tests of matrix units" in [i.name for i in checking.items(Setting(0, quick=True))]
    checking._self_tests(rows.append)
    assert [row.get("wrong") for row in rows] == [None, "row 3 is wrong"]


@pytest.mark.slow
def test_of_a_driver_whose_products_are_wrong(tmp_path):
    """The whole way: two parts in their processes on the device, and the file."""
    (tmp_path / "sitecustomize.py").write_text(FAULTY)
    path = os.pathsep.join((str(tmp_path), str(sources.PACKAGE.parent)))
    environment = os.environ | {
        "PYTHONPATH": path, "KERASCL_CHECK": "0", "HOME": str(tmp_path / "ada")
    }  # fmt: skip
    command = [sys.executable, "-m", "kerascl", "report", "--quick", "--minutes", "4"]
    done = subprocess.run(
        [*command, "--parts", "products"], cwd=tmp_path, capture_output=True, text=True,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (file,) = tmp_path.glob("kerascl-report-*.md")
    text = file.read_text()
    assert "could not be written" not in text
    found = document.machine_form(text)
    assert found["products"]["rows"] and found["products"]["faults"]
    assert all("relative error" in row["wrong"] for row in found["products"]["rows"])
    info = device.default().info
    assert info.name in text and info.driver_version in text
    assert dataclasses.replace(document.device(found), cache_key=info.cache_key) == info
    (software,) = (row for row in found["facts"]["rows"] if "pyopencl" in row)
    assert software["kerascl"] == kc.__version__
    for folder in (str(tmp_path), str(sources.PACKAGE), sys.prefix, str(Path.home())):
        assert folder not in text or folder == "/"
