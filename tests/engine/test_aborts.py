"""An abort between any two steps: the others' texts stay, and every cache holds what it claims to hold.

Draft caches as well: what they hold never shows in a text, so only looking at them tells whether they are right.
"""

from __future__ import annotations

import itertools

import pytest

from litspec.engine.engine import Engine
from litspec.engine.request import Request
from litspec.model.window import Shapes
from tests.engine.cache_checks import assert_caches_are_right
from tests.engine.support import ask, assert_idle, make_engine, random_prompt, recompute

SHAPES = Shapes((1, 3), (1, 2, 4), (4, 16))
KINDS = ("none", "ngram", "model", "self", "early-exit:1")
NAMES = ("first", "follows", "other", "queued", "last")


def scenario() -> list[Request]:
    """Return requests that share prefixes, so that one waits for another's prompt, copies it or takes its slot."""
    stem = random_prompt(34, seed=3)
    return [
        ask("first", stem[:30], max_new_tokens=8),
        ask("follows", [*stem, 7, 8], max_new_tokens=7, temperature=0.9, seed=1),
        ask("other", random_prompt(9, seed=4), max_new_tokens=12, temperature=1.1, seed=2),
        ask("queued", [*stem[:20], 5], max_new_tokens=5, seed=3),
        ask("last", [*random_prompt(9, seed=4), 3, 4], max_new_tokens=6, temperature=0.7, seed=4),
    ]


def run_with_abort(engine: Engine, victim: str, abort_after: int) -> tuple[dict[str, list[int]], bool]:
    """Run the scenario, abort a request after so many steps and look at the caches then and at the end.

    Returns:
        what each request emitted, and whether there was still something to abort.
    """
    texts: dict[str, list[int]] = {name: [] for name in NAMES}
    last = None
    for request in scenario():
        engine.add_request(request)
    for step in itertools.count():
        if step == abort_after:
            last = engine.abort(victim)
            if last is not None:
                assert last.completion is not None and last.completion.token_ids == texts[victim]
                assert_caches_are_right(engine)
        if not engine.has_active_requests():
            break
        for emission in engine.step():
            texts[emission.request.id] += emission.token_ids
    assert_caches_are_right(engine)
    assert_idle(engine)
    return texts, last is not None


QUICK = [("model", "first"), ("early-exit:1", "follows"), ("ngram", "other")]
ALL = [(draft, victim) for draft in KINDS for victim in NAMES]


@pytest.mark.parametrize(
    ("draft", "victim"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in ALL]
)
def test_an_abort_after_any_step_leaves_the_others_and_every_cache_right(draft, victim):
    wanted = {request.id: recompute(request) for request in scenario()}
    for abort_after in itertools.count():
        engine = make_engine(draft=draft, num_draft_tokens=3, slots=3, shapes=SHAPES)
        texts, is_aborted = run_with_abort(engine, victim, abort_after)
        cut = texts.pop(victim)
        assert texts == {name: text for name, text in wanted.items() if name != victim}, f"after {abort_after} steps"
        assert cut == wanted[victim][: len(cut) if is_aborted else None], f"after {abort_after} steps"
        assert engine.stats.prefix_hits > 0 or victim == "first"
        if not is_aborted:
            break
    assert abort_after >= 4


@pytest.mark.parametrize("draft", ["model", "self", "early-exit:1"])
@pytest.mark.parametrize("pattern", [(3, 0, 0), (0, 3), (2, 0, 1, 0)])
def test_every_cache_is_right_after_rounds_without_a_draft(draft, pattern):
    """Widths are chosen anew for each round; a draft that was rejected must not count as held when tokens go on."""
    engine = make_engine(draft=draft, num_draft_tokens="auto", slots=3, shapes=SHAPES)
    widths = itertools.cycle(pattern)
    engine.drafter.policy.choose = lambda rows: next(widths)
    for request in scenario():
        engine.add_request(request)
    texts: dict[str, list[int]] = {name: [] for name in NAMES}
    while engine.has_active_requests():
        for emission in engine.step():
            texts[emission.request.id] += emission.token_ids
        assert_caches_are_right(engine)
    assert texts == {request.id: recompute(request) for request in scenario()}
    assert_idle(engine)
