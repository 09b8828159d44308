"""The small functions of a Llama block: linear, RMSNorm, the rotation of RoPE, SiLU·mul.

They compute norms and rotations in float32 at least and return the dtype of their input, as the reference
implementations do. Each is one operation to the compiler (ops/executor.py); in float32 on the CPU a kernel does it
(ops/kernels), and packed weights have one of their own (ops/packed.py).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from litspec.ops.kernels import WIDEST_LANES, has_kernel
from litspec.ops.packed import is_packed, packed_linear

FEW_TOKENS = 32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias; x (…, in), weight (out, in) or packed (ops/packed.py), bias (out,).

    On the CPU a few tokens are multiplied as (weight · xᵀ)ᵀ: torch's GEMM reads a large weight faster from the left,
    and that is what a window costs (tests/benchmarks/LOG.md).
    """
    if is_packed(weight):
        y = packed_linear(x, weight)
        return y if bias is None else y + bias
    num_tokens = x.numel() // x.shape[-1]
    if x.is_cuda or not 1 < num_tokens <= FEW_TOKENS:
        return F.linear(x, weight, bias)
    y = (weight @ x.reshape(num_tokens, -1).T).T.contiguous().view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang and Sennrich, arXiv 1910.07467)."""
    if has_kernel(x):
        return torch.ops.litspec.rms_norm(x.contiguous(), weight, eps, "")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def apply_rope(x_BTHD: Tensor, cos_BTD: Tensor, sin_BTD: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D/2) of each head by its position's angles (Su et al., arXiv 2104.09864)."""
    if has_kernel(x_BTHD) and x_BTHD.shape[-1] % (2 * WIDEST_LANES) == 0:
        return torch.ops.litspec.apply_rope(x_BTHD.contiguous(), cos_BTD.contiguous(), sin_BTD.contiguous(), "")
    half = x_BTHD.shape[-1] // 2
    rotated = torch.cat((-x_BTHD[..., half:], x_BTHD[..., :half]), dim=-1)
    cos, sin = cos_BTD[:, :, None], sin_BTD[:, :, None]
    return (x_BTHD * cos + rotated * sin).to(x_BTHD.dtype)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up, the gated half of SwiGLU (Shazeer, arXiv 2002.05202)."""
    if has_kernel(gate):
        return torch.ops.litspec.silu_mul(gate.contiguous(), up.contiguous(), "")
    return F.silu(gate) * up
