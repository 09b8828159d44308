"""The tie rule of float32 comparisons: whether two runs part only where rounding decides.

Where two runs of a request part, the target's scores are computed once more, and each of the two tokens must be within
1e-4 of being drawn, where the boundary of top_k (a score) or top_p (a probability) may itself move by 1e-4. Nothing is
retried, and ties are counted: a model as it is served on the CPU, all of whose kernels do each row by itself, has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from litspec import Completion, SamplingParams
from litspec.model.decode import GREEDY_BELOW
from litspec.model.gpt import GPT
from litspec.ops.noise import gumbel_noise
from litspec.ops.sample import filter_threshold, scaled_scores

TOLERANCE = 1e-4


class TieRule:
    """Compares runs of one target and counts.

    Attributes:
        num_requests: requests compared.
        num_ties: those that parted at a tie.
    """

    def __init__(self, gpt: GPT) -> None:
        self._gpt = gpt
        self.num_requests = 0
        self.num_ties = 0

    def assert_same(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
        expected: Sequence[Completion],
        found: Sequence[Completion],
    ) -> None:
        """Assert that two runs gave the same tokens, up to ties."""
        for prompt, each, a, b in zip(prompts, params, expected, found, strict=True):
            self.num_requests += 1
            parting = first_difference(a.token_ids, b.token_ids)
            if parting is None:
                assert (a.text, a.finish_reason) == (b.text, b.finish_reason)
                continue
            assert parting < min(len(a.token_ids), len(b.token_ids)), "one run stopped where the other went on"
            gap = self.gap([*prompt, *a.token_ids[:parting]], each, a.token_ids[parting], b.token_ids[parting])
            assert gap <= TOLERANCE, f"token {parting} of prompt {prompt[:8]}… differs at a gap of {gap}"
            self.num_ties += 1

    def assert_no_ties(self) -> None:
        """Assert that rounding never decided: all tokens of all runs were equal."""
        assert self.num_requests > 0 and self.num_ties == 0, f"{self.num_ties} of {self.num_requests} met a tie"

    @torch.inference_mode()
    def gap(self, tokens: list[int], params: SamplingParams, a: int, b: int) -> float:
        """Return how far the worse of two candidates for the next token is from being drawn; inf if it never is."""
        logits_11V = self._gpt(torch.tensor([tokens]))[:, -1:]
        if params.temperature < GREEDY_BELOW:
            perturbed_V = logits_11V[0, 0].double()
            kept_sets = [torch.ones_like(perturbed_V, dtype=torch.bool)]
        else:
            assert params.seed is not None, "only seeded runs can be compared"
            scores_11V = scaled_scores(logits_11V, torch.tensor([params.temperature], dtype=torch.float64))
            ids = torch.arange(scores_11V.shape[-1])
            noise_V = gumbel_noise(torch.tensor([params.seed]), torch.tensor([[len(tokens)]]), ids)[0, 0]
            perturbed_V, kept_sets = scores_11V[0, 0] + noise_V, _kept_sets(scores_11V, params)
        return max(
            min(float(perturbed_V[kept].max() - perturbed_V[token]) if kept[token] else torch.inf for kept in kept_sets)
            for token in (a, b)
        )


def _kept_sets(scores_11V: Tensor, params: SamplingParams) -> list[Tensor]:
    """Return what the filters keep, and what they would keep if the boundary fell 1e-4 to either side."""
    scores_V = scores_11V[0, 0]
    size = len(scores_V)
    kept_sets = []
    for top_p in {params.top_p, max(params.top_p - TOLERANCE, 1e-9), min(params.top_p + TOLERANCE, 1.0)}:
        threshold = filter_threshold(
            scores_11V.sort(-1, descending=True).values,
            scores_11V.logsumexp(-1),
            vocab_size=size,
            top_k_B=torch.tensor([params.top_k or size]),
            top_p_B=torch.tensor([top_p if params.top_p < 1.0 else 1.0], dtype=torch.float64),
        )
        cut = float(threshold.score_BT)
        kept_sets.append(scores_V >= cut)
        is_near = (scores_V < cut) & (scores_V >= cut - TOLERANCE)
        if bool(is_near.any()):  # the last that is kept could as well be the first that is not
            kept_sets += [scores_V >= cut - TOLERANCE, scores_V > cut + TOLERANCE]
    return kept_sets


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first index at which two lists differ; None where they are equal."""
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
