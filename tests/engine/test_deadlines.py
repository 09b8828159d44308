"""What ends waiting and running, and who joins when: the queue's bound, deadlines, fixed and continuous batches.

The clock is the test's own. SL-06 and SL-10 have their HTTP halves with the server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest

from litspec.engine import engine as engine_module
from litspec.engine import scheduler as scheduler_module
from litspec.engine.options import EngineOptions
from litspec.engine.scheduler import QueueFullError
from tests.engine.scripted import Letters, ScriptedTarget
from tests.engine.support import ask, assert_idle, make_engine, random_prompt, recompute, same


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Iterator[Clock]:
    clock = Clock()
    for module in (scheduler_module, engine_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


def at(clock: Clock, request, **limits: float):
    """Return a request that arrives now, with limits of its own."""
    request.arrival_s = clock.now
    for name, value in limits.items():
        setattr(request, name, value)
    return request


def count_up(tokens: list[int]) -> int:
    return (tokens[-1] + 1) % 26


def finish(engine) -> None:
    while engine.has_active_requests():
        engine.step()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batching": "static"}, 'batching was \'static\'; allowed: "continuous" or "fixed"'),
        ({"max_waiting": -1}, "max_waiting was -1; allowed: an integer from 0, or None"),
        ({"max_waiting": 1.5}, "max_waiting was 1.5; allowed: an integer from 0, or None"),
        ({"max_waiting": "4"}, "max_waiting was '4'; allowed: an integer from 0, or None"),
        ({"prefix_reuse": "no"}, "prefix_reuse was 'no'; allowed: True or False"),
        ({"queue_timeout_s": 0}, "queue_timeout_s was 0; allowed: seconds above 0, or None"),
        ({"queue_timeout_s": math.nan}, "queue_timeout_s was nan"),
        ({"generate_timeout_s": -1.0}, "generate_timeout_s was -1.0; allowed: seconds above 0"),
    ],
)
def test_options_that_are_not_allowed_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        EngineOptions(**given)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_more_wait_than_may_beyond_those_that_a_free_slot_takes(bound):
    engine = make_engine(ScriptedTarget(count_up), slots=2, max_waiting=bound)
    taken = [ask(f"{i}", [1], max_new_tokens=5) for i in range(2 + bound)]
    for request in taken:
        engine.add_request(request)
    refused = ask("refused", [1], max_new_tokens=5)
    for _ in range(2):
        with pytest.raises(QueueFullError, match=f"wait for one of 2 slots; allowed: {bound} waiting"):
            engine.add_request(refused)
        assert engine.scheduler.find("refused") is None
        engine.step()
    assert engine.scheduler.num_waiting == bound
    engine.abort("0")
    engine.add_request(refused)
    with pytest.raises(QueueFullError):
        engine.add_request(ask("late", [1]))
    finish(engine)
    assert [r.output_ids for r in (*taken[1:], refused)] == [[2, 3, 4, 5, 6]] * (2 + bound)
    assert_idle(engine)


def test_a_fixed_group_bounds_the_queue_by_those_that_wait_for_its_end():
    engine = make_engine(ScriptedTarget(count_up), slots=3, max_waiting=1, batching="fixed")
    engine.add_request(ask("a", [1], max_new_tokens=9))
    engine.step()
    engine.add_request(ask("b", [1]))
    with pytest.raises(QueueFullError):
        engine.add_request(ask("c", [1]))
    assert (engine.scheduler.pool.num_free, engine.scheduler.num_admissible) == (2, 0)


@pytest.mark.parametrize("own", [False, True])
def test_a_request_that_has_waited_too_long_never_runs(clock, own):
    engine = make_engine(ScriptedTarget(count_up), slots=1, queue_timeout_s=None if own else 5.0)
    limit = {"queue_timeout_s": 5.0} if own else {}
    runs, waits, patient = (at(clock, ask(name, [1], max_new_tokens=20), **limit) for name in ("r", "w", "p"))
    patient.queue_timeout_s = 50.0
    for request in (runs, waits, patient):
        engine.add_request(request)
    engine.step()
    clock.now += 5.0
    assert [e.request.id for e in engine.step()] == ["r"], "just as long as it may"
    clock.now += 0.1
    first, second = engine.step()
    assert (first.request.id, first.token_ids) == ("w", [])
    assert first.completion is not None
    assert (first.completion.finish_reason, first.completion.token_ids) == ("timeout", [])
    assert first.completion.error is not None
    assert first.completion.error.startswith("the request waited for a slot for 5.1 s; allowed: 5 s (queue_timeout). ")
    assert (second.request.id, second.completion) == ("r", None), "who runs has no deadline here"
    finish(engine)
    assert (runs.output_ids, patient.output_ids) == ([*range(2, 22)], [*range(2, 22)])
    assert engine.stats.finished == {"timeout": 1, "length": 2}
    assert_idle(engine)


def test_a_request_that_is_admitted_in_time_has_left_its_waiting_behind(clock):
    engine = make_engine(ScriptedTarget(count_up), slots=1, queue_timeout_s=1.0)
    request = at(clock, ask("a", [1], max_new_tokens=3))
    engine.add_request(request)
    engine.step()
    clock.now += 100.0
    finish(engine)
    assert request.output_ids == [2, 3, 4]


@pytest.mark.parametrize("draft", ["none", "ngram", "model"])
@pytest.mark.parametrize("own", [False, True])
def test_a_request_that_runs_too_long_keeps_its_tokens_and_the_others_go_on(clock, draft, own):
    engine = make_engine(draft=draft, slots=3, generate_timeout_s=None if own else 5.0)
    limit = {"generate_timeout_s": 5.0} if own else {}
    late = at(clock, ask("late", random_prompt(9, seed=1), max_new_tokens=90, text=Letters(), stop="\0\1"), **limit)
    reads = at(clock, ask("reads", random_prompt(230, seed=3), max_new_tokens=9), **limit)
    other = at(clock, ask("other", random_prompt(9, seed=2), max_new_tokens=40), generate_timeout_s=99.0)
    queued = at(clock, ask("queued", [5, 6], max_new_tokens=8), generate_timeout_s=99.0)
    engine.add_request(late)
    engine.add_request(other)
    engine.step()
    clock.now += 3.0
    engine.step()
    reads.arrival_s = clock.now
    engine.shapes = type(engine.shapes)(engine.shapes.row_buckets, engine.shapes.step_widths, (16,))
    engine.add_request(reads)
    engine.add_request(queued)
    engine.step()
    clock.now += 2.0
    engine.step()
    assert late.finish_reason is None, "just as long as it may"
    clock.now += 0.5
    so_far = late.output_ids
    emissions = {e.request.id: e for e in engine.step()}
    ended = emissions["late"].completion
    assert ended is not None and ended.finish_reason == "timeout"
    assert ended.token_ids == so_far == recompute(same(late))[: len(so_far)] and len(so_far) >= 4
    assert ended.text == "".join(chr(97 + t % 26) for t in so_far)
    assert queued.slot == 0, "its slot goes to the next one in the same step"
    clock.now += 3.0
    assert engine.step()[0].request is reads and reads.finish_reason == "timeout"
    assert reads.output_ids == [] and reads.error is not None
    assert re.match(r"the request ran for \d+\.\d s; allowed: \d+ s \(generate_timeout\)\. ", reads.error)
    finish(engine)
    assert (other.output_ids, queued.output_ids) == (recompute(same(other)), recompute(same(queued)))
    assert_idle(engine)


def test_the_limit_of_a_request_goes_before_that_of_the_engine(clock):
    engine = make_engine(ScriptedTarget(count_up), slots=2, generate_timeout_s=5.0)
    longer = at(clock, ask("longer", [1], max_new_tokens=9), generate_timeout_s=20.0)
    shorter = at(clock, ask("shorter", [1], max_new_tokens=9), generate_timeout_s=1.0)
    engine.add_request(longer)
    engine.add_request(shorter)
    engine.step()
    clock.now += 2.0
    engine.step()
    assert (longer.finish_reason, shorter.finish_reason) == (None, "timeout")
    clock.now += 10.0
    engine.step()
    assert longer.finish_reason is None


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_nothing_joins_a_fixed_group_until_it_has_ended(draft):
    engine = make_engine(draft=draft, slots=2, batching="fixed")
    limits = (3, 20, 6, 12, 4)
    requests = [ask(f"{i}", random_prompt(5 + i, seed=i), max_new_tokens=n) for i, n in enumerate(limits)]
    groups: list[set[str]] = []
    for request in requests:
        engine.add_request(request)
    while engine.has_active_requests():
        before = {r.id for r in engine.scheduler.running}
        engine.step()
        now = {r.id for r in engine.scheduler.running}
        if now - before:
            assert not before
            groups.append(now)
    assert groups == [{"0", "1"}, {"2", "3"}, {"4"}]
    assert [r.output_ids for r in requests] == [recompute(same(r)) for r in requests]
    assert_idle(engine)


def test_capacity_is_what_a_new_request_could_have_at_once():
    for batching, beside_one in (("continuous", True), ("fixed", False)):
        engine = make_engine(ScriptedTarget(count_up), slots=2, batching=batching)
        assert engine.has_capacity()
        engine.add_request(ask("a", [1], max_new_tokens=9))
        assert engine.has_capacity(), "it waits for one of two free slots"
        engine.step()
        assert engine.has_capacity() == beside_one
        engine.add_request(ask("b", [1], max_new_tokens=2))
        assert not engine.has_capacity()
        engine.abort("b")
        engine.abort("a")
        assert engine.has_capacity()


def test_a_group_that_comes_together_blocks_nobody():
    """Eight rows of a group take what is free; who comes between them and after them is served in turn."""
    engine = make_engine(ScriptedTarget(count_up), slots=4)
    first = ask("first", [1], max_new_tokens=40)
    engine.add_request(first)
    engine.step()
    group = [ask(f"g{i}", [3], max_new_tokens=5 + i) for i in range(6)]
    single = ask("single", [7], max_new_tokens=3)
    for request in (*group, single):
        engine.add_request(request)
    for step in range(1, 10):
        engine.step()
        assert first.num_emitted == step + 1, "a token a step, whoever comes"
    assert [r.num_emitted for r in group[:3]] == [5, 6, 7]
    finish(engine)
    assert single.output_ids == [8, 9, 10]
    assert [r.output_ids for r in group] == [[*range(4, 9 + i)] for i in range(6)]
    assert_idle(engine)
