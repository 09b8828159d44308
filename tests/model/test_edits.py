"""Penalties, bias and bans of ragged batches against a loop that counts every position's context afresh.

Beside the reference: what a row gets is the same alone and among others, in any window, and read bit by bit or at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from litspec.model import decode
from litspec.model.decode import batched_sample, sample_shortlisted
from litspec.model.edits import LogitEdits, RowEdits
from litspec.ops import executor
from tests.ops.slow_sample import sampling_of

V = 12


@dataclass
class Params:
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None


@dataclass
class Case:
    """One row: what it asks for, its text, its draft."""

    params: Params
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    end_ids: list[int] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    def edits(self) -> RowEdits | None:
        return RowEdits.of(self.params, self.prompt, end_ids=self.end_ids, bad_words=self.bad_words)


ids = st.integers(0, V - 1)
plain = st.builds(Case, st.just(Params()), st.lists(ids, min_size=1, max_size=9), st.lists(ids, max_size=9))
edited = st.builds(
    Case,
    st.builds(
        Params,
        st.integers(0, 12),
        st.sampled_from((1.0, 1.0, 1.3, 0.5, 10.0)),
        st.sampled_from((0.0, 0.0, 0.5, -2.0)),
        st.sampled_from((0.0, 0.0, 0.8, -1.5)),
        st.one_of(st.none(), st.dictionaries(ids, st.sampled_from((-100.0, -1.5, 0.0, 3.0)), min_size=1, max_size=3)),
    ),
    st.lists(ids, min_size=1, max_size=9),
    st.lists(ids, max_size=9),
    st.lists(ids, max_size=4),
    st.lists(ids, max_size=3),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=4),
)
batches = st.lists(st.one_of(plain, edited, edited), min_size=1, max_size=4)


def by_loop(logits_V: Tensor, case: Case, drafted: list[int]) -> Tensor:
    """Return the scores of one position, whose context is the row's text and some draft tokens."""
    p, output = case.params, case.output + drafted
    context = case.prompt + output
    scores = []
    for token, x in enumerate(logits_V.double().tolist()):
        if token in context:
            x = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
        x -= p.presence_penalty * (token in output) + p.frequency_penalty * output.count(token)
        x += (p.logit_bias or {}).get(token, 0.0)
        if len(output) < p.min_tokens and token in case.end_ids:
            x = -math.inf
        for *start, last in case.bad_words:
            if token == last and context[len(context) - len(start) :] == start:
                x = -math.inf
        scores.append(x)
    return torch.tensor(scores, dtype=logits_V.dtype)


def logits_for(cases: list[Case], width: int, *, padding: int = 0, vocab_size: int = V) -> Tensor:
    generator = torch.Generator().manual_seed(len(cases) + width)
    return torch.randn(len(cases) + padding, width, vocab_size, generator=generator) * 4


def apply(cases: list[Case], logits: Tensor) -> Tensor:
    edits = edits_of(cases, logits.shape[1])
    return logits if edits is None else edits.apply(logits)


def edits_of(cases: list[Case], width: int) -> LogitEdits | None:
    return LogitEdits.of(
        [case.edits() for case in cases], [case.tokens for case in cases], [case.draft for case in cases], width=width
    )


@settings(max_examples=300, deadline=None)
@given(batches, st.integers(1, 6))
def test_equals_a_loop_over_rows_and_positions(cases, width):
    raw = logits_for(cases, width, padding=1)
    before = raw.clone()
    got = apply(cases, raw)
    assert torch.equal(raw, before) and got.dtype == raw.dtype
    assert torch.equal(got[len(cases) :], raw[len(cases) :])
    for b, case in enumerate(cases):
        for j in range(width):
            want = by_loop(raw[b, j], case, case.draft[:j])
            torch.testing.assert_close(got[b, j], want, rtol=1e-6, atol=1e-6)
            assert torch.equal(got[b, j] == -torch.inf, want == -torch.inf)
        if case.edits() is None:
            assert torch.equal(got[b], raw[b])


