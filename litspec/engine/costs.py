"""CostTable: what a round costs on this machine, measured once.

A row of it is a bucket of rows, an entry the seconds of a step of one width, whole: all layers, the head and the choice
of tokens. Other work on the machine can only make a measurement too large, so the smallest of several counts, and
two things that are true of any machine bound it further: a narrower window costs no more than a wider one, and a wide
one no more than two narrow ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from litspec.draft import DraftCost, Proposer
from litspec.draft.steps import sampling_of
from litspec.draft.timing import least_seconds
from litspec.engine.speculative import Target
from litspec.kvcache import KVCache
from litspec.model.decode import Sampling, sample_shortlisted
from litspec.model.window import Shapes, pack_window

TOKEN_SHARE = 0.06
"""What each further token of a step is taken to cost, in plain steps of one row."""
NOISE_POSITIONS = 4
"""Positions of the window at which noise is timed."""


@dataclass(frozen=True)
class CostTable:
    """Seconds of a step by (row bucket, width), and of drafting by row bucket.

    Attributes:
        step_s: what a target step costs; only ratios matter to who decides by it.
        draft: what drafting costs; a bucket that is missing drafts for nothing.
        noise_s: what a token that is drawn with noise costs beyond a greedy one, at each position of a window.
    """

    step_s: Mapping[tuple[int, int], float]
    draft: Mapping[int, DraftCost] = field(default_factory=dict)
    noise_s: float = 0.0

    @classmethod
    def assumed(cls, shapes: Shapes, draft: DraftCost | None = None) -> CostTable:
        """Return a likely table for a machine that was not measured, in units of a plain step of one row.

        Args:
            shapes: row buckets and step widths.
            draft: what drafting costs one row in these units; None is nothing.
        """
        pairs = [(rows, width) for rows in shapes.row_buckets for width in shapes.step_widths]
        step_s = {(rows, width): 1.0 + TOKEN_SHARE * (rows * width - 1) for rows, width in pairs}
        growth = {rows: 1.0 + TOKEN_SHARE * (rows - 1) for rows in shapes.row_buckets}
        return cls(step_s, {rows: DraftCost(*(growth[rows] * s for s in draft or ())) for rows in shapes.row_buckets})

    def round_s(self, num_rows: int, width: int, num_draft_tokens: int) -> float:
        """Return the seconds of a round of one bucket: drafting so many tokens, then a step of this width."""
        draft = self.draft.get(num_rows, DraftCost())
        drafting = draft.first_s + (num_draft_tokens - 1) * draft.step_s if num_draft_tokens else 0.0
        return self.step_s[num_rows, width] + drafting

    def chunk_s(self, num_rows: int) -> float:
        """Return the seconds of a chunk that catches a draft up."""
        return self.draft.get(num_rows, DraftCost()).chunk_s


def measure_costs(
    target: Target,
    cache: KVCache,
    shapes: Shapes,
    proposer: Proposer | None = None,
    *,
    num_passes: int = 2,
    budget_s: float = 4.0,
) -> CostTable:
    """Time steps and drafts on the scratch slot; call it when everything is compiled.

    The smallest and largest are always timed, a draft for one row bucket and for all. What the budget has no time for
    is taken to lie on the plane between them.

    Args:
        target: the model.
        cache: its cache, of which the scratch slot is fed.
        shapes: the row buckets and step widths to time.
        proposer: whose drafts are timed.
        num_passes: how often each step is timed, where there is time.
        budget_s: seconds after which nothing that can be done without is begun.
    """
    until = time.perf_counter() + budget_s
    most, widest = shapes.row_buckets[-1], shapes.step_widths[-1]
    least, narrowest = shapes.row_buckets[0], shapes.step_widths[0]
    corners = list(dict.fromkeys((rows, width) for rows in (least, most) for width in (narrowest, widest)))
    pairs = [(rows, width) for rows in shapes.row_buckets for width in shapes.step_widths]
    _time_step(target, cache, least, narrowest)  # the first one ever is slow
    step_s = {pair: _time_step(target, cache, *pair) for pair in corners}
    draft: dict[int, DraftCost] = {}
    if proposer is not None:
        draft = {rows: proposer.measure(rows) for rows in dict.fromkeys((least, most))}
        for rows in shapes.row_buckets:
            if rows not in draft:
                is_late = time.perf_counter() > until
                draft[rows] = _draft_between(draft, rows, least, most) if is_late else proposer.measure(rows)
    for _ in range(num_passes):  # passes over the whole list: a slow moment then spoils one pass only
        for pair in pairs:
            if time.perf_counter() < until:
                step_s[pair] = min(_time_step(target, cache, *pair), step_s.get(pair, math.inf))
    for rows, width in pairs:
        if (rows, width) not in step_s:
            narrow_s, wide_s = (
                _between(rows, least, most, step_s[least, w], step_s[most, w]) for w in (narrowest, widest)
            )
            step_s[rows, width] = _between(width, narrowest, widest, narrow_s, wide_s)
    return CostTable(smooth(step_s), draft, _time_noise(target))


def _between(at: int, low: int, high: int, low_s: float, high_s: float) -> float:
    return low_s if high == low else low_s + (at - low) / (high - low) * (high_s - low_s)


def _draft_between(draft: Mapping[int, DraftCost], rows: int, least: int, most: int) -> DraftCost:
    ends = zip(draft[least], draft[most], strict=True)
    return DraftCost(*(_between(rows, least, most, low_s, high_s) for low_s, high_s in ends))


def smooth(step_s: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Lower what is above a larger step, or above two smaller ones that do its work."""
    smoothed = dict(step_s)
    for rows, width in sorted(smoothed):
        halves = [smoothed[r, w] * -(-rows // r) * -(-width // w) for r, w in smoothed if r <= rows and w <= width]
        smoothed[rows, width] = min(halves)
    for rows, width in sorted(smoothed, reverse=True):
        smoothed[rows, width] = min(s for (r, w), s in smoothed.items() if r >= rows and w >= width)
    return smoothed


def _time_noise(target: Target) -> float:
    """Return the seconds that noise over the whole vocabulary takes for one token."""
    logits_BTV = torch.zeros(1, NOISE_POSITIONS, target.vocab_size, device=target.device)
    positions_BT = torch.arange(1, NOISE_POSITIONS + 1, device=target.device)[None]

    def seconds(temperature: float) -> float:
        sampling = Sampling.of([temperature], [None], [1.0], [0], device=target.device)
        return least_seconds(lambda: sample_shortlisted(logits_BTV, positions_BT, sampling), num_tries=3)

    return max(0.0, seconds(1.0) - seconds(0.0)) / NOISE_POSITIONS


def _time_step(target: Target, cache: KVCache, rows: int, width: int) -> float:
    def step() -> Tensor:
        scratch = cache.scratch_slot
        window = pack_window([], [], [], rows=rows, width=width, scratch_slot=scratch, device=target.device)
        hidden = target.hidden(window.idx_BT, window.input_pos_BT, cache=cache, slots=window.slots_B)
        sampling = sampling_of([], rows, device=target.device)
        return sample_shortlisted(target.logits(hidden), window.input_pos_BT + 1, sampling)

    return least_seconds(step)
