"""Scheduler: who waits, who owns a slot, and who takes part in the next step.

It moves requests from the queue to free slots in order of arrival and takes them out again; it runs no model and
looks at no token.
"""

from __future__ import annotations

import time
from collections import deque

from litspec.engine.request import Request
from litspec.kvcache import SlotPool


class Scheduler:
    """Queue and slots.

    Args:
        num_slots: requests that can run at once.
    """

    def __init__(self, num_slots: int) -> None:
        self.pool = SlotPool(num_slots)
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
    def running(self) -> list[Request]:
        """Requests with a slot, by slot."""
        return [self._running[slot] for slot in sorted(self._running)]

    @property
    def waiting(self) -> list[Request]:
        """Requests without a slot, in order of arrival."""
        return list(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request, whose id no other one has."""
        assert request.id not in self._by_id
        self._by_id[request.id] = request
        self._waiting.append(request)

    def admit(self) -> list[Request]:
        """Give free slots to the requests that wait longest, and return those."""
        admitted = []
        while self._waiting and self.pool.num_free:
            request = self._waiting.popleft()
            request.slot = self.pool.acquire()
            request.stats.queue_s = time.monotonic() - request.arrival_s
            self._running[request.slot] = request
            admitted.append(request)
        return admitted

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
