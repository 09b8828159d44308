"""Ticket and Mailbox: how events from the workers find the request that waits for them, in an API process.

A worker sends one message a step with the events of many requests; LitServe's response pump hands it to the mailbox,
which deals it out. Runs in the event loop alone, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from litspec.api.messages import Done, Event, Failure, Started

logger = logging.getLogger(__name__)


class Ticket:
    """One request in this process: the events that came for it and are not taken yet."""

    def __init__(self) -> None:
        self.uid = uuid.uuid4().hex
        self.worker_id: int | None = None
        self.is_finished = False
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        """Take an event that came from a worker (or from here, for one that died)."""
        if self.is_finished:
            return
        if isinstance(event, Started):
            self.worker_id = event.worker_id
        self.is_finished = isinstance(event, (Done, Failure))
        self._events.put_nowait(event)

    async def next_event(self) -> Event:
        """Return the next event; after Done or Failure there is none."""
        return await self._events.get()


class Mailbox:
    """What LitServe's response pump sees as one request's queue, and in truth is everybody's.

    `append` must not raise: the pump would end for good.
    """

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}

    def append(self, response: Any) -> None:
        """Hand the events of one worker's message to their tickets; those of nobody are dropped."""
        try:
            for uid, event in response[0]:
                ticket = self.tickets.get(uid)
                if ticket is not None:
                    ticket.put(event)
        except Exception:
            logger.exception("a worker's message could not be read")
