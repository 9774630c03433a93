"""Kernel arguments as plain addresses: the rewriting, and the self-test's computation."""

import dataclasses

import pytest

from kerascl.runtime import addresses, addresses_selftest
from kerascl.runtime.buffers import Buffer
from kerascl.runtime.dropped import Dropped

PTX = b""".visible .entry blend(
\t.param .u64 .ptr .global .align 4 blend_param_0,
\t.param .u64 .ptr .global blend_param_1,
\t.param .f32 blend_param_2,
\t.param .u64 .ptr .shared .align 4 blend_param_3
)
.reqntid 64, 1, 1
{
\tld.param.u64 %rd1, [blend_param_0];
\tst.global.f32 [%rd1], 0f00000000;
}
"""


def test_only_memory_objects_become_integers():
    found = addresses.plain(PTX)
    assert found.splitlines()[1:5] == [
        b"\t.param .u64 blend_param_0,",
        b"\t.param .u64 blend_param_1,",
        b"\t.param .f32 blend_param_2,",
        b"\t.param .u64 .ptr .shared .align 4 blend_param_3",
    ]
    assert found.splitlines()[5:] == PTX.splitlines()[5:]


def test_the_self_test_passes_with_memory_objects(dev):
    addresses_selftest.blends(dev)


def test_no_self_test_where_arguments_are_cheap(dev, monkeypatch):
    monkeypatch.setattr(addresses, "_self_test", lambda info, index: "")
    dear = dataclasses.replace(dev.info, quirks=dev.info.quirks | {"slow_memory_arguments"})
    cheap = dataclasses.replace(dev.info, quirks=dev.info.quirks - {"slow_memory_arguments"})
    assert addresses.usable(dear, 0)
    assert not addresses.usable(cheap, 0)
    monkeypatch.setenv("KERASCL_ADDRESSES", "0")
    assert not addresses.usable(dear, 0)


def test_a_failed_self_test_keeps_memory_objects(dev, monkeypatch):
    monkeypatch.setattr(addresses, "_self_test", lambda info, index: "it computed a wrong result")
    dear = dataclasses.replace(dev.info, quirks=frozenset({"slow_memory_arguments"}))
    assert not addresses.usable(dear, 0)
    monkeypatch.setenv("KERASCL_ADDRESSES", "2")  # the self-test's own process
    assert addresses.usable(dear, 0)


@pytest.mark.filterwarnings("error")
def test_an_address_belongs_to_its_memory(dev):
    known = addresses.Addresses(dev)
    first, second = (dev.buffers.allocate(4096) for _ in range(2))
    assert known.of(first.handle) == known.of(first.handle)
    assert abs(known.of(first.handle) - known.of(second.handle)) >= 4096


def test_parts_of_a_buffer_have_addresses_without_memory_objects(dev):
    memory = dev.buffers.allocate(4096)
    whole = Buffer(memory.handle, 4096, 4096, 1, Dropped(), 0, address=1 << 40)
    part = whole.view(1000, 96).view(4, 8)
    assert part.address == (1 << 40) + 1004
    assert part.arg._obj.value == part.address
    aligned = whole.view(dev.info.mem_align_bytes, 64)
    assert aligned.handle.size == 64  # made when a copy asks for it
    with pytest.raises(ValueError, match="leaves a buffer"):
        whole.view(4090, 8)
