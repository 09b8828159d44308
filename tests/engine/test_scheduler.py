"""The scheduler: first come, first served, the lowest free slot, and nothing left of who has gone."""

from __future__ import annotations

import pytest

from litspec.engine.scheduler import Scheduler
from tests.engine.support import ask


def test_requests_are_admitted_in_order_of_arrival_to_the_lowest_free_slots():
    scheduler = Scheduler(2)
    a, b, c, d = (ask(name, [1]) for name in "abcd")
    for request in (a, b, c, d):
        scheduler.add(request)
    assert (scheduler.num_waiting, scheduler.num_running) == (4, 0)
    assert scheduler.admit(lambda request: min(scheduler.pool.free)) == [a, b]
    assert (a.slot, b.slot, c.slot) == (0, 1, None)
    assert scheduler.admit(lambda request: min(scheduler.pool.free)) == []
    assert scheduler.waiting == [c, d]
    scheduler.remove(a)
    assert (a.slot, scheduler.running) == (None, [b])
    assert scheduler.admit(lambda request: min(scheduler.pool.free)) == [c]
    assert scheduler.running == [c, b], "by slot"
    assert (scheduler.num_waiting, scheduler.num_running, scheduler.pool.num_free) == (1, 2, 0)


def test_a_request_that_waits_is_removed_from_the_queue_alone():
    scheduler = Scheduler(1)
    a, b, c = (ask(name, [1]) for name in "abc")
    for request in (a, b, c):
        scheduler.add(request)
    scheduler.admit(lambda request: min(scheduler.pool.free))
    scheduler.remove(b)
    assert scheduler.waiting == [c]
    assert scheduler.running == [a]
    assert scheduler.pool.num_free == 0


def test_find_looks_among_those_that_run_and_those_that_wait():
    scheduler = Scheduler(1)
    a, b = ask("a", [1]), ask("b", [1])
    scheduler.add(a)
    scheduler.add(b)
    scheduler.admit(lambda request: min(scheduler.pool.free))
    assert scheduler.find("a") is a
    assert scheduler.find("b") is b
    assert scheduler.find("c") is None
    scheduler.remove(a)
    assert scheduler.find("a") is None


def test_the_time_in_the_queue_is_noted_at_admission():
    scheduler = Scheduler(1)
    request = ask("a", [1])
    request.arrival_s -= 2.5
    scheduler.add(request)
    assert request.stats.queue_s is None
    scheduler.admit(lambda request: min(scheduler.pool.free))
    assert request.stats.queue_s == pytest.approx(2.5, abs=0.5)
