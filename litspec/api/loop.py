"""EngineLoop: a worker's loop, from LitServe's request queue through the engine and back.

One turn: take orders (all that may start together when idle, only for free slots when busy), admit them, step the
engine once, and send what came of it as one message per API process. A failure stays with its request; if a step
itself fails, everything in flight is answered with an error and the loop goes on. Knows no text rules, no HTTP.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Empty
from typing import TYPE_CHECKING, Any, NamedTuple

from litserve.loops import LitLoop
from litserve.utils import LitAPIStatus, LoopResponseType

from litspec.api.messages import Done, Event, Failure, Order, Started, Text
from litspec.engine.params import ParameterError
from litspec.engine.scheduler import QueueFullError

if TYPE_CHECKING:
    from litspec.api.llm import LLM

logger = logging.getLogger(__name__)

MAILBOX = "litspec"  # the one uid under which every message travels; each holds the events of many requests
IDLE_WAIT_S = 1.0  # finite, so that a worker that is ended while it waits cannot swallow a request
TOMBSTONE_S = 3600.0  # how long a cancel is remembered for an order that has not come off the queue yet


class Destination(NamedTuple):
    """Where a running request's events go: the API process, and whether text is wanted as it comes."""

    consumer: int
    stream: bool


class EngineLoop(LitLoop):
    """The loop that LitServe runs in each worker."""

    def run(  # pyright: ignore[reportIncompatibleMethodOverride] (LitServe types device as str)
        self,
        lit_api: Any,
        device: Any,
        worker_id: int,
        request_queue: Any,
        transport: Any,
        workers_setup_status: Any,
        callback_runner: Any,
    ) -> None:
        """Serve until the server goes away; called once a worker."""

        def send(consumer: int, events: list[tuple[str, Event]]) -> None:
            status: Any = LitAPIStatus.OK  # a string, whatever LitServe's annotation says
            self.put_response(transport, consumer, MAILBOX, events, status, LoopResponseType.STREAMING)

        turns = Turns(
            lit_api.llm,
            request_queue,
            send,
            worker_id=worker_id,
            max_batch_size=lit_api.max_batch_size,
            batch_timeout=lit_api.batch_timeout,
            timeout=lit_api.config.timeout,
            cancels=lit_api.spec.cancel_reader(worker_id),
        )
        try:
            while True:
                turns.turn()
        except (EOFError, ConnectionError):
            raise SystemExit(0) from None  # the queues live in another process: it is gone, and so is the server


