"""Drafter: how far a round drafts, and what the rows did with it.

It asks a proposer for draft tokens within what each row may have: never beyond what the row may still emit, never more
than its own `num_draft_tokens`. With "auto" the width of each round is chosen by what rows accepted lately and what
rounds cost (engine/policy.py). It never looks at what a token is, and no choice of its own shows in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from litspec.draft import DraftCost, Proposal, Proposer
from litspec.engine.acceptance import AcceptanceTracker, RowOutlook, shown
from litspec.engine.costs import CostTable
from litspec.engine.policy import WidthPolicy
from litspec.engine.request import Request
from litspec.model.decode import is_noisy
from litspec.model.window import Shapes

LIKELY_DRAFT_COST = DraftCost(0.3, 0.3, 1.0)
"""Of a draft that was not measured, in plain steps of the target."""


class Drafter:
    """Proposes for an engine.

    Args:
        proposer: guesses draft tokens; None drafts nothing.
        num_draft_tokens: the most draft tokens of a row in a round; "auto" chooses, up to the widest step.
        shapes: the shapes that can be fed.

    Attributes:
        policy: chooses widths where the engine may; its `costs` are assumed until they are measured.
    """

    def __init__(self, proposer: Proposer | None, num_draft_tokens: int | Literal["auto"], shapes: Shapes) -> None:
        self.is_auto = num_draft_tokens == "auto" and proposer is not None
        widest = shapes.step_widths[-1] - 1
        self.num_draft_tokens = 0 if proposer is None else widest if num_draft_tokens == "auto" else num_draft_tokens
        assert self.num_draft_tokens <= widest, f"{num_draft_tokens} draft tokens do not fit the widest step"
        draft_cost = DraftCost() if proposer is None or proposer.is_free else LIKELY_DRAFT_COST
        self.policy = WidthPolicy(CostTable.assumed(shapes, draft_cost), shapes)
        self._proposer = proposer
        self._rows: dict[str, AcceptanceTracker] = {}
        self._drafts: dict[str, list[int]] = {}

    @property
    def num_requests(self) -> int:
        """Requests of which something is kept."""
        return len(self._rows.keys() | self._drafts.keys())

    def propose(self, requests: Sequence[Request]) -> Proposal:
        """Return draft tokens for the rows of one round."""
        if self._proposer is None:
            return Proposal.of([[] for _ in requests])
        limits = [self._limit(request) for request in requests]
        if not self.is_auto:
            return self._proposer.propose(requests, limits)
        if not self._proposer.is_free:
            rows = self._outlooks(requests, limits)
            chosen = self.policy.choose(rows)
            return self._proposer.propose(requests, [row.num_drafted(chosen) for row in rows])
        proposal = self._proposer.propose(requests, limits)
        drafts = proposal.drafts()
        rows = self._outlooks(requests, proposal.counts)
        chosen = self.policy.choose(rows)
        self._drafts = {request.id: draft for request, draft in zip(requests, drafts, strict=True)}
        return Proposal.of([draft[: row.num_drafted(chosen)] for draft, row in zip(drafts, rows, strict=True)])

    def observe(self, request: Request, draft: Sequence[int], block: Sequence[int]) -> None:
        """Learn from a round: what was drafted for a row (and verified), and what the target said."""
        if self.is_auto:
            uncut = self._drafts.pop(request.id, draft)
            drafted, accepted = shown(uncut, block)
            self.policy.observe(self._tracker(request), drafted, accepted)

    def adopt(self, slot: int, source_slot: int, length: int) -> None:
        """Tell the proposer who holds a slot's first tokens; see `Proposer.adopt`."""
        if self._proposer is not None:
            self._proposer.adopt(slot, source_slot, length)

    def release(self, request: Request) -> None:
        """Forget a request; called while it has its slot."""
        self._rows.pop(request.id, None)
        self._drafts.pop(request.id, None)
        if self._proposer is not None:
            self._proposer.release(request)

    def _limit(self, request: Request) -> int:
        own = request.params.num_draft_tokens
        most = self.num_draft_tokens if own is None else min(own, self.num_draft_tokens)
        return max(0, min(most, request.num_remaining - 1))

    def _tracker(self, request: Request) -> AcceptanceTracker:
        return self._rows.setdefault(request.id, AcceptanceTracker())

    def _outlooks(self, requests: Sequence[Request], limits: Sequence[int]) -> list[RowOutlook]:
        assert self._proposer is not None
        return [
            self.policy.outlook(
                self._tracker(request),
                limit,
                is_fixed=request.params.num_draft_tokens is not None,
                lag_chunks=self._proposer.lag(request),
                num_remaining=request.num_remaining,
                is_noisy=is_noisy(request.params.temperature, request.params.top_k, request.params.top_p),
            )
            for request, limit in zip(requests, limits, strict=True)
        ]
