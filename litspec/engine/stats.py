"""What is counted about a request, under the names that the field uses for it.

Only emitted tokens count: a draft token behind a stop is neither emitted nor accepted. All times are seconds of the
monotonic clock. Derived figures are properties, so that they cannot disagree with the counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RequestStats:
    """Counters of one request and what follows from them; a figure without a value is None.

    `cached_tokens` are tokens of the prompt that a slot's cache already held.
    """

    emitted: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_counts: list[int] = field(default_factory=list)
    emitted_by_rounds: int = 0
    rows_total: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    queue_s: float | None = None
    cached_tokens: int = 0
    ttft_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    def count_round(self, *, drafted: int, accepted: int, emitted: int, rows: int) -> None:
        """Count one round in which this row drafted, accepted and emitted so many tokens, among `rows` rows."""
        assert 0 <= accepted <= drafted and accepted <= emitted <= accepted + 1
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.emitted_by_rounds += emitted
        self.rows_total += rows
        missing = drafted - len(self.drafted_per_position)
        if missing > 0:
            self.drafted_per_position += [0] * missing
            self.accepted_counts += [0] * missing
        for position in range(drafted):
            self.drafted_per_position[position] += 1
            self.accepted_counts[position] += position < accepted

    def count_tokens(self, num_tokens: int, now_s: float, *, arrival_s: float) -> None:
        """Count tokens that were emitted, and note the moment."""
        self.emitted += num_tokens
        if self.first_token_s is None:
            self.first_token_s = now_s
            self.ttft_s = now_s - arrival_s
        self.last_token_s = now_s

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None with nothing drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted by rounds over rounds, bonus included; None before the first round."""
        return self.emitted_by_rounds / self.rounds if self.rounds else None

    @property
    def accepted_per_position(self) -> list[float]:
        """For each draft position, the share of rounds drafting that far which accepted it."""
        return [a / d for a, d in zip(self.accepted_counts, self.drafted_per_position, strict=True)]

    @property
    def batch_rows(self) -> float | None:
        """Mean number of rows in this request's rounds."""
        return self.rows_total / self.rounds if self.rounds else None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None with fewer than two tokens."""
        if self.first_token_s is None or self.last_token_s is None or self.emitted < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.emitted - 1)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first over the seconds from the first to the last; None where no time passed between."""
        if self.first_token_s is None or self.last_token_s is None or self.last_token_s <= self.first_token_s:
            return None
        return (self.emitted - 1) / (self.last_token_s - self.first_token_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures that users see, under their public names."""
        return {name: getattr(self, name) for name in _PUBLIC}


_PUBLIC = (
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "acceptance_length",
    "accepted_per_position",
    "ttft_s",
    "tpot_s",
    "decode_tokens_per_s",
    "draft_s",
    "target_s",
    "queue_s",
    "cached_tokens",
    "batch_rows",
)
