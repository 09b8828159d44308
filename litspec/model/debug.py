"""The `debug` model: a tiny target and draft with fixed random weights and a byte tokenizer; nothing is downloaded.

It writes nonsense, fast and always the same. The draft is the target's first two layers with the same embedding and
head, so that it is often right and often wrong, which is what a test of speculation needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from litspec.model.config import Config

DEBUG_TARGET = Config(
    name="debug",
    n_layer=4,
    n_head=4,
    n_query_groups=2,
    head_size=16,
    n_embd=64,
    intermediate_size=128,
    vocab_size=272,
    block_size=4096,
)
DEBUG_DRAFT = replace(DEBUG_TARGET, name="debug-draft", n_layer=2)


def random_tensors(config: Config, *, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield random weights for a config, fixed by the seed; a model with fewer layers has the same first layers."""
    for name, shape in config.parameter_shapes().items():
        generator = torch.Generator().manual_seed(seed * 1_000_003 + _number(name))
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 1:
            yield name, (1.0 + 0.1 * noise if "norm" in name else 0.1 * noise)
        elif name == "embedding":
            yield name, noise
        else:
            gain = 2.5 if name == "head" else 1.0
            yield name, noise * gain * shape[1] ** -0.5


def _number(name: str) -> int:
    """Return a number of a name that is the same in every process (Python's own hash is not)."""
    return int.from_bytes(name.encode(), "big") % 999_983
