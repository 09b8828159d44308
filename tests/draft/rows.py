"""Requests as a proposer sees them, made by hand, and what a draft ought to say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch

from litspec.engine.params import SamplingParams
from litspec.model.decode import Sampling, batched_sample
from litspec.model.edits import RowEdits
from litspec.model.gpt import GPT

GREEDY = SamplingParams(temperature=0.0, seed=0)


@dataclass
class Row:
    """A request that decodes; the last of its tokens is pending."""

    id: str
    tokens: list[int]
    slot: int | None = None
    params: SamplingParams = field(default_factory=lambda: GREEDY)
    edits: RowEdits | None = None
    noise_seed: int = field(init=False)

    def __post_init__(self) -> None:
        self.noise_seed = self.params.seed or 0


@torch.inference_mode()
def continuation(gpt: GPT, row: Row, num_tokens: int, *, num_layers: int | None = None) -> list[int]:
    """Return how a model goes on with a row's tokens: the whole text is fed again for every token, without a cache."""
    p = row.params
    choose = partial(
        batched_sample, sampling=Sampling.of([p.temperature], [p.top_k], [p.top_p], [row.noise_seed], min_ps=[p.min_p])
    )
    tokens = list(row.tokens)
    for _ in range(num_tokens):
        logits = gpt(torch.tensor([tokens]), num_layers=num_layers)[:, -1:]
        tokens.append(int(choose(logits, torch.tensor([[len(tokens)]]))))
    return tokens[len(row.tokens) :]
