"""KVCache: its shape, default positions (RB-10), and that a rewind moves no storage (KV-01)."""

from __future__ import annotations

import pytest
import torch

from litspec.kvcache import KVCache
from litspec.model.gpt import GPT
from tests.model.tiny_gpt import consecutive, some_tokens, tiny_gpt


def pointers(cache: KVCache) -> list[int]:
    return [t.data_ptr() for t in (*cache.k, *cache.v)]


def full_logits(gpt: GPT, tokens: list[int]) -> torch.Tensor:
    """Return the logits after each token of a forward from scratch, without a cache."""
    return gpt(torch.tensor([tokens]))[0]


def test_shape_scratch_slot_and_size():
    cache = KVCache(
        n_layer=3, num_slots=4, n_query_groups=2, max_seq_length=16, head_size=8, dtype=torch.bfloat16, device="cpu"
    )
    assert len(cache.k) == len(cache.v) == 3
    assert {t.shape for t in (*cache.k, *cache.v)} == {(5, 2, 16, 8)}
    assert {t.dtype for t in (*cache.k, *cache.v)} == {torch.bfloat16}
    assert len(set(pointers(cache))) == 6
    assert (cache.num_slots, cache.scratch_slot, cache.max_seq_length) == (4, 4, 16)
    assert cache.num_bytes == 6 * 5 * 2 * 16 * 8 * 2


def test_a_model_makes_a_cache_that_fits_it():
    gpt = tiny_gpt(dtype=torch.float32, max_seq_length=32)
    cache = gpt.new_cache(3)
    assert len(cache.k) == 2 and cache.k[0].shape == (4, 2, 32, 8)
    assert cache.k[0].dtype == torch.float32 and not cache.k[1].any() and not cache.v[1].any()


def test_positions_default_to_what_each_slot_was_fed():
    # RB-10: five tokens and then one, without positions, are one forward of six.
    gpt = tiny_gpt()
    cache, tokens = gpt.new_cache(1), some_tokens(1, 6)
    first = gpt(tokens[:, :5], cache=cache)
    last = gpt(tokens[:, 5:], cache=cache)
    assert cache.fed_S[0] == 6
    torch.testing.assert_close(torch.cat((first, last), 1)[0], full_logits(gpt, tokens[0].tolist()))


def test_default_positions_are_each_slots_own():
    gpt = tiny_gpt()
    cache, tokens = gpt.new_cache(3), some_tokens(2, 8)
    gpt(tokens[:1, :5], cache=cache, slots=torch.tensor([2]))
    gpt(tokens[1:, :2], cache=cache, slots=torch.tensor([0]))
    got = gpt(torch.stack((tokens[0, 5:7], tokens[1, 2:4])), cache=cache, slots=torch.tensor([2, 0]))
    assert cache.fed_S.tolist() == [4, 0, 7, 0]
    torch.testing.assert_close(got[0], full_logits(gpt, tokens[0, :7].tolist())[5:])
    torch.testing.assert_close(got[1], full_logits(gpt, tokens[1, :4].tolist())[2:])


def test_fed_follows_explicit_positions_and_rewind_forgets():
    gpt = tiny_gpt()
    cache = gpt.new_cache(2)
    gpt(some_tokens(2, 4), consecutive([0, 10], 4), cache=cache)
    assert cache.fed_S.tolist() == [4, 14, 0]
    assert cache.next_positions(torch.tensor([1, 0]), 2).tolist() == [[14, 15], [4, 5]]
    gpt(some_tokens(1, 2), torch.tensor([[5, 4]]), cache=cache, slots=torch.tensor([1]))
    assert cache.fed_S.tolist() == [4, 6, 0]
    before = cache.k[0].clone()
    cache.rewind(1)
    assert cache.fed_S.tolist() == [4, 0, 0] and torch.equal(cache.k[0], before)


def test_a_rewind_moves_no_storage_and_shows_nothing_stale():
    # KV-01: windows of 4 of which 0, 1 and 3 draft tokens stand, then one more step.
    gpt = tiny_gpt()
    cache, prompt = gpt.new_cache(1), some_tokens(1, 7)[0].tolist()
    before = pointers(cache)
    gpt(torch.tensor([prompt]), consecutive([0], 7), cache=cache)
    committed = prompt
    for step, accepted in enumerate((0, 1, 3, 0)):
        window = some_tokens(1, 4, seed=20 + step)
        got = gpt(window, consecutive([len(committed)], 4), cache=cache)
        torch.testing.assert_close(got[0], full_logits(gpt, committed + window[0].tolist())[-4:])
        committed = committed + window[0, : accepted + 1].tolist()
    got = gpt(torch.tensor([[3]]), consecutive([len(committed)], 1), cache=cache)
    torch.testing.assert_close(got[0, -1], full_logits(gpt, [*committed, 3])[-1])
    assert pointers(cache) == before


def test_a_slot_that_changes_hands_shows_nothing_of_its_former_owner():
    # KV-13 at the cache: a long owner, then a short one in the same slot, beside a row that stays.
    gpt = tiny_gpt()
    cache, steady = gpt.new_cache(2), some_tokens(1, 20)[0].tolist()
    gpt(torch.tensor([steady[:10]]), cache=cache, slots=torch.tensor([1]))
    for n in (30, 3):
        owner = some_tokens(1, n, seed=n)[0].tolist()
        cache.rewind(0)
        gpt(torch.tensor([owner[:-1]]), cache=cache, slots=torch.tensor([0]))
        at = int(cache.fed_S[1])
        got = gpt(torch.tensor([[owner[-1]], [steady[at]]]), cache=cache)
        torch.testing.assert_close(got[0, 0], full_logits(gpt, owner)[-1])
        torch.testing.assert_close(got[1, 0], full_logits(gpt, steady[: at + 1])[-1])


def test_a_rewind_clears_what_float16_may_have_overflowed():
    cache = KVCache(n_layer=2, num_slots=2, n_query_groups=1, max_seq_length=4, head_size=2, dtype=torch.float16)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(torch.inf)
    cache.rewind(1, 2)
    assert all(torch.isfinite(t[1, :, 2:]).all() for t in (*cache.k, *cache.v))
    assert all(torch.isinf(t[1, :, :2]).all() for t in (*cache.k, *cache.v))
    assert all(torch.isinf(t[0]).all() for t in (*cache.k, *cache.v))


def test_a_copied_prefix_goes_on_as_if_it_had_been_fed():
    gpt = tiny_gpt()
    cache, text = gpt.new_cache(3), some_tokens(1, 12)[0].tolist()
    gpt(torch.tensor([text[:9]]), cache=cache, slots=torch.tensor([2]))
    gpt(some_tokens(1, 11, seed=5), cache=cache, slots=torch.tensor([0]))
    source, before = [t[2].clone() for t in (*cache.k, *cache.v)], pointers(cache)
    cache.copy_prefix(2, 0, 7)
    assert cache.fed_S.tolist() == [7, 0, 9, 0] and pointers(cache) == before
    assert all(torch.equal(t[2], was) for t, was in zip((*cache.k, *cache.v), source, strict=True))
    got = gpt(torch.tensor([text[7:]]), cache=cache, slots=torch.tensor([0]))
    torch.testing.assert_close(got[0], full_logits(gpt, text)[7:])
    with pytest.raises(AssertionError, match="positions of"):
        cache.copy_prefix(2, 0, cache.max_seq_length + 1)
