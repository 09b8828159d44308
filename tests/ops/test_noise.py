"""gumbel_noise: its bits against SplitMix64 in Python's integers, its distribution, and that only the key counts.

SP-08 (uniform draws that degenerate) is here; what is drawn with the noise is in test_sample.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from litspec.ops.noise import gumbel_noise

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
LARGEST = 2**63 - 1
seeds = st.one_of(st.integers(0, LARGEST), st.sampled_from([0, 1, LARGEST, 2**62, 2**32]))
positions = st.one_of(st.integers(0, 10**6), st.integers(0, 2**31))
token_ids = st.integers(0, 300_000)


def splitmix64(state: int) -> int:
    """Return SplitMix64's output for a state that has been stepped already."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def reference_uniform(seed: int, position: int, token_id: int) -> float:
    stream = splitmix64(splitmix64(seed + GOLDEN) + (position + 1) * GOLDEN)
    bits = splitmix64(stream + (token_id + 1) * GOLDEN) >> 11
    return min((bits + 0.5) * 2.0**-53, 1 - 2.0**-53)


def noise(seed: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    return gumbel_noise(torch.tensor([seed]), torch.tensor([[position]]), ids)[0, 0]


def uniform(gumbel: torch.Tensor) -> torch.Tensor:
    return torch.exp(-torch.exp(-gumbel))


def test_the_python_reference_is_splitmix64():
    # The first outputs for seed 1234567, as published with the generator.
    outputs = [splitmix64(1234567 + n * GOLDEN) for n in range(1, 4)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(max_examples=200, deadline=None)
@given(seeds, positions, token_ids)
def test_equals_the_reference_in_python_integers(seed, position, token_id):
    want = -math.log(-math.log(reference_uniform(seed, position, token_id)))
    got = noise(seed, position, torch.tensor([token_id]))
    assert got.dtype == torch.float64
    assert got.item() == pytest.approx(want, rel=1e-14, abs=1e-14)


def test_any_batch_window_or_set_of_ids_gives_the_same_bits():
    seeds_B = torch.tensor([0, 7, LARGEST])
    positions_BT = torch.tensor([[0, 1, 2, 3], [9, 8, 8, 700], [5, 5, 5, 5]])
    V = 67
    whole = gumbel_noise(seeds_B, positions_BT, torch.arange(V))
    assert whole.shape == (3, 4, V)
    some = torch.randint(0, V, (3, 4, 5), generator=torch.Generator().manual_seed(0))
    assert torch.equal(gumbel_noise(seeds_B, positions_BT, some), whole.gather(-1, some))
    for b in range(3):
        for t in range(4):
            alone = noise(int(seeds_B[b]), int(positions_BT[b, t]), torch.arange(V))
            assert torch.equal(alone, whole[b, t])
    assert torch.equal(whole[1, 1], whole[1, 2])
    single = gumbel_noise(seeds_B[2:], positions_BT[2:, :1], torch.tensor([66]))
    assert single.item() == whole[2, 0, 66].item()


def test_seeds_positions_and_ids_all_count():
    ids = torch.arange(50)
    keys = [(s, p) for s in (0, 1, 2, 3, 2**32, 2**62, LARGEST) for p in (0, 1, 2, 3, 4095)]
    values = torch.stack([noise(s, p, ids) for s, p in keys])
    assert values.unique().numel() == values.numel()


@pytest.mark.parametrize("seed", [0, 1, 42, LARGEST])
def test_mean_variance_and_distribution_are_gumbels(seed):
    values = noise(seed, 10, torch.arange(200_000))
    assert values.mean().item() == pytest.approx(0.5772156649, abs=0.012)  # 4 sigma of the mean
    assert values.var().item() == pytest.approx(math.pi**2 / 6, abs=0.035)
    assert stats.kstest(values[:20_000].numpy(), "gumbel_r").pvalue > 0.001


def test_low_seeds_are_uniform_along_each_part_of_the_key():
    # SP-08: each of the low seeds, and each way to walk through the keys, gives uniform numbers.
    n = 2000
    along_ids = [noise(seed, 0, torch.arange(n)) for seed in range(16)]
    along_positions = [gumbel_noise(torch.tensor([s]), torch.arange(n)[None], torch.tensor([3])) for s in range(4)]
    along_seeds = [gumbel_noise(torch.arange(n), torch.full((n, 1), p), torch.tensor([3])) for p in range(4)]
    pvalues = [stats.kstest(uniform(g).flatten().numpy(), "uniform").pvalue for g in along_ids]
    pvalues += [stats.kstest(uniform(g).flatten().numpy(), "uniform").pvalue for g in along_positions + along_seeds]
    assert min(pvalues) > 0.001


def test_neighbouring_keys_are_not_correlated():
    whole = gumbel_noise(torch.arange(8), torch.arange(50).expand(8, 50), torch.arange(500))
    u = uniform(whole) - 0.5
    n = u[1:].numel()
    for shifted, rest in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1]), (u[..., 1:], u[..., :-1])):
        correlation = (shifted * rest).mean().item() * 12
        assert abs(correlation) < 5 / math.sqrt(n)
    diagonal = (u[:, 1:, :-1] * u[:, :-1, 1:]).mean().item() * 12  # position + 1 must not look like id + 1
    assert abs(diagonal) < 5 / math.sqrt(n)


@settings(max_examples=100, deadline=None)
@given(seeds, positions)
def test_is_finite_everywhere(seed, position):
    assert noise(seed, position, torch.arange(1000)).isfinite().all()


def unmixed(target: int) -> int:
    """Return the state for which `splitmix64` gives `target`."""

    def unshift(z: int, bits: int) -> int:
        result = z
        for _ in range(64 // bits + 1):
            result = z ^ (result >> bits)
        return result

    z = unshift(target, 31)
    z = unshift((z * pow(0x94D049BB133111EB, -1, 2**64)) & MASK, 27)
    return unshift((z * pow(0xBF58476D1CE4E5B9, -1, 2**64)) & MASK, 30)


@pytest.mark.parametrize("hashed", [0, MASK])
def test_is_finite_at_both_ends_of_the_hash(hashed):
    # Work the hash backwards to the id for which every bit is 0, or 1: log(0) and log(1) both lurk there.
    stream = splitmix64(splitmix64(5 + GOLDEN) + 1 * GOLDEN)
    token_id = ((unmixed(hashed) - stream) * pow(GOLDEN, -1, 2**64) - 1) & MASK
    assert splitmix64(stream + (token_id + 1) * GOLDEN) == hashed
    signed = token_id - 2**64 if token_id >= 2**63 else token_id
    value = noise(5, 0, torch.tensor([signed])).item()
    assert math.isfinite(value)
    assert value == pytest.approx(-math.log(54 * math.log(2)) if hashed == 0 else 53 * math.log(2), rel=1e-9)
