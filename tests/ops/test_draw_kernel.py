"""The kernel that draws from the whole vocabulary: every token is the one that the plain definition draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.ops.noise import gumbel_noise
from litspec.ops.sample import draw_from_vocabulary, draw_token, scaled_scores

INF = float("inf")


def plain(logits, temperature, floor, seeds, positions):
    return draw_from_vocabulary(scaled_scores(logits, temperature), floor[:, None], seeds, positions)


def parameters(rows: int, tokens: int, *, temperature: float, floor: float = -INF, seed: int = 0):
    chance = torch.Generator().manual_seed(seed)
    seeds = torch.randint(0, 2**62, (rows,), generator=chance)
    positions = torch.randint(0, 10_000, (rows, tokens), generator=chance)
    full = (torch.full((rows,), value, dtype=torch.float64) for value in (temperature, floor))
    return *full, seeds, positions


@pytest.mark.parametrize("temperature", [1e-5, 0.01, 0.3, 0.8, 1.0, 2.0])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("floor", [-INF, -3.0])
def test_draws_of_a_large_vocabulary(temperature, spread, floor):
    logits = torch.randn(3, 40, 4_001, generator=torch.Generator().manual_seed(1)) * spread
    given = parameters(3, 40, temperature=temperature, floor=floor, seed=int(100 * temperature))
    assert draw_token(logits, *given).equal(plain(logits, *given))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_draws_of_a_small_vocabulary_with_ties_and_bans(data):
    V = data.draw(st.integers(1, 40))
    values = st.sampled_from([0.0, 0.0, 1.0, 1.0, -1.0, 5.5, 30.0, -30.0, -INF, 3e38, -3e38])
    logits = torch.tensor(data.draw(st.lists(st.lists(values, min_size=V, max_size=V), min_size=4, max_size=4)))
    temperature = data.draw(st.sampled_from([1e-5, 0.1, 0.7, 1.0, 2.0]))
    floor = data.draw(st.sampled_from([-INF, -2.0, -0.1, 0.0]))
    given = parameters(2, 2, temperature=temperature, floor=floor, seed=data.draw(st.integers(0, 2**31)))
    assert draw_token(logits.view(2, 2, V), *given).equal(plain(logits.view(2, 2, V), *given))


def test_rows_have_parameters_of_their_own():
    logits = torch.randn(4, 3, 500)
    temperature = torch.tensor([0.1, 0.7, 1.0, 2.0], dtype=torch.float64)
    floor = torch.tensor([-INF, -1.0, -5.0, -INF], dtype=torch.float64)
    _, _, seeds, positions = parameters(4, 3, temperature=1.0)
    together = draw_token(logits, temperature, floor, seeds, positions)
    assert together.equal(plain(logits, temperature, floor, seeds, positions))
    for row in range(4):
        own = (t[row : row + 1] for t in (logits, temperature, floor, seeds, positions))
        assert draw_token(*own).equal(together[row : row + 1])


def test_the_draws_follow_the_probabilities():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -INF]).expand(1, 20_000, 5).contiguous()
    temperature, floor, seeds, _ = parameters(1, 1, temperature=1.5)
    drawn = draw_token(logits, temperature, floor, seeds, torch.arange(20_000)[None])
    found = torch.bincount(drawn[0], minlength=5) / 20_000
    assert torch.allclose(found, (logits[0, 0] / 1.5).softmax(-1), atol=0.02)
    assert found[4] == 0


def test_noise_is_bounded_by_the_ones_that_its_hash_begins_with():
    # What the kernel leaves out relies on it: noise <= (leading ones + 1) log 2.
    noise = gumbel_noise(torch.tensor([3]), torch.arange(200)[None], torch.arange(5_000))
    uniform = (-(-noise).exp()).exp()
    ones = (-(1.0 - uniform).clamp(min=2.0**-53).log2()).ceil()  # 1 - u < 2 ** -ones
    assert (noise <= (ones + 1) * torch.tensor(2.0).log()).all()


@pytest.mark.parametrize(("index", "message"), [(1, "float64"), (2, "float64"), (3, "int64"), (4, "int64")])
def test_other_types_are_refused(index, message):
    given = [torch.zeros(1, 1, 8), *parameters(1, 1, temperature=1.0)]
    given[index] = given[index].float()
    with pytest.raises(RuntimeError, match=message):
        torch.ops.litspec.draw_token(*given)
