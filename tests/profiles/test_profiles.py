"""Devices as data: what is derived of them, and programs with their schedules on a CPU driver."""

import dataclasses
import functools

import numpy as np
import pytest

import kerascl as kc
from kerascl.core import context
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD
from kerascl.kernels.matmul import solvers as matmul
from kerascl.runtime import device
from tests import profiles
from tests.kernels import test_conv, test_gemm

CARDS = profiles.load()
# Few registers, sub-groups of 16, little local memory, neither doubles nor halves.
DIFFERENT = ("rx580", "max1550", "malig715", "rusticl")


@pytest.fixture(params=DIFFERENT)
def card(request, dev):
    """Facts of the device under test as it passes for a card."""
    return profiles.disguise(dev.info, CARDS[request.param].info)


def test_facts_are_derived_as_of_a_device():
    infos = {name: profile.info for name, profile in CARDS.items()}
    assert len(infos) >= 19 and all(info.kind == "gpu" for info in infos.values())
    assert {info.simd_width for info in infos.values()} >= {16, 32, 64}
    assert infos["rtx4090"].matrix == "mma80" and infos["gtx1080"].matrix == ""
    assert all(info.fp64 == ("cl_khr_fp64" in info.extensions) for info in infos.values())
    assert not infos["a770"].fp64 and infos["b580"].fp64
    assert not infos["malig715"].int64_atomics and infos["rx580"].int64_atomics
    assert infos["rx580"].registers < infos["rx6700xt"].registers
    others = {infos[name].registers for name in ("apple", "rusticl")}
    assert others == {infos["rx6700xt"].registers}
    assert infos["a770"].sub_group_sizes[0] == 8 and infos["max1550"].sub_group_sizes[0] == 16
    assert infos["apple"].c_version == (1, 2) and not infos["apple"].subgroups


def test_a_disguise_promises_no_more_than_the_driver_has(dev):
    real = dataclasses.replace(dev.info, fp64=False, max_work_group_size=64, local_mem_bytes=16384)
    for profile in CARDS.values():
        found = profiles.disguise(real, profile.info)
        assert found.kind == "gpu" and found.platform == real.platform and not found.fp64
        assert found.max_work_group_size == 64 and found.local_mem_bytes == 16384
        assert found.max_parameter_bytes <= profile.info.max_parameter_bytes
        assert found.registers == profile.info.registers
        assert set(found.sub_group_sizes) <= set(real.sub_group_sizes)
        assert found.matrix == "" and found.cache_key != real.cache_key


@pytest.mark.parametrize(("a", "b"), [("normal", "transposed"), ("transposed", "normal")])
def test_products(dev, card, a, b, rng):
    def plan(problem, info, epilogue):
        return matmul.plan(problem, card, epilogue)

    for shape in ((130, 132, 67), (33, 5, 400)):
        test_gemm.check(plan, *test_gemm.make(rng, *shape, a=a, b=b), dev)


@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD, FILTER_GRAD])
def test_convolutions(dev, card, kind, rng):
    def plan(problem, info, epilogue):
        return conv.plan(problem, card, epilogue)

    for channels, stride in ((3, 2), (16, 1)):
        made = test_conv.make(rng, kind, (17, 18), channels, 20, 3, stride, 1)
        test_conv.check(plan, *made, dev)


def test_a_network_learns_the_same(dev, card, rng, monkeypatch):
    """Loss and slopes of two layers with a softmax, against NumPy in float64."""
    x, w1, w2 = (rng.standard_normal(s) for s in ((48, 37), (37, 65), (65, 10)))
    labels = rng.integers(0, 10, 48)
    hidden = np.maximum(x @ w1, 0)
    logits = hidden @ w2
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(48), labels]).mean()
    d = (p - np.eye(10)[labels]) / 48
    slopes = x.T @ ((d @ w2.T) * (hidden > 0)), hidden.T @ d

    def step(x, w1, w2, codes):
        def function(w1, w2):
            logits = kc.maximum(x @ w1, 0) @ w2
            chosen = kc.sum(codes * logits, -1)
            return kc.mean(kc.logsumexp(logits, -1) - chosen)

        return kc.value_and_grad(function, (0, 1))(w1, w2)

    monkeypatch.setattr(dev, "info", card)
    context.current.engine.let_go()  # what was compiled by the driver's own facts
    given = [kc.array(a.astype(np.float32)) for a in (x, w1, w2, np.eye(10)[labels])]
    for run in (step, kc.jit(step)):
        value, found = run(*given)
        assert abs(float(value.numpy()) - loss) < 1e-5 * abs(loss)
        for have, want in zip(found, slopes, strict=True):
            assert np.linalg.norm(have.numpy() - want) < 1e-5 * np.linalg.norm(want)
    monkeypatch.undo()
    context.current.engine.let_go()


def test_pretending_replaces_the_devices_that_are_found(monkeypatch):
    anew = functools.lru_cache(maxsize=1)(device.find_devices.__wrapped__)
    monkeypatch.setattr(device, "find_devices", anew)  # the devices in use stay as they are
    monkeypatch.setattr(device.quirks, "apply", device.quirks.apply)
    monkeypatch.setattr(device, "_default", device._default)
    monkeypatch.setattr(device, "_rank", device._rank)
    honest = [f.info.platform for f in device.find_devices() if f.device]
    profiles.pretend("malig715")
    found = [f.info for f in device.find_devices() if f.device]
    assert [info.platform for info in found] == honest  # as processes that compile count them
    assert any(info.kind == "gpu" and info.local_mem_bytes <= 32768 for info in found)
    assert not any(info.kind == "cpu" for info in found)
