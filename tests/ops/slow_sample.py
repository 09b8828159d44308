"""Sampling as plain Python loops, which the vectorised sampler is compared with; only the noise is shared.

A row's parameters are (temperature, top_k, top_p, seed), with min_p after them where it is not 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from litspec.model.decode import Sampling
from litspec.model.edits import LogitEdits
from litspec.ops.noise import gumbel_noise


def kept_by_loop(
    logits: list[float], temperature: float, top_k: int | None, top_p: float, min_p: float = 0.0
) -> dict[int, float]:
    """Return the score of every id that the filters keep; what ties with the last kept one stays."""
    top = max(logits)
    scores = {i: (x - top) / temperature for i, x in enumerate(logits)}
    if top_k is not None and top_k < len(logits):
        last = sorted(scores.values(), reverse=True)[top_k - 1]
        scores = {i: s for i, s in scores.items() if s >= last}
    if top_p < 1.0:
        total = math.fsum(math.exp(s) for s in scores.values())
        mass, last = 0.0, -math.inf
        for score in sorted(scores.values(), reverse=True):
            mass, last = mass + math.exp(score), score
            if mass >= top_p * total:
                break
        scores = {i: s for i, s in scores.items() if s >= last}
    if min_p > 0.0:
        scores = {i: s for i, s in scores.items() if s >= math.log(min_p)}
    return scores


def token_by_loop(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int,
    min_p: float = 0.0,
    *,
    position: int,
) -> int:
    values = logits.double().tolist()
    if temperature < 1e-5:
        return values.index(max(values))
    noise = gumbel_noise(torch.tensor([seed]), torch.tensor([[position]]), torch.arange(len(values)))[0, 0].tolist()
    perturbed = {i: s + noise[i] for i, s in kept_by_loop(values, temperature, top_k, top_p, min_p).items()}
    return max(perturbed, key=lambda i: (perturbed[i], -i))


def tokens_by_loop(logits_BTV: Tensor, positions_BT: Tensor, rows: list[tuple]) -> list[list[int]]:
    return [
        [token_by_loop(logits_BTV[b, t], *row, position=int(positions_BT[b, t])) for t in range(logits_BTV.shape[1])]
        for b, row in enumerate(rows)
    ]


def sampling_of(rows: list[tuple], edits: LogitEdits | None = None) -> Sampling:
    *columns, min_ps = map(list, zip(*((*row, 0.0)[:5] for row in rows), strict=True))
    return Sampling.of(*columns, min_ps=min_ps, edits=edits)
