"""Finding and choosing devices, and what is said when there is none."""

import dataclasses
import os
import subprocess
import sys
import warnings

import pytest

from kerascl import __main__ as command
from kerascl.commands import devices as devices_command
from kerascl.runtime import device, quirks
from kerascl.runtime.errors import DeviceError


def fake(kind, name, units=8, clock=1000, platform="Maker", **more):
    real = next(found.info for found in device.find_devices() if found.info)
    fields = {"quirks": frozenset(), "nvidia_capability": None, **more}
    info = dataclasses.replace(
        real,
        kind=kind,
        name=name,
        platform=platform,
        vendor=platform,
        compute_units=units,
        clock_mhz=clock,
        **fields,
    )
    made = device.Device(None, info)
    made._context = object()
    return device.Found(platform, info, made)


@pytest.fixture
def several(monkeypatch):
    found = [
        fake("cpu", "Slow pthread CPU", platform="Portable Computing Language"),
        fake("gpu", "Rasterizer", 8, platform="rusticl", quirks=frozenset(["software_rasterizer"])),
        fake("gpu", "Small Card", 4),
        fake("cpu", "Ordinary CPU", platform="Intel(R) OpenCL"),
        fake("gpu", "Large Card", 80, 2000),
        fake("gpu", "Simulator", 1000, platform="Oclgrind", quirks=frozenset(["simulator"])),
        fake("accelerator", "Board", 500),
    ]
    found.sort(key=lambda one: device._rank(one.info))
    failed = device.Found("/etc/x.icd", problem="it names /nowhere, which does not exist")
    monkeypatch.setattr(device, "find_devices", lambda: (*found, failed))
    monkeypatch.delenv("KERASCL_DEVICE", raising=False)
    monkeypatch.setattr(device, "_default", None)
    return found


def test_the_order(several):
    names = [found.info.name for found in several]
    assert names == [
        "Large Card",
        "Small Card",
        "Ordinary CPU",
        "Slow pthread CPU",
        "Board",
        "Simulator",
        "Rasterizer",
    ]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("0", "Large Card"),
        ("1", "Small Card"),
        ("gpu", "Large Card"),
        ("gpu:1", "Small Card"),
        ("GPU:0", "Large Card"),
        ("cpu:1", "Slow pthread CPU"),
        ("accelerator:0", "Board"),
        ("small", "Small Card"),
        ("portable", "Slow pthread CPU"),
        ("oclgrind", "Simulator"),
        ("rusticl", "Rasterizer"),
    ],
)
def test_names(several, asked, name):
    assert device.get(asked).info.name == name


@pytest.mark.parametrize("asked", ["17", "gpu:2", "cpu:9", "no such name"])
def test_a_name_that_fits_nothing_lists_what_there_is(several, asked, monkeypatch):
    with pytest.raises(DeviceError) as error:
        device.get(asked)
    text = str(error.value)
    assert asked in text and "0: gpu  Large Card" in text and "which does not exist" in text
    monkeypatch.setenv("KERASCL_DEVICE", asked)
    with pytest.raises(DeviceError, match="KERASCL_DEVICE="):
        device.default()


def test_the_default_and_setting_it(several, monkeypatch):
    assert device.default().info.name == "Large Card"
    assert device.set_default("cpu").info.name == "Ordinary CPU"
    assert device.default().info.name == "Ordinary CPU"
    monkeypatch.setattr(device, "_default", None)
    monkeypatch.setenv("KERASCL_DEVICE", "small")
    assert device.default().info.name == "Small Card"


def test_a_device_that_cannot_be_opened_is_passed_over(several, monkeypatch):
    class Broken(device.Device):
        context = property(lambda self: (_ for _ in ()).throw(DeviceError("it is broken")))

    for found in several:
        if found.info.kind == "gpu":
            found.device.__class__ = Broken
    assert device.choose().info.name == "Ordinary CPU"
    monkeypatch.setenv("KERASCL_DEVICE", "small")
    with pytest.raises(DeviceError, match="it is broken"):
        device.choose()


def test_what_is_only_used_by_name(several, monkeypatch):
    class Broken(device.Device):
        context = property(_broken)

    names = ("Rasterizer", "Simulator")
    for found in several:
        if found.info.name not in names:
            found.device.__class__ = Broken
    with pytest.raises(DeviceError, match="Rasterizer"):
        device.choose()
    for name in names:
        monkeypatch.setenv("KERASCL_DEVICE", name)
        assert device.choose().info.name == name


def _broken(self):
    raise DeviceError("it is broken")


