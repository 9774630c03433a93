"""The file: Markdown for people, and at its end the same in JSON for programs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kerascl.checks.guard import MENDED, OK, UNKNOWN
from kerascl.commands.reports.parts import Row
from kerascl.commands.reports.running import Outcome
from kerascl.runtime.device import DeviceInfo

_BEGIN, _END = "```json\n", "\n```"
_WIDEST = 100  # that cells are filled up to
_MOST_FAULTS = 40  # told in full
_RATES_ARE = """\
A multiply-add counts as two operations. Costs of solvers are counted with what is shipped for a
card or, without that, with what was measured.""".splitlines()
_OPERATIONS_ARE = """\
Share: of the measured time, what arithmetic or memory takes at their best rates, whichever is
longer; what lies in a cache may take less than memory does. Predicted: what the solvers' costs say,
in microseconds. Error: of samples, relative by norm, against float64 on the host.""".splitlines()
_NETWORKS_ARE = """\
Trained with Adam on random samples around one of each of ten classes (the loss of chance is 2.30).
The first step compiles: kerascl's cache was empty, drivers may keep caches of their own.
""".splitlines()
_SOLVERS_ARE = """\
Of each product and convolution met above: the solver that is chosen and others, alone on random
inputs, checked against a plain one. Error of costs: the median, 100 % for twice or half of what was
measured. Slower: the time of the chosen one over the fastest's.
""".splitlines()
_SIZES = {"global_mem_bytes", "local_mem_bytes", "max_alloc_bytes"}


def machine_form(text: str) -> dict[str, Any]:
    """What a report holds for programs.

    Raises:
        ValueError: the text is no report.
    """
    _, found, rest = text.rpartition(_BEGIN)
    if not found:
        raise ValueError("this is no report of kerascl: there is no JSON in it")
    report = json.loads(rest.partition(_END)[0])
    if not isinstance(report, dict) or "kerascl-report" not in report:
        raise ValueError("this is no report of kerascl: its JSON says nothing of one")
    return report


def records(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Tuning records: microseconds of solvers by problem, as `tune --times` writes them."""
    rows = report.get("solvers", {}).get("rows", ())
    return {f"{row['kind']} {row['problem']}": row["times"] for row in rows if row["times"]}


def chosen(report: dict[str, Any]) -> dict[str, str]:
    """The solver that is chosen for each of these problems."""
    rows = report.get("solvers", {}).get("rows", ())
    return {f"{row['kind']} {row['problem']}": row["chosen"] for row in rows}


def device(report: dict[str, Any]) -> DeviceInfo:
    """The facts of a report's device.

    Raises:
        ValueError: it has none, or not those that this version asks for.
    """
    rows = report.get("facts", {}).get("rows", ())
    facts = dict(next((row for row in rows if "compute_units" in row), {}))
    facts = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
    facts["extensions"] = frozenset(facts.get("extensions", "").split())
    facts["quirks"] = frozenset(row["name"] for row in rows if "why" in row)
    try:
        return DeviceInfo(**facts, cache_key="")
    except TypeError as error:
        raise ValueError(f"this report's device is not known well enough: {error}") from error


