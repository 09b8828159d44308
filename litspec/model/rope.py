"""The rotary position embedding's table: cos and sin of every position, by the published formulas.

Everything is computed in float64 from the config alone and never changes afterwards, so that prefill, decode and
verify read one table and a long request cannot bend the angles of a short one. Callers cast the result; an angle
computed in a narrow dtype would drift with the position.

Sources: RoFormer (arXiv 2104.09864) section 3.4.2; position interpolation (arXiv 2306.15595) for "linear"; YaRN (arXiv
2309.00071) sections 3.2 and 3.4; Llama 3.1's `apply_scaling` for "llama3".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from litspec.model.config import RopeConfig


def rope_table(rope: RopeConfig, head_size: int, max_seq_length: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin for the positions 0 to max_seq_length - 1.

    Returns:
        Two float64 tensors (M, D) on the CPU in the rotate-half layout: dimension d and d + D / 2 turn together, so
        both halves of a row are equal. The attention factor is multiplied in.
    """
    positions_M = torch.arange(max_seq_length, dtype=torch.float64)
    angles_MD = torch.outer(positions_M, inverse_frequencies(rope, head_size)).repeat(1, 2)
    factor = attention_factor(rope)
    return angles_MD.cos() * factor, angles_MD.sin() * factor


def inverse_frequencies(rope: RopeConfig, head_size: int) -> Tensor:
    """Return the angle by which one position turns each pair of dimensions, in radians: (D / 2,) float64."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    unscaled = 1.0 / rope.theta**exponents
    if rope.freq_factors is not None:
        return unscaled / torch.tensor(rope.freq_factors, dtype=torch.float64)
    if rope.scaling == "linear":
        return unscaled / rope.factor
    if rope.scaling == "llama3":
        return _llama3(unscaled, rope)
    if rope.scaling == "yarn":
        return _yarn(unscaled, rope, head_size)
    return unscaled


def attention_factor(rope: RopeConfig) -> float:
    """Return the multiplier of cos and sin: 1 but for yarn (YaRN, equation 22; the two mscale fields as a ratio)."""
    if rope.scaling != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_mscale(rope.factor, rope.mscale) / _yarn_mscale(rope.factor, rope.mscale_all_dim)
    return _yarn_mscale(rope.factor, 1.0)


def _yarn_mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _llama3(unscaled: Tensor, rope: RopeConfig) -> Tensor:
    """Keep short wavelengths, stretch long ones, and blend in between by how often they turn in the old context."""
    assert rope.original_max_position is not None
    turns = rope.original_max_position * unscaled / (2 * math.pi)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return kept * unscaled + (1.0 - kept) * unscaled / rope.factor


def _yarn(unscaled: Tensor, rope: RopeConfig, head_size: int) -> Tensor:
    """Keep pairs that turn often, stretch those that hardly turn, with a linear ramp over the pairs between."""
    low = _yarn_pair(rope.beta_fast, rope, head_size)
    high = _yarn_pair(rope.beta_slow, rope, head_size)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    pairs = torch.arange(head_size // 2, dtype=torch.float64)
    stretched = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0.0, 1.0)
    return stretched * unscaled / rope.factor + (1.0 - stretched) * unscaled


def _yarn_pair(turns: float, rope: RopeConfig, head_size: int) -> float:
    """Return the (fractional) pair of dimensions that turns this often within the original context."""
    assert rope.original_max_position is not None
    wavelength = rope.original_max_position / turns
    return head_size * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))
