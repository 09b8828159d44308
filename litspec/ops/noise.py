"""Gumbel noise as a pure function of (seed, position, token id).

Adding it to the scores and taking the argmax draws from their softmax (the Gumbel-max trick). Because the noise
depends on nothing but its key, a token drawn at a position is the same whether it is drawn alone, in a window, beside
other rows, by the target or by a draft that shares the key: this is what keeps speculation invisible (Daliri, Musco
and Suresh, arXiv 2408.07978). The hash is the SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014), started per
(seed, position).
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number: SplitMix64's step
_MULTIPLY_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MULTIPLY_2 = -7723592293110705685  # 0x94D049BB133111EB


def gumbel_noise(seeds_B: Tensor, positions_BT: Tensor, ids: Tensor) -> Tensor:
    """Return standard Gumbel noise, float64, 53 bits of hash each.

    Args:
        seeds_B: int64 (B,), a request's seed.
        positions_BT: int64 (B, T), the absolute position of the token to be drawn.
        ids: int64, token ids: (V,) for every row alike, or (B, T, N).

    Returns:
        float64 (B, T, V) or (B, T, N); always finite.
    """
    stream_BT = _mix(_mix(seeds_B + _GOLDEN)[:, None] + (positions_BT + 1) * _GOLDEN)
    bits = _shift(_mix(stream_BT[:, :, None] + (ids + 1) * _GOLDEN), 11)
    uniform = ((bits.double() + 0.5) * 2.0**-53).clamp(max=1.0 - 2.0**-53)
    return -torch.log(-torch.log(uniform))


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of several answers to a prompt, in [0, 2**63); answer 0 has the seed itself."""
    return seed if choice == 0 else int(_mix(torch.tensor(seed) + torch.tensor(choice) * _GOLDEN)) & (2**63 - 1)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right with zeros coming in (torch's shift of a signed number keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Mix 64 bits so that each output bit depends on every input bit; int64 products wrap, as intended."""
    x = (x ^ _shift(x, 30)) * _MULTIPLY_1
    x = (x ^ _shift(x, 27)) * _MULTIPLY_2
    return x ^ _shift(x, 31)
