"""Where a model lies and in which precision: the device and dtype that a user's words mean, and the room there is.

On the plain CPU torch's own defaults are enough. Every other device goes through Lightning's Fabric, which resolves
accelerators and precision and makes modules empty on the device; its import costs seconds, so it happens only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from litspec.model import cgroup

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_FABRIC_PRECISION = {
    torch.float32: "32-true",
    torch.bfloat16: "bf16-true",
    torch.float16: "16-true",
    torch.float64: "64-true",
}


def resolve_device(name: str) -> torch.device:
    """Return the device that `name` means: "auto" is CUDA where there is one, else the CPU.

    Raises:
        ValueError: for a name torch does not know, or a device this machine lacks.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f'device was {name!r}; allowed: "auto", "cpu", "cuda", "cuda:N" or "mps"') from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f'device was {name!r}; this machine has {torch.cuda.device_count()} CUDA devices; use "auto"')
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f'device was {name!r}; this machine has no MPS device; use "auto"')
    if device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f'device was {name!r}; allowed: "auto", "cpu", "cuda", "cuda:N" or "mps"')
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype that `name` means: "auto" is bfloat16 where the hardware computes in it, else float32.

    Raises:
        ValueError: for a name that is none of "auto", "float32", "bfloat16", "float16" and "float64".
    """
    if name != "auto":
        if name not in DTYPES:
            raise ValueError(f'dtype was {name!r}; allowed: "auto", {", ".join(map(repr, DTYPES))}')
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if device.type == "cpu":
        return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return torch.float32


def available_bytes(device: torch.device) -> int:
    """Return the bytes that a model may still take on a device.

    On CUDA that is what is free there and what this process has put by for itself. Elsewhere it is the machine's memory
    (MPS shares it), without swap, or what the process's control group leaves of it.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    of_machine = int(psutil.virtual_memory().available)
    of_group = cgroup.free_bytes()
    return of_machine if of_group is None else min(of_machine, of_group)


@contextmanager
def empty_modules(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Inside this context modules are made on `device` in `dtype`, without being filled."""
    if device.type == "cpu":
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(previous)
    else:
        with fabric_modules(device, dtype):
            yield


@contextmanager
def fabric_modules(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Do what `empty_modules` does through Lightning's Fabric, on any device that it knows."""
    from lightning.fabric import Fabric

    devices = [device.index or 0] if device.type == "cuda" else 1
    fabric = Fabric(accelerator=device.type, devices=devices, precision=_FABRIC_PRECISION[dtype])  # pyright: ignore[reportArgumentType]
    with fabric.init_module(empty_init=True):
        yield
