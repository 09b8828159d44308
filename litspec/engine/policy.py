"""WidthPolicy: how many draft tokens the next round may have.

A round costs the same whichever of its rows use the width, so one number is chosen for all of them: the G whose
expected tokens per second are best, by what each row's recent drafts were worth and by what rounds cost here. G = 0 is
plain decoding. Rows are averaged geometrically: each has its own text to get through, so what counts of a width is by
what factor it shortens that, and a row with good drafts, which is soon done, must not make the others slow.

What is not tried is not known, so a small share of the time goes to the G that would be best if drafts were as good as
they may well be. The choice is a pure function of what was observed, without clock or chance, and the text does not
depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from litspec.engine.acceptance import AcceptanceTracker, RowOutlook
from litspec.engine.costs import CostTable
from litspec.model.window import Shapes

PRIOR_FIRST, PRIOR_FOLLOWING = 0.7, 0.8
"""What a first draft token and a further one are taken to be worth before anything is known."""
ENGINE_MEMORY = 256.0
"""Drafts that the rates of all rows remember."""
PROBE_SHARE = 0.01
"""The share of the time that may be lost by trying what does not look best."""
FIRST_PURSE, LARGEST_PURSE = 1.0, 8.0
"""Plain rounds that may be lost so at the start, and that may be saved up."""


class Choice(NamedTuple):
    """A round's G.

    Attributes:
        num_draft_tokens: G.
        plain_rounds: what the round costs, in plain rounds of as many rows.
        loss: what it is expected to lose against the G that looks best, in the same.
    """

    num_draft_tokens: int
    plain_rounds: float
    loss: float


class WidthPolicy:
    """Chooses the width of each round of one engine, and remembers what all of its rows did.

    Args:
        costs: what rounds cost; may be replaced at any time.
        shapes: the row buckets and step widths that are fed.
    """

    def __init__(self, costs: CostTable, shapes: Shapes) -> None:
        self.costs = costs
        self._shapes = shapes
        self._all_rows = AcceptanceTracker(ENGINE_MEMORY)
        self._purse = FIRST_PURSE

    def outlook(
        self,
        row: AcceptanceTracker,
        limit: int,
        *,
        is_fixed: bool = False,
        lag_chunks: int = 0,
        num_remaining: int = 64,
        is_noisy: bool = False,
    ) -> RowOutlook:
        """Return what a row can expect of the next round; see `RowOutlook`."""
        first = self._all_rows.first.estimate(PRIOR_FIRST).mean
        following = self._all_rows.following.estimate(max(first, PRIOR_FOLLOWING)).mean
        return RowOutlook(
            limit,
            first=row.first.estimate(first),
            following=row.following.estimate(following),
            is_fixed=is_fixed,
            lag_chunks=lag_chunks,
            num_remaining=num_remaining,
            is_noisy=is_noisy,
        )

    def choose(self, rows: Sequence[RowOutlook]) -> int:
        """Return G, the most draft tokens of the next round; a row has `row.num_drafted(G)`."""
        choice = choose_width(rows, self.costs, self._shapes, purse=self._purse)
        self._purse = min(LARGEST_PURSE, self._purse + PROBE_SHARE * choice.plain_rounds - choice.loss)
        return choice.num_draft_tokens

    def observe(self, row: AcceptanceTracker, drafted: int, accepted: int) -> None:
        """Count what a round showed of a row's draft; see `AcceptanceTracker.observe`."""
        row.observe(drafted, accepted)
        self._all_rows.observe(drafted, accepted)


def choose_width(rows: Sequence[RowOutlook], costs: CostTable, shapes: Shapes, *, purse: float = 0.0) -> Choice:
    """Choose G, the most draft tokens of the next round.

    Args:
        rows: the rows that decode, at least one.
        costs: what rounds cost.
        shapes: the row buckets and step widths that can be fed.
        purse: plain rounds that may be lost to try what may well be better.
    """
    bucket = shapes.row_bucket(len(rows))
    most = max((row.limit for row in rows if not row.is_fixed), default=0)
    candidates = sorted({min(width - 1, most) for width in shapes.step_widths})
    likely = _typical([row.expected_tokens(most) for row in rows])
    seconds = {g: _round_s(rows, g, likely[g], costs, shapes, bucket) for g in candidates}
    best = max(candidates, key=lambda g: likely[g] / seconds[g])
    if purse > 0.0 and most > 0:
        hoped = _typical([row.hoped_tokens(most) for row in rows])
        losses = {
            g: seconds[g] / seconds[0] - likely[g] / likely[best] * seconds[best] / seconds[0] for g in candidates
        }
        hoped_per_s = {g: hoped[g] / seconds[g] for g in candidates if losses[g] <= purse}
        tried = max(hoped_per_s, key=hoped_per_s.__getitem__)
        if hoped_per_s[tried] > hoped[best] / seconds[best]:
            return Choice(tried, seconds[tried] / seconds[0], losses[tried])
    return Choice(best, seconds[best] / seconds[0], 0.0)


def _typical(tokens_by_row: Sequence[Sequence[float]]) -> list[float]:
    """Return for every G the geometric mean of the rows' tokens."""
    share = 1.0 / len(tokens_by_row)
    return [math.prod(tokens) ** share for tokens in zip(*tokens_by_row, strict=True)]


def _round_s(
    rows: Sequence[RowOutlook], num_draft_tokens: int, tokens: float, costs: CostTable, shapes: Shapes, bucket: int
) -> float:
    """Return what a round costs; catching up is spread over the rounds that are left to pay for it."""
    drafted = max(row.num_drafted(num_draft_tokens) for row in rows)
    width = shapes.step_width(drafted + 1)
    seconds = costs.round_s(bucket, width, drafted) + sum(row.is_noisy for row in rows) * width * costs.noise_s
    # One chunk serves all rows that lag.
    chunks = max((row.lag_chunks for row in rows if row.num_drafted(num_draft_tokens)), default=0)
    if chunks:
        num_rounds = max(1.0, sum(row.num_remaining for row in rows) / (len(rows) * tokens))
        seconds += chunks * costs.chunk_s(bucket) / num_rounds
    return seconds
