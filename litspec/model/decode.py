"""One decoding step for a whole batch: `batched_next_token` and `batched_sample`.

Both are vectorised over rows and positions: what differs between rows (positions, slots, temperature, top_k, top_p,
min_p, seed, edits) is a tensor. Their control flow is fixed by shapes and by the `Sampling` value, never by the data of
a tensor, so Thunder can compile them; `sample_shortlisted` is the one that looks at data, once, where a shortlist may
prove too short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from litspec.kvcache import KVCache
from litspec.model.edits import LogitEdits
from litspec.ops.sample import draw_from_candidates, draw_token, filter_threshold, scaled_scores

GREEDY_BELOW = 1e-5
SHORTLIST = 256


@dataclass(frozen=True)
class Sampling:
    """How each row of a batch chooses its tokens.

    Attributes:
        temperature_B: float64; 0 is greedy.
        top_k_B: int64; a number from the vocabulary's size on keeps all.
        top_p_B: float64 in (0, 1]; 1 keeps all.
        min_p_B: float64 in [0, 1]; 0 keeps all.
        seeds_B: int64.
        greedy_rows: rows with temperature 0: they get no noise.
        full_rows: rows without top_k and top_p: noise over the whole vocabulary, no sort.
        filtered_rows: rows with top_k or top_p.
        edits: penalties, bias and bans of the window that is sampled; they come before the temperature.
    """

    temperature_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    seeds_B: Tensor
    greedy_rows: tuple[int, ...]
    full_rows: tuple[int, ...]
    filtered_rows: tuple[int, ...]
    edits: LogitEdits | None = None

    @classmethod
    def of(
        cls,
        temperatures: Sequence[float],
        top_ks: Sequence[int | None],
        top_ps: Sequence[float],
        seeds: Sequence[int],
        *,
        min_ps: Sequence[float] | None = None,
        edits: LogitEdits | None = None,
        device: torch.device | str = "cpu",
    ) -> Sampling:
        """Make the tensors from a value per row; a temperature below 1e-5 counts as 0, and without min_ps all are 0."""
        keep_all = 2**31 - 1
        min_ps = [0.0] * len(temperatures) if min_ps is None else min_ps
        assert len(min_ps) == len(seeds) == len(temperatures)
        greedy, full, filtered = [], [], []
        for row, (t, k, p) in enumerate(zip(temperatures, top_ks, top_ps, strict=True)):
            (greedy if t < GREEDY_BELOW else filtered if _is_filtered(k, p) else full).append(row)
        temperature = [0.0 if t < GREEDY_BELOW else t for t in temperatures]
        return cls(
            temperature_B=torch.tensor(temperature, dtype=torch.float64, device=device),
            top_k_B=torch.tensor(
                [keep_all if k is None else min(k, keep_all) for k in top_ks], dtype=torch.int64, device=device
            ),
            top_p_B=torch.tensor(top_ps, dtype=torch.float64, device=device),
            min_p_B=torch.tensor(min_ps, dtype=torch.float64, device=device),
            seeds_B=torch.tensor(seeds, dtype=torch.int64, device=device),
            greedy_rows=tuple(greedy),
            full_rows=tuple(full),
            filtered_rows=tuple(filtered),
            edits=edits,
        )

    def rows(self, rows: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return temperature, top_k, top_p, min_p and seeds of some rows."""
        columns = self.temperature_B, self.top_k_B, self.top_p_B, self.min_p_B, self.seeds_B
        temperature, top_k, top_p, min_p, seeds = (column[list(rows)] for column in columns)
        return temperature, top_k, top_p, min_p, seeds


def is_noisy(temperature: float, top_k: int | None, top_p: float) -> bool:
    """Return whether a row needs noise over the whole vocabulary."""
    return temperature >= GREEDY_BELOW and not _is_filtered(top_k, top_p)


def _is_filtered(top_k: int | None, top_p: float) -> bool:
    return top_k is not None or top_p < 1.0


