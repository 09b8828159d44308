"""Indexing with an index per batch row: the select and copy under the KV cache and the RoPE table.

torch's index_select and index_copy_ take one index for the whole tensor; a ragged batch needs one per row. These take
a 2-D index (B, T) and are single vectorised calls. They know nothing of caches, tokens or models.
"""

from __future__ import annotations

import torch
from torch import Tensor


def index_select_2d(t: Tensor, dim: int, idx: Tensor, *, rows_B: Tensor | None = None) -> Tensor:
    """Select along `dim` of `t`, with an index per batch row.

    Args:
        t: any tensor with at least one dimension; for `dim` > 0 its first dimension is the rows.
        dim: the dimension to select along; negative counts from the end.
        idx: int32 or int64 (B, T), each in [0, t.shape[dim]).
        rows_B: for `dim` > 0, int64 (B,): the row of `t` that batch row b reads (its slot); None means row b.

    Returns:
        For `dim` = 0 a plain gather of shape (B, T, *t.shape[1:]). For `dim` > 0 the shape of `t` with B rows and T
        entries along `dim`: entry (b, …, j, …) is t[rows_B[b], …, idx[b, j], …].

    Raises:
        ValueError: for an index that is not 2-D or not integer, a `dim` out of range, or rows that do not match.
        IndexError: for an index out of range (on the CPU).
    """
    dim = _checked_dim(t, dim, idx, rows_B)
    if dim == 0:
        return t[idx]
    return t.movedim(dim, 1)[_row_index(t, idx, rows_B), idx].movedim(1, dim)


def index_copy_2d_(t: Tensor, dim: int, idx: Tensor, src: Tensor, *, rows_B: Tensor | None = None) -> Tensor:
    """Copy `src` into `t` along `dim` in place, with an index per batch row, and return `t`.

    Args:
        t: the tensor to write; see `index_select_2d`.
        dim: the dimension to index; negative counts from the end.
        idx: int32 or int64 (B, T). A position that occurs twice in one row must carry equal values.
        src: what `index_select_2d(t, dim, idx, rows_B=rows_B)` would return after the copy; same dtype as `t`.
        rows_B: for `dim` > 0, the row of `t` that batch row b writes; None means row b.

    Raises:
        ValueError: as `index_select_2d`, or for a `src` whose shape or dtype does not fit.
        IndexError: for an index out of range (on the CPU).
    """
    dim = _checked_dim(t, dim, idx, rows_B)
    B, T = idx.shape
    wanted = (B, T, *t.shape[1:]) if dim == 0 else (B, *t.shape[1:dim], T, *t.shape[dim + 1 :])
    if tuple(src.shape) != wanted or src.dtype != t.dtype:
        raise ValueError(
            f"src was {tuple(src.shape)} {src.dtype}; for this t, dim and idx it must be {wanted} {t.dtype}"
        )
    if dim == 0:
        t[idx] = src
    else:
        t.movedim(dim, 1)[_row_index(t, idx, rows_B), idx] = src.movedim(dim, 1)
    return t


def index_copy_2d(t: Tensor, dim: int, idx: Tensor, src: Tensor, *, rows_B: Tensor | None = None) -> Tensor:
    """Return a copy of `t` with `src` copied into it; arguments and errors of `index_copy_2d_`."""
    return index_copy_2d_(t.clone(), dim, idx, src, rows_B=rows_B)


def _row_index(t: Tensor, idx: Tensor, rows_B: Tensor | None) -> Tensor:
    rows = torch.arange(idx.shape[0], device=t.device) if rows_B is None else rows_B
    return rows[:, None]


def _checked_dim(t: Tensor, dim: int, idx: Tensor, rows_B: Tensor | None) -> int:
    if not -t.ndim <= dim < t.ndim:
        raise ValueError(f"dim was {dim}; a tensor of {t.ndim} dimensions allows {-t.ndim} to {t.ndim - 1}")
    if idx.ndim != 2 or idx.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"idx was {tuple(idx.shape)} {idx.dtype}; it must be 2-D (B, T) and int32 or int64")
    dim %= t.ndim
    if dim == 0:
        if rows_B is not None:
            raise ValueError("rows_B was given with dim = 0, which is a plain gather; leave it out")
    elif rows_B is not None:
        if tuple(rows_B.shape) != (idx.shape[0],):
            raise ValueError(
                f"rows_B was {tuple(rows_B.shape)}; idx has {idx.shape[0]} rows, so it must be ({idx.shape[0]},)"
            )
    elif t.shape[0] != idx.shape[0]:
        raise ValueError(f"t has {t.shape[0]} rows and idx {idx.shape[0]}; they must agree unless rows_B maps them")
    return dim
