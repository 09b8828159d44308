"""AcceptanceTracker: how well a row's recent drafts did, and so what the next one may be worth (RowOutlook).

Two rates say it: how often the first draft token is right, and how often each further one is, given that the one
before it was. Both are counted with a memory that fades, on top of what all rows did, from which a new row starts. A
draft that cost nothing counts as far as the round showed the truth, whether it was verified or not. There is no clock
and no chance in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ROW_MEMORY = 32.0
"""Drafts after which one of a row's weighs little."""
IDLE_ROUNDS = 4.0
"""Rounds without a draft that age what is known as much as one with a draft does."""
PRIOR_WEIGHT = 4.0
"""Drafts that what is known beforehand counts for."""
HOPE = 1.5
"""Standard errors by which a hopeful rate is above a likely one."""
LOWEST_VARIANCE = 0.04
"""Of a trial, so that a rate that was always 0 or 1 is not taken for certain."""


class Estimate(NamedTuple):
    """A probability, and the standard error of it."""

    mean: float
    error: float

    @property
    def hopeful(self) -> float:
        """What it may well be."""
        return min(1.0, self.mean + HOPE * self.error)


class FadingRate:
    """A share of successes in which older trials count less.

    Args:
        memory: trials after which one has lost most of its weight.
    """

    def __init__(self, memory: float) -> None:
        self._kept = 1.0 - 1.0 / memory
        self._successes = self._trials = 0.0

    def fade(self, age: float = 1.0) -> None:
        """Let what is known grow older."""
        kept = self._kept**age
        self._successes *= kept
        self._trials *= kept

    def count(self, successes: int, trials: int) -> None:
        """Take more trials."""
        self._successes += successes
        self._trials += trials

    def estimate(self, prior: float) -> Estimate:
        """Return the rate, where what is known beforehand counts for PRIOR_WEIGHT trials."""
        weight = self._trials + PRIOR_WEIGHT
        mean = (self._successes + PRIOR_WEIGHT * prior) / weight
        return Estimate(mean, (max(mean * (1.0 - mean), LOWEST_VARIANCE) / weight) ** 0.5)


class AcceptanceTracker:
    """What the drafts of a row did, or those of all rows.

    Args:
        memory: drafts after which an old one weighs little.
    """

    def __init__(self, memory: float = ROW_MEMORY) -> None:
        self.first = FadingRate(memory)
        self.following = FadingRate(memory)

    def observe(self, drafted: int, accepted: int) -> None:
        """Count a round.

        Args:
            drafted: the draft tokens whose truth the round showed.
            accepted: how many of them, from the first on, were right.
        """
        age = 1.0 if drafted else 1.0 / IDLE_ROUNDS
        self.first.fade(age)
        self.following.fade(age)
        if drafted:
            self.first.count(int(accepted > 0), 1)
            self.following.count(max(0, accepted - 1), min(drafted, accepted + 1) - 1)


@dataclass(frozen=True)
class RowOutlook:
    """What one row can expect of a round.

    Attributes:
        limit: the most draft tokens that it can have.
        first: probability that its first draft token is accepted.
        following: probability that a further one is, given the one before it.
        is_fixed: the limit is its own wish and is kept to; the choice is made for the others.
        lag_chunks: chunks to be fed before it can draft.
        num_remaining: tokens that it may still emit.
        is_noisy: it needs noise over the whole vocabulary, which costs at every position of the window.
    """

    limit: int
    first: Estimate
    following: Estimate
    is_fixed: bool = False
    lag_chunks: int = 0
    num_remaining: int = 64
    is_noisy: bool = False

    def num_drafted(self, num_draft_tokens: int) -> int:
        """Return the row's own draft tokens where G is chosen."""
        return self.limit if self.is_fixed else min(self.limit, num_draft_tokens)

    def expected_tokens(self, most: int) -> list[float]:
        """Return for every G from 0 to `most` the tokens that the row can expect, bonus token included."""
        return self._expected(most, self.first.mean, self.following.mean)

    def hoped_tokens(self, most: int) -> list[float]:
        """Return the same for what the two rates may well be."""
        return self._expected(most, self.first.hopeful, self.following.hopeful)

    def _expected(self, most: int, first: float, following: float) -> list[float]:
        tokens, product = [1.0], first
        for _ in range(self.limit):
            tokens.append(tokens[-1] + product)
            product *= following
        return [tokens[self.num_drafted(g)] for g in range(most + 1)]


def shown(draft: Sequence[int], block: Sequence[int]) -> tuple[int, int]:
    """Return of how many tokens of a draft the target's next tokens show the truth, and how many are right."""
    known = min(len(draft), len(block))
    return known, next((i for i in range(known) if draft[i] != block[i]), known)
