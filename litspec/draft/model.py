"""ModelProposer: a smaller GPT that shares the target's tokenizer, with a cache of its own.

For every slot `lengths` says how many of its request's tokens the draft's cache holds. After full acceptance the
cache lacks the draft's own last token, so the first step of a round always feeds the last two tokens: the shape stays
fixed and no row needs a branch. A row that lags further behind (its prompt, rounds without the draft) is caught up by
a chunk a round, and drafted for after that. Rows that no longer fit the draft's context are not drafted for; the
others are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from litspec.draft.proposer import DraftCost, DraftRow, Proposal, Proposer
from litspec.draft.steps import draft_tokens, sampling_of, slot_of
from litspec.draft.timing import drafting_cost
from litspec.kvcache import KVCache
from litspec.model.compile import CompiledGPT
from litspec.model.window import Shapes, pack_window

CATCH_UP_TOKENS = 256  # the most that a round waits for, padding included


class ModelProposer(Proposer):
    """Proposes with a model.

    Args:
        model: the draft.
        num_slots: slots of the target's cache; the draft's has the same.
        shapes: the row buckets and chunk widths to feed.
        vocab_size: the target's; the draft's logits beyond it (padding) are not looked at.
    """

    def __init__(self, model: CompiledGPT, *, num_slots: int, shapes: Shapes, vocab_size: int) -> None:
        self.model = model
        self.cache = model.new_cache(num_slots)
        self.lengths = [0] * num_slots
        self._shapes = Shapes(shapes.row_buckets, (1, 2), shapes.chunk_widths)
        self._vocab_size = min(vocab_size, model.config.vocab_size)

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> Proposal:
        """Draft with the model; see `Proposer.propose`."""
        for row in rows:  # what the last round fed beyond the accepted tokens is stale
            self.lengths[slot_of(row)] = min(self.lengths[slot_of(row)], len(row.tokens) - 1)
        room = self.model.max_seq_length + 1
        counts = [max(0, min(limit, room - len(row.tokens))) for row, limit in zip(rows, limits, strict=True)]
        self._catch_up([row for row, count in zip(rows, counts, strict=True) if count > 0])
        counts = [count if self._lag(row) <= 2 else 0 for row, count in zip(rows, counts, strict=True)]
        drafting = [i for i, count in enumerate(counts) if count > 0]
        most = max(counts, default=0)
        tokens_BG = torch.zeros(len(rows), most, dtype=torch.int64, device=self.model.device)
        if drafting:
            chosen = [rows[i] for i in drafting]
            drafted = self._draft(chosen, [counts[i] for i in drafting], most, self._shapes.row_bucket(len(chosen)))
            tokens_BG[drafting] = drafted[: len(drafting)]
        return Proposal(tokens_BG, counts)

    def adopt(self, slot: int, source_slot: int, length: int) -> None:
        """Keep or copy what the draft's cache holds of a slot's first tokens; see `Proposer.adopt`."""
        length = min(self.lengths[source_slot], length)
        if slot == source_slot:
            self.cache.rewind(slot, length)
        else:
            self.cache.copy_prefix(source_slot, slot, length)
        self.lengths[slot] = length

    def twin(self, cache: KVCache) -> ModelProposer:
        """Return one with the same model and an empty cache of its own; see `Proposer.twin`."""
        shapes, slots = self._shapes, cache.num_slots
        return ModelProposer(self.model, num_slots=slots, shapes=shapes, vocab_size=self._vocab_size)

    def warm_up(self) -> None:
        """Compile every shape of the draft."""
        self.model.warm_up(self.cache, self._shapes)

    def _catch_up(self, rows: Sequence[DraftRow]) -> None:
        """Feed one chunk to the rows that lack more than two tokens: a long prompt must not hold up the others."""
        behind = [row for row in rows if self._lag(row) > 2][: self._shapes.chunk_rows(CATCH_UP_TOKENS)]
        if not behind:
            return
        most = CATCH_UP_TOKENS // self._shapes.row_bucket(len(behind))
        width = self._shapes.chunk_width(max(self._lag(row) - 2 for row in behind), most=most)
        starts = [self.lengths[slot_of(row)] for row in behind]
        runs = [
            row.tokens[start : min(start + width, len(row.tokens) - 2)]
            for row, start in zip(behind, starts, strict=True)
        ]
        self._feed(behind, runs, starts, num_rows=self._shapes.row_bucket(len(behind)), width=width)
        for row, run in zip(behind, runs, strict=True):
            self.lengths[slot_of(row)] += len(run)

    def _lag(self, row: DraftRow) -> int:
        return len(row.tokens) - self.lengths[slot_of(row)]

    def lag(self, row: DraftRow) -> int:
        """Return the chunks, of the narrowest width, that the row lacks; a wider one takes several at once."""
        return max(0, -(-(self._lag(row) - 2) // self._shapes.chunk_widths[0]))

    def measure(self, num_rows: int) -> DraftCost:
        """Time drafts and the narrowest chunk on the scratch slot; see `Proposer.measure`."""
        width = self._shapes.chunk_widths[0]
        return drafting_cost(
            lambda num_draft_tokens: self._draft([], [], num_draft_tokens, num_rows),
            lambda: self._feed([], [], [], num_rows=num_rows, width=width)[0],
        )

    def _draft(self, rows: Sequence[DraftRow], counts: Sequence[int], num_draft_tokens: int, num_rows: int) -> Tensor:
        missing = num_rows - len(rows)
        device = self.model.device
        starts = [max(0, len(row.tokens) - 2) for row in rows]
        runs = [row.tokens[start:] for row, start in zip(rows, starts, strict=True)]
        hidden_B2C, slots_B = self._feed(rows, runs, starts, num_rows=num_rows, width=2)

        def feed(idx_B1: Tensor, input_pos_B1: Tensor) -> Tensor:
            return self._logits(self._hidden(idx_B1, input_pos_B1, slots_B)[:, -1])

        drafted_BG = draft_tokens(
            feed,
            self._logits(hidden_B2C[:, -1]),
            torch.tensor([*(row.tokens[-1] for row in rows), *[0] * missing], device=device),
            torch.tensor([*(len(row.tokens) for row in rows), *[1] * missing], device=device),
            torch.tensor([*counts, *[1] * missing], device=device),
            num_draft_tokens,
            sampling_of(rows, num_rows, device=device),
        )
        for row, count in zip(rows, counts, strict=True):
            self.lengths[slot_of(row)] = len(row.tokens) + count - 1
        return drafted_BG

    def _logits(self, hidden_BC: Tensor) -> Tensor:
        return self.model.logits(hidden_BC)[..., : self._vocab_size]

    def _feed(
        self,
        rows: Sequence[DraftRow],
        runs: Sequence[Sequence[int]],
        starts: Sequence[int],
        *,
        num_rows: int,
        width: int,
    ) -> tuple[Tensor, Tensor]:
        window = pack_window(
            runs,
            starts,
            [slot_of(row) for row in rows],
            rows=num_rows,
            width=width,
            scratch_slot=self.cache.scratch_slot,
            device=self.model.device,
        )
        return self._hidden(*window), window.slots_B

    def _hidden(self, idx_BT: Tensor, input_pos_BT: Tensor, slots_B: Tensor) -> Tensor:
        """Feed tokens; an id that only the target's larger padding has is fed as the draft's last one."""
        known_BT = idx_BT.clamp(max=self.model.vocab_size - 1)
        return self.model.hidden(known_BT, input_pos_BT, cache=self.cache, slots=slots_B)
