"""Fused kernels in C++, compiled when they are first needed; each op's plain definition is what they must equal."""

from litspec.ops.kernels.build import KernelError, instruction_sets, load_kernels

__all__ = ["KernelError", "instruction_sets", "load_kernels"]