def batched_sample(logits_BTV: Tensor, positions_BT: Tensor, sampling: Sampling) -> Tensor:
    """Choose a token for every row and position.

    Args:
        logits_BTV: raw logits.
        positions_BT: int64, the absolute position of the token that is chosen (one past the token fed).
        sampling: per-row parameters.

    Returns:
        int64 (B, T). Equal best scores give the lower id.
    """
    logits_BTV = _edit(logits_BTV, sampling)
    tokens, _ = _sample(logits_BTV, positions_BT, sampling, num_candidates=logits_BTV.shape[-1])
    return tokens


def sample_shortlisted(logits_BTV: Tensor, positions_BT: Tensor, sampling: Sampling) -> Tensor:
    """Choose what `batched_sample` chooses, sorting a shortlist of the vocabulary where that is enough.

    Whether it was enough is read on the host: on a GPU this waits once, and only where a row has top_k or top_p.
    """
    logits_BTV = _edit(logits_BTV, sampling)
    V = logits_BTV.shape[-1]
    tokens, is_exact = _sample(logits_BTV, positions_BT, sampling, num_candidates=min(SHORTLIST, V))
    if is_exact is not None and not bool(is_exact.all()):
        tokens, _ = _sample(logits_BTV, positions_BT, sampling, num_candidates=V)
    return tokens


def _edit(logits_BTV: Tensor, sampling: Sampling) -> Tensor:
    """Return the logits that rows choose by; the raw ones are left as they are."""
    return logits_BTV if sampling.edits is None else sampling.edits.apply(logits_BTV)


def _sample(
    logits_BTV: Tensor, positions_BT: Tensor, sampling: Sampling, *, num_candidates: int
) -> tuple[Tensor, Tensor | None]:
    """Choose by edited logits; say whether the candidates were enough, where rows have filters."""
    parts: list[tuple[tuple[int, ...], Tensor]] = []
    is_exact = None
    if sampling.greedy_rows:
        rows = sampling.greedy_rows
        parts.append((rows, _take(logits_BTV, rows).argmax(-1)))
    if sampling.full_rows:
        rows = sampling.full_rows
        temperature, _, _, min_p, seeds = sampling.rows(rows)
        floor = min_p.log()  # the best score is 0
        parts.append((rows, draw_token(_take(logits_BTV, rows), temperature, floor, seeds, _take(positions_BT, rows))))
    if sampling.filtered_rows:
        rows = sampling.filtered_rows
        temperature, top_k, top_p, min_p, seeds = sampling.rows(rows)
        scores = scaled_scores(_take(logits_BTV, rows), temperature)
        best, ids = torch.topk(scores, num_candidates, dim=-1)
        threshold, is_exact = filter_threshold(
            best,
            scores.logsumexp(-1),
            vocab_size=logits_BTV.shape[-1],
            top_k_B=top_k,
            top_p_B=top_p,
            min_p_B=min_p,
        )
        parts.append((rows, draw_from_candidates(best, ids, threshold, seeds, _take(positions_BT, rows))))
    if len(parts) == 1:
        return parts[0][1], is_exact
    order = [row for rows, _ in parts for row in rows]
    restore = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat([tokens for _, tokens in parts])[restore], is_exact


def _take(t: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return those rows; the tensor itself where it is all of them, which saves a copy."""
    return t if len(rows) == t.shape[0] else t[list(rows)]


def batched_next_token(
    model: Callable[..., Tensor],
    input_pos: Tensor,
    x: Tensor,
    *,
    sampling: Sampling,
    cache: KVCache | None = None,
    slots: Tensor | None = None,
) -> Tensor:
    """Feed tokens to a model and choose the token after each of them.

    Args:
        model: a GPT, compiled or not.
        input_pos: int64 (B, T), the absolute positions of the tokens fed.
        x: int64 (B, T), the tokens fed.
        sampling: how each row chooses.
        cache: the model's cache, written in place; None attends over the fed tokens alone.
        slots: int64 (B,), the cache row of each batch row; None is row b for batch row b.

    Returns:
        int64 (B, T): for every fed position the token at the next one.
    """
    logits = model(x, input_pos, cache=cache, slots=slots)
    return batched_sample(logits, input_pos + 1, sampling)
