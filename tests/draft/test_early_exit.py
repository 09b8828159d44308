"""Early exit: the target's first layers as a draft, in the target's own cache rows."""

from __future__ import annotations

import pytest
import torch

from litspec.draft import EarlyExitProposer
from litspec.engine.params import SamplingParams
from litspec.model.window import Shapes
from tests.draft.rows import Row, continuation
from tests.engine.scripted import Spy
from tests.engine.support import ask, assert_idle, make_engine, random_prompt, recompute, run, tiny_gpt, tiny_model

SHAPES = Shapes.plan(max_batch_size=4, num_draft_tokens=4)


@pytest.mark.parametrize("num_layers", [0, 4, -1])
def test_a_number_of_layers_that_the_target_lacks_is_refused(num_layers):
    model = tiny_model()
    with pytest.raises(ValueError, match=rf"early-exit:{num_layers}; tiny allows early-exit:1 to early-exit:3"):
        EarlyExitProposer(model, model.new_cache(1), num_layers=num_layers, shapes=SHAPES)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("limits", [[4, 4, 4], [1, 0, 3], [0, 0, 0]])
def test_it_drafts_what_the_first_layers_say(num_layers, limits):
    model = tiny_model()
    cache = model.new_cache(4)
    proposer = EarlyExitProposer(model, cache, num_layers=num_layers, shapes=SHAPES)
    sampled = SamplingParams(temperature=0.8, top_k=9, seed=3)
    rows = [
        Row("a", random_prompt(5, seed=1), 3),
        Row("b", random_prompt(12, seed=2), 0),
        Row("c", random_prompt(2, seed=3), 1, sampled),
    ]
    with torch.inference_mode():
        for row in rows:
            model(torch.tensor([row.tokens[:-1]]), cache=cache, slots=torch.tensor([row.slot]))
        proposal = proposer.propose(rows, limits)
    assert proposal.counts == limits
    for row, tokens, limit in zip(rows, proposal.tokens_BG.tolist(), limits, strict=True):
        assert tokens[:limit] == continuation(tiny_gpt(), row, limit, num_layers=num_layers)


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
def test_with_all_layers_every_token_is_accepted(num_draft_tokens):
    requests = [
        ask("a", random_prompt(30, seed=1), max_new_tokens=40),
        ask("b", [5], max_new_tokens=23, temperature=1.0, seed=4),
    ]
    engine = make_engine(draft="early-exit:3", num_draft_tokens=num_draft_tokens)
    completions = run(engine, requests)
    assert [c.token_ids for c in completions] == [recompute(request) for request in requests]
    assert all(c.stats.drafted > 0 and c.stats.acceptance_rate == 1.0 for c in completions)
    assert_idle(engine)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_it_leaves_the_cache_as_plain_decoding_does(num_layers):
    request = ask("a", random_prompt(21, seed=2), max_new_tokens=30)
    caches = []
    for draft in ("none", f"early-exit:{num_layers}"):
        engine = make_engine(draft=draft, slots=2)
        completion = run(engine, [request])[0]
        assert completion.token_ids == recompute(request)
        caches.append(engine.cache)
    length = 21 + 30 - 1
    for plain, shared in zip((*caches[0].k, *caches[0].v), (*caches[1].k, *caches[1].v), strict=True):
        torch.testing.assert_close(plain[0, :, :length], shared[0, :, :length], rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_rows", [1, 2, 4])
def test_a_measurement_feeds_the_scratch_slot_alone(num_rows):
    spy = Spy(tiny_model())
    cache = spy.new_cache(4)
    cost = EarlyExitProposer(spy, cache, num_layers=2, shapes=SHAPES).measure(num_rows)
    assert cost.first_s > 0 and cost.step_s >= 0 and cost.chunk_s == 0
    assert {slot for _, _, slots in spy.calls for slot in slots} == {cache.scratch_slot}
    assert set(spy.shapes) == {(num_rows, 1)}
    assert cache.fed_S[:4].tolist() == [0] * 4


def test_it_stays_inside_the_context():
    spy = Spy(tiny_model(context=32))
    request = ask("a", random_prompt(26, seed=2), max_new_tokens=50)
    completion = run(make_engine(spy, draft=EarlyExit.of(spy), num_draft_tokens=4, slots=1), [request])[0]
    assert completion.token_ids == recompute(request, tiny_gpt(context=32))
    assert len(completion.token_ids) == 6


class EarlyExit:
    """An early-exit proposer whose cache is bound at the first round, to be made before its engine."""

    @classmethod
    def of(cls, model: Spy) -> EarlyExitProposer:
        return EarlyExitProposer(model, model.new_cache(1), num_layers=1, shapes=SHAPES)
