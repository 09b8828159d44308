"""The model proposer: what it drafts, how it catches up, and the cases KV-05, KV-07, LL-02 and LL-11.

What it drafts is compared with the draft model's own continuation, recomputed without a cache; so every position that
its cache holds is checked by what follows from it.
"""

from __future__ import annotations

from math import ceil

import pytest
import torch

from litspec.draft import ModelProposer
from litspec.engine.params import SamplingParams
from litspec.model.window import Shapes
from tests.draft.rows import Row, continuation
from tests.engine.scripted import Spy
from tests.engine.support import ask, assert_idle, make_engine, random_prompt, recompute, run, tiny_gpt, tiny_model

SAMPLED = SamplingParams(temperature=2.0, top_p=0.3, seed=11)
FEW = SamplingParams(temperature=2.0, top_k=2, seed=12)
SHAPES = Shapes((1, 2, 4), (1, 5), (4, 16))


def make_proposer(*, num_slots: int = 4, context: int | None = None) -> tuple[ModelProposer, Spy]:
    spy = Spy(tiny_model(n_layer=2, context=context))
    return ModelProposer(spy, num_slots=num_slots, shapes=SHAPES, vocab_size=96), spy


def propose(proposer: ModelProposer, rows: list[Row], limits: list[int]) -> list[list[int]]:
    with torch.inference_mode():
        proposal = proposer.propose(rows, limits)
    return [tokens[:count] for tokens, count in zip(proposal.tokens_BG.tolist(), proposal.counts, strict=True)]


def propose_caught_up(proposer: ModelProposer, rows: list[Row], limits: list[int]) -> list[list[int]]:
    """Propose until every row that may draft does: one that lags is fed a chunk a round and given none meanwhile."""
    for _ in range(10):
        drafts = propose(proposer, rows, limits)
        if all(draft or not limit for draft, limit in zip(drafts, limits, strict=True)):
            return drafts
    raise AssertionError(f"not caught up after 10 rounds: {drafts}")


def wanted(rows: list[Row], limits: list[int]) -> list[list[int]]:
    return [continuation(tiny_gpt(n_layer=2), row, limit) for row, limit in zip(rows, limits, strict=True)]


@pytest.mark.parametrize("limits", [[4, 4, 4, 4], [1, 4, 2, 4], [0, 3, 1, 0], [0, 0, 0, 0]])
def test_it_drafts_its_own_continuation_for_ragged_rows_and_limits(limits):
    proposer, _ = make_proposer()
    rows = [
        Row("a", random_prompt(2, seed=1), 2),
        Row("b", random_prompt(37, seed=2), 0, SAMPLED),
        Row("c", random_prompt(9, seed=3), 3, FEW),
        Row("d", random_prompt(4, seed=4), 1),
    ]
    assert propose_caught_up(proposer, rows, limits) == wanted(rows, limits)


def test_a_long_prompt_is_caught_up_by_a_chunk_a_round_and_holds_nobody_up():
    proposer, spy = make_proposer()
    rows = [Row("a", random_prompt(50, seed=1), 0), Row("b", random_prompt(2, seed=2), 1)]
    seen = []
    for _ in range(3):
        seen.append([len(draft) for draft in propose(proposer, rows, [2, 2])])
        assert sum(width == 16 for _, width in spy.shapes) == len(seen)
    assert seen == [[0, 2], [0, 2], [2, 2]]


@pytest.mark.parametrize(("lacking", "chunks"), [(1, 0), (2, 0), (3, 1), (6, 1), (7, 2), (10, 2), (11, 3)])
def test_a_lag_is_counted_in_the_narrowest_chunks(lacking, chunks):
    proposer, _ = make_proposer()
    assert proposer.lag(Row("a", random_prompt(lacking, seed=1), 1)) == chunks
    row = Row("b", random_prompt(70, seed=2), 0)
    propose_caught_up(proposer, [row], [1])
    assert proposer.lag(row) == 0