class Turns:
    """What one worker does, turn by turn.

    Args:
        llm: prepares requests and owns the engine.
        orders: the queue of `(consumer, uid, sent_at, Order)`.
        send: takes the number of an API process and the `(uid, event)` pairs for it.
        worker_id: the number of this worker, which API processes are told.
        max_batch_size: orders that an idle worker takes together, at most.
        batch_timeout: seconds that the first order after idleness waits for others.
        timeout: seconds after which an order that still waits is refused; None for no limit.
        cancels: a pipe of the uids whose clients have left.
    """

    def __init__(
        self,
        llm: LLM,
        orders: Any,
        send: Callable[[int, list[tuple[str, Event]]], None],
        *,
        worker_id: int = 0,
        max_batch_size: int = 8,
        batch_timeout: float = 0.0,
        timeout: float | None = None,
        cancels: Any = None,
    ) -> None:
        self._llm = llm
        self._engine = llm.engine
        self._orders = orders
        self._send = send
        self._worker_id = worker_id
        self._max_batch_size = max_batch_size
        self._batch_timeout = batch_timeout
        self._timeout = timeout
        self._cancels = cancels
        self._running: dict[str, Destination] = {}
        self._tombstones: dict[str, float] = {}
        self._outbox: dict[int, list[tuple[str, Event]]] = {}

    def turn(self) -> None:
        """Take, admit, step, send."""
        if self._engine.has_active_requests():
            self._read_cancels()
            self._take_for_free_slots()
        else:
            self._take_together()
        self._flush()  # clients learn that they have started before the step, not after it
        if self._engine.has_active_requests():
            self._step()
            self._flush()

    def _take_together(self) -> None:
        """Wait for an order, then up to batch_timeout for others to start with it."""
        taken = []
        deadline = None
        while len(taken) < self._max_batch_size:
            wait = IDLE_WAIT_S if deadline is None else deadline - time.monotonic()
            try:
                taken.append(self._orders.get(timeout=wait) if wait > 0 else self._orders.get_nowait())
            except Empty:
                break
            deadline = deadline or time.monotonic() + self._batch_timeout
        self._read_cancels()
        for item in taken:
            self._admit(*item)

    def _take_for_free_slots(self) -> None:
        """Take no more than can run: what stays in the queue, another worker may take."""
        while self._engine.has_capacity():
            try:
                item = self._orders.get_nowait()
            except Empty:
                return
            self._admit(*item)

    def _admit(self, consumer: int, uid: str, sent_at: float, order: Order) -> None:
        if self._tombstones.pop(uid, None) is not None:
            return
        waited = time.monotonic() - sent_at
        if self._timeout is not None and waited > self._timeout:
            message = f"the request waited {waited:.1f} s for a slot; the server allows {self._timeout} s; try later"
            self._post(consumer, uid, Failure(504, message))
            return
        self._post(consumer, uid, Started(self._worker_id))
        try:
            request = self._llm.prepare(order.prompt, order.params, request_id=uid)
            request.arrival_s = sent_at  # one clock for all processes: the time in the queue counts
            self._engine.add_request(request)
        except ValueError as error:
            param = error.param if isinstance(error, ParameterError) else None
            self._post(consumer, uid, Failure(400, str(error), param))
        except QueueFullError as error:
            self._post(consumer, uid, Failure(429, str(error)))
        except Exception:
            logger.exception("request %s failed before it ran", uid)
            self._post(consumer, uid, Failure(500, "the request failed before it ran; the server's log says why"))
        else:
            self._running[uid] = Destination(consumer, order.stream)

    def _step(self) -> None:
        try:
            emissions = self._engine.step()
        except Exception:
            logger.exception("an engine step failed; %d requests end with it", len(self._running))
            self._end_all(Failure(500, "the engine failed while the request ran; the server's log says why"))
            return
        for emission in emissions:
            uid = emission.request.id
            destination = self._running.get(uid)
            if destination is None:
                continue
            completion = emission.completion
            if completion is None:
                if destination.stream and emission.text:
                    self._post(destination.consumer, uid, Text(emission.text))
                continue
            del self._running[uid]
            if completion.finish_reason == "error":
                self._post(destination.consumer, uid, Failure(500, completion.error or "the request failed"))
                continue
            if destination.stream and emission.text:
                self._post(destination.consumer, uid, Text(emission.text))
            self._post(destination.consumer, uid, Done(completion.to_dict()))

    def _end_all(self, failure: Failure) -> None:
        """Answer everything in flight and empty the engine; if it cannot be emptied, end the worker."""
        for uid, destination in self._running.items():
            self._post(destination.consumer, uid, failure)
        uids = list(self._running)
        self._running.clear()
        self._flush()
        for uid in uids:
            self._engine.fail(uid, failure.message)
        if self._engine.has_active_requests():
            raise RuntimeError("the engine holds requests after all were aborted")

    def _read_cancels(self) -> None:
        """End the requests whose clients have left; remember those that have not come off the queue yet."""
        while self._cancels is not None and self._cancels.poll():
            uid = self._cancels.recv_bytes().decode()
            if self._running.pop(uid, None) is not None:
                self._engine.abort(uid)
                continue
            now = time.monotonic()
            self._tombstones[uid] = now
            while now - next(iter(self._tombstones.values())) > TOMBSTONE_S:  # the oldest stands first
                del self._tombstones[next(iter(self._tombstones))]

    def _post(self, consumer: int, uid: str, event: Event) -> None:
        self._outbox.setdefault(consumer, []).append((uid, event))

    def _flush(self) -> None:
        """Send one message to every API process that has events waiting: a message costs far more than an event."""
        outbox, self._outbox = self._outbox, {}
        for consumer, events in outbox.items():
            self._send(consumer, events)
