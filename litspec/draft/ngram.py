"""NgramProposer: prompt lookup. What followed the last few tokens before is likely to follow them again.

The longest n-gram at the end of a request's tokens that occurred earlier wins, and of its occurrences the most recent.
Each request has an index from n-gram to where it was last continued, which grows with the tokens; a lookup costs a few
dictionary reads at any length. (The idea: Saxena, "Prompt Lookup Decoding", 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence

from litspec.draft.proposer import DraftRow, Proposal, Proposer
from litspec.kvcache import KVCache


class NgramIndex:
    """Where each n-gram of a growing list of tokens was last continued.

    Args:
        min_n: the shortest n-gram.
        max_n: the longest.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self._continued_at: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens up to now; those of earlier calls are a prefix of them and are not read again."""
        for end in range(self._num_indexed + 1, len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._continued_at[tuple(tokens[end - n : end])] = end
        self._num_indexed = max(self._num_indexed, len(tokens) - 1)

    def continuation(self, tokens: Sequence[int], num_tokens: int) -> list[int]:
        """Return what followed the end of `tokens` before, `num_tokens` of it, or nothing.

        A continuation that runs into the end goes on with itself, as a loop would.
        """
        for n in self._sizes:
            if n < len(tokens):
                start = self._continued_at.get(tuple(tokens[-n:]))
                if start is not None:
                    period = len(tokens) - start
                    return [tokens[start + i % period] for i in range(num_tokens)]
        return []


class NgramProposer(Proposer):
    """Proposes by prompt lookup.

    Args:
        min_n: the shortest n-gram that counts as a match.
        max_n: the longest that is looked up.
    """

    is_free = True

    def __init__(self, *, min_n: int = 2, max_n: int = 5) -> None:
        if not 1 <= min_n <= max_n:
            raise ValueError(f"min_n was {min_n} and max_n {max_n}; needed: 1 <= min_n <= max_n")
        self.min_n, self.max_n = min_n, max_n
        self._indexes: dict[str, NgramIndex] = {}

    @property
    def num_requests(self) -> int:
        """Requests that have an index."""
        return len(self._indexes)

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> Proposal:
        """Return what followed each row's last tokens before; see `Proposer.propose`."""
        drafts = []
        for row, limit in zip(rows, limits, strict=True):
            index = self._indexes.setdefault(row.id, NgramIndex(self.min_n, self.max_n))
            index.extend(row.tokens)
            drafts.append(index.continuation(row.tokens, limit) if limit > 0 else [])
        return Proposal.of(drafts)

    def twin(self, cache: KVCache) -> NgramProposer:
        """Return one without requests; see `Proposer.twin`."""
        return NgramProposer(min_n=self.min_n, max_n=self.max_n)

    def release(self, row: DraftRow) -> None:
        """Drop a request's index."""
        self._indexes.pop(row.id, None)

    def warm_up(self) -> None:
        """Nothing is compiled here."""
