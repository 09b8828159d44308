"""Fused kernels in C++, compiled when they are first needed; each op's plain definition is what they must equal."""

import torch
from torch import Tensor

from litspec.ops.kernels.build import KernelError, instruction_sets, load_kernels

WIDEST_LANES = 16
"""Lanes of the widest instruction set; sizes that are multiples of it have kernels everywhere."""


def has_kernel(x: Tensor) -> bool:
    """Whether the kernels of a block take this tensor: float32 on the CPU."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and load_kernels()


__all__ = ["WIDEST_LANES", "KernelError", "has_kernel", "instruction_sets", "load_kernels"]
