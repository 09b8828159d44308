"""Scheduler: who waits, who owns a slot, whose time is up.

It moves requests from the queue to free slots in order of arrival and takes them out again; it runs no model and
looks at no token. Which slot a request gets, it is told.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from litspec.engine.options import EngineOptions
from litspec.engine.prefix import Placement
from litspec.engine.request import Request
from litspec.kvcache import SlotPool


class QueueFullError(RuntimeError):
    """As many requests wait as may; the request was not taken."""


class Scheduler:
    """Queue and slots.

    Args:
        num_slots: requests that can run at once.
        options: how long the queue may be, how long a request may wait and run, and when a group may join.
    """

    def __init__(self, num_slots: int, options: EngineOptions | None = None) -> None:
        self.pool = SlotPool(num_slots)
        self.options = options or EngineOptions()
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._by_id: dict[str, Request] = {}

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self._running)

    @property
    def num_admissible(self) -> int:
        """Requests that the next `admit` would give a slot, if so many waited."""
        return 0 if self.options.batching == "fixed" and self._running else self.pool.num_free

    @property
    def running(self) -> list[Request]:
        """Requests with a slot, by slot."""
        return [self._running[slot] for slot in sorted(self._running)]

    @property
    def by_slot(self) -> dict[int, Request]:
        """Requests with a slot, under its number."""
        return self._running

    @property
    def waiting(self) -> list[Request]:
        """Requests without a slot, in order of arrival."""
        return list(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request, whose id no other one has.

        Raises:
            QueueFullError: the queue has reached its bound.
        """
        assert request.id not in self._by_id
        bound = self.options.max_waiting
        if bound is not None and self.num_waiting >= self.num_admissible + bound:
            raise QueueFullError(
                f"{self.num_waiting} requests wait for one of {self.pool.num_slots} slots; allowed: {bound} waiting. "
                "Try again when some have ended"
            )
        self._by_id[request.id] = request
        self._waiting.append(request)

    def admit(self, place: Callable[[Request], Placement]) -> Iterator[tuple[Request, Placement]]:
        """Give free slots to the requests that wait longest, and yield each when it has its own.

        Args:
            place: chooses a free slot for a request; called right before the request gets it.
        """
        for _ in range(min(self.num_waiting, self.num_admissible)):
            request = self._waiting[0]
            placement = place(request)
            self._waiting.popleft()
            self.pool.acquire(placement.slot)
            request.slot = placement.slot
            request.admitted_s = time.monotonic()
            request.stats.queue_s = request.admitted_s - request.arrival_s
            self._running[placement.slot] = request
            yield request, placement

    def expired(self) -> list[Request]:
        """Return the requests that have waited, or run, longer than they may."""
        now = time.monotonic()
        return [request for request in self._by_id.values() if self._is_expired(request, now)]

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and free its slot."""
        del self._by_id[request.id]
        if request.slot is None:
            self._waiting.remove(request)
        else:
            del self._running[request.slot]
            self.pool.release(request.slot)
            request.slot = None

    def find(self, request_id: str) -> Request | None:
        """Return the request of that id that waits or runs."""
        return self._by_id.get(request_id)

    def explain_expiry(self, request: Request) -> str:
        """Say of an expired request how long it took, and what is allowed."""
        what, setting = ("ran", "generate_timeout") if request.admitted_s else ("waited for a slot", "queue_timeout")
        since_s, limit_s = self._deadline(request)
        return (
            f"the request {what} for {time.monotonic() - since_s:.1f} s; allowed: {limit_s:g} s ({setting}). Ask for "
            "less, send fewer at once, or raise it"
        )

    def _is_expired(self, request: Request, now_s: float) -> bool:
        since_s, limit_s = self._deadline(request)
        return limit_s is not None and now_s - since_s > limit_s

    def _deadline(self, request: Request) -> tuple[float, float | None]:
        """Return since when a request waits or runs, and how long it may."""
        if request.admitted_s is None:
            since_s, own_s, default_s = request.arrival_s, request.queue_timeout_s, self.options.queue_timeout_s
        else:
            since_s, own_s, default_s = request.admitted_s, request.generate_timeout_s, self.options.generate_timeout_s
        return since_s, own_s if own_s is not None else default_s
