"""Engine: continuous batching of speculative rounds.

A step admits waiting requests to free slots, feeds one piece of prompt to those that are still reading theirs, and
runs one round for the rest; so a long prompt holds the others up by one piece at a time (a model draft, though, reads
all of it before its first round). Requests come and go between any two steps and never disturb each other. The engine
knows no HTTP, and of text only that a request brings a detokeniser.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from litspec.draft import Proposal, Proposer
from litspec.engine.emission import Emission, emit, end_early
from litspec.engine.request import Completion, FinishReason, ParameterError, Request, check_token_ids
from litspec.engine.scheduler import Scheduler
from litspec.engine.speculative import Target, Verdict, draft_limits, prefill_chunk, verify_window
from litspec.kvcache import KVCache
from litspec.model.window import Shapes


class Engine:
    """Runs requests as rows of one batch.

    Not thread-safe: one caller at a time.

    Args:
        target: the model whose tokens are emitted.
        cache: its cache; its slots are the requests that run at once.
        proposer: guesses draft tokens; None decodes plainly.
        num_draft_tokens: the most draft tokens of a round, G.
        shapes: the shapes to feed.
    """

    def __init__(
        self,
        target: Target,
        cache: KVCache,
        *,
        shapes: Shapes,
        proposer: Proposer | None = None,
        num_draft_tokens: int = 0,
    ) -> None:
        assert shapes.step_widths[-1] > num_draft_tokens and shapes.row_buckets[-1] >= cache.num_slots
        self.target = target
        self.cache = cache
        self.shapes = shapes
        self.proposer = proposer
        self.num_draft_tokens = num_draft_tokens if proposer is not None else 0
        self.scheduler = Scheduler(cache.num_slots)

    @property
    def compiled_shapes(self) -> int:
        """Shapes that the target was compiled for so far."""
        return self.target.num_shapes

    def has_active_requests(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.num_waiting + self.scheduler.num_running > 0

    def has_capacity(self) -> bool:
        """Whether a slot is free that no waiting request will take."""
        return self.scheduler.pool.num_free > self.scheduler.num_waiting

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every shape, so that nothing is compiled while serving."""
        self.target.warm_up(self.cache, self.shapes)
        if self.proposer is not None:
            self.proposer.warm_up()

    def check_request(self, request: Request) -> None:
        """Raise ParameterError if a request can never run: no tokens, too many for the context, ids out of range."""
        context = self.target.max_seq_length
        if not request.prompt_ids:
            raise ParameterError("the prompt has no tokens; allowed: at least one", param="prompt")
        if request.num_prompt_tokens >= context:
            raise ParameterError(
                f"the prompt has {request.num_prompt_tokens} tokens; allowed: up to {context - 1}, so that with one "
                f"new token it fits max_seq_length {context}. Shorten it, or load with a larger max_seq_length",
                param="prompt",
            )
        check_token_ids(request.prompt_ids, self.target.vocab_size)

    def add_request(self, request: Request) -> None:
        """Queue a request; what it may emit is cut to what fits the context.

        Raises:
            ParameterError: as `check_request`, or its id is that of a request that waits or runs; nothing is queued.
        """
        self.check_request(request)
        assert request.num_emitted == 0 and request.finish_reason is None, f"request {request.id} has run already"
        if self.scheduler.find(request.id) is not None:
            raise ParameterError(
                f"request_id was {request.id!r}, which is in use; allowed: one that no waiting or running request has",
                param="request_id",
            )
        context = self.target.max_seq_length
        request.max_new_tokens = min(request.max_new_tokens, context - request.num_prompt_tokens)
        self.scheduler.add(request)

    @torch.inference_mode()
    def step(self) -> list[Emission]:
        """Admit, feed one piece of prompt, run one round; return what each request was brought."""
        self.scheduler.admit()
        running = self.scheduler.running
        prefilling = [request for request in running if request.is_prefilling]
        decoding = [request for request in running if not request.is_prefilling]
        emissions = self._prefill(prefilling) if prefilling else []
        return emissions + (self._round(decoding) if decoding else [])

    def abort(self, request_id: str) -> Emission | None:
        """End a request between two steps and return its last emission; None if there is no such request."""
        return self._end(request_id, "abort")

    def fail(self, request_id: str, error: str) -> Emission | None:
        """End a request as `abort` does, with finish_reason "error" and this message."""
        return self._end(request_id, "error", error)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests to their ends and return their completions in order; the plain form of a caller's loop."""
        for request in requests:
            self.add_request(request)
        done: dict[str, Completion] = {}
        while self.has_active_requests():
            done |= {e.request.id: e.completion for e in self.step() if e.completion is not None}
        return [done[request.id] for request in requests]

    def _prefill(self, requests: Sequence[Request]) -> list[Emission]:
        started = time.monotonic()
        first_tokens = prefill_chunk(self.target, self.cache, self.shapes, requests)
        now = time.monotonic()
        emissions = []
        for request, token in zip(requests, first_tokens, strict=True):
            request.stats.target_s += now - started
            if token is not None:
                emissions.append(self._commit(request, Verdict(0, [token]), now))
        return emissions

    def _round(self, requests: Sequence[Request]) -> list[Emission]:
        started = time.monotonic()
        proposal = self._propose(requests)
        proposed = time.monotonic()
        verdicts = verify_window(self.target, self.cache, self.shapes, requests, proposal)
        now = time.monotonic()
        emissions = []
        for request, verdict, drafted in zip(requests, verdicts, proposal.counts, strict=True):
            request.stats.draft_s += proposed - started
            request.stats.target_s += now - proposed
            emission = self._commit(request, verdict, now)
            emitted = len(emission.token_ids)
            request.stats.count_round(
                drafted=drafted, accepted=min(verdict.num_accepted, emitted), emitted=emitted, rows=len(requests)
            )
            emissions.append(emission)
        return emissions

    def _propose(self, requests: Sequence[Request]) -> Proposal:
        if self.proposer is None:
            return Proposal.of([[] for _ in requests])
        return self.proposer.propose(requests, draft_limits(requests, self.num_draft_tokens))

    def _commit(self, request: Request, verdict: Verdict, now_s: float) -> Emission:
        """Take a block into a request; what ends it frees its slot."""
        emission = emit(request, verdict.block)
        request.stats.count_tokens(len(emission.token_ids), now_s, arrival_s=request.arrival_s)
        request.length = len(request.tokens) - 1
        if request.finish_reason is None:
            return emission
        self._release(request)
        return Emission(request, emission.token_ids, emission.text, request.completion())

    def _end(self, request_id: str, reason: FinishReason, error: str | None = None) -> Emission | None:
        request = self.scheduler.find(request_id)
        if request is None:
            return None
        emission = end_early(request, reason, error=error)
        self._release(request)
        return emission

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            self.cache.release(request.slot)
            if self.proposer is not None:
                self.proposer.release(request)
        self.scheduler.remove(request)
