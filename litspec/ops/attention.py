"""Attention over a cache that is addressed by position.

A query at absolute position p sees the keys at positions <= p of its own slot and nothing else: stale entries above a
row's length, other rows' slots and padding are outside every mask, because the mask comes from positions and never from
token ids. `cached_attention` writes and reads in one step, so that a compiler can keep it as one opaque operation.
The plain definitions are what the kernel (ops/kernels) is compared with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from litspec.ops.index2d import index_copy_2d_
from litspec.ops.kernels import WIDEST_LANES, has_kernel

WIDEST_HEAD = 256
"""Of the attention kernel."""


def positions_mask(input_pos_BT: Tensor, num_keys: int) -> Tensor:
    """Return the bool mask (B, T, num_keys): True where the key at position m is visible, m <= input_pos[b, t]."""
    return torch.arange(num_keys, device=input_pos_BT.device) <= input_pos_BT[:, :, None]


def attention(q_BHTD: Tensor, k_BKND: Tensor, v_BKND: Tensor, mask_BTN: Tensor, *, scale: float) -> Tensor:
    """Grouped-query attention of T queries over N keys.

    The H / K query heads of a group are folded into the query length, so that each key and value is read once
    per group and never repeated in memory.

    Args:
        q_BHTD: queries; head h belongs to group h // (H / K).
        k_BKND: keys.
        v_BKND: values.
        mask_BTN: bool, True where a query may look.
        scale: factor on the scores, usually head_size ** -0.5.

    Returns:
        (B, H, T, D).
    """
    B, H, T, D = q_BHTD.shape
    K, N = k_BKND.shape[1], k_BKND.shape[2]
    heads = H // K  # of one group; Q is heads * T
    folded_q_BKQD = q_BHTD.reshape(B, K, heads * T, D)
    folded_mask_B1QN = mask_BTN[:, None, None].expand(B, 1, heads, T, N).reshape(B, 1, heads * T, N)
    y_BKQD = F.scaled_dot_product_attention(folded_q_BKQD, k_BKND, v_BKND, attn_mask=folded_mask_B1QN, scale=scale)
    return y_BKQD.reshape(B, H, T, D)


def uncached_attention(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, input_pos_BT: Tensor, scale: float) -> Tensor:
    """Attend over the fed tokens alone, each seeing those at positions up to its own; (B, T, H, D)."""
    mask_BTT = input_pos_BT[:, None, :] <= input_pos_BT[:, :, None]
    q_BHTD, k_BKTD, v_BKTD = (t.transpose(1, 2) for t in (q_BTHD, k_BTKD, v_BTKD))
    return attention(q_BHTD, k_BKTD, v_BKTD, mask_BTT, scale=scale).transpose(1, 2).contiguous()


def cached_attention(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    k_cache_SKMD: Tensor,
    v_cache_SKMD: Tensor,
    slots_B: Tensor,
    input_pos_BT: Tensor,
    scale: float,
) -> Tensor:
    """Write K and V at their positions, then attend over each row's own slot.

    In float32 on the CPU a kernel does it, whose cost follows each row's own length and whose result for a token does
    not depend on what stands beside it. What follows is said of the plain definition.

    The number of keys read is found in here, so no caller and no trace depends on it. On the CPU it is one past the
    highest position of the batch: a step's cost follows the length in use and not `max_seq_length`. On a GPU the host
    would have to wait for it, so all keys are read and the mask hides the rest.

    Args:
        q_BTHD: queries, rotated.
        k_BTKD: new keys, rotated; repeated positions in a row must carry equal values.
        v_BTKD: new values.
        k_cache_SKMD: the layer's keys, written in place.
        v_cache_SKMD: the layer's values, written in place.
        slots_B: int64 (B,), the cache row of each batch row.
        input_pos_BT: int64 (B, T), absolute positions.
        scale: factor on the scores.

    Returns:
        (B, T, H, D). The caches are changed and not returned: what reads them later is another call of this function.
    """
    if has_kernel(q_BTHD) and q_BTHD.shape[-1] % WIDEST_LANES == 0 and q_BTHD.shape[-1] <= WIDEST_HEAD:
        tensors = (q_BTHD, k_BTKD, v_BTKD, k_cache_SKMD, v_cache_SKMD, slots_B.contiguous(), input_pos_BT.contiguous())
        return torch.ops.litspec.cached_attention(*tensors, scale, "")
    return plain_cached_attention(q_BTHD, k_BTKD, v_BTKD, k_cache_SKMD, v_cache_SKMD, slots_B, input_pos_BT, scale)


def plain_cached_attention(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    k_cache_SKMD: Tensor,
    v_cache_SKMD: Tensor,
    slots_B: Tensor,
    input_pos_BT: Tensor,
    scale: float,
) -> Tensor:
    """Do what `cached_attention` does by its definition."""
    index_copy_2d_(k_cache_SKMD, 2, input_pos_BT, k_BTKD.transpose(1, 2), rows_B=slots_B)
    index_copy_2d_(v_cache_SKMD, 2, input_pos_BT, v_BTKD.transpose(1, 2), rows_B=slots_B)
    num_keys = k_cache_SKMD.shape[2] if q_BTHD.is_cuda else int(input_pos_BT.max()) + 1
    k_BKND = _slot_rows(k_cache_SKMD[:, :, :num_keys], slots_B)
    v_BKND = _slot_rows(v_cache_SKMD[:, :, :num_keys], slots_B)
    mask_BTN = positions_mask(input_pos_BT, num_keys)
    return attention(q_BTHD.transpose(1, 2), k_BKND, v_BKND, mask_BTN, scale=scale).transpose(1, 2).contiguous()


def _slot_rows(cache_SKND: Tensor, slots_B: Tensor) -> Tensor:
    """Return the rows of the slots; a view where they stand side by side, which saves a copy of every context."""
    if not cache_SKND.is_cuda:
        slots = slots_B.tolist()
        if slots == list(range(slots[0], slots[0] + len(slots))):
            return cache_SKND.narrow(0, slots[0], len(slots))
    return cache_SKND[slots_B]
