"""Promise 1 under load: what a request says does not depend on who else is there, when, or how the engine is set.

Every schedule runs 64 random requests over 8 slots, which arrive and are aborted at random; every text, and every
logprob, must be that of the request alone in a plain engine, which in turn must be that of plain loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from litspec.engine.engine import Engine
from litspec.engine.request import Completion
from litspec.model.logprobs import TokenLogprob
from tests.engine import schedules
from tests.engine.cache_checks import assert_caches_are_right
from tests.engine.schedules import SAMPLE, SCHEDULES, Played, Schedule, all_pairs, alone, engine_of, group, model, play
from tests.engine.slow_answer import slow_answer
from tests.engine.support import assert_idle, same

NUM_GROUPS = 160
FEW_GROUPS = 80
"""Prompts that the schedules of the quick suite draw from: each is answered alone once."""


def slow_from(first: int, parameters: Sequence) -> list:
    """Mark the parameters from an index on as slow."""
    return [pytest.param(p, id=str(p), marks=pytest.mark.slow if i >= first else ()) for i, p in enumerate(parameters)]


def test_the_schedules_have_every_pair_of_options_and_the_quick_ones_every_option():
    assert set().union(*(schedule.pairs for schedule in SCHEDULES)) == all_pairs()
    values = {(name, value) for name, column in schedules.OPTIONS.items() for value in column}
    assert set().union(*(schedule.values for schedule in SAMPLE)) == values
    assert len(set(SCHEDULES)) == 50


@pytest.mark.parametrize("schedule", slow_from(len(SAMPLE), SCHEDULES))
def test_64_requests_over_8_slots_say_what_each_says_alone(schedule):
    engine = engine_of(schedule)
    shapes = engine.compiled_shapes
    engine.target.fed.clear()
    played = play(schedule, engine, num_groups=FEW_GROUPS if schedule in SCHEDULES[: len(SAMPLE)] else NUM_GROUPS)
    assert len(played.completions) == schedules.NUM_REQUESTS
    for request_id, completion in played.completions.items():
        assert played.token_ids[request_id] == completion.token_ids
        assert played.text[request_id] == completion.text
        check_completion(request_id, completion, is_aborted=request_id in played.aborted)
    assert_idle(engine)
    assert_caches_are_right(engine)
    assert engine.compiled_shapes == shapes, "a shape was compiled after the warm-up"
    drafting = {(rows, 2) for rows in schedule.row_buckets if schedule.draft == "self"}
    assert engine.target.fed <= {*engine.shapes, *drafting}, "a shape was fed that was not planned"
    check_stats(engine, played)
    check_that_it_was_a_load(schedule, engine, played)


def check_completion(request_id: str, completion: Completion, *, is_aborted: bool) -> None:
    """Assert that a request said what it says alone; one that was aborted, the beginning of it."""
    wanted = alone(request_id)
    num_tokens = len(completion.token_ids)
    assert completion.token_ids == wanted.token_ids[: num_tokens if is_aborted else None], request_id
    if is_aborted:
        assert completion.finish_reason == "abort"
        is_text = bool(completion.text)
        assert not is_text or completion.text == "".join(chr(97 + token % 26) for token in completion.token_ids)
    else:
        assert (completion.text, completion.finish_reason) == (wanted.text, wanted.finish_reason), request_id
    assert_near(completion.logprobs, wanted.logprobs and wanted.logprobs[:num_tokens])
    if num_tokens:
        assert_near(completion.prompt_logprobs, wanted.prompt_logprobs)


def assert_near(found: Sequence[TokenLogprob | None] | None, wanted: Sequence[TokenLogprob | None] | None) -> None:
    """Assert that two lists of logprobs name the same tokens and are within 1e-9."""
    if not found or not wanted:
        assert not found and not wanted
        return
    for a, b in zip(found, wanted, strict=True):
        if a is None or b is None:
            assert a is b
            continue
        assert (a.token_id, [i for i, _ in a.top]) == (b.token_id, [i for i, _ in b.top])
        assert [a.logprob, *(x for _, x in a.top)] == pytest.approx([b.logprob, *(x for _, x in b.top)], abs=1e-9)


def check_stats(engine: Engine, played: Played) -> None:
    """Assert that what the engine counted is the sum of what its requests counted."""
    stats, completions = engine.stats, list(played.completions.values())
    admitted = [completion for completion in completions if completion.stats.queue_s is not None]
    assert stats.finished == Counter(completion.finish_reason for completion in completions)
    assert stats.generated_tokens == sum(len(completion.token_ids) for completion in completions)
    assert stats.prompt_tokens == sum(completion.prompt_tokens for completion in admitted)
    assert stats.queue_s.num_observations == len(admitted)
    assert stats.ttft_s.num_observations == sum(bool(completion.token_ids) for completion in completions)
    each = [completion.stats for completion in completions]
    assert stats.cached_tokens == sum(one.cached_tokens for one in each)
    assert stats.prefix_hits == sum(one.cached_tokens > 0 for one in each)
    assert stats.rows == sum(one.rounds for one in each)
    assert stats.rounds == sum(stats.rounds_by_width.values()) <= stats.steps
    assert stats.num_draft_tokens == sum(one.drafted for one in each)
    assert stats.num_accepted_tokens == sum(one.accepted for one in each) == sum(stats.num_accepted_tokens_per_pos)
    for position, accepted in enumerate(stats.num_accepted_tokens_per_pos):
        assert accepted == sum(one.accepted_counts[position] for one in each if position < len(one.accepted_counts))
    assert all(one.emitted == len(completion.token_ids) for one, completion in zip(each, completions, strict=True))


def check_that_it_was_a_load(schedule: Schedule, engine: Engine, played: Played) -> None:
    """Assert that what a schedule is there for did happen."""
    stats = engine.stats
    assert (stats.occupancy or 0.0) > 0.2
    assert 2 < len(played.aborted) < 40
    assert (stats.num_draft_tokens > 0) == (schedule.draft != "none")
    if schedule.draft != "none":
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens or schedule.draft == "self"
    assert (stats.cached_tokens > 200) == schedule.prefix_reuse
    if schedule.num_draft_tokens == "auto" and schedule.draft != "none":
        assert len(stats.rounds_by_width) > 2


POOL = [request for index in range(NUM_GROUPS) for request in group(index)]
QUICK = [request for index in range(FEW_GROUPS) for request in group(index)][::3]


@pytest.mark.parametrize("requests", [QUICK, pytest.param(POOL, marks=pytest.mark.slow)], ids=["some", "all"])
def test_what_a_request_says_alone_is_what_plain_loops_say(requests):
    for request in requests:
        found, wanted = alone(request.id), slow_answer(request, model("none").gpt)
        assert (found.token_ids, found.finish_reason) == (wanted.token_ids, wanted.finish_reason), request.id
        for mine, theirs in ((found.logprobs, wanted.logprobs), (found.prompt_logprobs, wanted.prompt_logprobs)):
            listed = [entry for entry in mine or () if entry is not None]
            assert len(listed) == len(theirs)
            for entry, (logprob, top) in zip(listed, theirs, strict=True):
                assert entry.logprob == pytest.approx(logprob, abs=1e-9)
                assert dict(entry.top) == pytest.approx(top, abs=1e-9)


def test_the_pool_has_every_parameter_and_each_of_them_shows_in_a_text():
    """Without it the texts of some requests are others, so that a parameter that is lost is noticed."""
    defaults = {"temperature": 0.0, "n": 1, "ignore_eos": False, "stop": (), "stop_token_ids": (), "min_tokens": 0}
    defaults |= {"top_k": None, "top_p": 1.0, "min_p": 0.0, "logit_bias": None}
    defaults |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    pool = [request for index in range(FEW_GROUPS) for request in group(index)]
    for name, default in defaults.items():
        having = [request for request in pool if getattr(request.params, name) != default]
        assert len(having) >= 4, name
        assert name == "n" or any(is_changed(request, {name: default}) for request in having), name
    assert any(is_changed(request, {}, bad_words_ids=()) for request in pool if request.bad_words_ids)
    assert any(is_changed(request, {}, choice=0) for request in pool if request.choice)
    assert {alone(request.id).finish_reason for request in pool} == {"stop", "length"}
    assert any(alone(r.id).prompt_tokens + alone(r.id).completion_tokens == schedules.CONTEXT for r in pool)


def is_changed(request, params: dict, **fields) -> bool:
    """Whether a request says something else with other parameters."""
    changed = same(request)
    changed.params = request.params.model_copy(update=params)
    for name, value in fields.items():
        setattr(changed, name, value)
    return slow_answer(changed, model("none").gpt).token_ids != alone(request.id).token_ids
