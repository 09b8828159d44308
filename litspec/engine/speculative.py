"""What the engine feeds the target: a piece of each prompt, and the window of one speculative round.

Each part can be replaced: a proposer guesses, `verify_window` has the target draw its own token at every position of
the window and counts the leading guesses that equal it, and the engine commits by what `engine/emission.py` decides.
The accepted tokens and the bonus token are all drawn by the target, so the text never depends on the proposer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from litspec.draft import Proposal
from litspec.draft.steps import sampling_of, slot_of
from litspec.engine.request import Request
from litspec.kvcache import KVCache
from litspec.model.decode import sample_shortlisted
from litspec.model.window import Shapes, Window, pack_window
from litspec.ops.verify import verify_draft


class Target(Protocol):
    """What the engine needs of a model; CompiledGPT is the real one, tests script others."""

    @property
    def max_seq_length(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def num_shapes(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    def new_cache(self, num_slots: int) -> KVCache: ...
    def warm_up(self, cache: KVCache, shapes: Iterable[tuple[int, int]]) -> None: ...
    def hidden(self, idx: Tensor, input_pos: Tensor | None = None, *, cache: KVCache, slots: Tensor) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...


class Verdict(NamedTuple):
    """What a verify said of one row: the draft tokens accepted, and the target's tokens up to the bonus."""

    num_accepted: int
    block: list[int]


def draft_limits(requests: Sequence[Request], num_draft_tokens: int) -> list[int]:
    """Return how many draft tokens each row may have: none beyond what it may still emit, less the bonus token."""
    return [min(num_draft_tokens, request.num_remaining - 1) for request in requests]


def verify_window(
    target: Target, cache: KVCache, shapes: Shapes, requests: Sequence[Request], proposal: Proposal
) -> list[Verdict]:
    """Feed each row's pending token and its draft, and compare the draft with what the target draws.

    The host waits for the draft tokens, where they were made on a device, and for the target's tokens and counts of
    the whole batch (once more where `sample_shortlisted` does).
    """
    rows = shapes.row_bucket(len(requests))
    num_drafted = max(proposal.counts, default=0)
    width = shapes.step_width(num_drafted + 1)
    drafts = proposal.tokens_BG.tolist()
    runs = [[r.tokens[-1], *draft[:count]] for r, draft, count in zip(requests, drafts, proposal.counts, strict=True)]
    window, hidden = _feed(target, cache, requests, runs, rows=rows, width=width)
    sampling = sampling_of(requests, rows, device=target.device)
    tokens_BW = sample_shortlisted(target.logits(hidden), window.input_pos_BT + 1, sampling)
    counts = torch.tensor([*proposal.counts, *[0] * (rows - len(requests))], device=target.device)
    accepted_B = verify_draft(window.idx_BT[:, 1:], tokens_BW, counts)
    table = torch.cat((accepted_B[:, None], tokens_BW), dim=1).tolist()
    return [Verdict(row[0], row[1 : row[0] + 2]) for row in table[: len(requests)]]


def prefill_chunk(target: Target, cache: KVCache, shapes: Shapes, requests: Sequence[Request]) -> list[int | None]:
    """Feed the next piece of each row's prompt; return the first token of the rows whose prompt is now complete.

    Logits are computed for the last position of those rows alone.
    """
    rows = shapes.row_bucket(len(requests))
    width = shapes.chunk_width(max(r.num_prompt_tokens - r.length for r in requests))
    runs = [request.prompt_ids[request.length : request.length + width] for request in requests]
    window, hidden = _feed(target, cache, requests, runs, rows=rows, width=width)
    for request, run in zip(requests, runs, strict=True):
        request.length += len(run)
    complete = [row for row, request in enumerate(requests) if request.length == request.num_prompt_tokens]
    first_tokens: list[int | None] = [None] * len(requests)
    if complete:
        last = [len(runs[row]) - 1 for row in complete]
        positions = window.input_pos_BT[complete, last] + 1
        sampling = sampling_of([requests[row] for row in complete], len(complete), device=target.device)
        logits = target.logits(hidden[complete, last])
        tokens = sample_shortlisted(logits[:, None], positions[:, None], sampling)[:, 0].tolist()
        for row, token in zip(complete, tokens, strict=True):
            first_tokens[row] = token
    return first_tokens


def _feed(
    target: Target,
    cache: KVCache,
    requests: Sequence[Request],
    runs: Sequence[Sequence[int]],
    *,
    rows: int,
    width: int,
) -> tuple[Window, Tensor]:
    """Feed each request's run from its committed length on; return the window and the residual stream (B, T, C)."""
    window = pack_window(
        runs,
        [request.length for request in requests],
        [slot_of(request) for request in requests],
        rows=rows,
        width=width,
        scratch_slot=cache.scratch_slot,
        device=target.device,
    )
    return window, target.hidden(window.idx_BT, window.input_pos_BT, cache=cache, slots=window.slots_B)
