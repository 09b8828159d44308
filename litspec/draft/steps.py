"""The drafting loop that model-based proposers share: feed a token, choose the next, G times.

The draft draws with the target's own noise (same seed, same position), which makes agreement likely. Draft tokens stay
on the device between steps. A row that may draft fewer tokens than the rest feeds its last one again at its own
position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from litspec.draft.proposer import DraftRow
from litspec.model.decode import Sampling, sample_shortlisted
from litspec.model.edits import LogitEdits


def sampling_of(
    rows: Sequence[DraftRow],
    num_rows: int,
    *,
    drafts: Sequence[Sequence[int]] | None = None,
    width: int = 1,
    device: torch.device | str = "cpu",
) -> Sampling:
    """Return the rows' sampling as tensors, with greedy padding up to `num_rows`.

    Args:
        rows: the requests.
        num_rows: rows of the batch.
        drafts: each row's draft tokens, which a window's later positions have before them; None is none. A proposer
            leaves them out: all its steps of a round share the edits of the first one, which costs it a little
            agreement where a draft token would have changed them, and the text nothing.
        width: positions of the window that is sampled.
        device: where the tensors go.
    """
    params = [row.params for row in rows]
    missing = num_rows - len(params)
    edits = LogitEdits.of(
        [row.edits for row in rows],
        [row.tokens for row in rows],
        [()] * len(rows) if drafts is None else drafts,
        width=width,
        device=device,
    )
    return Sampling.of(
        [*(p.temperature for p in params), *[0.0] * missing],
        [*(p.top_k for p in params), *[None] * missing],
        [*(p.top_p for p in params), *[1.0] * missing],
        [*(row.noise_seed for row in rows), *[0] * missing],
        min_ps=[*(p.min_p for p in params), *[0.0] * missing],
        edits=edits,
        device=device,
    )


def draft_tokens(
    feed: Callable[[Tensor, Tensor], Tensor],
    first_logits_BV: Tensor,
    pending_B: Tensor,
    num_tokens_B: Tensor,
    counts_B: Tensor,
    num_draft_tokens: int,
    sampling: Sampling,
) -> Tensor:
    """Draft from the logits after each row's pending token.

    Args:
        feed: feeds (idx_B1, input_pos_B1) and returns logits_BV.
        first_logits_BV: the draft's logits after the pending token.
        pending_B: int64, the pending tokens.
        num_tokens_B: int64, tokens of each row, so the first draft token stands at this position.
        counts_B: int64, draft tokens wanted for each row, from 1 (padding rows may have any).
        num_draft_tokens: G, the most of them.
        sampling: how each row chooses.

    Returns:
        int64 (B, G).
    """
    drawn = [pending_B]
    logits_BV = first_logits_BV
    for step in range(num_draft_tokens):
        position_B = num_tokens_B + step
        drawn.append(sample_shortlisted(logits_BV[:, None], position_B[:, None], sampling)[:, 0])
        if step + 1 < num_draft_tokens:
            fed_B = torch.clamp(counts_B - 1, min=0, max=step + 1)
            idx_B1 = torch.stack(drawn, dim=1).gather(1, fed_B[:, None])
            logits_BV = feed(idx_B1, (num_tokens_B - 1 + fed_B)[:, None])
    return torch.stack(drawn[1:], dim=1)


def slot_of(row: DraftRow) -> int:
    """Return the cache row that a request owns; asserts that it has one."""
    assert row.slot is not None, f"request {row.id} has no slot"
    return row.slot
