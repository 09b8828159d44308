"""From logits to tokens against a slow reference in Python loops, and the distributions that come out.

The reference shares the noise (test_noise.py has that) and nothing else. Sampled frequencies are compared with exact
probabilities by chi-square at fixed seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from litspec.model import decode
from litspec.model.decode import Sampling, batched_sample, sample_shortlisted
from litspec.ops.sample import draw_from_candidates, draw_from_vocabulary, filter_threshold, scaled_scores
from tests.ops.slow_sample import kept_by_loop, sampling_of, tokens_by_loop

NUM_DRAWS = 20_000


row_parameters = st.tuples(
    st.sampled_from((0.0, 5e-324, 1e-10, 1e-5, 0.3, 0.7, 1.0, 2.0)),
    st.one_of(st.none(), st.integers(1, 45)),
    st.sampled_from((1.0, 0.999999, 0.9, 0.5, 0.1, 1e-9)),
    st.one_of(st.integers(0, 5), st.integers(0, 2**63 - 1)),
    st.sampled_from((0.0, 0.0, 1e-300, 1e-3, 0.05, 0.3, 1.0)),
)
KINDS = ("normal", "ties", "minus infinity", "huge", "all equal", "one left")


def random_logits(B: int, T: int, V: int, kind: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(B, T, V, generator=generator) * 3
    if kind == "ties":
        logits = logits.round()
    elif kind == "minus infinity":
        hidden = torch.rand(B, T, V, generator=generator) < 0.6
        hidden[..., seed % V] = False
        logits[hidden] = -torch.inf
    elif kind == "huge":
        logits = logits.sign() * 10 ** (logits.abs() * 4).clamp(max=38)
    elif kind == "all equal":
        logits = torch.full((B, T, V), 2.5)
    elif kind == "one left":
        logits = torch.full((B, T, V), -torch.inf)
        logits[..., seed % V] = -1e30
    return logits


@settings(max_examples=150, deadline=None)
@given(
    st.lists(row_parameters, min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from(KINDS),
    st.integers(0, 2**20),
)
def test_equals_the_slow_reference(rows, T, V, kind, seed):
    logits = random_logits(len(rows), T, V, kind, seed)
    positions = torch.randint(0, 5000, (len(rows), T), generator=torch.Generator().manual_seed(seed))
    got = batched_sample(logits, positions, sampling_of(rows))
    assert got.tolist() == tokens_by_loop(logits, positions, rows)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(row_parameters, min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from(KINDS),
    st.integers(1, 12),
    st.integers(0, 2**20),
)
def test_a_shortlist_of_any_length_gives_what_the_whole_vocabulary_gives(rows, T, V, kind, shortlist, seed):
    logits = random_logits(len(rows), T, V, kind, seed)
    positions = torch.randint(0, 5000, (len(rows), T), generator=torch.Generator().manual_seed(seed))
    sampling = sampling_of(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "SHORTLIST", shortlist)
        short = sample_shortlisted(logits, positions, sampling)
    assert torch.equal(short, batched_sample(logits, positions, sampling))


def thresholds(
    scores: list[float], top_k: int, top_p: float, min_p: float | None = None, *, N: int | None = None
) -> tuple[float, bool]:
    best = torch.tensor(sorted(scores, reverse=True), dtype=torch.float64)[None, None]
    threshold = filter_threshold(
        best[..., :N],
        best.logsumexp(-1),
        vocab_size=len(scores),
        top_k_B=torch.tensor([top_k]),
        top_p_B=torch.tensor([top_p], dtype=torch.float64),
        min_p_B=None if min_p is None else torch.tensor([min_p], dtype=torch.float64),
    )
    return threshold.score_BT.item(), threshold.is_exact_BT.item()


FALLING = [math.log(p) for p in (0.5, 0.25, 0.125, 0.0625, 0.0625)]


KEPT = """5 1.0 5, 99 1.0 5, 1 1.0 1, 3 1.0 3, 4 1.0 5, 5 0.5 1, 5 0.51 2, 5 0.87 3, 5 0.9 5, 5 1e-9 1,
          2 0.6 1, 2 0.7 2, 3 0.7 2, 3 0.99 3"""
KNOWS = """1 1.0 2 yes, 2 1.0 2 no, 3 1.0 2 no, 5 1.0 4 no, 5 0.5 2 yes, 5 0.51 2 no, 5 0.7 2 no, 5 0.7 3 yes,
           5 0.95 3 no, 2 0.9 3 yes, 2 0.9 2 no, 4 1.0 4 no, 4 1.0 5 yes, 5 0.95 5 yes, 5 1.0 5 yes"""


@pytest.mark.parametrize("case", KEPT.split(","))
def test_how_many_a_filter_keeps(case):
    # (4, 1.0) and (5, 0.9) end at the two equal last ones, so both stay; (2, 0.6) and (3, 0.7) are a share of what
    # top_k left: 0.5 of 0.75 is enough for 0.6, but of 0.875 not for 0.7.
    top_k, top_p, kept = int(case.split()[0]), float(case.split()[1]), int(case.split()[2])
    score, is_exact = thresholds(FALLING, top_k, top_p)
    assert sum(s >= score for s in FALLING) == kept
    assert is_exact
    assert (score == -math.inf) == (top_k >= 5 and top_p == 1.0)


@pytest.mark.parametrize("case", KNOWS.split(","))
def test_a_shortlist_knows_when_it_is_too_short(case):
    # It must see one score below the threshold: else equals of the last kept one may lie beyond it.
    top_k, top_p, N, knows = int(case.split()[0]), float(case.split()[1]), int(case.split()[2]), case.split()[3]
    score, is_exact = thresholds(FALLING, top_k, top_p, N=N)
    assert is_exact == (knows == "yes")
    if is_exact:
        assert score == thresholds(FALLING, top_k, top_p)[0]


# top_k, top_p, min_p: how many are kept, and whether shortlists of two, three and five know it. A floor among the
# candidates decides, except where top_k's and top_p's own are not known.
FLOORS = """5 1.0 0.0 5 n n y, 5 1.0 0.49 2 n y y, 5 1.0 0.51 1 y y y, 5 1.0 1.0 1 y y y, 5 1.0 1e-9 5 n n y,
            3 1.0 0.49 2 n y y, 3 1.0 0.1 3 n n y, 1 1.0 0.1 1 y y y, 5 0.95 0.49 2 n y y, 5 0.95 0.1 5 n n y,
            4 0.9 0.51 1 n n y, 2 0.9 0.51 1 n y y, 2 0.9 0.1 2 n y y, 5 0.5 0.1 1 y y y"""


@pytest.mark.parametrize("case", FLOORS.split(","))
def test_min_p_is_a_floor_below_the_best_score(case):
    top_k, top_p, min_p, kept, *knows = case.split()
    for N, answer in zip((2, 3, 5), knows, strict=True):
        score, is_exact = thresholds(FALLING, int(top_k), float(top_p), float(min_p), N=N)
        assert is_exact == (answer == "y"), N
        if is_exact:
            assert sum(s >= score for s in FALLING) == int(kept)
            assert score == thresholds(FALLING, int(top_k), float(top_p), float(min_p))[0]


def test_min_p_alone_needs_no_sort():
    sampling = sampling_of([(1.0, None, 1.0, 1, 0.1), (0.0, None, 1.0, 1, 0.1), (1.0, 3, 1.0, 1, 0.1)])
    assert (sampling.greedy_rows, sampling.full_rows, sampling.filtered_rows) == ((1,), (0,), (2,))


def test_min_p_counts_in_probabilities_after_the_temperature():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(1, 400, 4)
    positions = torch.arange(400)[None]
    for temperature, min_p, kept in ((1.0, 0.25, {0, 1, 2}), (0.5, 0.25, {0, 1}), (2.0, 0.25, {0, 1, 2, 3})):
        tokens = batched_sample(logits, positions, sampling_of([(temperature, None, 1.0, 7, min_p)]))
        assert set(tokens.flatten().tolist()) == kept


def test_a_top_p_just_below_one_cuts_a_tail_and_rounding_never_leaves_one_token():
    score, _ = thresholds([0.0, -1.0, -20.0], 3, 0.999999)
    assert score == -1.0
    best = torch.tensor([[[0.0, -1.0, -2.0]]], dtype=torch.float64)
    rounded_up = best.logsumexp(-1) + 1e-9  # more than the cumulated sum ever reaches
    top_k, top_p = torch.tensor([3]), torch.tensor([1 - 1e-12], dtype=torch.float64)
    got = filter_threshold(best, rounded_up, vocab_size=3, top_k_B=top_k, top_p_B=top_p)
    assert got.score_BT.item() == -2.0 and got.is_exact_BT.item()


def test_what_equals_the_threshold_is_kept():
    scores = torch.tensor([[[-9.0, -1.0, -9.0, -2.0]]], dtype=torch.float64)
    threshold, positions = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[0]])
    for seed in range(20):
        seeds, ids = torch.tensor([seed]), torch.arange(4)[None, None]
        assert draw_from_vocabulary(scores, threshold, seeds, positions).item() == 1
        assert draw_from_candidates(scores, ids, threshold, seeds, positions).item() == 1


def test_a_top_k_of_the_whole_vocabulary_reaches_beyond_the_shortlist():
    logits, positions = torch.zeros(1, 200, 1000), torch.arange(200)[None]
    for top_k in (1000, 1001, 10**6):
        tokens = sample_shortlisted(logits, positions, sampling_of([(1.0, top_k, 1.0, 5)]))
        assert torch.equal(tokens, batched_sample(logits, positions, sampling_of([(1.0, None, 1.0, 5)])))


def test_a_long_shortlist_serves_a_large_vocabulary(monkeypatch):
    logits = torch.randn(3, 2, 5000, generator=torch.Generator().manual_seed(0)) * 4
    positions = torch.arange(6).view(3, 2)
    usual = sampling_of([(1.0, 50, 1.0, 1), (0.7, None, 0.9, 2), (1.0, 40, 0.5, 3)])
    want = batched_sample(logits, positions, usual)
    lengths, threshold = [], filter_threshold
    monkeypatch.setattr(
        decode, "filter_threshold", lambda t, *a, **k: lengths.append(len(t[0, 0])) or threshold(t, *a, **k)
    )
    assert torch.equal(sample_shortlisted(logits, positions, usual), want) and lengths == [256]
    flat = torch.zeros(3, 2, 5000)
    sample_shortlisted(flat, positions, usual)
    assert lengths == [256, 256, 5000]


def test_scaled_scores_are_below_zero_and_greedy_rows_divide_by_one():
    logits = torch.tensor([[[1.0, 3.0, -torch.inf]], [[1.0, 3.0, -1.0]]])
    scores = scaled_scores(logits, torch.tensor([0.0, 0.5], dtype=torch.float64))
    assert scores.dtype == torch.float64
    assert scores.tolist() == [[[-2.0, 0.0, -math.inf]], [[-4.0, 0.0, -8.0]]]
    coarse = scaled_scores(torch.tensor([[[2.0**25, 1.0]]]), torch.tensor([1.0], dtype=torch.float64))
    assert coarse.tolist() == [[[0.0, 1 - 2.0**25]]]  # float32 would round the difference


def test_a_row_of_banned_tokens_makes_no_nan():
    logits = torch.full((4, 1, 9), -torch.inf)
    sampling = sampling_of([(0.0, None, 1.0, 1), (1.0, None, 1.0, 1, 0.1), (0.5, 3, 0.9, 1, 0.1), (0.5, None, 0.9, 1)])
    assert not scaled_scores(logits, sampling.temperature_B).isnan().any()
    for sample in (batched_sample, sample_shortlisted):
        assert sample(logits, torch.zeros(4, 1, dtype=torch.int64), sampling).tolist() == [[0]] * 4


def test_equal_perturbed_scores_give_the_lower_id(monkeypatch):
    seeds, positions = torch.tensor([1]), torch.tensor([[2]])
    no_noise = torch.zeros(1, 1, 3, dtype=torch.float64)
    monkeypatch.setattr("litspec.ops.sample.gumbel_noise", lambda *_: no_noise)
    threshold = torch.full((1, 1), -torch.inf, dtype=torch.float64)
    scores = torch.tensor([[[-1.0, 0.0, 0.0]]], dtype=torch.float64)
    assert draw_from_vocabulary(scores, threshold, seeds, positions).item() == 1
    best, ids = torch.tensor([[[0.0, 0.0, -1.0]]], dtype=torch.float64), torch.tensor([[[9, 4, 1]]])
    assert draw_from_candidates(best, ids, threshold, seeds, positions).item() == 4


def test_greedy_ties_give_the_lower_id():
    logits = torch.tensor([[[0.0, 5.0, 5.0, 1.0]]])
    for rows in ([(0.0, None, 1.0, 3)], [(0.0, 2, 0.5, 3)]):
        assert batched_sample(logits, torch.tensor([[1]]), sampling_of(rows)).item() == 1


@pytest.mark.parametrize("temperature", [0.0, 1e-10, 5e-324, 9.9e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    # SP-02, with top_k and top_p beside it.
    logits = torch.randn(2, 3, 60, generator=torch.Generator().manual_seed(1))
    sampling = Sampling.of([temperature] * 2, [40, None], [0.9, 1.0], [1, 2])
    assert sampling.greedy_rows == (0, 1) and sampling.temperature_B.tolist() == [0.0, 0.0]
    assert torch.equal(batched_sample(logits, torch.zeros(2, 3, dtype=torch.int64), sampling), logits.argmax(-1))


@pytest.mark.parametrize("row", [(1.0, 1, 1.0), (1.0, None, 1e-9), (2.0, 1, 0.5), (1e-5, None, 1.0)])
def test_what_leaves_one_token_is_greedy(row):
    # SP-04: temperature 0, top_k 1 and a top_p of next to nothing agree.
    logits = torch.randn(4, 5, 300, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(20).view(4, 5)
    sampling = sampling_of([(*row, seed) for seed in range(4)])
    for sample in (batched_sample, sample_shortlisted):
        assert torch.equal(sample(logits, positions, sampling), logits.argmax(-1))


def test_a_greedy_row_with_banned_tokens_beside_a_sampled_one():
    # SP-03: -inf in row 0 neither makes NaN nor touches row 1.
    logits = torch.randn(2, 4, 30, generator=torch.Generator().manual_seed(3))
    logits[0, :, 5] = 100.0
    positions = torch.arange(8).view(2, 4)
    rows = [(0.0, None, 1.0, 1), (0.7, None, 0.8, 2)]
    before = batched_sample(logits, positions, sampling_of(rows))
    banned = logits.clone()
    banned[0, :, 5] = -torch.inf
    after = batched_sample(banned, positions, sampling_of(rows))
    assert torch.equal(after[0], banned[0].argmax(-1)) and not (after[0] == 5).any()
    assert torch.equal(after[1], before[1])
    assert scaled_scores(banned, sampling_of(rows).temperature_B).isnan().sum() == 0


def test_a_row_alone_and_a_token_alone_get_what_they_get_among_others():
    rows = [(0.0, None, 1.0, 1), (1.0, None, 1.0, 7), (0.8, 20, 1.0, 7), (1.3, None, 0.9, 4), (1.0, 9, 0.7, 2**63 - 1)]
    rows += [(1.0, None, 1.0, 8, 0.1), (1.0, 9, 0.7, 9, 0.2)]
    logits = torch.randn(7, 6, 333, generator=torch.Generator().manual_seed(4)) * 2
    positions = torch.randint(0, 100, (7, 6), generator=torch.Generator().manual_seed(5))
    for sample in (batched_sample, sample_shortlisted):
        whole = sample(logits, positions, sampling_of(rows))
        for order in ([4, 2, 0, 3, 6, 5, 1], [1, 1, 3]):
            shuffled = sample(logits[order], positions[order], sampling_of([rows[b] for b in order]))
            assert torch.equal(shuffled, whole[order])
        for b, row in enumerate(rows):
            alone = sampling_of([row])
            assert torch.equal(sample(logits[b : b + 1], positions[b : b + 1], alone), whole[b : b + 1])
            for t in range(6):
                single = sample(logits[b : b + 1, t : t + 1], positions[b : b + 1, t : t + 1], alone)
                assert single.item() == whole[b, t].item()


def test_rows_of_one_prompt_with_other_seeds_go_their_own_ways():
    # SP-07: agreement of first tokens is near the sum of squared probabilities, and continuations differ.
    rows = 64
    logits = torch.randn(1, 1, 40, generator=torch.Generator().manual_seed(6)).expand(rows, 10, 40)
    positions = torch.arange(10).expand(rows, 10)
    tokens = batched_sample(logits, positions, sampling_of([(1.0, None, 1.0, seed) for seed in range(rows)]))
    assert len({tuple(row) for row in tokens[:16].tolist()}) >= 12
    first = tokens[:, 0]
    agreement = ((first[:, None] == first).sum().item() - rows) / (rows * (rows - 1))
    assert agreement == pytest.approx(logits[0, 0].softmax(-1).square().sum().item(), abs=0.1)


VOCABULARY = 24
LOGITS = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(7)).mul(1.5)


@pytest.mark.parametrize("sample", [batched_sample, sample_shortlisted])
@pytest.mark.parametrize("along", ["seeds", "positions"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, None, 1.0, 0.0),
        (0.6, None, 1.0, 0.0),
        (1.7, None, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (1.0, None, 0.8, 0.0),
        (0.8, 9, 0.9, 0.0),
        (1.0, None, 1.0, 0.1),
        (0.8, 9, 0.95, 0.2),
    ],
)
def test_frequencies_are_the_exact_probabilities(sample, along, temperature, top_k, top_p, min_p):
    if along == "seeds":
        seeds, positions = list(range(1000)), torch.arange(NUM_DRAWS // 1000).expand(1000, -1)
    else:
        seeds, positions = [11], torch.arange(NUM_DRAWS)[None]
    logits = LOGITS.expand(*positions.shape, VOCABULARY)
    drawn = sample(logits, positions, sampling_of([(temperature, top_k, top_p, seed, min_p) for seed in seeds]))
    kept = kept_by_loop(LOGITS.double().tolist(), temperature, top_k, top_p, min_p)
    observed = np.bincount(drawn.flatten().numpy(), minlength=VOCABULARY)
    weights = np.array([math.exp(kept[i]) if i in kept else 0.0 for i in range(VOCABULARY)])
    assert observed[weights == 0].sum() == 0
    expected = NUM_DRAWS * weights / weights.sum()
    assert stats.chisquare(observed[weights > 0], expected[weights > 0]).pvalue > 0.001


def test_low_seeds_of_a_flat_target_differ():
    # SP-08: seeds 0 to 15 over 32 equal ids.
    logits = torch.zeros(16, 8, 32)
    positions = torch.arange(8).expand(16, 8)
    rows = [(1.0, None, 1.0, seed) for seed in range(16)]
    tokens = batched_sample(logits, positions, sampling_of(rows))
    assert len({tuple(row) for row in tokens.tolist()}) >= 14
    assert torch.equal(tokens, batched_sample(logits, positions, sampling_of(rows)))
