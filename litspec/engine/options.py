"""EngineOptions: how the engine treats its requests, as a frozen and checked value; and how far a draft may go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Batching = Literal["continuous", "fixed"]

MAX_DRAFT_TOKENS = 64
MAX_AUTO_DRAFT_TOKENS = 7  # where the engine chooses for itself


@dataclass(frozen=True)
class EngineOptions:
    """The engine's switches and limits.

    Args:
        prefix_reuse: start a request from what a slot's cache already holds of its prompt.
        batching: "continuous" admits a request to any free slot between any two steps; "fixed" admits a group only
            when the last one has ended.
        max_waiting: requests that may wait beyond those that a free slot will take; None for no bound.
        queue_timeout_s: seconds that a request may wait for a slot; None for no limit.
        generate_timeout_s: seconds that a request may run from its admission; None for no limit.

    Raises:
        ValueError: a value is not allowed; the message says what was given and what is.
    """

    prefix_reuse: bool = True
    batching: Batching = "continuous"
    max_waiting: int | None = None
    queue_timeout_s: float | None = None
    generate_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.batching not in ("continuous", "fixed"):
            raise ValueError(f'batching was {self.batching!r}; allowed: "continuous" or "fixed"')
        if not isinstance(self.prefix_reuse, bool):
            raise ValueError(f"prefix_reuse was {self.prefix_reuse!r}; allowed: True or False")
        if self.max_waiting is not None and not (type(self.max_waiting) is int and self.max_waiting >= 0):
            raise ValueError(f"max_waiting was {self.max_waiting!r}; allowed: an integer from 0, or None for no bound")
        for name in ("queue_timeout_s", "generate_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and value > 0):
                raise ValueError(f"{name} was {value!r}; allowed: seconds above 0, or None for no limit")
