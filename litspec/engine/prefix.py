"""PrefixCache: which tokens each slot's cache holds, and where a new request had best begin.

A slot that was given back keeps its keys and values. A prompt that begins with the same tokens need not feed them
again: it takes that slot, or has the common prefix copied from it (or from a slot that is still running) into another
one. The last token of a prompt is always fed, for its logits are wanted. Keys and values depend on nothing but the
tokens up to their position, so a reused prefix is what feeding it again would make. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from litspec.engine.request import Request

MIN_COPIED = 16  # below one small chunk of prompt a copy saves nothing


class Placement(NamedTuple):
    """Where a request begins: its slot, the slot that holds its first `length` tokens (often the same)."""

    slot: int
    source: int
    length: int


class PrefixCache:
    """Remembers what free slots hold.

    Args:
        is_enabled: without it nothing is remembered, and every request begins at 0.
    """

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._held: dict[int, list[int]] = {}

    def serves(self, request: Request) -> bool:
        """Whether a request may reuse a prefix; one that wants the logprobs of its prompt has to feed all of it."""
        return self.is_enabled and request.params.prompt_logprobs is None

    def keep(self, slot: int, tokens: list[int]) -> None:
        """Remember the tokens whose keys and values a slot holds, at positions 0, 1, …"""
        assert self.is_enabled or not tokens
        if tokens:
            self._held[slot] = tokens

    def held(self, slot: int) -> list[int]:
        """Return the tokens that a free slot holds."""
        return self._held.get(slot, [])

    def forget(self, slot: int) -> None:
        """Remember nothing of a slot: it is in use, or its cache cannot be relied on."""
        self._held.pop(slot, None)

    def place(self, request: Request, free: Sequence[int], running: Mapping[int, Request]) -> Placement:
        """Choose a slot for a request and what it reuses.

        Args:
            request: the one to be admitted.
            free: the free slots, the one given back longest ago first; at least one.
            running: the requests that own a slot, by slot.
        """
        spare = min(free, key=lambda slot: (slot in self._held, free.index(slot) if slot in self._held else slot))
        if not self.serves(request):
            return Placement(spare, spare, 0)
        common = self._common(request, free, running)
        source = max(common, key=lambda slot: (common[slot], slot == spare, slot in self._held))
        length = common[source]
        # Taking a slot destroys what it holds beyond the prefix: where that is the larger part, another is taken.
        if source == spare or (source in self._held and 2 * length >= len(self._held[source])):
            return Placement(source, source, length)
        return Placement(spare, source, length) if length >= MIN_COPIED else Placement(spare, spare, common[spare])

    def source_of(self, request: Request, free: Sequence[int], running: Mapping[int, Request]) -> tuple[int, int]:
        """Return the slot that holds the longest prefix of a running request's prompt, and that prefix's length."""
        common = self._common(request, free, running)
        source = max(common, key=lambda slot: common[slot])
        return source, common[source]

    def _common(self, request: Request, free: Sequence[int], running: Mapping[int, Request]) -> dict[int, int]:
        """Return for each slot how many of the tokens that a request may reuse it holds."""
        wanted = request.prompt_ids[:-1]
        held = {slot: self._held.get(slot, []) for slot in free}
        held |= {slot: other.tokens[: other.length] for slot, other in running.items()}
        return {slot: common_prefix(wanted, tokens) for slot, tokens in held.items()}


def leader_of(request: Request, running: Mapping[int, Request], *, beyond: int) -> tuple[Request, int] | None:
    """Return the request that is about to feed the longest prefix of this one's prompt, and that prefix's length.

    None where waiting for it would save less than a small chunk over the `beyond` tokens that are there already.
    """
    wanted = request.prompt_ids[:-1]
    feeding = [other for other in running.values() if other.is_prefilling and other is not request]
    shared = [(common_prefix(wanted, other.prompt_ids), other) for other in feeding]
    length, leader = max(shared, key=lambda pair: pair[0], default=(0, request))
    return (leader, length) if length - beyond >= MIN_COPIED else None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two lists have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high - 1:  # a[:low] is common, a[:high] is not
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
