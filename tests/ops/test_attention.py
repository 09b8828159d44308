"""Attention over the cache against a loop over rows, heads and queries in float64, and that stale entries never show.

What a mask hides is poisoned with large finite values (0 x NaN is NaN); what is never read at all, other slots and
positions beyond the longest row, with NaN.
"""

from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from litspec.ops.attention import attention, cached_attention, positions_mask, uncached_attention

HUGE = 1e30


def attention_by_loop(q_D: Tensor, keys_ND: Tensor, values_ND: Tensor, scale: float) -> list[float]:
    """One query of one head over the keys it may see."""
    scores = [scale * sum(a * b for a, b in zip(q_D.tolist(), key, strict=True)) for key in keys_ND.tolist()]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    columns = zip(*values_ND.tolist(), strict=True)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) / sum(weights) for column in columns]


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Case:
    """Ragged rows in shuffled slots: `lengths` tokens are cached, T more are fed."""

    def __init__(
        self, lengths: list[int], T: int, K: int, group: int, D: int, *, M: int = 24, spare: int = 2, seed: int = 0
    ) -> None:
        self.lengths, self.T, self.group, B = lengths, T, group, len(lengths)
        S = B + spare
        self.slots_B = torch.randperm(S, generator=torch.Generator().manual_seed(seed))[:B]
        self.k_cache, self.v_cache = (random(S, K, M, D, seed=seed + n) for n in (1, 2))
        self.q = random(B, T, K * group, D, seed=seed + 3)
        self.k, self.v = (random(B, T, K, D, seed=seed + n) for n in (4, 5))
        self.input_pos_BT = torch.tensor([list(range(n, n + T)) for n in lengths])
        self.scale = D**-0.5

    def run(self, *, dtype: torch.dtype = torch.float64) -> Tensor:
        self.k_after, self.v_after = self.k_cache.to(dtype, copy=True), self.v_cache.to(dtype, copy=True)
        q, k, v = (t.to(dtype) for t in (self.q, self.k, self.v))
        return cached_attention(q, k, v, self.k_after, self.v_after, self.slots_B, self.input_pos_BT, self.scale)

    def by_loop(self) -> Tensor:
        out = torch.empty_like(self.q)
        for b, slot in enumerate(self.slots_B.tolist()):
            for h in range(self.q.shape[2]):
                g, n = h // self.group, self.lengths[b]
                keys = torch.cat((self.k_cache[slot, g, :n], self.k[b, :, g]))
                values = torch.cat((self.v_cache[slot, g, :n], self.v[b, :, g]))
                for t in range(self.T):
                    seen = n + t + 1
                    row = attention_by_loop(self.q[b, t, h], keys[:seen], values[:seen], self.scale)
                    out[b, t, h] = torch.tensor(row, dtype=torch.float64)
        return out


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 14), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 8),
    st.sampled_from((8, 10, 64)),
    st.integers(0, 2**20),
)
def test_equals_a_loop_over_rows_heads_and_queries(lengths, T, K, group, D, seed):
    case = Case(lengths, T, K, group, D, seed=seed)
    torch.testing.assert_close(case.run(), case.by_loop(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_lower_precisions_stay_near(dtype, tolerance):
    case = Case([9, 0, 4], 3, 2, 3, 64)
    got = case.run(dtype=dtype)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), case.by_loop(), rtol=tolerance, atol=tolerance)


