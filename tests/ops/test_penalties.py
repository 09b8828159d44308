"""Edits of single scores against plain Python, and at the edges of a type's range."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.ops.penalties import edit_entries, edited_scores

scores = st.one_of(
    st.floats(-60, 60, width=32), st.sampled_from((0.0, -0.0, -math.inf, 3.4e38, -3.4e38, 1e-45, 2.0**-149))
)
offsets = st.one_of(st.floats(-300, 300), st.just(-math.inf), st.just(0.0))
repetitions = st.one_of(st.floats(0.01, 10), st.sampled_from((1.0, 5e-324, 1e-300)))


def by_hand(score: float, repetition: float, offset: float) -> float:
    penalised = score * repetition if score <= 0 else score / repetition if score / 2 < repetition * 1e308 else math.inf
    return -math.inf if offset == -math.inf else min(penalised + offset, torch.finfo(torch.float32).max)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(scores, repetitions, offsets), min_size=1, max_size=20))
def test_equals_plain_python(entries):
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*entries, strict=True)]
    got = edited_scores(columns[0].float(), columns[1], columns[2])
    as_stored = zip(columns[0].float().tolist(), columns[1].tolist(), columns[2].tolist(), strict=True)
    want = torch.tensor([by_hand(*entry) for entry in as_stored], dtype=torch.float64).float()
    assert got.dtype == torch.float32
    assert torch.equal(got, want) and not (got == math.inf).any()


def test_a_ban_holds_whatever_the_score():
    entries = torch.tensor([math.inf, -math.inf, 3.4e38, 0.0])
    assert (
        edited_scores(entries, torch.ones(4).double(), torch.full((4,), -torch.inf).double()).tolist()
        == [-math.inf] * 4
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_only_the_entries_change_and_the_raw_logits_stay(dtype):
    raw = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = raw.clone()
    entries = torch.tensor([0, 20, 41])
    one = torch.ones(3, dtype=torch.float64)
    edited = edit_entries(raw, entries, one, torch.tensor([1.0, -torch.inf, 0.0], dtype=torch.float64))
    assert torch.equal(raw, before) and edited.dtype == dtype
    assert edited[0, 0, 0] == (raw[0, 0, 0].double() + 1).to(dtype) and edited[0, 2, 6] == -math.inf
    changed = (edited != raw).flatten().nonzero()[:, 0]
    assert changed.tolist() == [0, 20]
