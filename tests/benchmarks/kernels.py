"""What kernels cost against the plain definitions, in one run.

    PYTHONPATH=. OMP_NUM_THREADS=1 python tests/benchmarks/kernels.py

Prints for each the milliseconds of both (the least of several turns, taken alternately) and their ratio: packed linears
of the embedded model's sizes, a whole step of it in mid-answer, and the draw of a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from litspec.api.loading import open_model
from litspec.model.compile import CompiledGPT
from litspec.model.gpt import GPT
from litspec.ops.packed import pack, packed_linear, unpack
from litspec.ops.sample import draw_from_vocabulary, draw_token, scaled_scores

TURNS = 9
CONTEXT = 200


def main() -> None:
    """Measure and print."""
    print(f"{torch.get_num_threads()} threads; milliseconds of the kernel, of the plain way, and their ratio")
    with torch.inference_mode():
        linears()
        steps()
        draws()


def linears() -> None:
    """Packed linears against F.linear with the same numbers unpacked."""
    for bits, out, size in ((8, 49152, 576), (4, 1536, 576), (4, 576, 1536)):
        low, high = (-128, 128) if bits == 8 else (0, 16)
        scales = torch.rand(out, size // 32).half()
        packed = pack(torch.randint(low, high, (out, size)), scales, scales if bits == 4 else None, bits=bits)
        plain = unpack(packed)
        for tokens in (1, 2, 3, 4, 8, 32, 128):
            x = torch.randn(tokens, size)
            name = f"linear {out} x {size}, {bits} bits, {tokens} tokens"
            compare(name, partial(packed_linear, x, packed), partial(F.linear, x, plain))


def steps() -> None:
    """A step of the embedded model, packed and unpacked; norms and attention are the kernels' in both."""
    opened = open_model("smollm2-135m-instruct")
    assert opened.checkpoint is not None
    models = []
    for tensors in (opened.checkpoint.packed_tensors(), opened.checkpoint.tensors()):
        gpt = GPT(opened.config, max_seq_length=512)
        gpt.load(tensors)
        models.append(CompiledGPT(gpt, "none"))
    caches = [model.new_cache(1) for model in models]
    ids, slots = torch.randint(0, 49_000, (1, CONTEXT)), torch.tensor([0])
    for model, cache in zip(models, caches, strict=True):
        model.hidden(ids, cache=cache, slots=slots)
    for width in (1, 2, 4, 8):
        positions = torch.arange(CONTEXT, CONTEXT + width)[None]
        packed, plain = (
            partial(model, ids[:, :width], positions, cache=cache, slots=slots)
            for model, cache in zip(models, caches, strict=True)
        )
        compare(f"step of {width} tokens after {CONTEXT}", packed, plain)


def draws() -> None:
    """A token of the whole vocabulary."""
    logits = torch.randn(1, 1, 49152) * 3
    temperature, floor = torch.tensor([0.8]).double(), torch.tensor([-torch.inf]).double()
    seeds, positions = torch.tensor([5]), torch.tensor([[7]])
    compare(
        "draw of a token",
        lambda: draw_token(logits, temperature, floor, seeds, positions),
        lambda: draw_from_vocabulary(scaled_scores(logits, temperature), floor[:, None], seeds, positions),
    )


def compare(name: str, kernel: Callable[[], object], plain: Callable[[], object]) -> None:
    """Time both, alternately, and print."""
    best = [float("inf"), float("inf")]
    for _ in range(TURNS):
        for index, function in enumerate((kernel, plain)):
            started = time.perf_counter()
            function()
            best[index] = min(best[index], time.perf_counter() - started)
    print(f"{best[0] * 1e3:8.3f} {best[1] * 1e3:8.3f} {best[1] / best[0]:6.2f}  {name}")


if __name__ == "__main__":
    main()
