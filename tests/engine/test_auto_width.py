"""num_draft_tokens="auto": the width follows what rows accept and what rounds cost, and the text follows neither.

Case: CP-08 (the smallest width that holds what was chosen; test_rounds.py has it for a fixed number). The choice itself
is tested on recorded traces as a pure function.
"""

from __future__ import annotations

import pytest

from litspec.draft import DraftCost, NgramProposer
from litspec.engine.costs import CostTable
from litspec.engine.engine import Engine
from litspec.engine.options import MAX_AUTO_DRAFT_TOKENS
from litspec.model.window import Shapes
from tests.engine.scripted import ScriptedProposer, ScriptedTarget, Spy
from tests.engine.support import DRAFTS, ask, assert_idle, make_engine, random_prompt, recompute, run, tiny_model
from tests.engine.test_exactness import eight


def truth(tokens: list[int]) -> int:
    """A next token that depends on every token before it."""
    return (sum(tokens) * 7 + tokens[-1] * 3 + len(tokens)) % 31


def greedy(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(truth(tokens))
    return tokens[len(prompt) :]


def auto(right, *, cost: float = 0.06, is_free: bool = False, slots: int = 4) -> tuple[Engine, Spy]:
    """Return an engine whose proposer gets `right(request id, round)` of as many tokens as it may draft right.

    A further token of a step costs `cost` plain steps of one row, and a draft token a tenth of that.
    """
    proposer = ScriptedProposer(truth, lambda name, step, limit: (limit, right(name, step)))
    proposer.is_free = is_free
    spy = Spy(ScriptedTarget(truth, max_seq_length=1024))
    engine = make_engine(spy, draft=proposer, num_draft_tokens="auto", slots=slots)
    shapes = engine.shapes
    steps = {(n, w): 1.0 + cost * (n * w - 1) for n in shapes.row_buckets for w in shapes.step_widths}
    drafting = DraftCost() if is_free else DraftCost(cost / 10, cost / 10, cost)
    engine.drafter.policy.costs = CostTable(steps, dict.fromkeys(shapes.row_buckets, drafting))
    return engine, spy


def widths(spy: Spy) -> list[int]:
    """Return the width of every round, prompts left out."""
    return [width for _, width in spy.shapes if width < 16]


@pytest.mark.parametrize("is_free", [False, True])
def test_nothing_is_drafted_where_nothing_is_accepted_but_for_a_try_now_and_then(is_free):
    engine, spy = auto(lambda name, step: 0, cost=0.5, is_free=is_free)
    rows = [ask(f"{i}", [i, 5], max_new_tokens=400) for i in range(3)]
    completions = run(engine, rows)
    assert [c.token_ids for c in completions] == [greedy(row.prompt_ids, 400) for row in rows]
    late = widths(spy)[20:]
    assert late.count(1) > 0.9 * len(late)
    assert is_free or late.count(1) < len(late), "it is tried again"
    assert_idle(engine)


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_as_much_is_drafted_as_can_be_where_all_is_accepted(is_free, num_rows):
    engine, spy = auto(lambda name, step: 99, is_free=is_free)
    rows = [ask(f"{i}", [i, 5], max_new_tokens=200) for i in range(num_rows)]
    completions = run(engine, rows)
    assert [c.token_ids for c in completions] == [greedy(row.prompt_ids, 200) for row in rows]
    late = widths(spy)[5:-1]
    assert late.count(MAX_AUTO_DRAFT_TOKENS + 1) > 0.9 * len(late)
    assert all(c.stats.acceptance_rate == 1.0 for c in completions)
    assert engine.stats.rounds < 200 / 6


def test_the_width_follows_when_acceptance_changes():
    engine, spy = auto(lambda name, step: 99 if step < 30 else 0, cost=0.3)
    row = ask("a", [4, 5], max_new_tokens=600)
    assert run(engine, [row])[0].token_ids == greedy([4, 5], 600)
    seen = widths(spy)
    assert min(seen[10:30]) >= 4
    assert seen[60:].count(1) > 0.85 * len(seen[60:])


def test_a_dear_step_is_kept_narrow_and_a_cheap_one_is_not():
    chosen = {}
    for cost in (0.01, 5.0):
        engine, spy = auto(lambda name, step: 1, cost=cost)
        run(engine, [ask("a", [4, 5], max_new_tokens=120)])
        chosen[cost] = sum(widths(spy)[20:]) / len(widths(spy)[20:])
    assert chosen[5.0] < 1.3 < 1.7 < chosen[0.01]


@pytest.mark.parametrize("is_free", [False, True])
def test_a_row_with_a_number_of_its_own_keeps_it_beside_rows_that_leave_it_open(is_free):
    engine, _ = auto(lambda name, step: 99 if name == "open" else 0, cost=0.005, is_free=is_free)
    rows = [ask(f"{own}", [own, 5], max_new_tokens=60, num_draft_tokens=own) for own in (0, 2)]
    rows.append(ask("open", [9, 5], max_new_tokens=60))
    none, two, free = run(engine, rows)
    assert none.stats.drafted == 0 and len(free.stats.accepted_per_position) == MAX_AUTO_DRAFT_TOKENS
    assert two.stats.drafted_per_position[0] >= two.stats.rounds - 1, "refused every time, and drafted all the same"
    assert len(two.stats.drafted_per_position) == 2
    assert [c.token_ids for c in (none, two, free)] == [greedy(row.prompt_ids, 60) for row in rows]


def test_CP_08_the_smallest_width_that_holds_the_drafts_is_used():
    """What a free proposer gives is cut to the chosen width, and shorter proposals take narrower windows."""
    lengths = (0, 1, 2, 3, 5, 7)
    engine, spy = auto(lambda name, step: 99, cost=1e-6, is_free=True, slots=1)
    engine.proposer._pattern = lambda name, step, limit: (min(limit, lengths[step % 6]), 99)
    row = ask("a", [3, 1, 2], max_new_tokens=120)
    engine.add_request(row)
    engine.step()
    spy.calls.clear()
    while engine.has_active_requests():
        number, before = len(spy.calls), row.length
        limit = min(MAX_AUTO_DRAFT_TOKENS, row.num_remaining - 1)
        engine.step()
        fed = min(limit, lengths[number % 6]) + 1
        idx, positions, _ = spy.calls[-1]
        assert len(idx[0]) == next(width for width in (1, 2, 3, 4, 6, 8) if width >= fed)
        assert positions[0] == [*range(before, before + fed), *[before + fed - 1] * (len(idx[0]) - fed)]
    assert row.output_ids == greedy([3, 1, 2], 120)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_text_does_not_depend_on_the_choice(draft):
    requests = eight("sampled")
    engine = make_engine(draft=draft, num_draft_tokens="auto", slots=3)
    assert [c.token_ids for c in run(engine, requests)] == [recompute(request) for request in requests]
    assert_idle(engine)


def test_no_shape_is_compiled_while_serving():
    target = tiny_model(mode="thunder")
    shapes = Shapes((2,), (1, 4), (16,))
    engine = make_engine(target, draft=NgramProposer(min_n=1), num_draft_tokens="auto", slots=2, shapes=shapes)
    assert engine.num_draft_tokens == 3
    engine.warm_up()
    assert engine.compiled_shapes == 3
    assert set(engine.drafter.policy.costs.step_s) == {(2, 1), (2, 4)}
    assert all(seconds > 0 for seconds in engine.drafter.policy.costs.step_s.values())
    requests = [
        ask(f"{i}", random_prompt(3 + 9 * i, seed=i) * 2, max_new_tokens=20, temperature=i % 2 / 2) for i in range(6)
    ]
    assert [c.token_ids for c in run(engine, requests)] == [recompute(request) for request in requests]
    assert engine.compiled_shapes == 3
