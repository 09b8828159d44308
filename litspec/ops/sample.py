"""From logits to a token: temperature, top_k, top_p, min_p, and noise that is keyed by position.

The order is that of OpenAI-style servers and of transformers: temperature, then top_k, top_p and min_p. A filter is a
threshold on the scores: what equals the last kept score is kept too, so that the set does not depend on how a sort
breaks ties; min_p's is measured from the best score, so it needs no sort. Equal best scores give the lower id.
Everything is computed in float64, a row at a time in one vectorised call, so that a token depends on its own row alone;
a draw without top_k and top_p has a kernel, which draws the same token (ops/kernels/sample.cpp).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from litspec.ops.kernels import has_kernel
from litspec.ops.noise import gumbel_noise


class Threshold(NamedTuple):
    """The lowest score that the filters keep, and whether the candidates looked at were enough to know it."""

    score_BT: Tensor
    is_exact_BT: Tensor


def scaled_scores(logits_BTV: Tensor, temperature_B: Tensor) -> Tensor:
    """Return (logits - their maximum) / temperature in float64; a temperature of 0 counts as 1 (its row is greedy).

    Banned tokens have -inf; where all are banned, all scores are -inf.
    """
    wide_BTV = logits_BTV.double()
    top_BT1 = wide_BTV.amax(-1, keepdim=True)
    divisor_B11 = torch.where(temperature_B > 0, temperature_B, 1.0)[:, None, None]
    return (wide_BTV - torch.where(top_BT1 == -torch.inf, 0.0, top_BT1)) / divisor_B11


def filter_threshold(
    best_BTN: Tensor,
    log_total_BT: Tensor,
    *,
    vocab_size: int,
    top_k_B: Tensor,
    top_p_B: Tensor,
    min_p_B: Tensor | None = None,
) -> Threshold:
    """Find the lowest score that top_k, then top_p, then min_p keep.

    Args:
        best_BTN: the N highest scores in falling order; with N = V the answer is always exact.
        log_total_BT: log of the sum of exp(score) over the whole vocabulary.
        vocab_size: V.
        top_k_B: int64, how many to keep; V keeps all.
        top_p_B: float64 in (0, 1]; 1 keeps all.
        min_p_B: float64 in [0, 1]; 0 keeps all, as None does.

    Returns:
        The threshold, -inf where nothing is cut.
    """
    N = best_BTN.shape[-1]
    top_k_B1, top_p_B1 = top_k_B[:, None], top_p_B[:, None]
    has_top_k_B1, has_top_p_B1 = top_k_B1 < vocab_size, top_p_B1 < 1.0
    kth_BT1 = best_BTN.gather(-1, (top_k_B1.clamp(max=N) - 1)[..., None].expand(*best_BTN.shape[:2], 1))
    is_inside_BTN = ~has_top_k_B1[..., None] | (best_BTN >= kth_BT1)
    mass_BTN = torch.where(is_inside_BTN, best_BTN.exp(), 0.0).cumsum(-1)
    total_BT = torch.where(has_top_k_B1, mass_BTN[..., -1], log_total_BT.exp())
    is_reached_BTN = mass_BTN >= (top_p_B1 * total_BT)[..., None]
    last_BT = torch.where(is_reached_BTN.any(-1), is_reached_BTN.int().argmax(-1), N - 1)
    crossing_BT = best_BTN.gather(-1, last_BT[..., None])[..., 0]
    cut_BT = torch.where(has_top_k_B1, kth_BT1[..., 0], -torch.inf)
    # The crossing is never below the cut: with top_k the total is what it left.
    score_BT = torch.where(has_top_p_B1, crossing_BT, cut_BT)
    lowest_BT = best_BTN[..., -1]
    knows_k_BT = ~has_top_k_B1 | (kth_BT1[..., 0] > lowest_BT)
    knows_p_BT = ~has_top_p_B1 | (crossing_BT > lowest_BT)
    # A top_k from the vocabulary's size on cuts nothing: then every token is a candidate.
    is_exact_BT = (has_top_k_B1 | has_top_p_B1) & knows_k_BT & knows_p_BT
    if min_p_B is not None:
        floor_BT = best_BTN[..., 0] + min_p_B.log()[:, None]
        # A floor among the candidates decides even where the others lie below them. (With too few candidates for top_k
        # the total of top_p is too small and its crossing too high.)
        is_exact_BT = is_exact_BT | ((floor_BT > lowest_BT) & (knows_k_BT | ~has_top_p_B1))
        score_BT = torch.maximum(score_BT, floor_BT)
    return Threshold(score_BT, is_exact_BT if vocab_size > N else torch.ones_like(is_exact_BT))


def draw_token(
    logits_BTV: Tensor, temperature_B: Tensor, floor_B: Tensor, seeds_B: Tensor, positions_BT: Tensor
) -> Tensor:
    """Draw a token id for every position from the whole vocabulary; (B, T).

    On the CPU a kernel does it, which computes the noise of the few tokens that can win at all.

    Args:
        logits_BTV: the logits; banned tokens have -inf.
        temperature_B: float64, above 0.
        floor_B: float64, the lowest score that is kept, counted from the best one's 0; -inf keeps all.
        seeds_B: int64.
        positions_BT: int64, the absolute position of the token to be drawn.
    """
    if has_kernel(logits_BTV):
        tensors = (logits_BTV, temperature_B, floor_B, seeds_B, positions_BT)
        return torch.ops.litspec.draw_token(*(t.contiguous() for t in tensors))
    scores_BTV = scaled_scores(logits_BTV, temperature_B)
    return draw_from_vocabulary(scores_BTV, floor_B[:, None], seeds_B, positions_BT)


def draw_from_vocabulary(scores_BTV: Tensor, threshold_BT: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:
    """Draw a token id for every position by noise over the whole vocabulary; (B, T)."""
    ids_V = torch.arange(scores_BTV.shape[-1], device=scores_BTV.device)
    kept_BTV = torch.where(scores_BTV >= threshold_BT[..., None], scores_BTV, -torch.inf)
    return (kept_BTV + gumbel_noise(seeds_B, positions_BT, ids_V)).argmax(-1)


def draw_from_candidates(
    best_BTN: Tensor, ids_BTN: Tensor, threshold_BT: Tensor, seeds_B: Tensor, positions_BT: Tensor
) -> Tensor:
    """Draw as `draw_from_vocabulary`, computing noise for the candidates alone; (B, T)."""
    kept_BTN = torch.where(best_BTN >= threshold_BT[..., None], best_BTN, -torch.inf)
    perturbed_BTN = kept_BTN + gumbel_noise(seeds_B, positions_BT, ids_BTN)
    is_best_BTN = perturbed_BTN == perturbed_BTN.amax(-1, keepdim=True)
    return torch.where(is_best_BTN, ids_BTN, torch.iinfo(torch.int64).max).amin(-1)
