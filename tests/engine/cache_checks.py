"""What the caches of an engine must hold between two steps, and garbage for all that nobody may look at.

The rule is one for running and for free slots, for the target's cache and for a draft's: what a slot claims to hold is
what feeding its text from scratch writes; everything else may be anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from litspec.draft import ModelProposer
from litspec.engine.engine import Engine
from litspec.kvcache import KVCache
from litspec.model.gpt import GPT

GARBAGE = 1e6
"""Large and finite, and not NaN: here a mask does the work, and 0 x NaN is NaN."""


def claimed_texts(engine: Engine) -> list[list[int]]:
    """Return for every slot the tokens whose keys and values the target's cache claims to hold."""
    running = engine.scheduler.by_slot
    return [
        running[slot].tokens[: running[slot].length] if slot in running else engine.prefixes.held(slot)
        for slot in range(engine.cache.num_slots)
    ]


def drafted_texts(engine: Engine) -> list[list[int]]:
    """Return likewise what the cache of a draft model claims; a pending token is not in it, nor a draft token."""
    assert isinstance(engine.proposer, ModelProposer)
    running = engine.scheduler.by_slot
    texts = claimed_texts(engine)
    for slot, request in running.items():
        texts[slot] = request.tokens[:-1]
    return [text[:length] for text, length in zip(texts, engine.proposer.lengths, strict=True)]


def assert_caches_are_right(engine: Engine) -> None:
    """Assert that between two steps the caches of target and draft model hold what they claim."""
    _assert_holds(engine.cache, claimed_texts(engine), engine.target.gpt)
    if isinstance(engine.proposer, ModelProposer):
        _assert_holds(engine.proposer.cache, drafted_texts(engine), engine.proposer.model.gpt)


def _assert_holds(cache: KVCache, texts: list[list[int]], gpt: GPT) -> None:
    longest = max(map(len, texts))
    if not longest:
        return
    fresh = gpt.new_cache(len(texts))
    with torch.inference_mode():  # what stands behind a text does not reach back into it
        gpt(torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts]), cache=fresh)
    for mine, theirs in zip((*cache.k, *cache.v), (*fresh.k, *fresh.v), strict=True):
        for slot, text in enumerate(texts):
            held, wanted = mine[slot, :, : len(text)], theirs[slot, :, : len(text)]
            assert bool(((held - wanted).abs() <= 1e-9).all()), f"slot {slot} does not hold {text}"


class Poison:
    """Fills every entry that no row may look at, before each forward; `Spy`s call it.

    Attributes:
        engine: whose caches they are.
        num_kept: entries of free slots that were left alone, over all calls.
    """

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.num_kept = 0

    def target(self, cache: KVCache, input_pos: Tensor, slots: Tensor) -> None:
        """Fill the target's cache."""
        assert self.engine is not None
        self._fill(cache, input_pos, slots, [len(text) for text in claimed_texts(self.engine)])

    def draft(self, cache: KVCache, input_pos: Tensor, slots: Tensor) -> None:
        """Fill the cache of a draft model; a slot that drafts holds its draft tokens as well."""
        assert self.engine is not None and isinstance(self.engine.proposer, ModelProposer)
        self._fill(cache, input_pos, slots, [len(text) for text in drafted_texts(self.engine)])

    def _fill(self, cache: KVCache, input_pos: Tensor, slots: Tensor, lengths: list[int]) -> None:
        starts = dict(zip(slots.tolist(), input_pos[:, 0].tolist(), strict=True))
        for slot in range(cache.num_slots + 1):
            is_scratch = slot == cache.scratch_slot
            valid = 0 if is_scratch else starts.get(slot, lengths[slot] if slot < len(lengths) else 0)
            self.num_kept += 0 if is_scratch or slot in starts else valid
            for layer, (k, v) in enumerate(zip(cache.k, cache.v, strict=True)):
                k[slot, :, valid:] = GARBAGE * (-1) ** layer
                v[slot, :, valid:] = GARBAGE