def to_json(title: str, date: str, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """The machine form."""
    report: dict[str, Any] = {"kerascl-report": 1, "title": title, "date": date}
    for outcome in outcomes:
        rows = outcome.rows if outcome.part != "checks" else _counts(outcome.rows)
        report[outcome.part] = {
            "rows": rows, "items": outcome.items, "done": outcome.done,
            "seconds": round(outcome.seconds, 2), "remarks": outcome.remarks,
            "faults": [{"item": f.item, "text": f.text} for f in outcome.faults],
        }  # fmt: skip
    return report


def _counts(rows: list[Row]) -> list[Row]:
    """Cases of the checks as their number, but those that were not right."""
    kept = [row for row in rows if "case" not in row or "wrong" in row or "unknown" in row]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        cases = [row for row in rows if row["kind"] == kind and "case" in row]
        kept.append({"kind": kind, "cases": len(cases)})
    return kept


def markdown(report: dict[str, Any]) -> str:
    """The whole file from the machine form."""
    lines = [f"# kerascl on {report['title']}", "", *_summary(report), ""]
    writers = {
        "checks": _checks, "rates": _rates, "products": _operations,
        "convolutions": _operations, "attention": _operations, "networks": _networks,
        "solvers": _solvers,
    }  # fmt: skip
    titles = {
        "checks": "Self-checks", "rates": "Best rates", "products": "Matrix products",
        "convolutions": "Convolutions", "attention": "Attention", "networks": "Networks",
        "solvers": "Costs and solvers",
    }  # fmt: skip
    lines += _faults(report)
    for part, write in writers.items():
        if part in report:
            rows = report[part]["rows"]
            found = _safely(write, rows) if rows else ["Nothing was found out.", ""]
            lines += [f"## {titles[part]}", "", *found]
            lines += [f"*{_sentence(remark)}*  " for remark in report[part]["remarks"]]
            lines += [""] * bool(report[part]["remarks"])
    if "facts" in report:
        lines += _safely(_facts, report["facts"]["rows"])
    lines += [
        "## For programs", "",
        "Everything above and the tuning records: `benchmarks/records.py` takes this file.", "",
        "<details><summary>JSON</summary>", "", _BEGIN + _dump(report) + _END, "", "</details>", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _safely(write: Callable[[list[Row]], str | list[str]], rows: list[Row]) -> str | list[str]:
    """What is written of rows; should one be other than thought, what else there is stays."""
    try:
        return write(rows)
    except Exception as error:
        return [f"({_cell(repr(error))}: this could not be written; the JSON below has it)", ""]


def _dump(report: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    parts = []
    for name, value in report.items():
        if isinstance(value, dict) and "rows" in value:
            rows = ",\n".join(json.dumps(row) for row in value["rows"])
            rest = json.dumps({k: v for k, v in value.items() if k != "rows"})
            parts.append(f'{json.dumps(name)}: {{"rows": [\n{rows}\n], {rest[1:]}')
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{" + ",\n".join(parts) + "}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _cell(text: Any) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], texts: int = 1) -> list[str]:
    """A table of Markdown, readable as it is; the first `texts` columns are texts."""
    cells = [[_cell(c) for c in row] for row in (heads, *rows)]
    if len(cells) == 1:
        return ["Nothing was measured.", ""]
    widths = [min(max(len(row[k]) for row in cells), _WIDEST) for k in range(len(heads))]

    def line(row: Sequence[str]) -> str:
        left = (cell.ljust(width) for cell, width in zip(row[:texts], widths))
        right = (cell.rjust(width) for cell, width in zip(row[texts:], widths[texts:]))
        return f"| {' | '.join((*left, *right))} |"

    rule = [("-" * w if k < texts else "-" * (w - 1) + ":") for k, w in enumerate(widths)]
    return [line(cells[0]), "| " + " | ".join(rule) + " |", *map(line, cells[1:]), ""]


def _number(value: float) -> str:
    """Three digits."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _bytes(value: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{_number(value / size)} {unit}"
    return f"{value} bytes"


# --- the summary


def _summary(report: dict[str, Any]) -> list[str]:
    parts = {n: v for n, v in report.items() if isinstance(v, dict) and "rows" in v}
    faults = sum(len(v["faults"]) for v in parts.values())
    facts = _merged(parts.get("facts", {}).get("rows", ()))
    seconds = sum(v["seconds"] for v in parts.values())
    lines = [
        f"Made on {report['date']} in {seconds / 60:.1f} minutes by `python -m kerascl report`"
        f" of kerascl {facts.get('kerascl', '?')}, Keras {facts.get('keras', '?')},"
        f" pyopencl {facts.get('pyopencl', '?').partition(' ')[0]},"
        f" Python {facts.get('Python', '?').partition(' ')[0]}.",
        "",
        f"**{faults} {'fault was' if faults == 1 else 'faults were'} found**, see below."
        if faults
        else "**No fault was found** in what was tried.",
        "",
    ]
    short = [name for name, part in parts.items() if part["remarks"]]
    if short:
        lines += [f"Something was left out of {', '.join(short)}: the table says why.", ""]
    said = {
        "checks": _checks_said, "rates": _rates_said, "products": _operations_said,
        "convolutions": _operations_said, "attention": _operations_said,
        "networks": _networks_said, "solvers": _solvers_said,
    }  # fmt: skip
    rows = []
    for name, part in parts.items():
        if name not in said:
            continue
        text = "nothing was found out"
        if part["rows"]:
            text = "".join(_safely(said[name], part["rows"]))
        if part["faults"]:
            count = len(part["faults"])
            text += f"; **{count} {'fault' if count == 1 else 'faults'}**"
        if part["remarks"]:
            text += f" ({'; '.join(part['remarks'])})"
        rows.append((name, text, f"{part['seconds']:.0f} s"))
    return lines + (_table(("part", "in short", "took"), rows, 2)[:-1] if rows else [])


def _faults(report: dict[str, Any]) -> list[str]:
    found = [
        (name, fault["item"], fault["text"])
        for name, part in report.items()
        if isinstance(part, dict)
        for fault in part.get("faults", ())
    ]
    if not found:
        return []
    lines = ["## What went wrong", ""]
    for part, item, text in found[:_MOST_FAULTS]:
        first, _, rest = text.partition("\n")
        lines.append(f"- **{part}**, {_cell(item)}: {_cell(first)}")
        if rest.strip():
            told = ("  " + line for line in rest.strip().splitlines())
            lines += ["", "  ```", *told, "  ```", ""]
    if len(found) > _MOST_FAULTS:
        lines.append(f"- and {len(found) - _MOST_FAULTS} more: in the JSON below")
    return [*lines, ""]


# --- checks


def _kinds(rows: list[Row]) -> list[tuple[str, str, int, int]]:
    found = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        cases = sum(row.get("cases", 0) for row in own)
        wrong = sum("wrong" in row for row in own)
        statuses = [row["status"] for row in own if "status" in row]
        bad = [s for s in statuses if s not in (OK, UNKNOWN)]
        word = "wrong" if wrong or bad else "right" if cases else "not checked"
        if bad and all(s == MENDED for s in bad):
            word = "right with optimisation off"
        found.append((kind, word, cases, wrong))
    return found


def _checks_said(rows: list[Row]) -> str:
    kinds = _kinds(rows)
    cases, wrong = sum(k[2] for k in kinds), sum(k[3] for k in kinds)
    return f"{cases - wrong} of {cases} cases right, of {len(kinds)} kinds of kernels"


def _checks(rows: list[Row]) -> list[str]:
    lines = ["Each kind of kernel against the host, as `python -m kerascl check` does it.", ""]
    return lines + _table(("kind", "result", "cases", "wrong"), _kinds(rows), 2)


# --- rates

_RATES = {
    "float32": ("float32 multiply-adds", 1e-9, "GFLOP/s"),
    "float16": ("float16 multiply-adds", 1e-9, "GFLOP/s"),
    "float64": ("float64 multiply-adds", 1e-9, "GFLOP/s"),
    "bandwidth": ("memory, read and written", 1e-9, "GB/s"),
    "local_bandwidth": ("local memory, all units", 1e-9, "GB/s"),
    "latency": ("a read that no cache holds", 1e9, "ns"),
    "launch": ("one small launch after another", 1e6, "us"),
    "to_device": ("NumPy array to device", 1e-9, "GB/s"),
    "from_device": ("device to NumPy array", 1e-9, "GB/s"),
}


def _measured(rows: list[Row]) -> dict[str, float]:
    return {row["name"]: row["rate"] for row in rows if "rate" in row}


def _rates_said(rows: list[Row]) -> str:
    parts = []
    for name in ("float32", "float16", "float64", "bandwidth", "launch"):
        if name in (found := _measured(rows)):
            _, scale, unit = _RATES[name]
            word = {"bandwidth": "memory ", "launch": "a launch "}.get(name, name + " ")
            parts.append(f"{word}{_number(found[name] * scale)} {unit}")
    return ", ".join(parts)


def _rates(rows: list[Row]) -> list[str]:
    found, cells = _measured(rows), []
    machine: Row = next((row["machine"] for row in rows if "machine" in row), {})
    counted = {n: 2e6 * r for n, r in machine.get("simt", ())}
    scales = {"bandwidth": 1e6, "local_bandwidth": 1e6, "launch": 1e-6, "latency": 1e-6}
    counted |= {n: machine[n] * s for n, s in scales.items() if n in machine}
    for name, (words, scale, unit) in _RATES.items():
        if name in found or name in counted:
            values = (_number(d[name] * scale) if name in d else "" for d in (found, counted))
            cells.append((words, unit, *values))
    for name, rate in machine.get("matrix", ()):
        cells.append((f"matrix units, {name}", "GFLOP/s", "", _number(2e-3 * rate)))
    return [*_RATES_ARE, ""] + _table(("", "unit", "measured", "costs count with"), cells, 2)


# --- products and convolutions


def _shares(rows: list[Row]) -> list[tuple[float, str]]:
    """Of each row its share of the device's best rates, and which one bounds it.  What a row
    itself reached counts as such a rate: a busy machine may have been slower when it was asked."""
    best: dict[str, float] = {}
    for row in rows:
        reached = max(row["peak"], row["flops"] / row["seconds"])
        best[row["dtype"]] = max(best.get(row["dtype"], 0.0), reached)
    found = []
    for row in rows:
        arithmetic = row["flops"] / best[row["dtype"]] / row["seconds"]
        memory = row["nbytes"] / row["bandwidth"] / row["seconds"]
        found.append(max((arithmetic, "arithmetic"), (memory, "memory")))
    return found


def _operations_said(rows: list[Row]) -> str:
    best: dict[str, tuple[float, float]] = {}
    for row in rows:
        rate = row["flops"] / row["seconds"]
        best[row["dtype"]] = max(best.get(row["dtype"], (0.0, 0.0)), (rate, rate / row["peak"]))
    parts = [f"{d} {_number(rate * 1e-9)} ({share:.0%})" for d, (rate, share) in best.items()]
    right = sum("wrong" not in row for row in rows)
    return f"{right} of {len(rows)} right; GFLOP/s at best (of the peak): {', '.join(parts)}"


def _operations(rows: list[Row]) -> list[str]:
    heads = (
        "problem", "dtype", "solver", "us", "GFLOP/s", "GB/s", "share", "of", "predicted", "error",
        "result",
    )  # fmt: skip
    cells = [
        (
            row["name"], row["dtype"], row["solver"], _number(row["seconds"] * 1e6),
            _number(row["flops"] / row["seconds"] * 1e-9),
            _number(row["nbytes"] / row["seconds"] * 1e-9), f"{share:.0%}", bound,
            _number(row["predicted"] * 1e6), f"{row['error']:.0e}",
            "**wrong**" if "wrong" in row else "right",
        )
        for row, (share, bound) in zip(rows, _shares(rows), strict=True)
    ]  # fmt: skip
    return [*_OPERATIONS_ARE, ""] + _table(heads, cells, 3)


# --- networks


def _networks_said(rows: list[Row]) -> str:
    right = sum("wrong" not in row for row in rows)
    parts = [
        f"{row['name']} {_number(row['step_seconds'] * 1e3)}"
        for row in rows
        if row["policy"] == "float32"
    ]
    return f"{right} of {len(rows)} learn; ms a step in float32: {', '.join(parts)}"


def _networks(rows: list[Row]) -> list[str]:
    heads = (
        "network", "dtypes", "batch", "weights", "first step s", "ms a step", "samples/s", "steps",
        "loss", "peak memory", "result",
    )  # fmt: skip
    cells = [
        (
            row["name"], row["policy"], row["batch"], f"{row['weights']:,}",
            _number(row["first_seconds"]), _number(row["step_seconds"] * 1e3),
            f"{row['batch'] / row['step_seconds']:,.0f}", row["steps"],
            f"{row['first_loss']:.3g} to {row['last_loss']:.2g}", _bytes(row["peak_bytes"]),
            f"**{row['wrong']}**" if "wrong" in row else "learns",
        )
        for row in rows
    ]  # fmt: skip
    return [*_NETWORKS_ARE, ""] + _table(heads, cells, 2)


# --- solvers


def _error(row: Row, name: str) -> float | None:
    """Of what a solver should take: 1 for twice or half of what it takes."""
    predicted = row["predicted"].get(name)
    if not predicted:
        return None
    return math.exp(abs(math.log(predicted / row["measured"][name]))) - 1


def _slower(row: Row) -> float:
    return row["measured"][row["chosen"]] / row["measured"][row["fastest"]]


def _solvers_said(rows: list[Row]) -> str:
    errors = [e for row in rows if (e := _error(row, row["chosen"])) is not None]
    good = sum(_slower(row) <= 1.1 for row in rows) / len(rows)
    text = f"{len(rows)} problems; the chosen solver within a tenth of the fastest for {good:.0%}"
    return text + (f"; median error of costs {statistics.median(errors):.0%}" if errors else "")


def _by_kind(rows: list[Row]) -> list[str]:
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        chosen = [e for row in own if (e := _error(row, row["chosen"])) is not None]
        tried = [e for row in own for n in row["measured"] if (e := _error(row, n)) is not None]
        good = sum(_slower(row) <= 1.1 for row in own) / len(own)
        medians = (f"{statistics.median(e):.0%}" if e else "" for e in (chosen, tried))
        cells.append((kind, len(own), *medians, f"{good:.0%}"))
    heads = ("kind", "problems", "error of costs", "of all tried", "chosen within a tenth")
    return _table(heads, cells)


def _solvers(rows: list[Row]) -> list[str]:
    heads = (
        "kind", "problem", "chosen", "fastest", "predicted us", "us", "fastest us", "slower",
        "tried",
    )  # fmt: skip
    ordered = sorted(rows, key=lambda row: -row["measured"][row["chosen"]])
    cells = [
        (
            row["kind"], row["problem"], row["chosen"], row["fastest"],
            _number(row["predicted"].get(row["chosen"], math.nan)),
            _number(row["measured"][row["chosen"]]), _number(row["measured"][row["fastest"]]),
            f"{_slower(row):.2f}", len(row["measured"]),
        )
        for row in ordered
    ]  # fmt: skip
    return [*_SOLVERS_ARE, "", *_by_kind(rows), *_table(heads, cells, 4)]


# --- facts


def _merged(rows: Iterable[Row]) -> dict[str, str]:
    """The software's row."""
    return next((row for row in rows if "pyopencl" in row), {})


def _value(name: str, value: Any) -> str:
    if name in _SIZES:
        return f"{value} ({_bytes(value)})"
    if name.endswith(("_version", "_capability")) and isinstance(value, list):
        return ".".join(map(str, value))
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return str(value) or "-"


def _facts(rows: list[Row]) -> list[str]:
    lines = ["## Device", ""]
    facts = next((row for row in rows if "compute_units" in row), None)
    if facts:
        cells = [(n, _value(n, v)) for n, v in facts.items() if n != "extensions"]
        lines += _table(("fact", "value"), cells, 2)
        quirks = [(row["name"], row["why"]) for row in rows if "why" in row]
        if quirks:
            lines += ["Quirks that apply:", "", *(f"- {name}: {why}" for name, why in quirks), ""]
        lines += _folded("Extensions", [facts["extensions"]])
    answers = next((row for row in rows if "DRIVER_VERSION" in row), None)
    if answers:
        lines += _folded("What the driver answers to clGetDeviceInfo", _table(
            ("name", "answer"), answers.items(), 2
        ))  # fmt: skip
    others = [(r["where"], r["device"], r["problem"] or "usable") for r in rows if "where" in r]
    if others:
        lines += ["All that was found:", "", *_table(("platform", "device", ""), others, 3)]
    software = _merged(rows)
    if software:
        lines += ["## Software", "", *_table(("", ""), software.items(), 2)]
    return lines


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]