@settings(max_examples=200, deadline=None)
@given(batches, st.integers(1, 6))
def test_a_position_gets_the_same_bits_in_any_window_and_batch(cases, width):
    # SP-09, SP-12: alone, and one position at a time with the draft already emitted.
    raw = logits_for(cases, width)
    together = apply(cases, raw)
    for b, case in enumerate(cases):
        assert torch.equal(apply([case], raw[b : b + 1]), together[b : b + 1])
        for j in range(min(width, len(case.draft) + 1)):
            later = Case(case.params, case.prompt, case.output + case.draft[:j], [], case.end_ids, case.bad_words)
            assert torch.equal(apply([later], raw[b : b + 1, j : j + 1])[0, 0], together[b, j])


@settings(max_examples=100, deadline=None)
@given(edited, st.lists(ids, min_size=1, max_size=8))
def test_reading_a_text_as_it_grows_equals_reading_it_at_once(case, further):
    edits = case.edits()
    for n in range(len(further)):
        text = case.tokens + further[:n]
        grown = Case(case.params, case.prompt, case.output + further[:n], case.draft, case.end_ids, case.bad_words)
        raw = logits_for([case], 4)
        # asked twice a round, by the draft with another window than by the target; a rejected draft leaves no trace
        LogitEdits.of([edits], [text], [[]], width=1)
        got = LogitEdits.of([edits], [text], [case.draft], width=4)
        assert torch.equal(raw if got is None else got.apply(raw), apply([grown], raw))


def test_a_row_that_edits_nothing_costs_nothing():
    nothing = [
        Case(Params(), [1, 2], [3]),
        Case(Params(min_tokens=3), [1, 2]),  # there is nothing that could end it
        Case(Params(logit_bias={}), [1]),
        Case(Params(logit_bias={4: 0.0}), [1], end_ids=[3]),
    ]
    assert [case.edits() for case in nothing] == [None] * 4
    assert edits_of(nothing, 3) is None
    assert LogitEdits.of([], [], [], width=1) is None
    long_enough = Case(Params(min_tokens=2), [1], [5, 5], end_ids=[3])
    assert long_enough.edits() is not None and edits_of([long_enough], 3) is None
    assert edits_of([Case(Params(presence_penalty=1.0), [1, 2])], 1) is None  # no output yet


def test_a_larger_vocabulary_costs_no_more_and_long_texts_are_counted_right():
    text = torch.randint(0, 50_000, (3000,), generator=torch.Generator().manual_seed(0)).tolist()
    case = Case(Params(repetition_penalty=2.0, frequency_penalty=1.0), text[:2000], text[2000:], draft=[49_999, 7])
    edits = edits_of([case], 3)
    assert edits is not None and len(edits.ids_E) <= 3 * 3002
    logits = torch.ones(1, 3, 50_000)
    got = edits.apply(logits)[0].double()
    for j in range(3):
        counts = torch.bincount(torch.tensor(case.output + case.draft[:j]), minlength=50_000)
        is_seen = (counts > 0) | (torch.bincount(torch.tensor(case.prompt), minlength=50_000) > 0)
        assert torch.equal(got[j], torch.where(is_seen, 0.5, 1.0).double() - counts)


def test_ids_beyond_a_smaller_vocabulary_are_passed_over():
    case = Case(Params(repetition_penalty=2.0, logit_bias={20: 5.0}), [1, 30], [40], draft=[50])
    raw = logits_for([case], 2)
    got = apply([case], raw)
    changed = (got != raw).nonzero().tolist()
    assert changed == [[0, 0, 1], [0, 1, 1]]


def test_a_window_of_another_width_is_an_error_of_ours():
    edits = edits_of([Case(Params(logit_bias={1: 1.0}), [1])], 2)
    assert edits is not None
    with pytest.raises(AssertionError, match="window of 2 and logits of 3"):
        edits.apply(torch.zeros(1, 3, V))


def test_SP_12_SP_13_output_penalties_ignore_the_prompt_and_draft_tokens_count_for_their_own_row():
    raw = torch.zeros(3, 3, V)
    penalised = Params(frequency_penalty=1.0, presence_penalty=0.25)
    cases = [
        Case(penalised, [9] * 50, [3], draft=[4, 4]),
        Case(Params(), [9, 3, 4], [3], draft=[5, 5]),
        Case(penalised, [9], [3, 3], draft=[6, 3]),
    ]
    got = apply(cases, raw)
    assert got[:, :, 9].abs().sum() == 0 and torch.equal(got[1], raw[1])
    assert got[0, :, 3].tolist() == [-1.25] * 3 and got[0, :, 4].tolist() == [0.0, -1.25, -2.25]
    assert got[2, :, 3].tolist() == [-2.25, -2.25, -3.25] and got[2, :, 6].tolist() == [0.0, -1.25, -1.25]
    assert got[:, :, 5].abs().sum() == 0