@pytest.mark.parametrize("num_rows", [1, 2, 4])
def test_a_measurement_feeds_the_scratch_slot_alone(num_rows):
    proposer, spy = make_proposer()
    row = Row("a", random_prompt(9, seed=1), 0)
    propose_caught_up(proposer, [row], [2])
    lengths, fed = list(proposer.lengths), proposer.cache.fed_S[:-1].tolist()
    spy.calls.clear()
    cost = proposer.measure(num_rows)
    assert cost.first_s > 0 and cost.step_s >= 0 and cost.chunk_s > 0
    assert {slot for _, _, slots in spy.calls for slot in slots} == {proposer.cache.scratch_slot}
    assert set(spy.shapes) == {(num_rows, 2), (num_rows, 1), (num_rows, 4)}
    assert (list(proposer.lengths), proposer.cache.fed_S[:-1].tolist()) == (lengths, fed)
    row.tokens += [7]
    assert propose(proposer, [row], [3]) == wanted([row], [3])


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 18, 19, 60])
def test_a_row_that_lags_is_caught_up_while_others_do_not(lag):
    proposer, spy = make_proposer()
    rows = [Row("a", random_prompt(7, seed=1), 1), Row("b", random_prompt(5, seed=2), 0, SAMPLED)]
    propose(proposer, rows, [3, 3])
    for token in random_prompt(lag - 1, seed=9):  # plain rounds of row a; what the target says was not drafted
        rows[0].tokens.append(token)
        propose(proposer, rows[:1], [0])
    for row in rows:
        row.tokens.append(7)
    spy.calls.clear()
    assert propose_caught_up(proposer, rows, [3, 3]) == wanted(rows, [3, 3])
    if lag <= 2:
        assert spy.shapes == [(2, 2), (2, 1), (2, 1)]


def test_rows_that_may_not_draft_for_some_rounds_catch_up_later():
    proposer, _ = make_proposer()
    row = Row("a", random_prompt(6, seed=1), 1)
    for limit in (2, 0, 0, 0, 4, 0, 1):
        assert propose(proposer, [row], [limit]) == wanted([row], [limit])
        row.tokens += wanted([row], [2])[0]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_after_any_number_accepted_the_next_draft_is_right(accepted):
    proposer, spy = make_proposer()
    row = Row("a", random_prompt(6, seed=1), 0)
    for step in range(6):
        drafted = propose(proposer, [row], [3])[0]
        row.tokens += [*drafted[:accepted], 50 + step]
        if step:
            assert len(spy.calls) == 3
        assert drafted == wanted([Row("a", row.tokens[: -accepted - 1])], [3])[0]
        spy.calls.clear()


def test_a_slot_that_is_given_away_starts_afresh_or_with_the_common_prefix():
    proposer, _ = make_proposer()
    first, second = Row("a", random_prompt(30, seed=1), 1), Row("b", random_prompt(4, seed=2), 1)
    propose_caught_up(proposer, [first], [3])
    assert proposer.lengths[1] == 32
    assert int(proposer.cache.fed_S[1]) == 32
    proposer.release(first)
    proposer.adopt(1, 1, 20)
    assert proposer.lengths == [0, 20, 0, 0]
    kin = Row("c", [*first.tokens[:20], 7, 8, 9], 3)
    proposer.adopt(3, 1, 15)
    assert proposer.lengths == [0, 20, 0, 15]
    assert propose_caught_up(proposer, [kin], [3]) == wanted([kin], [3])
    proposer.adopt(1, 1, 0)
    assert proposer.lengths[:3] == [0, 0, 0]
    assert int(proposer.cache.fed_S[1]) == 0
    assert propose(proposer, [second], [3]) == wanted([second], [3])


