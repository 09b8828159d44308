"""Devices, dtypes and empty modules: what a user's words mean, and that Fabric makes what the plain path makes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from litspec.model.gpt import GPT
from litspec.model.placement import (
    DTYPES,
    available_bytes,
    empty_modules,
    fabric_modules,
    resolve_device,
    resolve_dtype,
)
from tests.model.tiny_gpt import TINY

CPU = torch.device("cpu")


def test_auto_is_the_cpu_where_there_is_nothing_else(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")


def test_a_device_that_is_there_is_taken(monkeypatch):
    assert resolve_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("cuda") == torch.device("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("mps") == torch.device("mps")


@pytest.mark.parametrize("name", ["gpu", "", "cpu:x", "meta", "xpu"])
def test_a_device_of_another_kind_is_refused(name):
    with pytest.raises(ValueError, match=f'device was {name!r}; allowed: "auto", "cpu", "cuda", "cuda:N" or "mps"'):
        resolve_device(name)


def test_a_device_that_this_machine_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="device was 'cuda:1'; this machine has 1 CUDA devices; use \"auto\""):
        resolve_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="device was 'cuda'; this machine has 0 CUDA devices"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device was 'mps'; this machine has no MPS device"):
        resolve_device("mps")


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_by_name(name):
    assert resolve_dtype(name, CPU) == getattr(torch, name)


@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_dtype_follows_the_hardware(monkeypatch, has_bfloat16, dtype):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bfloat16)
    assert resolve_dtype("auto", CPU) == dtype
    assert resolve_dtype("auto", torch.device("cuda")) == dtype
    assert resolve_dtype("auto", torch.device("mps")) == torch.float32


@pytest.mark.parametrize("name", ["fp8", "", "int8", "torch.float32"])
def test_another_dtype_is_refused(name):
    with pytest.raises(
        ValueError, match=f"dtype was {name!r}; allowed: \"auto\", 'float32', 'bfloat16', 'float16', 'float64'"
    ):
        resolve_dtype(name, CPU)


@pytest.mark.parametrize(("of_group", "expected"), [(None, 1000), (400, 400), (5000, 1000), (0, 0)])
@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_available_is_the_machines_or_what_the_group_leaves(monkeypatch, device, of_group, expected):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr("litspec.model.cgroup.free_bytes", lambda: of_group)
    assert available_bytes(torch.device(device)) == expected


def test_available_on_a_gpu_is_what_is_free_there_and_what_the_process_holds_unused(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (600, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 250)
    monkeypatch.setattr("psutil.virtual_memory", lambda: pytest.fail("the host was asked"))
    assert available_bytes(torch.device("cuda", 1)) == 650
    assert asked == [torch.device("cuda", 1)]


def test_available_here_is_a_number_of_bytes():
    assert 2**24 < available_bytes(CPU) < 2**50


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("modules", [empty_modules, fabric_modules])
def test_a_model_is_made_in_the_dtype_and_the_default_comes_back(modules, dtype):
    before = torch.get_default_dtype()
    with modules(CPU, dtype):
        gpt = GPT(TINY)
    assert {parameter.dtype for parameter in gpt.parameters()} == {dtype}
    assert {parameter.device for parameter in gpt.parameters()} == {CPU}
    assert gpt.cos_MD.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.get_default_dtype() == before
    with pytest.raises(ZeroDivisionError), modules(CPU, dtype):
        _ = 1 / 0
    assert torch.get_default_dtype() == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_fabric_fills_nothing(dtype):
    with fabric_modules(CPU, dtype):
        weight = nn.Parameter(torch.zeros(8, 8))
        nn.init.constant_(weight, 1.0)
        nn.init.uniform_(weight, 1.0, 2.0)
    assert weight.dtype == dtype and not weight.any()


def test_fabric_is_given_the_device_and_the_precision(monkeypatch):
    from lightning.fabric import Fabric

    given = []

    class Spy(Fabric):
        def __init__(self, *, accelerator: str, devices: object, precision: str) -> None:
            given.append((accelerator, devices, precision))
            super().__init__(accelerator="cpu", devices=1, precision=precision)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("lightning.fabric.Fabric", Spy)
    for device, dtype in (("cuda:3", torch.bfloat16), ("cuda", torch.float16), ("cpu", torch.float32)):
        with fabric_modules(torch.device(device), dtype):
            pass
    with empty_modules(torch.device("mps"), torch.float32):
        pass
    assert given == [("cuda", [3], "bf16-true"), ("cuda", [0], "16-true"), ("cpu", 1, "32-true"), ("mps", 1, "32-true")]
