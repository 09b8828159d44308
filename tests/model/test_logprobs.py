"""Log-probabilities against Python's own arithmetic, with ties, small vocabularies and long prompts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.model.logprobs import TokenLogprob, token_logprobs


def by_loop(logits: list[float], token: int, num_top: int) -> tuple[float, list[tuple[int, float]]]:
    highest = max(logits)
    total = highest + math.log(math.fsum(math.exp(x - highest) for x in logits))
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return logits[token] - total, [(i, logits[i] - total) for i in order[:num_top]]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(0, 20),
    st.sampled_from(("normal", "ties", "all equal", "minus infinity")),
    st.integers(0, 2**20),
)
def test_equals_a_loop(V, N, num_top, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, V, generator=generator) * 3
    if kind == "ties":
        logits = logits.round()
    elif kind == "all equal":
        logits = torch.full((N, V), 0.5)
    elif kind == "minus infinity":
        logits[:, torch.rand(V, generator=generator) < 0.5] = -torch.inf
        logits[:, seed % V] = 1.0
    tokens = torch.randint(V, (N,), generator=generator)
    found = token_logprobs(logits, tokens, num_top)
    assert len(found) == N
    for n, line in enumerate(found):
        logprob, top = by_loop(logits[n].double().tolist(), int(tokens[n]), num_top)
        assert line.token_id == tokens[n] and line.logprob == pytest.approx(logprob, rel=1e-12, abs=1e-12)
        assert [i for i, _ in line.top] == [i for i, _ in top]
        assert [x for _, x in line.top] == pytest.approx([x for _, x in top], rel=1e-12, abs=1e-12)


def test_no_top_none_at_all_and_more_than_there_is():
    logits = torch.tensor([[0.0, 0.0]])
    assert token_logprobs(logits, torch.tensor([1]), 0) == [TokenLogprob(1, -math.log(2), ())]
    assert [i for i, _ in token_logprobs(logits, torch.tensor([1]), 20)[0].top] == [0, 1]
    assert token_logprobs(logits[:0], torch.tensor([], dtype=torch.int64), 3) == []


def test_a_line_is_the_same_alone_and_among_many_and_the_logits_stay():
    logits = torch.randn(150, 3001, generator=torch.Generator().manual_seed(3)) * 5
    before, tokens = logits.clone(), torch.arange(150)
    together = token_logprobs(logits, tokens, 5)
    assert torch.equal(logits, before)
    for n in range(0, 150, 7):
        assert token_logprobs(logits[n : n + 1], tokens[n : n + 1], 5) == together[n : n + 1]
        assert token_logprobs(logits[n : n + 3], tokens[n : n + 3], 5) == together[n : n + 3]
    assert all(line.logprob == dict(line.top)[line.token_id] for line in token_logprobs(logits, logits.argmax(-1), 1))


def test_coarse_logits_are_widened_first():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert token_logprobs(logits, torch.tensor([1, 2]), 3) == token_logprobs(logits.double(), torch.tensor([1, 2]), 3)
