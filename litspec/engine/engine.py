"""Engine: continuous batching of speculative rounds.

A step admits waiting requests to free slots, feeds one piece of prompt to those that are still reading theirs, and
runs one round for the rest; so a long prompt holds the others up by one piece of `PREFILL_TOKENS` at a time. Requests
come and go between any two steps and never disturb each other. The engine knows no HTTP, and of text only that a
request brings a detokeniser.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import torch

from litspec.draft import Proposer
from litspec.engine.admission import check_request
from litspec.engine.costs import measure_costs
from litspec.engine.drafting import Drafter
from litspec.engine.emission import Emission, emit, end_early
from litspec.engine.options import EngineOptions
from litspec.engine.params import ParameterError
from litspec.engine.prefix import MIN_COPIED, Placement, PrefixCache, leader_of
from litspec.engine.request import Completion, FinishReason, Request
from litspec.engine.scheduler import Scheduler
from litspec.engine.speculative import Target, Verdict, prefill_chunk, verify_window
from litspec.engine.totals import EngineStats
from litspec.kvcache import KVCache
from litspec.model.window import MOST_TOKENS, Shapes

PREFILL_TOKENS = 256
"""The most tokens of prompts, padding included, that rows which decode wait for in a step."""


class Engine:
    """Runs requests as rows of one batch.

    Not thread-safe: one caller at a time.

    Args:
        target: the model whose tokens are emitted.
        cache: its cache; its slots are the requests that run at once.
        shapes: the shapes to feed.
        proposer: guesses draft tokens; None decodes plainly.
        num_draft_tokens: the most draft tokens of a round, G; "auto" chooses for each round, up to the widest step.
        options: how requests are treated.

    Attributes:
        stats: what it has done so far.
    """

    def __init__(
        self,
        target: Target,
        cache: KVCache,
        *,
        shapes: Shapes,
        proposer: Proposer | None = None,
        num_draft_tokens: int | Literal["auto"] = 0,
        options: EngineOptions | None = None,
    ) -> None:
        assert shapes.row_buckets[-1] >= cache.num_slots
        self.target = target
        self.cache = cache
        self.shapes = shapes
        self.proposer = proposer
        self.options = options or EngineOptions()
        self.scheduler = Scheduler(cache.num_slots, self.options)
        self.drafter = Drafter(proposer, num_draft_tokens, shapes)
        self.prefixes = PrefixCache(is_enabled=self.options.prefix_reuse)
        self.stats = EngineStats(cache.num_slots)
        self._leaders: dict[str, tuple[Request, int]] = {}

    @property
    def num_draft_tokens(self) -> int:
        """The most draft tokens that a row can have in a round."""
        return self.drafter.num_draft_tokens

    @property
    def compiled_shapes(self) -> int:
        """Shapes that the target was compiled for so far."""
        return self.target.num_shapes

    @property
    def num_followers(self) -> int:
        """Requests that wait for another one to feed the prefix that they share."""
        return len(self._leaders)

    def has_active_requests(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.num_waiting + self.scheduler.num_running > 0

    def has_capacity(self) -> bool:
        """Whether a slot is free that no waiting request will take."""
        return self.scheduler.num_admissible > self.scheduler.num_waiting

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every shape, so that nothing is compiled while serving, and measure what rounds cost."""
        self.target.warm_up(self.cache, self.shapes)
        if self.proposer is not None:
            self.proposer.warm_up()
        if self.drafter.is_auto:
            self.drafter.policy.costs = measure_costs(self.target, self.cache, self.shapes, self.proposer)

    def twin(self) -> Engine:
        """Return an idle engine with the same model, draft and settings, and a cache of its own.

        What was compiled serves both, and what rounds cost is known to both.
        """
        cache = self.target.new_cache(self.cache.num_slots)
        twin = Engine(
            self.target,
            cache,
            shapes=self.shapes,
            proposer=None if self.proposer is None else self.proposer.twin(cache),
            num_draft_tokens="auto" if self.drafter.is_auto else self.drafter.num_draft_tokens,
            options=self.options,
        )
        twin.drafter.policy.costs = self.drafter.policy.costs
        return twin

    def check_request(self, request: Request) -> None:
        """Raise ParameterError if a request can never run; see `check_request` in engine/admission.py."""
        widest = self.shapes.step_widths[-1] - 1 if self.proposer is not None else None
        check_request(
            request,
            context=self.target.max_seq_length,
            vocab_size=self.target.vocab_size,
            most_draft_tokens=widest,
        )

    def add_request(self, request: Request) -> None:
        """Queue a request; what it may emit is cut to what fits the context.

        Raises:
            ParameterError: as `check_request`, or its id is that of a request that waits or runs; nothing is queued.
            QueueFullError: as many requests wait as may; nothing is queued.
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
        """End what is overdue, admit, feed one piece of prompt, run one round; return what each request was brought."""
        emissions = [self._expire(request) for request in self.scheduler.expired()]
        for request, placement in self.scheduler.admit(self._place):
            self._begin(request, placement)
            self.stats.count_admission(request, looked=self.prefixes.serves(request))
        running = self.scheduler.running
        decoding = [request for request in running if not request.is_prefilling]
        most_tokens = PREFILL_TOKENS if decoding else MOST_TOKENS
        prefilling = self._due(running, most_tokens)
        self.stats.steps += bool(running)
        if prefilling:
            emissions += self._prefill(prefilling, most_tokens)
        return emissions + (self._round(decoding) if decoding else [])

    def abort(self, request_id: str) -> Emission | None:
        """End a request between two steps and return its last emission; None if there is no such request."""
        return self._end(request_id, "abort")

    def fail(self, request_id: str, error: str) -> Emission | None:
        """End a request as `abort` does, with finish_reason "error" and this message; its cache is not trusted."""
        return self._end(request_id, "error", error)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests to their ends and return their completions in order; the plain form of a caller's loop.

        Raises:
            ParameterError: one of them cannot run; none has.
        """
        for request in requests:
            self.check_request(request)
        for request in requests:
            self.add_request(request)
        done: dict[str, Completion] = {}
        while self.has_active_requests():
            done |= {e.request.id: e.completion for e in self.step() if e.completion is not None}
        return [done[request.id] for request in requests]

    def _place(self, request: Request) -> Placement:
        return self.prefixes.place(request, self.scheduler.pool.free, self.scheduler.by_slot)

    def _begin(self, request: Request, placement: Placement) -> None:
        """Let a request that was given a slot reuse what it can."""
        slot, source, length = placement
        self.prefixes.forget(slot)
        if self.prefixes.serves(request):
            leader = leader_of(request, self.scheduler.by_slot, beyond=length)
            if leader is not None:
                self._leaders[request.id] = leader
        self._reuse(request, slot, source, length)

    def _reuse(self, request: Request, slot: int, source: int, length: int) -> None:
        """Let a request begin after its first `length` tokens, which the source slot holds."""
        if source == slot:
            self.cache.rewind(slot, length)
        else:
            self.cache.copy_prefix(source, slot, length)
        self.drafter.adopt(slot, source, length)
        self.stats.count_reuse(length - request.length, is_first=request.length == 0)
        request.length = request.stats.cached_tokens = length

    def _take_over(self, request: Request) -> None:
        """Copy what others have fed by now of a request's prompt; who fed it may have ended, and left it."""
        source, length = self.prefixes.source_of(request, self.scheduler.pool.free, self.scheduler.by_slot)
        if request.slot is not None and length - request.length >= MIN_COPIED:
            self._reuse(request, request.slot, source, length)

    def _due(self, running: Sequence[Request], most_tokens: int) -> list[Request]:
        """Return the rows that feed a piece of prompt now: the oldest ones that wait for nobody's prefix."""
        due = []
        for request in running:
            if not request.is_prefilling:
                continue
            leader, shared = self._leaders.get(request.id, (None, 0))
            if leader is not None and leader.slot is not None and leader.length < shared:
                continue
            if leader is not None:
                del self._leaders[request.id]
                self._take_over(request)
            due.append(request)
        due.sort(key=lambda request: request.arrival_s)
        return due[: self.shapes.chunk_rows(most_tokens)]

    def _prefill(self, requests: Sequence[Request], most_tokens: int) -> list[Emission]:
        started = time.monotonic()
        most = most_tokens // self.shapes.row_bucket(len(requests))
        verdicts = prefill_chunk(self.target, self.cache, self.shapes, requests, most=most)
        now = time.monotonic()
        self.stats.prefill_s += now - started
        emissions = []
        for request, verdict in zip(requests, verdicts, strict=True):
            request.stats.target_s += now - started
            if verdict is not None:
                emissions.append(self._commit(request, verdict, now))
        return emissions

    def _round(self, requests: Sequence[Request]) -> list[Emission]:
        started = time.monotonic()
        proposal = self.drafter.propose(requests)
        drafts = proposal.drafts()
        proposed = time.monotonic()
        verdicts = verify_window(self.target, self.cache, self.shapes, requests, drafts)
        now = time.monotonic()
        width = self.shapes.step_width(max(map(len, drafts)) + 1)
        self.stats.count_round(rows=len(requests), width=width, draft_s=proposed - started, target_s=now - proposed)
        emissions = []
        for request, verdict, draft in zip(requests, verdicts, drafts, strict=True):
            request.stats.draft_s += proposed - started
            request.stats.target_s += now - proposed
            self.drafter.observe(request, draft, verdict.block)
            emission = self._commit(request, verdict, now)
            emitted = len(emission.token_ids)
            counts = {"drafted": len(draft), "accepted": min(verdict.num_accepted, emitted)}
            request.stats.count_round(**counts, emitted=emitted, rows=len(requests))
            self.stats.count_draft(**counts)
            emissions.append(emission)
        return emissions

    def _commit(self, request: Request, verdict: Verdict, now_s: float) -> Emission:
        """Take a block into a request; what ends it frees its slot."""
        emission = emit(request, verdict.block, verdict.logprobs)
        request.stats.count_tokens(len(emission.token_ids), now_s, arrival_s=request.arrival_s)
        self.stats.generated_tokens += len(emission.token_ids)
        request.length = len(request.tokens) - 1
        if request.finish_reason is None:
            return emission
        self._release(request)
        return Emission(request, emission.token_ids, emission.text, request.completion())

    def _expire(self, request: Request) -> Emission:
        emission = self._end(request.id, "timeout", self.scheduler.explain_expiry(request))
        assert emission is not None
        return emission

    def _end(self, request_id: str, reason: FinishReason, error: str | None = None) -> Emission | None:
        request = self.scheduler.find(request_id)
        if request is None:
            return None
        emission = end_early(request, reason, error=error)
        self._release(request)
        return emission

    def _release(self, request: Request) -> None:
        """Take an ended request out; its slot keeps what it holds, unless the request failed."""
        self._leaders.pop(request.id, None)
        slot = request.slot
        if slot is not None:
            self.drafter.release(request)
            is_reusable = self.prefixes.is_enabled and request.finish_reason != "error"
            kept = request.tokens[: request.length] if is_reusable else []
            self.cache.rewind(slot, len(kept))
            self.drafter.adopt(slot, slot, len(kept))
            self.prefixes.keep(slot, kept)
        self.scheduler.remove(request)
        self.stats.count_end(request)
