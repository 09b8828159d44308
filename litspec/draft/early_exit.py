"""EarlyExitProposer: the target's first N layers and its head, as a draft.

It has no weights and no cache of its own: it writes the first N layers of the target's cache rows at the positions that
the verification right after it writes again, with the same values where a draft token is right. It never lags, for the
target's cache is always up to date. With all layers it is the target itself, and every token is accepted.
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
from litspec.model.config import Config
from litspec.model.window import Shapes, pack_window


class EarlyExitProposer(Proposer):
    """Proposes with part of the target.

    Args:
        model: the target.
        cache: the target's cache.
        num_layers: how many of its layers, from 1 to all.
        shapes: the row buckets to feed.

    Raises:
        ValueError: for a number of layers that the target does not have.
    """

    def __init__(self, model: CompiledGPT, cache: KVCache, *, num_layers: int, shapes: Shapes) -> None:
        check_num_layers(model.config, num_layers)
        self._model, self._cache, self._num_layers, self._shapes = model, cache, num_layers, shapes

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> Proposal:
        """Draft with the first layers; see `Proposer.propose`. `limits` keep a row inside the target's context."""
        counts = [max(0, limit) for limit in limits]
        most = max(counts, default=0)
        device = self._model.device
        tokens_BG = torch.zeros(len(rows), most, dtype=torch.int64, device=device)
        drafting = [i for i, count in enumerate(counts) if count > 0]
        if drafting:
            chosen = [rows[i] for i in drafting]
            drafted = self._draft(chosen, [counts[i] for i in drafting], most, self._shapes.row_bucket(len(chosen)))
            tokens_BG[drafting] = drafted[: len(drafting)]
        return Proposal(tokens_BG, counts)

    def twin(self, cache: KVCache) -> EarlyExitProposer:
        """Return one that writes another cache of the target; see `Proposer.twin`."""
        return EarlyExitProposer(self._model, cache, num_layers=self._num_layers, shapes=self._shapes)

    def warm_up(self) -> None:
        """The target's own steps of width 1 are all that is fed here."""

    def measure(self, num_rows: int) -> DraftCost:
        """Time drafts on the scratch slot; see `Proposer.measure`."""
        return drafting_cost(lambda num_draft_tokens: self._draft([], [], num_draft_tokens, num_rows))

    def _draft(self, rows: Sequence[DraftRow], counts: Sequence[int], num_draft_tokens: int, num_rows: int) -> Tensor:
        missing = num_rows - len(rows)
        device = self._model.device
        first_logits_BV, pending_B, slots_B = self._feed_last(rows, num_rows)

        def feed(idx_B1: Tensor, input_pos_B1: Tensor) -> Tensor:
            return self._logits(idx_B1, input_pos_B1, slots_B)

        return draft_tokens(
            feed,
            first_logits_BV,
            pending_B,
            torch.tensor([*(len(row.tokens) for row in rows), *[1] * missing], device=device),
            torch.tensor([*counts, *[1] * missing], device=device),
            num_draft_tokens,
            sampling_of(rows, num_rows, device=device),
        )

    def _feed_last(self, rows: Sequence[DraftRow], num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        window = pack_window(
            [row.tokens[-1:] for row in rows],
            [len(row.tokens) - 1 for row in rows],
            [slot_of(row) for row in rows],
            rows=num_rows,
            width=1,
            scratch_slot=self._cache.scratch_slot,
            device=self._model.device,
        )
        logits_BV = self._logits(window.idx_BT, window.input_pos_BT, window.slots_B)
        return logits_BV, window.idx_BT[:, 0], window.slots_B

    def _logits(self, idx_B1: Tensor, input_pos_B1: Tensor, slots_B: Tensor) -> Tensor:
        hidden_B1C = self._model.hidden(
            idx_B1, input_pos_B1, cache=self._cache, slots=slots_B, num_layers=self._num_layers
        )
        return self._model.logits(hidden_B1C[:, -1])


def check_num_layers(config: Config, num_layers: int) -> None:
    """Raise ValueError unless a target of this config has so many layers."""
    if not 1 <= num_layers <= config.n_layer:
        raise ValueError(
            f"draft was early-exit:{num_layers}; {config.name} allows early-exit:1 to early-exit:{config.n_layer}"
        )
