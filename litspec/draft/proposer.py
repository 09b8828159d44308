"""Proposer: what guesses the next tokens of a request, behind one small interface.

A proposer may be anything, for its guesses never change the text: the target keeps a draft token iff it would have
drawn it itself. It is asked once a round for all rows, may give each row fewer tokens than allowed or none, and is
told when a request ends. It reads requests and never writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class SamplingFields(Protocol):
    """The sampling parameters that choose a token."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float: ...
    @property
    def seed(self) -> int | None: ...


class DraftRow(Protocol):
    """What a proposer may know of a request; the last of `tokens` is pending: emitted, not yet cached."""

    @property
    def id(self) -> str: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def slot(self) -> int | None: ...
    @property
    def params(self) -> SamplingFields: ...


@dataclass(frozen=True)
class Proposal:
    """Draft tokens for some rows.

    Attributes:
        tokens_BG: int64; entries from `counts[b]` on are padding.
        counts: how many draft tokens each row has.
    """

    tokens_BG: Tensor
    counts: list[int]

    @classmethod
    def of(cls, drafts: Sequence[Sequence[int]]) -> Proposal:
        """Make a proposal from a list of draft tokens per row."""
        width = max((len(draft) for draft in drafts), default=0)
        padded = [[*draft, *[0] * (width - len(draft))] for draft in drafts]
        tokens_BG = torch.tensor(padded, dtype=torch.int64).reshape(len(drafts), width)
        return cls(tokens_BG, [len(draft) for draft in drafts])


class Proposer(Protocol):
    """Guesses the next tokens of every row."""

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> Proposal:
        """Return up to `limits[b]` draft tokens for row b, the first one for the position after its last token.

        Called once a round with every decoding row, also those whose limit is 0: what a proposer keeps of a request
        it brings up to date here.
        """
        ...

    def release(self, row: DraftRow) -> None:
        """Forget a request; called once, before its slot is given away."""
        ...

    def warm_up(self) -> None:
        """Meet every shape once, so that nothing is compiled while serving."""
        ...
