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

from litspec.draft.steps import sampling_of, slot_of
from litspec.engine.request import Request
from litspec.kvcache import KVCache
from litspec.model.decode import sample_shortlisted
from litspec.model.logprobs import TokenLogprob, token_logprobs
from litspec.model.window import Shapes, Window, pack_window
from litspec.ops.verify import verify_draft

LOGITS_AT_ONCE = 64  # positions of a prompt whose logits are in memory together


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
    """What the target said of one row.

    Attributes:
        num_accepted: draft tokens accepted.
        block: the target's tokens up to the bonus.
        logprobs: one for each of them, where the row asked for them.
    """

    num_accepted: int
    block: list[int]
    logprobs: list[TokenLogprob]


def verify_window(
    target: Target, cache: KVCache, shapes: Shapes, requests: Sequence[Request], drafts: Sequence[Sequence[int]]
) -> list[Verdict]:
    """Feed each row's pending token and its draft, and compare the draft with what the target draws.

    The host waits for the target's tokens and counts of the whole batch (once more where `sample_shortlisted` does, and
    where a row wants logprobs).
    """
    rows = shapes.row_bucket(len(requests))
    width = shapes.step_width(max(map(len, drafts)) + 1)
    runs = [[request.tokens[-1], *draft] for request, draft in zip(requests, drafts, strict=True)]
    window, hidden = _feed(target, cache, requests, runs, rows=rows, width=width)
    sampling = sampling_of(requests, rows, device=target.device, drafts=drafts, width=width)
    logits_BWV = target.logits(hidden)
    tokens_BW = sample_shortlisted(logits_BWV, window.input_pos_BT + 1, sampling)
    counts_B = torch.tensor([*map(len, drafts), *[0] * (rows - len(requests))], device=target.device)
    accepted_B = verify_draft(window.idx_BT[:, 1:], tokens_BW, counts_B)
    table = torch.cat((accepted_B[:, None], tokens_BW), dim=1).tolist()
    verdicts = [Verdict(row[0], row[1 : row[0] + 2], []) for row in table[: len(requests)]]
    wanted = [request.params.logprobs for request in requests]
    for row, logprobs in _logprobs(logits_BWV, [verdict.block for verdict in verdicts], wanted).items():
        verdicts[row] = verdicts[row]._replace(logprobs=logprobs)
    return verdicts


def prefill_chunk(
    target: Target, cache: KVCache, shapes: Shapes, requests: Sequence[Request], *, most: int
) -> list[Verdict | None]:
    """Feed the next piece of each row's prompt; return the first token of the rows whose prompt is now complete.

    Logits are computed for the last position of those rows alone, and for every position where a row wants the
    logprobs of its prompt.

    Args:
        target: the model.
        cache: its cache.
        shapes: the shapes that can be fed.
        requests: the rows that read their prompts.
        most: no wider a piece than this.
    """
    rows = shapes.row_bucket(len(requests))
    width = shapes.chunk_width(max(r.num_prompt_tokens - r.length for r in requests), most=most)
    runs = [request.prompt_ids[request.length : request.length + width] for request in requests]
    window, hidden = _feed(target, cache, requests, runs, rows=rows, width=width)
    for row, (request, run) in enumerate(zip(requests, runs, strict=True)):
        if request.prompt_logprobs is not None:
            _extend_prompt_logprobs(target, request, hidden[row, : len(run)])
        request.length += len(run)
    complete = [row for row, request in enumerate(requests) if request.length == request.num_prompt_tokens]
    verdicts: list[Verdict | None] = [None] * len(requests)
    if complete:
        last = [len(runs[row]) - 1 for row in complete]
        positions_RT = window.input_pos_BT[complete, last][:, None] + 1
        finished = [requests[row] for row in complete]
        sampling = sampling_of(finished, len(complete), device=target.device)
        logits_RTV = target.logits(hidden[complete, last])[:, None]
        blocks = sample_shortlisted(logits_RTV, positions_RT, sampling).tolist()
        logprobs = _logprobs(logits_RTV, blocks, [request.params.logprobs for request in finished])
        for index, row in enumerate(complete):
            verdicts[row] = Verdict(0, blocks[index], logprobs.get(index, []))
    return verdicts


def _logprobs(
    logits_BTV: Tensor, blocks: Sequence[Sequence[int]], wanted: Sequence[int | None]
) -> dict[int, list[TokenLogprob]]:
    """Return the logprobs of the rows that want any: of their blocks' tokens, with `wanted` best ones beside each."""
    return {
        row: token_logprobs(logits_BTV[row, : len(block)], torch.tensor(block, device=logits_BTV.device), num_top)
        for row, (block, num_top) in enumerate(zip(blocks, wanted, strict=True))
        if num_top is not None
    }


def _extend_prompt_logprobs(target: Target, request: Request, hidden_TC: Tensor) -> None:
    """Add the logprobs of the prompt's tokens that follow those just fed; the very first token has none."""
    assert request.prompt_logprobs is not None and request.params.prompt_logprobs is not None
    if request.length == 0:
        request.prompt_logprobs.append(None)
    following = request.prompt_ids[request.length + 1 : request.length + 1 + len(hidden_TC)]
    for start in range(0, len(following), LOGITS_AT_ONCE):
        tokens = following[start : start + LOGITS_AT_ONCE]
        logits_TV = target.logits(hidden_TC[start : start + len(tokens)])
        request.prompt_logprobs += token_logprobs(
            logits_TV, torch.tensor(tokens, device=target.device), request.params.prompt_logprobs
        )


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
