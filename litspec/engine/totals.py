"""EngineStats: what an engine has done since it was made, as plain numbers for a server to publish.

Counters only grow. The names are the field's: drafts are rounds of a row that had draft tokens, and only emitted
tokens count as accepted. All times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from litspec.engine.request import FinishReason, Request

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass
class Histogram:
    """How many observations fell at or below each bound.

    Attributes:
        bounds: rising upper bounds; a last bucket without a bound is added.
        counts: observations of each bucket alone, not of those below it.
        total: the sum of all observations.
    """

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def num_observations(self) -> int:
        """How many there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Their mean; None before the first."""
        return self.total / self.num_observations if self.num_observations else None

    def observe(self, value: float) -> None:
        """Count one observation."""
        bucket = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[bucket] += 1
        self.total += value


@dataclass
class EngineStats:
    """Counters of all requests together.

    Attributes:
        num_slots: requests that can run at once.
        finished: ended requests by finish_reason.
        prompt_tokens: tokens of the prompts of admitted requests.
        cached_tokens: those of them that a slot's cache already held.
        prefix_hits: admitted requests that reused a prefix.
        prefix_queries: admitted requests that looked for one.
        generated_tokens: emitted tokens.
        steps: engine steps that fed the model.
        rounds: rounds of the batch.
        rows: rows of all rounds together.
        rounds_by_width: rounds by the width of their window.
        num_drafts: rounds of a row that had draft tokens.
        num_draft_tokens: draft tokens verified.
        num_accepted_tokens: those of them that were accepted and emitted.
        num_accepted_tokens_per_pos: accepted tokens by their place in the draft.
        prefill_s: time of the target on prompts.
        draft_s: time of the draft.
        target_s: time of the target on rounds.
        queue_s: time from arrival to a slot.
        ttft_s: time from arrival to the first token.
        tpot_s: time per token after the first.
    """

    num_slots: int
    finished: dict[FinishReason, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_hits: int = 0
    prefix_queries: int = 0
    generated_tokens: int = 0
    steps: int = 0
    rounds: int = 0
    rows: int = 0
    rounds_by_width: dict[int, int] = field(default_factory=dict)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    queue_s: Histogram = field(default_factory=Histogram)
    ttft_s: Histogram = field(default_factory=Histogram)
    tpot_s: Histogram = field(default_factory=Histogram)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None with nothing drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def occupancy(self) -> float | None:
        """Mean share of the slots that took part in a round; None before the first round."""
        return self.rows / (self.rounds * self.num_slots) if self.rounds else None

    def count_admission(self, request: Request, *, looked: bool) -> None:
        """Count a request that got a slot, and what it reuses."""
        assert request.stats.queue_s is not None
        self.queue_s.observe(request.stats.queue_s)
        self.prompt_tokens += request.num_prompt_tokens
        self.prefix_queries += looked

    def count_reuse(self, num_tokens: int, *, is_first: bool) -> None:
        """Count tokens that a request takes over; the first of them make it a hit."""
        self.prefix_hits += is_first and num_tokens > 0
        self.cached_tokens += num_tokens

    def count_round(self, *, rows: int, width: int, draft_s: float, target_s: float) -> None:
        """Count a round of the batch."""
        self.rounds += 1
        self.rows += rows
        self.rounds_by_width[width] = self.rounds_by_width.get(width, 0) + 1
        self.draft_s += draft_s
        self.target_s += target_s

    def count_draft(self, *, drafted: int, accepted: int) -> None:
        """Count what one row drafted and accepted in a round."""
        if not drafted:
            return
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        per_pos = self.num_accepted_tokens_per_pos
        per_pos += [0] * (drafted - len(per_pos))
        for position in range(accepted):
            per_pos[position] += 1

    def count_end(self, request: Request) -> None:
        """Count a request that has ended."""
        reason = request.finish_reason
        assert reason is not None
        self.finished[reason] = self.finished.get(reason, 0) + 1
        if request.stats.ttft_s is not None:
            self.ttft_s.observe(request.stats.ttft_s)
        if request.stats.tpot_s is not None:
            self.tpot_s.observe(request.stats.tpot_s)

    def to_dict(self) -> dict[str, Any]:
        """Return every counter and derived figure as JSON-ready values."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("queue_s", "ttft_s", "tpot_s"):
            histogram: Histogram = fields[name]
            fields[name] = {"mean": histogram.mean, "count": histogram.num_observations, **_buckets(histogram)}
        fields["finished"] = dict(self.finished)
        fields["num_accepted_tokens_per_pos"] = list(self.num_accepted_tokens_per_pos)
        fields["rounds_by_width"] = {str(width): count for width, count in sorted(self.rounds_by_width.items())}
        return {**fields, "acceptance_rate": self.acceptance_rate, "occupancy": self.occupancy}


def _buckets(histogram: Histogram) -> dict[str, Sequence[float]]:
    return {"bounds": histogram.bounds, "counts": list(histogram.counts)}
