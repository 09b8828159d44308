"""KVCache: keys and values of every layer, addressed by absolute position.

Each layer has two tensors (slots + 1, groups, max_seq_length, head_size); the last row is the scratch slot, which
padding rows of a batch write to. Nothing is ever cropped: continuing from a smaller length overwrites what lies above
it, and what lies above a row's length is never visible. A prefix that two requests share may be copied from slot to
slot. The cache does not know which request owns a slot.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Preallocated keys and values for a number of slots.

    Args:
        n_layer: layers.
        num_slots: slots that requests can own; one scratch slot is added.
        n_query_groups: key/value groups K.
        max_seq_length: positions of each slot.
        head_size: D.
        dtype: of keys and values.
        device: where they lie.

    Attributes:
        k: a (S, K, M, D) tensor per layer, S = num_slots + 1.
        v: likewise.
        fed_S: int64, one past the position fed last to each slot. A convenience for callers that feed a slot token
            after token and give no positions; an engine keeps its own lengths.
    """

    def __init__(
        self,
        *,
        n_layer: int,
        num_slots: int,
        n_query_groups: int,
        max_seq_length: int,
        head_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_slots + 1, n_query_groups, max_seq_length, head_size)
        self.k = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(n_layer)]
        self.v = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(n_layer)]
        self.fed_S = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self.max_seq_length = max_seq_length

    @property
    def num_slots(self) -> int:
        """Slots that requests can own."""
        return self.k[0].shape[0] - 1

    @property
    def scratch_slot(self) -> int:
        """The row that padding writes to."""
        return self.num_slots

    @property
    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.k, *self.v))

    def next_positions(self, slots_B: Tensor, num_tokens: int) -> Tensor:
        """Return the positions (B, num_tokens) that follow what each slot was fed last."""
        return self.fed_S[slots_B][:, None] + torch.arange(num_tokens, device=slots_B.device)

    def note_fed(self, slots_B: Tensor, input_pos_BT: Tensor) -> None:
        """Remember that these positions were fed."""
        self.fed_S[slots_B] = input_pos_BT.amax(-1) + 1

    def rewind(self, slot: int, length: int = 0) -> None:
        """Continue a slot from a length; the stale entries above it stay, masked, until they are overwritten.

        float16 overflows easily, and an infinity that a mask hides still makes 0 · inf = NaN: there they are cleared.
        """
        self.fed_S[slot] = length
        if self.k[0].dtype == torch.float16:
            for tensor in (*self.k, *self.v):
                tensor[slot, :, length:].zero_()

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another, and continue that one from there."""
        assert 0 <= length <= self.max_seq_length, f"{length} positions of {self.max_seq_length}"
        self.rewind(target, length)
        for tensor in (*self.k, *self.v):
            tensor[target, :, :length] = tensor[source, :, :length]
