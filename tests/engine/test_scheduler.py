"""The scheduler: first come, first served, the lowest free slot, and nothing left of who has gone."""

from __future__ import annotations

import pytest

from litspec.engine.prefix import Placement
from litspec.engine.request import Request
from litspec.engine.scheduler import Scheduler
from tests.engine.support import ask


def admit(scheduler: Scheduler) -> list[Request]:
    """Give each request the lowest free slot."""

    def place(_: Request) -> Placement:
        slot = min(scheduler.pool.free)
        return Placement(slot, slot, 0)

    return [request for request, _ in scheduler.admit(place)]


def test_requests_are_admitted_in_order_of_arrival_to_the_lowest_free_slots():
    scheduler = Scheduler(2)
    a, b, c, d = (ask(name, [1]) for name in "abcd")
    for request in (a, b, c, d):
        scheduler.add(request)
    assert (scheduler.num_waiting, scheduler.num_running) == (4, 0)
    assert admit(scheduler) == [a, b]
    assert (a.slot, b.slot, c.slot) == (0, 1, None)
    assert admit(scheduler) == []
    assert scheduler.waiting == [c, d]
    scheduler.remove(a)
    assert (a.slot, scheduler.running) == (None, [b])
    assert admit(scheduler) == [c]
    assert scheduler.running == [c, b], "by slot"
    assert (scheduler.num_waiting, scheduler.num_running, scheduler.pool.num_free) == (1, 2, 0)


def test_a_request_that_waits_is_removed_from_the_queue_alone():
    scheduler = Scheduler(1)
    a, b, c = (ask(name, [1]) for name in "abc")
    for request in (a, b, c):
        scheduler.add(request)
    admit(scheduler)
    scheduler.remove(b)
    assert scheduler.waiting == [c]
    assert scheduler.running == [a]
    assert scheduler.pool.num_free == 0


def test_find_looks_among_those_that_run_and_those_that_wait():
    scheduler = Scheduler(1)
    a, b = ask("a", [1]), ask("b", [1])
    scheduler.add(a)
    scheduler.add(b)
    admit(scheduler)
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
    admit(scheduler)
    assert request.stats.queue_s == pytest.approx(2.5, abs=0.5)


def test_a_request_whose_place_cannot_be_found_goes_on_waiting():
    scheduler = Scheduler(2)
    a, b = ask("a", [1]), ask("b", [1])
    scheduler.add(a)
    scheduler.add(b)

    def fail(_: Request) -> Placement:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(scheduler.admit(fail))
    assert (scheduler.waiting, scheduler.running, scheduler.pool.num_free) == ([a, b], [], 2)
    assert admit(scheduler) == [a, b]
