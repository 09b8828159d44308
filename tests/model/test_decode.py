"""batched_next_token against a loop over rows without a cache, and both decoding functions under Thunder.

What the sampler draws is tested in tests/ops/test_sample.py.
"""

from __future__ import annotations

import pytest
import torch

from litspec.model.decode import Sampling, batched_next_token, batched_sample, is_noisy, sample_shortlisted
from litspec.ops import executor
from tests.model.tiny_gpt import TINY, consecutive, some_tokens, tiny_gpt
from tests.ops.slow_sample import sampling_of, token_by_loop

ROWS = [(0.0, None, 1.0, 5), (1.0, None, 1.0, 6), (0.8, 7, 0.9, 7), (0.0, 3, 0.5, 8), (1.4, None, 0.6, 2**63 - 1)]
STARTS = [0, 3, 17, 9, 1]
SLOTS = torch.tensor([4, 0, 2, 5, 3])


def test_a_value_per_row_becomes_tensors_and_kinds_of_rows():
    sampling = Sampling.of(
        [0.0, 1.0, 0.5, 1e-5, 1.0], [3, None, 7, None, None], [1.0, 1.0, 1.0, 0.9, 1.0], [1, 2, 3, 4, 5]
    )
    assert sampling.temperature_B.tolist() == [0.0, 1.0, 0.5, 1e-5, 1.0]
    assert sampling.top_k_B.tolist()[::2] == [3, 7, 2**31 - 1]
    assert (sampling.greedy_rows, sampling.full_rows, sampling.filtered_rows) == ((0,), (1, 4), (2, 3))
    assert sampling.seeds_B.dtype == sampling.top_k_B.dtype == torch.int64
    assert sampling.temperature_B.dtype == sampling.top_p_B.dtype == torch.float64
    assert sampling.rows((4, 2))[4].tolist() == [5, 3]
    assert sampling.min_p_B.tolist() == [0.0] * 5 and sampling.edits is None
    floors = Sampling.of([0.0, 1.0], [None, None], [1.0, 1.0], [1, 2], min_ps=[0.5, 0.25])
    assert floors.full_rows == (1,) and floors.rows((1,))[3].tolist() == [0.25]
    with pytest.raises(ValueError, match="zip"):
        Sampling.of([1.0], [None, None], [1.0], [1])


@pytest.mark.parametrize("T", [1, 4])
def test_ragged_rows_get_what_a_loop_over_rows_gets(T):
    gpt = tiny_gpt()
    cache = gpt.new_cache(6)
    histories = [some_tokens(1, n, seed=n)[0].tolist() for n in STARTS]
    for slot, history in zip(SLOTS.tolist(), histories, strict=True):
        if history:
            gpt(torch.tensor([history]), consecutive([0], len(history)), cache=cache, slots=torch.tensor([slot]))
    x = some_tokens(5, T, seed=50)
    input_pos = consecutive(STARTS, T)
    got = batched_next_token(gpt, input_pos, x, sampling=sampling_of(ROWS), cache=cache, slots=SLOTS)
    for b, (history, row) in enumerate(zip(histories, ROWS, strict=True)):
        for t in range(T):
            fed = torch.tensor([history + x[b, : t + 1].tolist()])
            assert got[b, t].item() == token_by_loop(gpt(fed)[0, -1], *row, position=fed.shape[1])


def test_generation_token_by_token_equals_generation_from_scratch():
    gpt = tiny_gpt()
    cache, sampling = gpt.new_cache(5), sampling_of(ROWS)
    x, lengths = some_tokens(5, 1), [0] * 5
    texts = x.tolist()
    for _ in range(20):
        x = batched_next_token(gpt, consecutive(lengths, 1), x, sampling=sampling, cache=cache)
        lengths = [n + 1 for n in lengths]
        for text, token in zip(texts, x[:, 0].tolist(), strict=True):
            text.append(token)
    for text, row in zip(texts, ROWS, strict=True):
        alone = sampling_of([row])
        idx = torch.tensor([text[:-1]])
        replay = batched_next_token(gpt, torch.arange(20)[None], idx, sampling=alone)
        assert replay[0].tolist() == text[1:]
    assert len({tuple(text[1:]) for text in texts}) > 1


def test_without_slots_row_b_is_slot_b():
    gpt = tiny_gpt()
    outputs = []
    for slots in (None, torch.arange(2)):
        cache = gpt.new_cache(2)
        idx, positions = some_tokens(2, 3), consecutive([0, 0], 3)
        outputs.append(
            batched_next_token(gpt, positions, idx, sampling=sampling_of(ROWS[1:3]), cache=cache, slots=slots)
        )
    assert torch.equal(*outputs)


@pytest.mark.parametrize("rows", [ROWS[:1] * 3, ROWS[1:2] * 3, [ROWS[4], *ROWS[:3]]])
def test_thunder_compiles_batched_sample(rows):
    sampling, B = sampling_of(rows), len(rows)
    logits = torch.randn(B, 2, 50, generator=torch.Generator().manual_seed(0)) * 2
    positions = consecutive(STARTS[:B], 2)
    jitted = executor.jit(lambda logits, positions: batched_sample(logits, positions, sampling))
    for n in range(3):
        assert torch.equal(
            jitted(logits + n * logits.sin(), positions + n),
            batched_sample(logits + n * logits.sin(), positions + n, sampling),
        )
    assert torch.equal(batched_sample(logits, positions, sampling), sample_shortlisted(logits, positions, sampling))


def test_thunder_compiles_batched_next_token_with_a_whole_model_and_its_cache():
    gpt = tiny_gpt(n_layer=1)
    sampling = sampling_of([ROWS[2], ROWS[0]])
    caches = gpt.new_cache(3), gpt.new_cache(3)
    slots = torch.tensor([2, 0])

    def step(input_pos: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return batched_next_token(gpt, input_pos, x, sampling=sampling, cache=caches[0], slots=slots)

    jitted = executor.jit(step)
    for n in range(3):
        x, input_pos = some_tokens(2, 2, seed=n), consecutive([2 * n, 5 + 2 * n], 2)
        got = jitted(input_pos, x)
        want = batched_next_token(gpt, input_pos, x, sampling=sampling, cache=caches[1], slots=slots)
        assert torch.equal(got, want)
        assert torch.equal(caches[0].k[0], caches[1].k[0]) and torch.equal(caches[0].v[0], caches[1].v[0])
    assert TINY.vocab_size > got.max()


def test_a_row_is_noisy_where_noise_over_the_whole_vocabulary_is_drawn():
    given = [(0.0, None, 1.0), (0.8, None, 1.0), (0.8, 5, 1.0), (0.8, None, 0.9), (1e-6, None, 1.0)]
    sampling = Sampling.of(*([row[field] for row in given] for field in range(3)), [0] * len(given))
    assert [row for row, each in enumerate(given) if is_noisy(*each)] == [*sampling.full_rows] == [1]
