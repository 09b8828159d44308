"""The n-gram proposer: which match wins, against a linear scan; what a token costs; cases LL-03 and LL-04."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litspec.draft import DraftRow, NgramProposer, Proposal, Proposer
from litspec.draft.ngram import NgramIndex
from tests.draft.rows import Row
from tests.engine.scripted import ScriptedTarget, continuing
from tests.engine.support import ask, assert_idle, make_engine, random_prompt, recompute, run, tiny_gpt, tiny_model


def linear_scan(tokens: Sequence[int], num_tokens: int, *, min_n: int, max_n: int) -> list[int]:
    """Return what the definition says: longest n-gram first, most recent occurrence first."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if list(tokens[end - n : end]) == list(tokens[-n:]):
                text = list(tokens)
                for i in range(num_tokens):
                    text.append(text[end + i])
                return text[len(tokens) :]
    return []


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 60), max_size=6),
    sizes=st.sampled_from([(1, 1), (1, 3), (2, 5), (4, 4)]),
    num_tokens=st.integers(1, 9),
)
def test_a_growing_index_says_what_a_linear_scan_says(tokens, cuts, sizes, num_tokens):
    min_n, max_n = sizes
    index = NgramIndex(min_n, max_n)
    for end in sorted({*(cut for cut in cuts if cut < len(tokens)), len(tokens)}):
        so_far = tokens[:end]
        index.extend(so_far)
        assert index.continuation(so_far, num_tokens) == linear_scan(so_far, num_tokens, min_n=min_n, max_n=max_n)


def test_the_longest_match_wins_over_a_more_recent_shorter_one():
    tokens = [1, 2, 3, 50, 9, 2, 3, 60, 9, 1, 2, 3]
    index = NgramIndex(2, 5)
    index.extend(tokens)
    assert index.continuation(tokens, 2) == [50, 9]


def test_of_equal_matches_the_most_recent_wins():
    tokens = [2, 3, 50, 2, 3, 60, 2, 3]
    index = NgramIndex(2, 5)
    index.extend(tokens)
    assert index.continuation(tokens, 3) == [60, 2, 3]


def test_a_continuation_that_meets_the_end_goes_round():
    tokens = [7, 1, 2, 3, 1, 2, 3]
    index = NgramIndex(2, 5)
    index.extend(tokens)
    assert index.continuation(tokens, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_no_match_proposes_nothing():
    proposal = NgramProposer().propose([Row("a", [1, 2, 3, 4]), Row("b", [5])], [4, 4])
    assert proposal.counts == [0, 0]
    assert proposal.tokens_BG.shape == (2, 0)


def test_limits_hold_for_each_row_and_the_index_grows_also_at_limit_0():
    proposer = NgramProposer()
    rows = [Row("a", [1, 2, 1, 2]), Row("b", [1, 2, 1, 2])]
    proposal = proposer.propose(rows, [3, 0])
    assert proposal.counts == [3, 0]
    assert proposal.tokens_BG.tolist()[0] == [1, 2, 1]
    rows[1].tokens += [1]
    assert proposer.propose(rows[1:], [2]).tokens_BG.tolist() == [[2, 1]]


class CountingTokens(list):
    """A list that counts how many of its entries are read."""

    num_read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self.num_read += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self):
        self.num_read += len(self)
        return super().__iter__()


@pytest.mark.parametrize("length", [100, 10_000])
def test_one_more_token_costs_the_same_at_any_length(length):
    tokens = CountingTokens(random_prompt(length, seed=1))
    index = NgramIndex(2, 5)
    index.extend(tokens)
    tokens.append(3)
    tokens.num_read = 0
    index.extend(tokens)
    index.continuation(tokens, 4)
    assert 0 < tokens.num_read <= 2 * (2 + 3 + 4 + 5) + 4


def test_an_index_is_kept_per_request_until_its_release():
    proposer = NgramProposer()
    row = Row("a", [1, 2, 9, 1, 2])
    proposer.propose([row, Row("b", [4])], [1, 1])
    assert proposer.num_requests == 2
    proposer.release(row)
    proposer.release(row)
    assert proposer.num_requests == 1
    assert proposer.propose([Row("a", [1, 2])], [1]).counts == [0]


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (4, 3), (-1, -1)])
def test_sizes_that_make_no_sense_are_refused(min_n, max_n):
    with pytest.raises(ValueError, match=f"min_n was {min_n} and max_n {max_n}"):
        NgramProposer(min_n=min_n, max_n=max_n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_LL_03_a_repeating_prompt_gives_the_same_text_with_and_without_ngram(dtype):
    requests = []
    for number in range(20):
        block = random_prompt(12, seed=number)
        prompt = block * 6 + random_prompt(2, seed=100 + number) + block[:1]
        requests.append(ask(f"{number}", prompt, max_new_tokens=24))
    engine = make_engine(tiny_model(dtype=dtype), draft=NgramProposer(min_n=2, max_n=5), num_draft_tokens=4)
    completions = run(engine, requests)
    assert [c.token_ids for c in completions] == [recompute(r, tiny_gpt(dtype=dtype)) for r in requests]
    assert sum(c.stats.accepted for c in completions) > 40, "the draft hardly took part"
    assert sum(c.stats.drafted - c.stats.accepted for c in completions) > 40, "nothing was refused"
    assert_idle(engine)


class AlwaysSixes(Proposer):
    """Proposes as many sixes as it may."""

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> Proposal:
        return Proposal.of([[6] * limit for limit in limits])


@pytest.mark.parametrize("num_draft_tokens", [1, 4])
@pytest.mark.parametrize("draft", [AlwaysSixes(), NgramProposer(min_n=1, max_n=3)])
def test_LL_04_the_first_draft_token_is_compared_with_its_own_position(num_draft_tokens, draft):
    target = ScriptedTarget(continuing({(6, 6, 6): [2, 3, 4], (6, 6): [6, 2, 3, 4]}))
    engine = make_engine(target, draft=draft, num_draft_tokens=num_draft_tokens)
    first, second = run(engine, [ask("a", [6, 6, 6], max_new_tokens=3), ask("b", [6, 6], max_new_tokens=4)])
    assert first.token_ids == [2, 3, 4]
    assert second.token_ids == [6, 2, 3, 4]
    assert first.stats.accepted == second.stats.accepted == 0
    assert second.stats.drafted > 0
