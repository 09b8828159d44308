"""Rounds replayed from traces: how long any choice of widths would have taken, exactly and without a model.

The text never depends on drafts, so what a draft is worth at each output token can be written down once
(tests/benchmarks/record_traces.py), and a round's outcome follows for any width. Seconds come from a cost table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from litspec.draft import DraftCost
from litspec.engine.acceptance import AcceptanceTracker
from litspec.engine.costs import CostTable, smooth
from litspec.engine.options import MAX_AUTO_DRAFT_TOKENS
from litspec.engine.policy import WidthPolicy
from litspec.model.window import Shapes

FOLDER = Path(__file__).parent / "traces"
SHAPES = Shapes.plan(max_batch_size=8, num_draft_tokens=MAX_AUTO_DRAFT_TOKENS)
FIXED = range(MAX_AUTO_DRAFT_TOKENS + 1)


def load_traces(draft: str, *, temperature: float | None = None) -> list[str]:
    """Return the recorded traces of a draft, of one temperature or of all."""
    recorded = json.loads((FOLDER / "traces.json").read_text())
    return [trace[draft] for trace in recorded if temperature in (None, trace["temperature"])]


def measured_costs(*, drafts: bool) -> CostTable:
    """Return the cost table that was recorded with the traces, with or without the cost of its draft."""
    recorded = json.loads((FOLDER / "costs.json").read_text())
    pairs = {tuple(map(int, key.split("x"))): ms / 1e3 for key, ms in recorded["step_ms"].items()}
    draft = {int(rows): DraftCost(*(ms / 1e3 for ms in costs)) for rows, costs in recorded["draft_ms"].items()}
    return CostTable(smooth({(rows, width): s for (rows, width), s in pairs.items()}), draft if drafts else {})


@dataclass
class _Row:
    """A trace on its way; `position` is the output token that comes next."""

    trace: str
    position: int = 0
    tracker: AcceptanceTracker = field(default_factory=AcceptanceTracker)

    @property
    def remaining(self) -> int:
        return len(self.trace) - self.position

    def available(self, *, is_free: bool) -> int:
        has_draft = self.trace[self.position] != "." or not is_free
        return min(MAX_AUTO_DRAFT_TOKENS, self.remaining - 1) if has_draft else 0

    def right(self) -> int:
        return int(self.trace[self.position].replace(".", "0"))


@dataclass
class Replay:
    """What a replay took, and how often each G was chosen."""

    seconds: float = 0.0
    tokens: int = 0
    chosen: list[int] = field(default_factory=lambda: [0] * (MAX_AUTO_DRAFT_TOKENS + 1))

    @property
    def seconds_per_token(self) -> float:
        """Seconds of all rounds over the tokens of all rows."""
        return self.seconds / self.tokens


def replay(
    traces: Sequence[str],
    costs: CostTable,
    *,
    rows: int,
    policy: WidthPolicy | None = None,
    fixed: int = 0,
    is_free: bool = True,
    num_tokens: int | None = None,
) -> Replay:
    """Keep so many rows busy with requests until so many tokens are out, a new one as soon as a row is free.

    All rows stay busy to the end: where requests run out, how fast it goes depends on which ones are left over.

    Args:
        traces: a request each, over and over.
        costs: what rounds cost.
        rows: how many rows.
        policy: chooses G; None takes `fixed`.
        fixed: G without a policy.
        is_free: drafts are made before G is chosen.
        num_tokens: tokens to emit; None is all of the traces once.
    """
    requests, running, result = cycle([trace for trace in traces if trace]), [], Replay()
    num_tokens = num_tokens or sum(map(len, traces))
    while result.tokens < num_tokens:
        running = [row if row.remaining else _Row(next(requests)) for row in running]
        running += [_Row(next(requests)) for _ in range(rows - len(running))]
        limits = [row.available(is_free=is_free) for row in running]
        chosen = fixed
        if policy is not None:
            outlooks = [
                policy.outlook(row.tracker, limit, num_remaining=row.remaining)
                for row, limit in zip(running, limits, strict=True)
            ]
            chosen = policy.choose(outlooks)
        result.chosen[chosen] += 1
        drafted = [min(limit, chosen) for limit in limits]
        most = max(drafted)
        result.seconds += costs.round_s(SHAPES.row_bucket(rows), SHAPES.step_width(most + 1), most)
        for row, limit, verified in zip(running, limits, drafted, strict=True):
            right = row.right()
            emitted = min(right, verified) + 1
            if policy is not None:
                known = min(limit if is_free else verified, emitted)
                policy.observe(row.tracker, known, min(right, known))
            row.position += emitted
            result.tokens += emitted
    return result


def regret(traces: Sequence[str], costs: CostTable, *, rows: int, is_free: bool) -> tuple[float, int, Replay]:
    """Return how much longer a token took than with the best fixed G (0.03 is 3 %), that G, and the replay."""
    fixed = [replay(traces, costs, rows=rows, fixed=g, is_free=is_free).seconds_per_token for g in FIXED]
    best = min(FIXED, key=lambda g: fixed[g])
    by_policy = replay(traces, costs, rows=rows, policy=WidthPolicy(costs, SHAPES), is_free=is_free)
    return by_policy.seconds_per_token / fixed[best] - 1.0, best, by_policy
