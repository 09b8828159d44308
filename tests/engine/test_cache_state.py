"""What the cache holds between two steps, and that nothing else in it is ever looked at.

Cases: KV-01, KV-06, KV-13.
"""

from __future__ import annotations

import itertools

import pytest

from litspec.engine.engine import Engine
from litspec.engine.request import Request
from tests.engine.cache_checks import GARBAGE, Poison, assert_caches_are_right
from tests.engine.scripted import ScriptedProposer, Spy
from tests.engine.support import (
    DRAFTS,
    ODD_SHAPES,
    ask,
    assert_idle,
    make_engine,
    random_prompt,
    recompute,
    run,
    same,
    tiny_gpt,
    tiny_model,
)
from tests.engine.test_exactness import eight


def related() -> list[Request]:
    """Return the eight requests, each with two after it whose prompts begin alike and go on in ways of their own."""
    base = random_prompt(60, seed=4)
    requests = []
    for i, request in enumerate(eight("sampled")):
        requests.append(request)
        for cut in (7 * i + 4, 60 - 5 * i):
            requests.append(ask(f"{i} {cut}", [*base[:cut], i], max_new_tokens=6, temperature=0.9, seed=i))
    return requests


@pytest.mark.parametrize("draft", DRAFTS)
def test_KV_01_between_steps_the_cache_holds_the_text_but_for_its_pending_token(draft):
    engine = make_engine(draft=draft, slots=3)
    storage = [t.data_ptr() for t in (*engine.cache.k, *engine.cache.v)]
    for request in related():
        engine.add_request(request)
    for step in itertools.count():
        engine.step()
        for request in engine.scheduler.running:
            if not request.is_prefilling:
                assert request.length == len(request.tokens) - 1
        if step % 3 == 0:
            assert_caches_are_right(engine)
        if not engine.has_active_requests():
            break
    assert engine.stats.prefix_hits > 4
    assert [t.data_ptr() for t in (*engine.cache.k, *engine.cache.v)] == storage


@pytest.mark.parametrize("rejected_at", [0, 1, 3])
def test_KV_01_a_rejection_at_any_position_rewinds_and_goes_on(rejected_at):
    request = ask("a", random_prompt(11, seed=4), max_new_tokens=20)
    text = [*request.prompt_ids, *recompute(request)]
    proposer = ScriptedProposer(lambda tokens: text[len(tokens)], lambda name, step, limit: (4, rejected_at))
    engine = make_engine(draft=proposer)
    engine.add_request(same(request))
    emitted = [emission.token_ids for _ in range(4) for emission in engine.step()]
    assert [len(tokens) for tokens in emitted] == [1, *[rejected_at + 1] * 3]
    assert engine.scheduler.running[0].length == 11 + 1 + 3 * (rejected_at + 1) - 1
    assert_caches_are_right(engine)


@pytest.mark.parametrize("draft", ["none", "ngram", "self", "model", "early-exit:1"])
@pytest.mark.parametrize("prompt_length", [122, 125, 127])
def test_KV_06_the_end_of_the_context(draft, prompt_length):
    spy = Spy(tiny_model(context=128))
    request = ask("a", random_prompt(prompt_length // 5, seed=1) * 5 + [3] * (prompt_length % 5), max_new_tokens=50)
    other = ask("b", [1, 2, 3], max_new_tokens=12)
    engine = make_engine(spy, draft=draft, num_draft_tokens=5) if "early" not in draft else make_early_exit(spy)
    completion, beside = run(engine, [request, other])
    assert len(completion.token_ids) == 128 - prompt_length
    assert completion.finish_reason == "length"
    assert completion.token_ids == recompute(request, tiny_gpt(context=128))
    assert beside.token_ids == recompute(other, tiny_gpt(context=128))
    assert max(max(map(max, positions)) for _, positions, _ in spy.calls) <= 126, "the last token needs no cache"


def make_early_exit(spy: Spy) -> Engine:
    engine = make_engine(tiny_model(context=128), draft="early-exit:1", num_draft_tokens=5)
    engine.target = spy
    return engine


@pytest.mark.parametrize("draft", ["ngram", "model", "early-exit:1"])
def test_KV_13_a_slot_that_changes_hands_shows_nothing_of_its_former_owner(draft):
    engine = make_engine(draft=draft, slots=2)
    long = ask("long", random_prompt(30, seed=1), max_new_tokens=150, temperature=0.9)
    requests = [long]
    for turn in range(10):
        requests.append(ask(f"b{turn}", random_prompt(25, seed=turn), max_new_tokens=6))
        requests.append(ask(f"c{turn}", random_prompt(4 + turn, seed=50 + turn), max_new_tokens=8))
    completions = run(engine, requests)
    assert [c.token_ids for c in completions] == [recompute(request) for request in requests]
    assert_idle(engine)


@pytest.mark.parametrize("prefix_reuse", [True, False])
@pytest.mark.parametrize("draft", ["none", "ngram", "model", "early-exit:1"])
def test_stale_released_and_scratch_entries_are_never_looked_at(draft, prefix_reuse):
    """Poisoned before every forward of target and draft: all that lies above what a slot holds, be it free or not."""
    poison = Poison()
    target = tiny_model()
    requests = related()
    if draft == "model":
        draft = Spy(tiny_model(n_layer=2), before=poison.draft)
    engine = make_engine(target, draft=draft, slots=3, shapes=ODD_SHAPES, prefix_reuse=prefix_reuse)
    engine.target = spy = Spy(target, before=poison.target)
    if draft == "early-exit:1":
        engine.proposer._model = spy
    poison.engine = engine
    assert [c.token_ids for c in run(engine, requests)] == [recompute(request) for request in requests]
    assert len(spy.calls) > 20
    assert (engine.cache.k[0] == GARBAGE).any()
    if prefix_reuse:
        assert engine.stats.prefix_hits >= 4 and engine.stats.cached_tokens > 60
        assert poison.num_kept > 0


def test_a_long_prompt_holds_the_others_up_by_one_piece_at_a_time():
    spy = Spy(tiny_model())
    engine = make_engine(spy, slots=2, shapes=ODD_SHAPES, num_draft_tokens=0)
    first, long = ask("first", [3, 4], max_new_tokens=12), ask("long", random_prompt(201, seed=1), max_new_tokens=3)
    engine.add_request(same(first))
    engine.step()
    engine.add_request(same(long))
    texts: dict[str, list[int]] = {"first": [], "long": []}
    for _ in range(6):  # 40 + 40 + 40 + 40 + 40 + 1
        spy.calls.clear()
        for emission in engine.step():
            texts[emission.request.id] += emission.token_ids
        assert [width for _, width in spy.shapes] == [40 if len(texts["long"]) == 0 else 5, 1]
    assert len(texts["first"]) == 6
    assert len(texts["long"]) == 1
    while engine.has_active_requests():
        for emission in engine.step():
            texts[emission.request.id] += emission.token_ids
    assert texts["long"] == recompute(long)
    assert texts["first"] == recompute(first)[1:]
    assert_idle(engine)
