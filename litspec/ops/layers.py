"""The small functions of a Llama block: RMSNorm and the rotation of RoPE.

Both compute in float32 at least and return the dtype of their input, as the reference implementations do.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang and Sennrich, arXiv 1910.07467)."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def apply_rope(x_BHTD: Tensor, cos_BTD: Tensor, sin_BTD: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D/2) of each head by its position's angles (Su et al., arXiv 2104.09864)."""
    half = x_BHTD.shape[-1] // 2
    rotated = torch.cat((-x_BHTD[..., half:], x_BHTD[..., :half]), dim=-1)
    cos, sin = cos_BTD[:, None], sin_BTD[:, None]
    return (x_BHTD * cos + rotated * sin).to(x_BHTD.dtype)
