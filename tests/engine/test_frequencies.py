"""Sampled frequencies through the speculative loop are those of the exact, filtered softmax.

The target has one known distribution at every position, so that thousands of tokens of a few long requests are
independent draws from it; the expectation is computed here in plain Python, from the definitions of temperature, top_k
and top_p. A draft that shared its noise wrongly, or an accept rule that favoured its guesses, would bend them.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

from litspec.draft import NgramProposer
from tests.engine.scripted import FixedTarget
from tests.engine.support import ask, make_engine, run

V, ROWS, EACH = 24, 40, 125  # 5,000 draws a case, 20,000 for each draft
FILTERS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 6},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9},
]


def logits(seed: int) -> list[float]:
    return (1.5 * torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).tolist()


def exact(scores: list[float], *, temperature: float, top_k: int | None = None, top_p: float = 1.0) -> list[float]:
    """Return the probabilities that the definitions give: temperature, then top_k, then top_p of what is left."""
    weights = {token: math.exp(score / temperature) for token, score in enumerate(scores)}
    kept = sorted(weights, key=lambda token: -weights[token])[:top_k]
    total, mass, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        nucleus.append(token)
        mass += weights[token] / total
        if mass >= top_p:
            break
    total = sum(weights[token] for token in nucleus)
    return [weights[token] / total if token in nucleus else 0.0 for token in range(V)]


def drafts(name: str):
    """Return a draft: none, prompt lookup, or a model with the same, a similar or an unrelated distribution."""
    if name in ("none", "ngram"):
        return {"none": None, "ngram": NgramProposer(min_n=1, max_n=2)}[name]
    scores = torch.tensor(logits(0), dtype=torch.float64)
    noise = torch.tensor(logits(1), dtype=torch.float64)
    return FixedTarget({"self": scores, "near": scores + 0.3 * noise, "far": noise}[name])


@pytest.mark.parametrize("draft", ["none", "ngram", "self", "near", "far"])
def test_frequencies_match_the_exact_distribution(draft):
    scores = logits(0)
    for number, params in enumerate(FILTERS):
        target = FixedTarget(torch.tensor(scores, dtype=torch.float64))
        engine = make_engine(target, draft=drafts(draft), slots=ROWS, num_draft_tokens=3)
        requests = [ask(f"{r}", [0, 1], max_new_tokens=EACH, **params, seed=1000 * number + r) for r in range(ROWS)]
        completions = run(engine, requests)
        counts = Counter(token for c in completions for token in c.token_ids)
        expected = exact(scores, **params)
        drawn = [counts[token] for token in range(V)]
        assert sum(drawn) == ROWS * EACH
        assert all(count == 0 for count, p in zip(drawn, expected, strict=True) if p == 0), "a token that is cut"
        kept = [(count, p * ROWS * EACH) for count, p in zip(drawn, expected, strict=True) if p > 0]
        assert chisquare(*zip(*kept, strict=True)).pvalue > 0.001
        if draft == "self":
            assert all(c.stats.acceptance_rate == 1.0 for c in completions)
        elif draft != "none":
            assert 0 < sum(c.stats.accepted for c in completions) < sum(c.stats.drafted for c in completions)


def test_what_comes_after_what_is_independent_under_speculation():
    """Neighbouring draws, many of them from one window, form a product distribution."""
    scores = logits(0)
    engine = make_engine(
        FixedTarget(torch.tensor(scores, dtype=torch.float64)), draft=drafts("near"), slots=ROWS, num_draft_tokens=3
    )
    requests = [ask(f"{r}", [0, 1], max_new_tokens=501, temperature=1.0, top_k=5, seed=r) for r in range(ROWS)]
    pairs: Counter[tuple[int, int]] = Counter()
    for completion in run(engine, requests):
        pairs.update(zip(completion.token_ids[::2], completion.token_ids[1::2], strict=False))
    tokens = sorted({token for pair in pairs for token in pair})
    assert len(tokens) == 5
    assert chi2_contingency([[pairs[a, b] for b in tokens] for a in tokens]).pvalue > 0.001
