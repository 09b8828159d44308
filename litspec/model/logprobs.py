"""Log-probabilities of chosen tokens, and of the most probable ones beside them.

They are those of the raw logits: before penalties, bias, bans, temperature and filters. So they say what the model
thinks, not how a request chose, and do not depend on drafts, neighbours or windows. Each line is computed from its own
logits in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LINES_AT_ONCE = 64  # a long prompt's lines would take 8 bytes for each token of the vocabulary


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability where it stands.

    Attributes:
        token_id: the token.
        logprob: its log-probability.
        top: the most probable tokens there with theirs, the best first; of equal ones the lower id.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits_NV: Tensor, tokens_N: Tensor, num_top: int) -> list[TokenLogprob]:
    """Return the log-probability of a token for each line of logits. The host waits for them.

    Args:
        logits_NV: raw logits.
        tokens_N: int64, the token of each line.
        num_top: how many of the most probable tokens to report; all of a smaller vocabulary.
    """
    found: list[TokenLogprob] = []
    for logits, tokens in zip(logits_NV.split(_LINES_AT_ONCE), tokens_N.split(_LINES_AT_ONCE), strict=True):
        logprobs_NV = logits.double().log_softmax(-1)
        chosen = logprobs_NV.gather(-1, tokens[:, None])[:, 0].tolist()
        top_ids, top_logprobs = (column.tolist() for column in _best(logprobs_NV, min(num_top, logits.shape[-1])))
        found += [
            TokenLogprob(token_id, logprob, tuple(zip(ids, values, strict=True)))
            for token_id, logprob, ids, values in zip(tokens.tolist(), chosen, top_ids, top_logprobs, strict=True)
        ]
    return found


def _best(values_NV: Tensor, num_best: int) -> tuple[Tensor, Tensor]:
    """Return ids and values of the highest of each line in falling order, equal ones by id.

    topk leaves open which of equals it takes: only lines that go on with equals of the last one are sorted in whole.
    """
    N, V = values_NV.shape
    if N == 0 or num_best == 0:
        return torch.zeros(N, 0, dtype=torch.int64), values_NV[:, :0]
    values_NK, ids_NK = values_NV.topk(min(num_best + 1, V))
    ids_NK = ids_NK[:, :num_best]
    if num_best < V:
        tied = (values_NK[:, -2] == values_NK[:, -1]).nonzero()[:, 0]
        if len(tied):
            ids_NK[tied] = values_NV[tied].sort(dim=-1, descending=True, stable=True).indices[:, :num_best]
    ids_NK = ids_NK.sort(dim=-1).values
    values_NK, order_NK = values_NV.gather(-1, ids_NK).sort(dim=-1, descending=True, stable=True)
    return ids_NK.gather(-1, order_NK), values_NK