def test_writes_its_own_positions_of_its_own_slots_and_nothing_else():
    case = Case([5, 0, 9], 2, 2, 2, 8, spare=3)
    case.run()
    for before, after, fed in ((case.k_cache, case.k_after, case.k), (case.v_cache, case.v_after, case.v)):
        want = before.clone()
        for b, slot in enumerate(case.slots_B.tolist()):
            for t in range(case.T):
                want[slot, :, case.lengths[b] + t] = fed[b, t]
        assert torch.equal(after, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("T", [1, 3])
def test_stale_entries_change_no_bit(dtype, T):
    lengths = [2, 11, 0]
    clean = Case(lengths, T, 2, 4, 16)
    want = clean.run(dtype=dtype)
    poisoned = Case(lengths, T, 2, 4, 16)
    read = max(lengths) + T
    for cache in (poisoned.k_cache, poisoned.v_cache):
        others = [s for s in range(cache.shape[0]) if s not in poisoned.slots_B.tolist()]
        cache[others] = torch.nan
        cache[:, :, read:] = torch.nan
        for b, slot in enumerate(poisoned.slots_B.tolist()):
            cache[slot, :, lengths[b] : read] = HUGE
    assert torch.equal(poisoned.run(dtype=dtype), want)


def test_a_row_does_not_see_the_slots_beside_it():
    # Slots 0, 1, 2 stand side by side, which takes the path without a copy; slots 3, 1, 0 take the other.
    case = Case([4, 6, 2], 2, 2, 2, 16)
    outputs = []
    for slots in ([0, 1, 2], [3, 1, 0], [2, 3, 4]):
        for b, slot in enumerate(slots):
            other = Case([4, 6, 2], 2, 2, 2, 16)
            case.k_cache[slot], case.v_cache[slot] = other.k_cache[b], other.v_cache[b]
        case.slots_B = torch.tensor(slots)
        outputs.append(case.run())
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def test_slots_side_by_side_are_read_without_a_copy(monkeypatch):
    case, read = Case([4, 6], 2, 2, 2, 16), []
    monkeypatch.setattr("litspec.ops.attention.attention", lambda q, k, v, *_, scale: read.append((k, v)) or q)
    for slots in ([1, 2], [2, 1]):
        case.slots_B = torch.tensor(slots)
        case.run()
        ours = {t.untyped_storage().data_ptr() for t in (case.k_after, case.v_after)}
        assert ({t.untyped_storage().data_ptr() for t in read.pop()} == ours) == (slots == [1, 2])


def test_rows_of_padding_in_the_scratch_slot_change_nothing():
    case = Case([3, 8], 2, 2, 2, 8)
    want = case.run()
    scratch = case.k_cache.shape[0]
    padded = Case([3, 8], 2, 2, 2, 8)
    padded.k_cache, padded.v_cache = (
        torch.cat((c, torch.full_like(c[:1], torch.nan))) for c in (padded.k_cache, padded.v_cache)
    )
    padded.q, padded.k, padded.v = (torch.cat((t, t[:1], t[:1])) for t in (padded.q, padded.k, padded.v))
    padded.k[3], padded.v[3] = padded.k[2], padded.v[2]
    padded.slots_B = torch.cat((padded.slots_B, torch.tensor([scratch, scratch])))
    padded.input_pos_BT = torch.cat((padded.input_pos_BT, torch.zeros(2, 2, dtype=torch.int64)))
    padded.k[2:, 1], padded.v[2:, 1] = padded.k[2:, 0], padded.v[2:, 0]
    got = padded.run()
    assert torch.equal(got[:2], want)
    assert torch.equal(padded.k_after[:scratch], case.k_after) and torch.equal(padded.v_after[:scratch], case.v_after)


def test_a_window_that_repeats_its_last_token_is_the_shorter_window():
    # Padding of a short run: same key and value at the same position, also at the very end of the cache.
    short = Case([21, 20], 3, 2, 2, 8, M=24)
    want = short.run()
    padded = Case([21, 20], 3, 2, 2, 8, M=24)
    repeat = [0, 1, 2, 2, 2]
    padded.q, padded.k, padded.v = padded.q[:, repeat], padded.k[:, repeat], padded.v[:, repeat]
    padded.input_pos_BT = padded.input_pos_BT[:, repeat]
    got = padded.run()
    torch.testing.assert_close(got[:, :3], want, rtol=1e-12, atol=1e-13)
    assert torch.equal(padded.k_after, short.k_after) and torch.equal(padded.v_after, short.v_after)


def test_a_rewind_overwrites_and_does_not_add():
    # CP-07's eager half: three tokens are fed at 4, 5, 6 and rejected; others take their place.
    case = Case([4], 3, 2, 2, 8)
    case.run()
    case.k_cache, case.v_cache = case.k_after, case.v_after
    case.k, case.v, case.q = (random(*t.shape, seed=n) for n, t in enumerate((case.k, case.v, case.q), 50))
    torch.testing.assert_close(case.run(), case.by_loop(), rtol=1e-10, atol=1e-12)
    assert torch.equal(case.k_after[case.slots_B[0], :, 4:7], case.k[0].transpose(0, 1))


def test_uncached_attention_follows_positions_and_not_places():
    case = Case([0, 0], 6, 2, 3, 16)
    want = case.by_loop()
    got = uncached_attention(case.q, case.k, case.v, case.input_pos_BT, case.scale)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    order = [3, 0, 5, 1, 4, 2]
    shuffled = (t[:, order] for t in (case.q, case.k, case.v, case.input_pos_BT))
    torch.testing.assert_close(uncached_attention(*shuffled, case.scale), want[:, order], rtol=1e-10, atol=1e-12)


def test_the_scale_is_applied():
    q, k, v = (random(1, 1, 4, 8, seed=n) for n in range(3))
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    got = attention(q, k, v, mask, scale=0.9)
    want = [attention_by_loop(q[0, 0, t], k[0, 0], v[0, 0], 0.9) for t in range(4)]
    torch.testing.assert_close(got[0, 0], torch.tensor(want, dtype=torch.float64))


def test_positions_mask_shows_a_query_its_own_position_and_what_is_below():
    mask = positions_mask(torch.tensor([[0, 1], [3, 3]]), 5)
    assert mask.int().tolist() == [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]]


@pytest.mark.parametrize("slots", [[0, 1], [1, 0]])
def test_the_cost_follows_the_length_in_use(slots):
    def seconds(M: int) -> float:
        case = caches[M]
        started = time.perf_counter()
        for _ in range(5):
            cached_attention(q, k, v, *case, torch.tensor(slots), torch.tensor([[30], [40]]), 0.125)
        return time.perf_counter() - started

    q, k, v = (torch.randn(2, 1, heads, 64) for heads in (8, 4, 4))
    caches = {M: (torch.zeros(3, 4, M, 64), torch.zeros(3, 4, M, 64)) for M in (256, 4096)}
    pairs = [(seconds(256), seconds(4096)) for _ in range(21)]
    small, large = (sorted(column)[10] for column in zip(*pairs, strict=True))
    assert large / small < 1.5
