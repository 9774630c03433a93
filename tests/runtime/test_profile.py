"""Profiles: what is recorded, the table, the trace, going back to normal."""

import io
import json
import types

import numpy as np
import pytest
from rich.console import Console

from kerascl.runtime.copies import Copies
from kerascl.runtime.errors import DeviceError
from kerascl.runtime.launch import WRITE_BESIDE
from kerascl.runtime.profile import Profile, Region, Span, profile
from kerascl.runtime.replay import Note

SOURCE = """
__kernel void short_one(__global float* a) { a[get_global_id(0)] += 1.0f; }
__kernel void long_one(__global float* a) {
    float x = a[get_global_id(0)];
    for (int i = 0; i < 100000; ++i) x = x * 0.999f + 1.0f;
    a[get_global_id(0)] = x;
}
"""


def test_a_profile(dev, tmp_path):
    a = dev.buffers.allocate(4096)
    dev.queue.fill(a, b"\0")
    short, long = (dev.programs.kernel(SOURCE, name) for name in ("short_one", "long_one"))
    usual = dev.queue.handle
    with profile(dev, show=False) as recorded:
        dev.queue.write(a, np.zeros(1024, np.float32))
        for _ in range(3):
            dev.queue.launch(short, (64,), None, (a,))
        dev.queue.launch(long, (1024,), None, (a,))
        dev.queue.read(a, np.empty(1024, np.float32))
        with pytest.raises(DeviceError, match="already"), profile(dev):
            pass
    assert dev.queue.handle is usual and dev.queue.recorder is None
    names = [span.name for span in recorded.spans]
    assert names == ["write", "short_one", "short_one", "short_one", "long_one", "read"]
    totals = {total.name: total for total in recorded.totals()}
    assert len(totals["short_one"].times) == 3
    assert all(span.end >= span.start > 0 for span in recorded.spans)
    out = io.StringIO()
    recorded.print(Console(file=out, width=120))
    assert "long_one" in out.getvalue() and dev.info.name in out.getvalue()
    recorded.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == names
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0


def test_after_an_exception_the_queue_is_as_before(dev):
    usual = dev.queue.handle
    with pytest.raises(KeyError), profile(dev):
        raise KeyError
    assert dev.queue.handle is usual and dev.queue.recorder is None
    a = dev.buffers.allocate(64)
    dev.queue.fill(a, b"\1")
    assert (dev.queue.read(a, np.empty(64, np.uint8)) == 1).all()


def test_copies_beside_other_commands(tmp_path, rng):
    """Against a count of every nanosecond; tables and traces keep them apart."""
    recorded = Profile(show=False)
    recorded.device = dev_named("card")
    for name, most in (("kernel", 6), (WRITE_BESIDE, 9)):
        at = 10
        for _ in range(30):
            start = at + int(rng.integers(0, 5))
            at = start + int(rng.integers(0, most))
            recorded.spans.append(Span(name, 0, start, at))
    busy, copied = np.zeros(500, bool), np.zeros(500, bool)
    for span in recorded.spans:
        (copied if span.beside else busy)[span.start : span.end] = True
    assert recorded.alone() == (copied & ~busy).sum() > 0
    # the sum is that of kernels
    out = io.StringIO()
    recorded.print(Console(file=out, width=120))
    assert f"60 commands in {busy.sum() / 1e6:.3f} ms" in out.getvalue()
    assert f"nothing else ran during {recorded.alone() / 1e6:.3f} ms" in out.getvalue()
    assert [total.name for total in recorded.totals("layer")] == [""]
    assert recorded.totals("layer")[0].nanoseconds == busy.sum()
    # a region begins and ends with its kernels
    recorded.spans.insert(0, Span(WRITE_BESIDE, 0, 0, 9))
    recorded.regions.append(Region("all", 0))
    recorded.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lines = {e["tid"]: e for e in events if e["ph"] == "X"}
    assert set(lines) == {0, 1, 2}
    kernels = [span for span in recorded.spans if not span.beside]
    assert lines[1]["ts"] == kernels[0].start / 1e3
    assert lines[1]["dur"] == pytest.approx((kernels[-1].end - kernels[0].start) / 1e3)


def dev_named(name):
    """What a profile asks of a device."""
    return types.SimpleNamespace(info=types.SimpleNamespace(name=name))


def test_shares_of_copies_are_of_each_launch():
    """A launch of 100 bytes that takes as long as its copy, and one of 1,000 that takes thrice as
    long: (200 + 1,100) / (200 + 3,300) is 37 %."""
    recorded = Profile(show=False)
    recorded.device = dev_named("card")
    recorded.spans += [
        Span("kernel", 0, 0, 200, Note(nbytes=100)),
        Span("kernel", 0, 200, 3500, Note(nbytes=1000)),
        Span("other", 0, 3500, 3600),
    ]
    out = io.StringIO()
    recorded.print(Console(file=out, width=150), copies=lambda n: 100.0 + n if n else 0.0)
    lines = out.getvalue().splitlines()
    (kernel,), (other,) = ([line for line in lines if name in line] for name in ("kernel", "other"))
    assert "of copies" in out.getvalue() and "37 %" in kernel and "%" not in other


def test_copies_take_longer_the_more_they_copy(dev):
    copies = Copies(dev, [4096, 1 << 20, 16 << 20])
    assert copies(0) == 0 < copies(4096)
    assert copies(4096) < copies(16 << 20)
    assert copies(4096) == copies(1)  # shorter ones cost a launch, too
    most = max(copies._sizes)
    assert np.isclose(copies(3 * most), 3 * copies(most))
    assert Copies(dev, [])(100) == 0
    assert dev.queue.recorder is None
