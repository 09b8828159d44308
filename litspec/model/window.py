"""Ragged runs of tokens as a batch of one shape.

A forward has a shape from a short list (`Shapes`), so that a compiled model meets each once. `pack_window` puts runs of
unequal length into one: a short run repeats its last token at that token's own position, which writes the same key and
value again, and rows that are left over feed the scratch slot. Nothing that is padding is ever read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

STEP_WIDTHS = (1, 2, 3, 4, 6, 8)
CHUNK_WIDTHS = (16, 64, 256)
MOST_TOKENS = 2048
"""Of prompts in one forward, padding included: more at once is no faster, and takes memory."""


@dataclass(frozen=True)
class Shapes:
    """The (rows, width) pairs that a model is fed.

    Attributes:
        row_buckets: rising numbers of rows; the last is the most rows there can be.
        step_widths: rising widths of a decoding step: 1 is a plain one, the last holds all draft tokens.
        chunk_widths: rising widths of a piece of prompt.
    """

    row_buckets: tuple[int, ...]
    step_widths: tuple[int, ...]
    chunk_widths: tuple[int, ...] = CHUNK_WIDTHS

    @classmethod
    def plan(cls, *, max_batch_size: int, num_draft_tokens: int) -> Shapes:
        """List the shapes for so many rows and draft tokens at most."""
        buckets = [1]
        while buckets[-1] < max_batch_size:
            buckets.append(min(2 * buckets[-1], max_batch_size))
        widest = num_draft_tokens + 1
        return cls(tuple(buckets), (*(w for w in STEP_WIDTHS if w < widest), widest))

    def row_bucket(self, num_rows: int) -> int:
        """Return the smallest bucket for so many rows."""
        return next(bucket for bucket in self.row_buckets if bucket >= num_rows)

    def step_width(self, num_tokens: int) -> int:
        """Return the smallest step width for so many tokens."""
        return next(width for width in self.step_widths if width >= num_tokens)

    def chunk_rows(self, most_tokens: int) -> int:
        """Return the largest row bucket whose narrowest chunk holds no more than so many tokens, or the smallest."""
        narrowest = self.chunk_widths[0]
        return max((rows for rows in self.row_buckets if rows * narrowest <= most_tokens), default=self.row_buckets[0])

    def chunk_width(self, num_tokens: int, *, most: int | None = None) -> int:
        """Return the smallest chunk width for so many tokens, or the largest one (that is no wider than `most`)."""
        allowed = [width for width in self.chunk_widths if most is None or width <= most] or self.chunk_widths[:1]
        return next((width for width in allowed if width >= num_tokens), allowed[-1])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield every pair of a row bucket and a width that is fed."""
        for rows in self.row_buckets:
            yield from ((rows, width) for width in self.step_widths)
            if rows <= self.chunk_rows(MOST_TOKENS):
                widest = self.chunk_width(MOST_TOKENS, most=MOST_TOKENS // rows)
                yield from ((rows, width) for width in self.chunk_widths if width <= widest)


class Window(NamedTuple):
    """A batch of one shape, ready to be fed.

    Attributes:
        idx_BT: int64 token ids.
        input_pos_BT: int64 absolute positions.
        slots_B: int64 cache rows.
    """

    idx_BT: Tensor
    input_pos_BT: Tensor
    slots_B: Tensor


def pack_window(
    runs: Sequence[Sequence[int]],
    starts: Sequence[int],
    slots: Sequence[int],
    *,
    rows: int,
    width: int,
    scratch_slot: int,
    device: torch.device | str = "cpu",
) -> Window:
    """Pack a run of tokens per row into a window.

    Args:
        runs: for each row 1 to `width` tokens.
        starts: the position of each run's first token.
        slots: the cache row of each.
        rows: the window's rows; those beyond `runs` feed token 0 at position 0 of the scratch slot.
        width: the window's width.
        scratch_slot: the cache's scratch row.
        device: where the tensors go; the one transfer to the device of a step.
    """
    idx, positions = [], []
    for run, start in zip(runs, starts, strict=True):
        padding = width - len(run)
        assert run and padding >= 0, f"a run of {len(run)} tokens in a window of {width}"
        last = start + len(run) - 1
        idx.append([*run, *[run[-1]] * padding])
        positions.append([*range(start, last + 1), *[last] * padding])
    missing = rows - len(runs)
    idx += [[0] * width] * missing
    positions += [[0] * width] * missing
    packed_slots = [*slots, *[scratch_slot] * missing]
    return Window(
        torch.tensor(idx, dtype=torch.int64, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device),
        torch.tensor(packed_slots, dtype=torch.int64, device=device),
    )
