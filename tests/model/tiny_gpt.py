"""Makes the tiny random GPTs that the tests of models, drafts and the engine feed."""

from __future__ import annotations

from dataclasses import replace

import torch

from litspec.model.config import Config
from litspec.model.debug import random_tensors
from litspec.model.gpt import GPT
from litspec.model.placement import empty_modules

TINY = Config(
    name="tiny",
    n_layer=2,
    n_head=4,
    n_query_groups=2,
    head_size=8,
    n_embd=24,
    intermediate_size=40,
    vocab_size=61,
    block_size=64,
)


def tiny_gpt(
    *, dtype: torch.dtype = torch.float64, max_seq_length: int | None = None, seed: int = 0, **changes: object
) -> GPT:
    """Return a GPT with random weights; `changes` are fields of its config."""
    config = replace(TINY, **changes)  # pyright: ignore[reportArgumentType]
    with empty_modules(torch.device("cpu"), dtype):
        gpt = GPT(config, max_seq_length=max_seq_length)
    gpt.load(random_tensors(config, seed=seed))
    return gpt


def some_tokens(*shape: int, seed: int = 0, vocab_size: int = TINY.vocab_size) -> torch.Tensor:
    """Return random token ids."""
    return torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def consecutive(starts: list[int], num_tokens: int) -> torch.Tensor:
    """Return the positions of so many tokens a row, each row from its own start."""
    return torch.tensor(starts)[:, None] + torch.arange(num_tokens)