def test_its_forwards_are_of_its_own_finite_shapes():
    proposer, spy = make_proposer()
    for length in (2, 3, 4, 40, 90):
        propose(proposer, [Row("a", random_prompt(length, seed=length), 0)] * 1, [4])
        proposer.lengths[0] = 0
    rows = [Row(str(slot), random_prompt(5, seed=slot), slot) for slot in range(3)]
    propose(proposer, rows, [1, 2, 3])
    assert set(spy.shapes) <= {(rows, width) for rows in (1, 2, 4) for width in (1, 2, 4, 16)}


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 5])
def test_LL_02_a_draft_that_is_the_target_is_always_accepted(num_draft_tokens):
    request = ask("a", random_prompt(150, seed=5), max_new_tokens=40, ignore_eos=True)
    spy = Spy(tiny_model())
    completion = run(make_engine(spy, draft="self", num_draft_tokens=num_draft_tokens), [request])[0]
    assert completion.token_ids == recompute(request)
    assert completion.stats.acceptance_rate == 1.0
    assert completion.stats.rounds == ceil(39 / (num_draft_tokens + 1)) <= ceil(40 / (num_draft_tokens + 1))
    assert spy.shapes == [(1, 256)] + [(1, num_draft_tokens + 1)] * (completion.stats.rounds - 1) + spy.shapes[-1:]


@pytest.mark.parametrize("max_new_tokens", [1, 2, 7])
def test_LL_11_more_draft_tokens_than_are_left(max_new_tokens):
    request = ask("a", random_prompt(2, seed=5), max_new_tokens=max_new_tokens)
    completion = run(make_engine(draft="self", num_draft_tokens=16), [request])[0]
    assert completion.token_ids == recompute(request)
    assert len(completion.token_ids) == max_new_tokens
    assert completion.finish_reason == "length"
    assert completion.stats.drafted == completion.stats.accepted == max(0, max_new_tokens - 2)


def test_KV_05_a_draft_with_a_short_context_stops_drafting_for_rows_that_outgrow_it():
    draft = Spy(tiny_model(n_layer=2, context=64))
    requests = [
        ask("outgrows", random_prompt(60, seed=1), max_new_tokens=60),
        ask("too long", random_prompt(100, seed=2), max_new_tokens=60),
        ask("short", random_prompt(3, seed=3), max_new_tokens=60),
    ]
    engine = make_engine(draft=draft, num_draft_tokens=4)
    completions = run(engine, requests)
    assert [c.token_ids for c in completions] == [recompute(request) for request in requests]
    outgrows, too_long, short = (c.stats for c in completions)
    assert 0 < outgrows.drafted <= 4 * 4
    assert too_long.drafted == 0
    assert short.drafted > 60, "a row that fits was no longer drafted for"
    assert max(max(map(max, positions)) for _, positions, _ in draft.calls) == 63
    assert_idle(engine)


@pytest.mark.parametrize("draft_layers", [2, 3])
def test_KV_07_positions_have_no_gap_and_no_stale_token(draft_layers):
    target, draft = Spy(tiny_model()), Spy(tiny_model(n_layer=draft_layers))
    requests = [ask("a", random_prompt(20, seed=1), max_new_tokens=40), ask("b", [4, 4], max_new_tokens=40)]
    completions = run(make_engine(target, draft=draft, num_draft_tokens=3, slots=2), requests)
    for slot, (request, completion) in enumerate(zip(requests, completions, strict=True)):
        final = [*request.prompt_ids, *completion.token_ids]
        for spy in (target, draft):
            cached: dict[int, int] = {}
            for pairs in spy.fed(slot):
                start = pairs[0][0]
                assert [position for position, _ in pairs] == list(range(start, start + len(pairs)))
                assert all(position in cached for position in range(start)), "a gap"
                first_is_text = pairs[0] == (start, final[start])
                if spy is target or len(pairs) > 1:  # a draft's single steps may feed what is refused later
                    assert first_is_text
                    assert [cached[position] for position in range(start)] == final[:start], "a stale token"
                cached.update(pairs)
                if draft_layers == 3:
                    assert all(final[position] == token for position, token in pairs)
        if draft_layers == 3:
            starts = [pairs[0][0] for pairs in target.fed(slot)]
            assert starts == [0, *range(len(request.prompt_ids), len(final) - 1, 4)]
