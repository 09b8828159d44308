"""Driver: lets several threads use one engine.

Whoever waits for an answer and finds nobody stepping the engine steps it, once, and what the step brought is put into
the inboxes of all requests; so concurrent callers share one batch and no thread of its own is needed. The lock is held
for moments only, never during a step, and `leave` never waits for it: a garbage collector may call that anywhere. A
step that breaks off leaves its rows in an unknown state, so it ends them, each with an answer; the next step starts
from a sound engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from litspec.engine.emission import Emission, end_early
from litspec.engine.engine import Engine
from litspec.engine.request import Request
from litspec.engine.scheduler import QueueFullError

logger = logging.getLogger(__name__)


@dataclass
class _Inbox:
    """What has been brought to a request and not been read yet; the counts are of all that was ever put in."""

    request: Request
    emissions: deque[Emission] = field(default_factory=deque)
    num_tokens: int = 0
    num_chars: int = 0
    is_complete: bool = False

    def put(self, emission: Emission) -> None:
        self.emissions.append(emission)
        self.num_tokens += len(emission.token_ids)
        self.num_chars += len(emission.text)
        self.is_complete = emission.completion is not None

    def put_rest(self) -> None:
        """Put in what an ended request has beyond what was put in."""
        request = self.request
        rest = request.output_ids[self.num_tokens :], request.text[self.num_chars :]
        self.put(Emission(request, *rest, completion=request.completion()))


class Driver:
    """Steps an engine for the threads that wait for its answers.

    Args:
        engine: only this object may call it from now on.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._turn = threading.Condition(threading.Lock())  # not reentrant: see `leave`
        self._inboxes: dict[str, _Inbox] = {}
        self._arrivals: deque[Request] = deque()
        self._leavers: deque[Request] = deque()
        self._is_stepping = False
        self._is_closed = False

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            RuntimeError: it was closed.
        """
        if self._engine is None:
            raise RuntimeError("this LLM is closed; load it again")
        return self._engine

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests that passed `Engine.check_request`; each must be given to `leave` in the end."""
        with self._turn:
            if self._is_closed:
                raise RuntimeError("this LLM is closed; load it again")
            for request in requests:
                request.arrival_s = time.monotonic()
                self._inboxes[request.id] = _Inbox(request)
                self._arrivals.append(request)

    def emissions(self, request: Request) -> Iterator[Emission]:
        """Yield a submitted request's emissions up to its last, stepping the engine while there are none."""
        inbox = self._inboxes[request.id]
        while True:
            emission = self._next(inbox)
            yield emission
            if emission.completion is not None:
                return

    def leave(self, requests: Sequence[Request]) -> None:
        """Drop the requests' inboxes, and end those that still run: now, or before the next step."""
        self._leavers.extend(requests)
        if self._turn.acquire(blocking=False):
            try:
                if not self._is_stepping:
                    self._settle()
            finally:
                self._turn.release()

    def close(self) -> None:
        """End every request (finish_reason "abort") once a step that is under way is over, and let the engine go."""
        with self._turn:
            self._is_closed = True
            while self._is_stepping:
                self._turn.wait()
            self._settle()
            if self._engine is not None:
                for request in [*self._engine.scheduler.running, *self._engine.scheduler.waiting]:
                    self._engine.abort(request.id)
            self._put_rests()
            self._engine = None
            self._turn.notify_all()

    def _next(self, inbox: _Inbox) -> Emission:
        while True:
            is_mine = False
            emissions: list[Emission] = []
            fault: BaseException | None = None
            try:
                with self._turn:
                    while not inbox.emissions and (self._is_stepping or self._is_closed):
                        self._turn.wait()
                    if inbox.emissions:
                        return inbox.emissions.popleft()
                    self._settle()
                    is_mine = self._is_stepping = True
                emissions = self.engine.step()
            except Exception as error:
                logger.exception("an engine step failed; what ran in it ends with it")
                fault = error
            except BaseException as interrupt:
                fault = interrupt
                raise
            finally:
                if is_mine:
                    self._finish_step(emissions, fault)

    def _finish_step(self, emissions: Sequence[Emission], fault: BaseException | None) -> None:
        with self._turn:
            try:
                for emission in emissions:
                    if (inbox := self._inboxes.get(emission.request.id)) is not None:
                        inbox.put(emission)
                if fault is not None:
                    self._end_running(fault)
                self._settle()
            finally:  # an engine that cannot even end its requests must not leave the other callers waiting
                self._is_stepping = False
                self._turn.notify_all()

    def _end_running(self, fault: BaseException) -> None:
        """End what took part in a step that broke off: in "error" if it failed, in "abort" if it was interrupted."""
        for request in self.engine.scheduler.running:
            if isinstance(fault, Exception):
                self.engine.fail(request.id, f"the engine failed: {type(fault).__name__}: {fault}")
            else:
                self.engine.abort(request.id)
        self._put_rests()

    def _put_rests(self) -> None:
        """Give every ended request that was not told of its end its completion."""
        for inbox in self._inboxes.values():
            if inbox.request.finish_reason is not None and not inbox.is_complete:
                inbox.put_rest()

    def _settle(self) -> None:
        """Let those in that came and those out that left; called with the lock held and nobody stepping."""
        while self._arrivals:
            request = self._arrivals.popleft()
            try:
                self.engine.add_request(request)
            except QueueFullError as error:
                self._inboxes[request.id].put(end_early(request, "error", error=str(error)))
        while self._leavers:
            request = self._leavers.popleft()
            if self._inboxes.pop(request.id, None) is not None and request.finish_reason is None:
                self.engine.abort(request.id)
