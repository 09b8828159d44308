"""What a Thunder trace of one block costs, and what the traced block saves or costs per step.

    python tests/benchmarks/trace.py

Prints seconds per trace, and the ratio of a compiled decode step to an eager one (medians of interleaved repeats).
"""

from __future__ import annotations

import statistics
import time

import torch

from litspec.model.compile import CompiledGPT
from litspec.model.config import Config
from litspec.model.debug import random_tensors
from litspec.model.gpt import GPT

CONFIG = Config(
    name="a 30-layer model",
    n_layer=30,
    n_head=9,
    n_query_groups=3,
    head_size=64,
    n_embd=576,
    intermediate_size=1536,
    vocab_size=512,
    block_size=2048,
    tie_embeddings=True,
)
REPEATS = 25


def main() -> None:
    """Measure and print."""
    gpt = GPT(CONFIG)
    gpt.load(random_tensors(CONFIG))
    models = {"none": CompiledGPT(gpt, "none"), "thunder": CompiledGPT(gpt, "thunder")}
    cache = gpt.new_cache(1)
    slots = torch.zeros(1, dtype=torch.int64)
    for width in (1, 2, 4, 8):
        idx = torch.zeros(1, width, dtype=torch.int64)
        positions = 300 + torch.arange(width)[None]
        before = models["thunder"].compile_s
        seconds: dict[str, list[float]] = {mode: [] for mode in models}
        for _ in range(REPEATS):
            for mode, model in models.items():
                started = time.perf_counter()
                model(idx, positions, cache=cache, slots=slots)
                seconds[mode].append(time.perf_counter() - started)
        none, thunder = (statistics.median(seconds[mode][1:]) for mode in models)
        traced = models["thunder"].compile_s - before
        print(f"width {width}: trace {traced:.2f} s; step, thunder ÷ none: {thunder / none:.3f} ({none * 1e3:.1f} ms)")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
