"""Proposer: what guesses the next tokens of a request, behind one small interface.

A proposer may be anything, for its guesses never change the text: the target keeps a draft token iff it would have
drawn it itself. It is asked once a round for all rows, may give each row fewer tokens than allowed or none, and is
told when a request ends. It reads requests and never writes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from litspec.kvcache import KVCache
from litspec.model.edits import RowEdits


class SamplingFields(Protocol):
    """The sampling parameters that choose a token."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...


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
    @property
    def noise_seed(self) -> int: ...
    @property
    def edits(self) -> RowEdits | None: ...


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

    def drafts(self) -> list[list[int]]:
        """Return each row's draft tokens; on a GPU the host waits for them."""
        return [draft[:count] for draft, count in zip(self.tokens_BG.tolist(), self.counts, strict=True)]


class DraftCost(NamedTuple):
    """What drafting costs a batch, in seconds: its first token, each further one, and a chunk that catches up."""

    first_s: float = 0.0
    step_s: float = 0.0
    chunk_s: float = 0.0


class Proposer(ABC):
    """Guesses the next tokens of every row.

    Attributes:
        is_free: proposing costs next to nothing, so it may be asked before the width of a round is chosen, and what
            it gave be cut to that width.
    """

    is_free = False

    @abstractmethod
    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> Proposal:
        """Return up to `limits[b]` draft tokens for row b, the first one for the position after its last token.

        Called in every round with every decoding row, also where all limits are 0: it is how a proposer with a cache
        learns which of its last guesses were right.
        """

    def twin(self, cache: KVCache) -> Proposer:
        """Return a proposer like this one that knows no request yet, for another engine of the same target.

        Args:
            cache: that engine's.

        Raises:
            NotImplementedError: it has none; then its engine has no twin either, and serves all the same.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method twin, which makes one for another engine")

    def adopt(self, slot: int, source_slot: int, length: int) -> None:
        """Take note that of what `slot` holds only the first `length` tokens count, those that `source_slot` holds.

        A proposer with a cache keeps (or copies) as much of them as it has, and forgets the rest. Called when a slot
        is given to a request, when that takes over another one's prefix, and when it is given back.
        """

    def release(self, row: DraftRow) -> None:
        """Forget a request; called once, before its slot is given back. What its slot holds stays."""

    def lag(self, row: DraftRow) -> int:
        """Return how many chunks must be fed before the row can be drafted for."""
        return 0

    def measure(self, num_rows: int) -> DraftCost:
        """Time drafting for a bucket of so many rows on the scratch slot; nothing that is cached changes."""
        return DraftCost()

    def warm_up(self) -> None:
        """Meet every shape once, so that nothing is compiled while serving."""
