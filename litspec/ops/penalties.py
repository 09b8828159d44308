"""Changing single scores of a batch of logits: what penalties, bias and bans come down to.

Every parameter that speaks of certain tokens changes few scores of a row and leaves the rest of the vocabulary alone,
so the changes are a sparse list of entries. All that can be said of one score fits in two numbers: the repetition
penalty, which divides what is above zero and multiplies what is not (Keskar et al., "CTRL", arXiv 1909.05858, in the
form that transformers gave it), and an offset that sums presence and frequency penalty and bias; an offset of -inf is
a ban. An entry is computed in float64 from its own score alone, so it does not matter what else is in the list.
"""

from __future__ import annotations

import torch
from torch import Tensor


def edited_scores(scores_E: Tensor, repetition_E: Tensor, offset_E: Tensor) -> Tensor:
    """Return scores with repetition penalty and offset.

    Args:
        scores_E: of any float type; -inf stays -inf.
        repetition_E: float64 above 0; 1 changes nothing.
        offset_E: float64; -inf bans, whatever the score.

    Returns:
        The type of `scores_E`, never +inf where the score was finite: what would overflow is the largest number.
    """
    wide_E = scores_E.double()
    penalised_E = torch.where(wide_E > 0, wide_E / repetition_E, wide_E * repetition_E)
    shifted_E = torch.where(offset_E == -torch.inf, -torch.inf, penalised_E + offset_E)
    return shifted_E.clamp(max=torch.finfo(scores_E.dtype).max).to(scores_E.dtype)


def edit_entries(logits_BTV: Tensor, entries_E: Tensor, repetition_E: Tensor, offset_E: Tensor) -> Tensor:
    """Return a copy of logits in which some entries are edited as by `edited_scores`.

    Args:
        logits_BTV: raw logits, left as they are.
        entries_E: int64, indices into the flattened logits, each at most once.
        repetition_E: float64, an entry's repetition penalty.
        offset_E: float64, its offset.
    """
    flat = logits_BTV.reshape(-1)
    edited_E = edited_scores(flat.gather(0, entries_E), repetition_E, offset_E)
    return flat.scatter(0, entries_E, edited_E).reshape(logits_BTV.shape)
