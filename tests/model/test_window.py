"""Shapes and pack_window: every run fits a shape from the short list, and padding repeats what is there already."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litspec.model.window import CHUNK_WIDTHS, MOST_TOKENS, Shapes, pack_window
from tests.model.tiny_gpt import consecutive, some_tokens, tiny_gpt


@pytest.mark.parametrize(
    ("max_batch_size", "num_draft_tokens", "buckets", "widths"),
    [
        (1, 0, (1,), (1,)),
        (8, 4, (1, 2, 4, 8), (1, 2, 3, 4, 5)),
        (6, 5, (1, 2, 4, 6), (1, 2, 3, 4, 6)),
        (5, 8, (1, 2, 4, 5), (1, 2, 3, 4, 6, 8, 9)),
        (2, 1, (1, 2), (1, 2)),
    ],
)
def test_plans(max_batch_size, num_draft_tokens, buckets, widths):
    shapes = Shapes.plan(max_batch_size=max_batch_size, num_draft_tokens=num_draft_tokens)
    assert (shapes.row_buckets, shapes.step_widths, shapes.chunk_widths) == (buckets, widths, CHUNK_WIDTHS)
    assert list(shapes) == [(b, w) for b in buckets for w in (*widths, *CHUNK_WIDTHS)]


@pytest.mark.parametrize("num_rows", [8, 16, 64, 200])
def test_no_shape_is_listed_that_holds_more_of_prompts_than_is_fed(num_rows):
    shapes = Shapes.plan(max_batch_size=num_rows, num_draft_tokens=7)
    most_rows = shapes.chunk_rows(MOST_TOKENS)
    fed = {(rows, width) for rows in shapes.row_buckets for width in shapes.step_widths}
    for rows in range(1, most_rows + 1):
        bucket = shapes.row_bucket(rows)
        for tokens in (1, 20, 70, 4000):
            fed.add((bucket, shapes.chunk_width(tokens, most=MOST_TOKENS // bucket)))
    assert set(shapes) == fed
    assert len(list(shapes)) == len(fed)


@given(st.integers(1, 40), st.integers(0, 20), st.integers(1, 400))
def test_the_smallest_that_covers_is_used(max_batch_size, num_draft_tokens, num_tokens):
    # CP-08: a short proposal does not pay for the widest window.
    shapes = Shapes.plan(max_batch_size=max_batch_size, num_draft_tokens=num_draft_tokens)
    for rows in range(1, max_batch_size + 1):
        bucket = shapes.row_bucket(rows)
        assert bucket == min(b for b in shapes.row_buckets if b >= rows)
        assert bucket < 2 * rows
    for tokens in range(1, num_draft_tokens + 2):
        assert shapes.step_width(tokens) == min(w for w in shapes.step_widths if w >= tokens)
    assert max(shapes.step_widths) == num_draft_tokens + 1
    chunk = shapes.chunk_width(num_tokens)
    assert chunk == min((w for w in CHUNK_WIDTHS if w >= num_tokens), default=CHUNK_WIDTHS[-1])


def test_runs_are_packed_padded_and_left_over_rows_go_to_the_scratch_slot():
    window = pack_window([[5, 6, 7], [8]], [4, 0], [2, 1], rows=4, width=3, scratch_slot=9)
    assert window.idx_BT.tolist() == [[5, 6, 7], [8, 8, 8], [0, 0, 0], [0, 0, 0]]
    assert window.input_pos_BT.tolist() == [[4, 5, 6], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert window.slots_B.tolist() == [2, 1, 9, 9]
    assert {t.dtype for t in window} == {torch.int64}


@pytest.mark.parametrize("run", [[], [1, 2, 3]])
def test_a_run_that_is_empty_or_too_long_is_our_own_fault(run):
    with pytest.raises(AssertionError, match=f"a run of {len(run)} tokens in a window of 2"):
        pack_window([run], [0], [0], rows=1, width=2, scratch_slot=1)


def test_a_padded_window_gives_what_each_run_gives_alone_also_at_the_end_of_the_cache():
    gpt = tiny_gpt(max_seq_length=12)
    prompts = [some_tokens(1, n, seed=n)[0].tolist() for n in (11, 4, 6)]
    runs = [[7], [9, 2, 5], [1, 3]]
    cache = gpt.new_cache(4)
    cache.k[0][-1], cache.v[1][-1] = torch.nan, torch.nan
    for slot, prompt in zip((3, 0, 2), prompts, strict=True):
        gpt(torch.tensor([prompt]), consecutive([0], len(prompt)), cache=cache, slots=torch.tensor([slot]))
    window = pack_window(runs, [11, 4, 6], [3, 0, 2], rows=4, width=5, scratch_slot=cache.scratch_slot)
    got = gpt(window.idx_BT, window.input_pos_BT, cache=cache, slots=window.slots_B)
    for b, (prompt, run) in enumerate(zip(prompts, runs, strict=True)):
        alone = gpt(torch.tensor([prompt + run]))[0, len(prompt) :]
        torch.testing.assert_close(got[b, : len(run)], alone)
        torch.testing.assert_close(got[b, len(run) :], got[b, len(run) - 1].expand(5 - len(run), -1))
    untouched = cache.k[0][1]
    assert not untouched.any()
    assert not cache.k[1][0, :, 7:].any()  # the row of three wrote three
