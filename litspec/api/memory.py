"""MemoryPlan: what a model and its draft will take of a device's memory, known before any of it is taken.

Everything follows from the two Configs and a few settings, so a load that cannot end well is refused with its numbers
and with what would fit, where it would otherwise be killed half-way. Weights count in full, even where a file is
mapped. The plan reads no weights and asks no device: what is free there is told to it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from litspec.engine.speculative import LOGITS_AT_ONCE
from litspec.model.checkpoint import PackedSize
from litspec.model.config import Config
from litspec.model.window import CHUNK_WIDTHS, MOST_TOKENS

DEFAULT_MAX_SEQ_LENGTH = 2048
LEAST_DEFAULT_MAX_SEQ_LENGTH = 256
STEP = 64  # contexts that are chosen or advised are multiples of this
RESERVE_BYTES = 256 * 2**20  # Thunder, what it traces, and what an allocator loses between its blocks
RESERVE_SHARE = 0.05
BYTES_PER_LOGIT = 80  # while a token is drawn: float64 scores, the noise and its hash (60 to 70 of them measured)
BYTES_PER_PROMPT_LOGIT = 32  # while a prompt's logprobs are taken: float64 scores and their log-softmax


@dataclass(frozen=True)
class MemoryPlan:
    """What is to be loaded, and the memory that it needs.

    Attributes:
        target: the target's shape.
        draft: the shape of a draft that is a model; None for another draft.
        dtype: of weights and caches.
        num_slots: requests that run at once.
        max_seq_length: positions of each slot; a draft has no more than its own context.
        num_draft_tokens: the most draft tokens of a round.
        device: where it all lies; for people only.
        available_bytes: what is free there before anything is loaded.
        packed, draft_packed: what of target and draft stays packed.
    """

    target: Config
    draft: Config | None
    dtype: torch.dtype
    num_slots: int
    max_seq_length: int
    num_draft_tokens: int
    device: str
    available_bytes: int
    packed: PackedSize = field(default_factory=PackedSize)
    draft_packed: PackedSize = field(default_factory=PackedSize)

    @classmethod
    def of(
        cls,
        target: Config,
        draft: Config | None,
        *,
        dtype: torch.dtype,
        num_slots: int,
        max_seq_length: int | None,
        num_draft_tokens: int,
        device: str,
        available_bytes: int,
        packed: PackedSize | None = None,
        draft_packed: PackedSize | None = None,
    ) -> MemoryPlan:
        """Plan a load.

        Args:
            max_seq_length: None is 2048, or the target's own context if that is less, halved (down to 256) while it
                does not fit or the caches would take more than half of what the weights leave.

        Raises:
            ValueError: it does not fit, or `max_seq_length` is more than the target was trained for.
        """
        if max_seq_length is not None and max_seq_length > target.block_size:
            raise ValueError(
                f"max_seq_length was {max_seq_length}; {target.name} was trained for {target.block_size} positions, so "
                f"allowed: 2 to {target.block_size}"
            )
        context = max_seq_length or usual_max_seq_length(target)
        sizes = (packed or PackedSize(), draft_packed or PackedSize())
        plan = cls(target, draft, dtype, num_slots, context, num_draft_tokens, device, available_bytes, *sizes)
        while max_seq_length is None and plan._takes_too_much and plan.max_seq_length > LEAST_DEFAULT_MAX_SEQ_LENGTH:
            halved = plan.max_seq_length // 2 // STEP * STEP
            plan = replace(plan, max_seq_length=max(halved, LEAST_DEFAULT_MAX_SEQ_LENGTH))
        if not plan.fits:
            raise ValueError(plan._refusal())
        return plan

    @property
    def weight_bytes(self) -> int:
        """The target's weights and its RoPE tables."""
        return _weight_bytes(self.target, self.packed, self.dtype, self.max_seq_length)

    @property
    def cache_bytes(self) -> int:
        """The target's keys and values."""
        return self._cache_bytes(self.target)

    @property
    def draft_weight_bytes(self) -> int:
        """The draft's weights and its RoPE tables; 0 without a draft that is a model."""
        if self.draft is None:
            return 0
        return _weight_bytes(self.draft, self.draft_packed, self.dtype, self._context(self.draft))

    @property
    def draft_cache_bytes(self) -> int:
        """The draft's keys and values."""
        return 0 if self.draft is None else self._cache_bytes(self.draft)

    @property
    def working_bytes(self) -> int:
        """What a step needs beside weights and caches, at its widest, and a reserve."""
        models = [self.target] if self.draft is None else [self.target, self.draft]
        widest = max(max(self._chunk_bytes(model), self._logits_bytes(model)) for model in models)
        return widest + max(RESERVE_BYTES, math.ceil(RESERVE_SHARE * self.available_bytes))

    @property
    def needed_bytes(self) -> int:
        """All of it together."""
        return (
            self.weight_bytes + self.cache_bytes + self.draft_weight_bytes + self.draft_cache_bytes + self.working_bytes
        )

    @property
    def fits(self) -> bool:
        """Whether it is no more than what is free."""
        return self.needed_bytes <= self.available_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, in bytes."""
        names = ("weight", "cache", "draft_weight", "draft_cache", "working", "available")
        return {f"{name}_bytes": getattr(self, f"{name}_bytes") for name in names}

    def __str__(self) -> str:
        parts = [f"target {readable(self.weight_bytes)} weights and {readable(self.cache_bytes)} cache"]
        if self.draft is not None:
            parts.append(
                f"draft {readable(self.draft_weight_bytes)} weights and {readable(self.draft_cache_bytes)} cache"
            )
        return f"{' + '.join(parts)}, of {readable(self.available_bytes)} free"

    @property
    def _takes_too_much(self) -> bool:
        caches = self.cache_bytes + self.draft_cache_bytes
        left = self.available_bytes - self.weight_bytes - self.draft_weight_bytes
        return not self.fits or 2 * caches > left

    def _context(self, model: Config) -> int:
        return min(self.max_seq_length, model.block_size)

    def _cache_bytes(self, model: Config) -> int:
        """Bytes of a KVCache: keys and values of every slot and of the scratch one."""
        per_token = 2 * model.n_layer * model.n_query_groups * model.head_size * self.dtype.itemsize
        return (self.num_slots + 1) * self._context(model) * per_token

    def _chunk_bytes(self, model: Config) -> int:
        """Bytes that one layer handles while the most tokens are fed: of prompts, or of the widest windows."""
        size, of_prompts = self.dtype.itemsize, min(self.num_slots * CHUNK_WIDTHS[-1], MOST_TOKENS)
        tokens = max(of_prompts, self.num_slots * (self.num_draft_tokens + 1))
        heads = model.n_head + 2 * model.n_query_groups
        activations = 4 * model.n_embd + 3 * heads * model.head_size + 4 * model.intermediate_size
        # The rows' keys and values as one tensor, and the mask that attention widens to numbers.
        gathered = 2 * self.num_slots * model.n_query_groups * self._context(model) * model.head_size * size
        mask = tokens * (model.n_head // model.n_query_groups) * self._context(model) * (1 + size)
        return tokens * activations * size + gathered + mask

    def _logits_bytes(self, model: Config) -> int:
        """Bytes while the tokens of the widest window are drawn for all rows, or logprobs of a prompt are taken."""
        window = self.num_slots * (self.num_draft_tokens + 1)
        return model.vocab_size * max(window * BYTES_PER_LOGIT, LOGITS_AT_ONCE * BYTES_PER_PROMPT_LOGIT)

    def _refusal(self) -> str:
        slots = f"{self.num_slots} slots and one for padding" if self.num_slots > 1 else "one slot and one for padding"
        needs = [
            f"target {self.target.name} {readable(self.weight_bytes)} of weights and {readable(self.cache_bytes)} of "
            f"cache ({slots}, {self.max_seq_length} tokens each)"
        ]
        if self.draft is not None:
            needs.append(
                f"draft {self.draft.name} {readable(self.draft_weight_bytes)} of weights and "
                f"{readable(self.draft_cache_bytes)} of cache"
            )
        needs.append(f"{readable(self.working_bytes)} to work in")
        return (
            f"the memory does not suffice: {', '.join(needs)}; together {readable(self.needed_bytes)}, and "
            f"{self.device} has {readable(self.available_bytes)} free. {self._advice()}"
        )

    def _advice(self) -> str:
        """Say what would fit, one setting changed at a time, then both."""
        fitting: list[str] = []
        slots = self._most(self.num_slots - 1, lambda n: replace(self, num_slots=n))
        steps = self._most((self.max_seq_length - 1) // STEP, self._with_steps)
        if slots:
            fitting.append(f"max_batch_size {slots} with max_seq_length {self.max_seq_length}")
        if steps:
            fitting.append(f"max_seq_length {steps * STEP} with max_batch_size {self.num_slots}")
        if not fitting:
            single = replace(self, num_slots=1)
            steps = single._most((self.max_seq_length - 1) // STEP, single._with_steps)
            if steps:
                fitting.append(f"max_batch_size 1 with max_seq_length {steps * STEP}")
        narrower = ", or dtype bfloat16" if self.dtype.itemsize > 2 else ""
        if fitting:
            return f"At most {', or '.join(fitting)}, would fit; or take a smaller model{narrower}"
        return f"No number of slots fits: take a smaller model{narrower}, or free memory"

    def _with_steps(self, steps: int) -> MemoryPlan:
        return replace(self, max_seq_length=steps * STEP)

    @staticmethod
    def _most(highest: int, plan_of: Callable[[int], MemoryPlan]) -> int:
        """Return the highest number from 1 on whose plan fits, 0 if none does; a larger number never needs less."""
        fits, too_many = 0, highest + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if plan_of(middle).fits else (fits, middle)
        return fits


def usual_max_seq_length(target: Config) -> int:
    """Return the context that a model gets where memory is no question."""
    return min(target.block_size, DEFAULT_MAX_SEQ_LENGTH)


def readable(num_bytes: int) -> str:
    """Return a number of bytes in MiB, or in GiB from 10 of them on."""
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes < 10 * 2**30 else f"{num_bytes / 2**30:.1f} GiB"


def _weight_bytes(model: Config, packed: PackedSize, dtype: torch.dtype, context: int) -> int:
    wide = torch.promote_types(dtype, torch.float32).itemsize
    plain = (_num_parameters(model) - packed.numbers) * dtype.itemsize
    return plain + packed.num_bytes + 2 * context * model.head_size * wide


@functools.cache
def _num_parameters(model: Config) -> int:
    return sum(math.prod(shape) for shape in model.parameter_shapes().values())
