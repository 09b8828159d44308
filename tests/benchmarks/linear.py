"""What a few tokens cost in a large linear, and from which side the weight is read faster.

    python tests/benchmarks/linear.py

Prints medians of interleaved repeats, as ratios to one token through F.linear.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F

SHAPES = ((49152, 576), (1536, 576), (576, 1536))
TOKENS = (1, 2, 3, 5, 9, 16, 32)
REPEATS = 15


def main() -> None:
    """Measure and print."""
    for out_features, in_features in SHAPES:
        weight = torch.randn(out_features, in_features)
        for num_tokens in TOKENS:
            x = torch.randn(num_tokens, in_features)
            one = x[:1]
            ways = {
                "one token": lambda one=one, weight=weight: F.linear(one, weight),
                "F.linear": lambda x=x, weight=weight: F.linear(x, weight),
                "weight @ x.T": lambda x=x, weight=weight: (weight @ x.T).T,
            }
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(REPEATS):
                for name, way in ways.items():
                    started = time.perf_counter()
                    way()
                    seconds[name].append(time.perf_counter() - started)
            base = statistics.median(seconds.pop("one token"))
            ratios = "  ".join(f"{name} {statistics.median(times) / base:.2f}" for name, times in seconds.items())
            print(f"{out_features} by {in_features}, {num_tokens:2} tokens: {ratios}  (1.00 = {base * 1e3:.2f} ms)")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