def test_SP_15_minimum_length_counts_output_alone_through_the_window():
    case = Case(Params(min_tokens=5), [1] * 50, [2, 2, 2], draft=[2, 2, 2], end_ids=[7, 8])
    got = apply([case], torch.zeros(1, 4, V))
    assert (got == -torch.inf).nonzero()[:, 1:].tolist() == [[0, 7], [0, 8], [1, 7], [1, 8]]


def test_a_bad_word_is_banned_where_all_but_its_end_stands():
    case = Case(Params(), [1, 2], [3], draft=[1, 2, 3], bad_words=[[2, 3, 5], [1, 6], [3, 1, 7], [8], [2, 9]])
    banned = (apply([case], torch.zeros(1, 4, V))[0] == -torch.inf).nonzero().tolist()
    assert banned == [[0, 5], [0, 8], [1, 6], [1, 7], [1, 8], [2, 8], [2, 9], [3, 5], [3, 8]]


BIG = 2000
KINDS_OF_ROWS = [
    (0.0, None, 1.0, 3),
    (0.7, None, 0.8, 4),
    (1.0, 5, 1.0, 5),
    (1.0, None, 1.0, 6, 0.3),
    (1.0, 400, 0.9, 7, 0.01),
    (1.0, None, 1.0, 8),
]


@pytest.mark.parametrize("num_banned", [1, 300, BIG - 1])
def test_SP_03_bans_reach_every_filter_and_shortlist(num_banned):
    raw = torch.randn(12, 2, BIG, generator=torch.Generator().manual_seed(9)) * 3
    rows = KINDS_OF_ROWS * 2
    best = raw[0, 0].topk(num_banned).indices.tolist()
    banning = Case(Params(), [1], bad_words=[[i] for i in best])
    # the first six rows ban, the others do not
    edits = edits_of([banning] * 6 + [Case(Params(), [1])] * 6, 2)
    positions = torch.arange(24).view(12, 2)
    by_hand = raw.clone()
    by_hand[:6, :, best] = -torch.inf
    want = batched_sample(by_hand, positions, sampling_of(rows))
    for sample in (batched_sample, sample_shortlisted):
        before = raw.clone()
        got = sample(raw, positions, sampling_of(rows, edits))
        assert torch.equal(got, want) and torch.equal(raw, before)
        assert not set(got[:6].flatten().tolist()) & set(best)
        assert torch.equal(got[6:], sample(raw[6:], positions[6:], sampling_of(rows[6:])))


def test_edits_are_applied_once_on_either_way_through_the_shortlist(monkeypatch):
    calls, apply_edits = [], LogitEdits.apply
    monkeypatch.setattr(LogitEdits, "apply", lambda self, t: calls.append(1) or apply_edits(self, t))
    edits = edits_of([Case(Params(frequency_penalty=1.0), [1], [2, 2])], 1)
    sampling = sampling_of([(1.0, None, 0.9, 5)], edits)
    for shortlist, logits in ((256, torch.randn(1, 1, 500) * 9), (2, torch.zeros(1, 1, 500))):
        monkeypatch.setattr(decode, "SHORTLIST", shortlist)
        calls.clear()
        sample_shortlisted(logits, torch.zeros(1, 1, dtype=torch.int64), sampling)
        assert len(calls) == 1


def test_thunder_compiles_edits():
    cases = [Case(Params(repetition_penalty=1.3, logit_bias={3: 2.0}), [1, 2], [3], draft=[4]), Case(Params(), [1])]
    sampling = sampling_of([(0.0, None, 1.0, 1), (1.0, 5, 0.9, 2, 0.1)], edits_of(cases, 2))
    positions = torch.arange(4).view(2, 2)
    jitted = executor.jit(lambda logits, positions: batched_sample(logits, positions, sampling))
    logits = logits_for(cases, 2)
    for n in range(3):
        moved = logits + n * logits.sin()
        assert torch.equal(jitted(moved, positions + n), batched_sample(moved, positions + n, sampling))
