"""Which draft tokens stand: those that equal what the target itself drew, up to the first that does not.

With noise keyed by position (ops/noise.py) the target's own tokens are a pure function of the text so far, so this rule
is exact for greedy and for sampled rows alike, whatever proposed the draft. No probabilities are involved.
"""

from __future__ import annotations

import torch
from torch import Tensor


def verify_draft(draft_tokens_BG: Tensor, target_tokens_BW: Tensor, num_drafted_B: Tensor) -> Tensor:
    """Count the leading draft tokens of each row that equal the target's.

    Args:
        draft_tokens_BG: int64, what was proposed; entries from `num_drafted_B` on are padding.
        target_tokens_BW: int64 with W >= G; entry j is the target's token after the window's entry j, so it is
            compared with draft token j.
        num_drafted_B: int64, how many draft tokens each row really has, up to G.

    Returns:
        int64 (B,): the number accepted; padding never is.
    """
    G = draft_tokens_BG.shape[1]
    is_real = torch.arange(G, device=draft_tokens_BG.device) < num_drafted_B[:, None]
    agrees = (draft_tokens_BG == target_tokens_BW[:, :G]) & is_real
    return agrees.long().cumprod(-1).sum(-1)