@pytest.mark.parametrize("name", ["llvmpipe (LLVM 15.0.6, 256 bits)", "AMD Radeon RX 7600"])
def test_loops_that_are_cut(name, dev, monkeypatch):
    """A stand-in for a GPU is scheduled as one, and says what it gets wrong."""
    kind = "cpu" if "llvmpipe" in name else "gpu"
    info = quirks.apply(dataclasses.replace(dev.info, name=name, platform="rusticl", kind=kind))
    assert info.kind == "gpu" and ("cuts_loops" in info.quirks) == (kind == "cpu")
    monkeypatch.setattr(device.cl, "Context", lambda handles: object())
    made = device.Device(None, info)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert made.context is made.context
    assert [name in str(w.message) for w in told] == [True] * (kind == "cpu")


def test_no_device_at_all(monkeypatch):
    failed = device.Found("OpenCL loader", problem="it found no platform")
    monkeypatch.setattr(device, "find_devices", lambda: (failed,))
    monkeypatch.delenv("KERASCL_DEVICE", raising=False)
    with pytest.raises(DeviceError) as error:
        device.choose()
    text = str(error.value)
    assert "it found no platform" in text and 'pip install "kerascl[cpu]"' in text
    monkeypatch.setattr(device, "IMPORTED_BEFORE", True)
    with pytest.raises(DeviceError, match="imported before"):
        device.choose()


def test_simulators_are_only_taken_by_name(monkeypatch):
    only = fake("gpu", "Simulator", quirks=frozenset(["simulator"]))
    monkeypatch.setattr(device, "find_devices", lambda: (only,))
    monkeypatch.delenv("KERASCL_DEVICE", raising=False)
    with pytest.raises(DeviceError):
        device.choose()
    assert device.get("simul") is only.device


def test_facts_make_sense(dev):
    info = dev.info
    assert info.kind in ("gpu", "cpu", "accelerator")
    assert info.opencl_version >= (1, 2) and info.c_version >= (1, 1)
    assert info.max_work_group_size >= 1 and len(info.max_work_item_sizes) >= 3
    assert info.local_mem_bytes >= 16384
    assert 0 < info.max_alloc_bytes <= info.global_mem_bytes
    assert info.mem_align_bytes & (info.mem_align_bytes - 1) == 0
    assert len(info.cache_key) == 64
    assert hash(info) == hash(dataclasses.replace(info))
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.name = "other"


def test_quirks():
    nvidia = fake("gpu", "H", platform="NVIDIA CUDA", subgroups=True).info
    assert not quirks.apply(nvidia).subgroups
    assert "lazy_allocation" in quirks.apply(nvidia).quirks
    pocl = fake("cpu", "P", platform="Portable Computing Language", fp16=True)
    old = quirks.apply(dataclasses.replace(pocl.info, driver_version="3.0-rc2"))
    assert "no_fma16" in old.quirks and not old.fp16
    new = quirks.apply(dataclasses.replace(pocl.info, driver_version="7.1"))
    assert "no_fma16" not in new.quirks and new.fp16
    assert len({row.name for row in quirks.TABLE}) == len(quirks.TABLE)


def test_importing_opens_nothing():
    code = (
        "from kerascl.runtime import device, replay, profile\n"
        "found = device.find_devices()\n"
        "assert device._default is None and not device._opened\n"
        "assert all(f.device is None or f.device._context is None for f in found)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_devices_command(dev, capsys):
    assert command.main(["devices", "--no-probe"]) == 0
    assert "OpenCL devices" in capsys.readouterr().out


def test_the_probe_in_a_child(dev):
    index = [f.device for f in device.find_devices() if f.device].index(dev)
    assert devices_command._probe(index, 120) == ""
    assert "no OpenCL device fits" in devices_command._probe(99, 120)


def test_no_driver_at_all_in_a_real_process(tmp_path):
    environment = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "PYTHONWARNINGS": "error"}
    environment.pop("KERASCL_DEVICE", None)
    code = (
        "from kerascl.runtime import device\n"
        "real = [f for f in device.find_devices() if f.device and f.info.kind == 'cpu']\n"
        "try:\n    device.choose()\n"
        "except device.DeviceError as error:\n    print('said', error)\n"
        "else:\n    print('said something else:', real)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("said no OpenCL device can be used"), done


@pytest.mark.parametrize(
    "capability, units",
    [(None, ""), ((7, 5), ""), ((8, 0), "mma80"), ((8, 9), "mma80"), ((9, 0), "wgmma90"),
     ((12, 0), "mma80")],
)  # fmt: skip
def test_matrix_units_follow_the_compute_capability(capability, units):
    assert device._matrix(capability) == units
    found = fake("gpu", "Card", nvidia_capability=capability, matrix=units)
    info = dataclasses.replace(found.info, platform="Portable Computing Language")
    assert quirks.apply(info).matrix == ""
