"""A twin: the same model and settings, and nothing else in common."""

from __future__ import annotations

import pytest
import torch

from litspec.draft import Proposal, Proposer
from tests.engine.support import DRAFTS, ask, assert_idle, make_engine, random_prompt, recompute


@pytest.mark.parametrize("draft", DRAFTS)
def test_engines_that_take_turns_do_not_disturb_each_other(draft):
    first = make_engine(draft=draft, num_draft_tokens=3, slots=3)
    engines = [first, first.twin(), first.twin()]
    assert len({id(engine.cache.k[0]) for engine in engines}) == 3
    answers: dict[tuple[int, str], list[int]] = {}
    expected: dict[tuple[int, str], list[int]] = {}
    for number, engine in enumerate(engines):
        for index in range(5):
            seed = 10 * number + index
            request = ask(str(index), random_prompt(1 + 7 * index, seed=seed), max_new_tokens=20, temperature=index % 2)
            expected[number, request.id] = recompute(request)
            engine.add_request(request)
    while any(engine.has_active_requests() for engine in engines):
        for number, engine in enumerate(engines):
            for emission in engine.step() if engine.has_active_requests() else []:
                answers.setdefault((number, emission.request.id), []).extend(emission.token_ids)
    assert answers == expected
    for engine in engines:
        assert_idle(engine)
        assert engine.stats.generated_tokens == 100


@pytest.mark.parametrize(("draft", "num_draft_tokens"), [("ngram", 3), ("ngram", "auto"), ("none", 0)])
def test_settings_and_costs_are_the_same(draft, num_draft_tokens):
    engine = make_engine(draft=draft, num_draft_tokens=num_draft_tokens, slots=2, prefix_reuse=False, max_waiting=3)
    engine.warm_up()
    twin = engine.twin()
    assert (twin.options, twin.shapes, twin.target) == (engine.options, engine.shapes, engine.target)
    assert twin.num_draft_tokens == engine.num_draft_tokens and twin.drafter.is_auto == engine.drafter.is_auto
    assert twin.drafter.policy.costs is engine.drafter.policy.costs
    assert twin.drafter.policy is not engine.drafter.policy
    assert twin.cache.num_slots == 2 and twin.stats.steps == 0


def test_a_proposer_without_a_twin_is_named():
    class Silent(Proposer):
        def propose(self, rows, limits):
            return Proposal(torch.zeros(len(rows), 0, dtype=torch.int64), [0] * len(rows))

    with pytest.raises(NotImplementedError, match="Silent has no method twin"):
        make_engine(draft=Silent(), num_draft_tokens=3).twin()
