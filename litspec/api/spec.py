"""DoorSpec: the one LitSpec, which owns every HTTP door.

It lives in the API processes: turns a body into an order, puts it on LitServe's queue, and hands the events that come
back to the request they belong to. What a door says is decided elsewhere (`predict`); what runs, in the worker
(`loop`). A request that ends, in whatever way, leaves nothing behind here and, if it was not finished, in no worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from litserve.specs.base import LitSpec
from litserve.utils import ResponseBufferItem
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from litspec.api.loop import MAILBOX
from litspec.api.mailbox import Mailbox, Ticket
from litspec.api.messages import Done, Event, Failure, Order, RequestError, Started, Text
from litspec.api.predict import parse_predict
from litspec.api.processes import Lifeline

if TYPE_CHECKING:
    from litserve import LitServer

logger = logging.getLogger(__name__)

LEFT = Failure(499, "the client has left")
STOPPING = Failure(503, "the server is shutting down; try another")
DIED = Failure(500, "the process that runs the model has died; the server's log says why")
DRAIN_S = 4.0  # what still runs this long after the server was told to stop is answered with an error


class TicketStream(StreamingResponse):
    """A stream that closes its ticket however it ends, even before its first byte."""

    def __init__(self, spec: DoorSpec, ticket: Ticket, content: AsyncIterator[str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._spec = spec
        self._ticket = ticket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._spec.close(self._ticket)


class DoorSpec(LitSpec):
    """`POST /predict`, and room for more doors.

    Args:
        timeout: seconds that a request may wait until a worker takes it; None for no limit.
    """

    def __init__(self, *, timeout: float | None) -> None:
        super().__init__()
        self.api_path = "/predict"
        self._timeout = timeout
        self._cancel_readers: list[Any] = []
        self._cancel_writers: list[Any] = []
        self._worker_pids: list[int] = []
        self._dead_workers: set[int] = set()
        self._mailbox = Mailbox()
        self._lifeline: Lifeline | None = None
        self._is_draining = False

    @property
    def stream(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] (LitServe says Literal[False])
        """True: LitServe then hands every message on as it comes."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Leave at home what belongs to the API processes: the spec travels to the workers."""
        return {name: self.__dict__[name] for name in ("api_path", "_cancel_readers", "_max_batch_size")}

    # Set-up, in the main process -------------------------------------------------------------------------------------

    def pre_setup(self, lit_api: Any) -> None:
        """Open the doors."""
        if not self.endpoints:
            self.add_endpoint("/predict", self.predict, ["POST"])

    def setup(self, server: LitServer) -> None:
        """Connect to the server's queue and response pump; LitServe calls this at every start of a worker."""
        self.request_queue = server._get_request_queue(self.api_path)
        self.response_buffer = server.response_buffer
        self.response_buffer[MAILBOX] = ResponseBufferItem(event=asyncio.Event(), response_queue=self._mailbox)  # pyright: ignore[reportArgumentType]
        if self._lifeline is None:
            self._lifeline = Lifeline()
            context = multiprocessing.get_context("spawn")
            for _ in server._inference_workers_config_for_api(self.api_path):
                reader, writer = context.Pipe(duplex=False)
                os.set_blocking(writer.fileno(), False)
                self._cancel_readers.append(reader)
                self._cancel_writers.append(writer)
            self._server.app.add_exception_handler(HTTPException, _say_http_error)
            self._server.app.add_exception_handler(Exception, _say_server_error)

    def watch(self, worker_pids: list[int]) -> None:
        """Name the workers whose end is to be noticed."""
        self._worker_pids = worker_pids

    def stop(self) -> None:
        """Tell the API processes that the server is going down."""
        if self._lifeline is not None:
            self._lifeline.cut()

    # In a worker -----------------------------------------------------------------------------------------------------

    def cancel_reader(self, worker_id: int) -> Any:
        """Return the pipe of uids whose clients have left."""
        return self._cancel_readers[worker_id]

    # In an API process -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Watch the main process and the workers; called in the event loop of each API process."""
        loop = asyncio.get_running_loop()
        assert self._lifeline is not None
        self._lifeline.cut()
        loop.add_reader(self._lifeline.read_end, self._drain)
        if sys.platform == "linux":
            for worker_id, pid in enumerate(self._worker_pids):
                watched = os.pidfd_open(pid)  # readable from the moment the process ends
                loop.add_reader(watched, self._end_worker, worker_id, watched)

    @property
    def is_healthy(self) -> bool:
        """Whether every worker lives and the server is to stay."""
        return not self._is_draining and not self._dead_workers

    @property
    def is_orphaned(self) -> bool:
        """Whether the main process has ended without ending this one."""
        return self._lifeline is not None and self._lifeline.owner_is_gone()

    async def predict(self, request: Request) -> Response:
        """Answer `POST /predict`."""
        try:
            order = parse_predict(await request.body())
        except RequestError as error:
            return _say(error.failure)
        except ClientDisconnect:
            return _say(LEFT)
        ticket: Ticket | None = self.submit(order)
        try:
            first = await self._first_event(ticket, request)
            if isinstance(first, Failure):
                return _say(first)
            if order.stream:
                stream, ticket = TicketStream(self, ticket, self._events_as_lines(ticket, first)), None
                return stream
            assert isinstance(first, Done)
            return JSONResponse(first.completion)
        finally:
            if ticket is not None:
                self.close(ticket)

    def submit(self, order: Order) -> Ticket:
        """Put an order on the queue."""
        ticket = Ticket()
        if self._is_draining or len(self._dead_workers) == len(self._worker_pids):
            ticket.put(STOPPING if self._is_draining else DIED)
            return ticket
        self._mailbox.tickets[ticket.uid] = ticket
        self._server._callback_runner.trigger_event(
            "on_request", active_requests=self._server.active_requests, litserver=self._server
        )
        try:
            self.request_queue.put((self.response_queue_id, ticket.uid, time.monotonic(), order))
        except BaseException:
            self.close(ticket)
            raise
        return ticket

    def close(self, ticket: Ticket) -> None:
        """Forget a request; if it has not ended, every worker is told, since any may have it or get it."""
        if self._mailbox.tickets.pop(ticket.uid, None) is None:
            return
        self._server._callback_runner.trigger_event("on_response", litserver=self._server)
        if ticket.is_finished:
            return
        for writer in self._cancel_writers:
            try:
                writer.send_bytes(ticket.uid.encode())
            except OSError:  # full, or nobody reads: the worker hangs or is gone, and the request with it
                logger.debug("a cancel found no reader")

    async def _first_event(self, ticket: Ticket, request: Request) -> Event:
        """Wait for the first event that says something, the client staying: before it, any status can be sent."""
        leaving = asyncio.ensure_future(_wait_until_left(request))
        try:
            limit = self._timeout
            while True:
                coming = asyncio.ensure_future(ticket.next_event())
                done, _ = await asyncio.wait({coming, leaving}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if coming not in done:
                    coming.cancel()
                    if leaving in done:
                        return LEFT
                    return Failure(504, f"no worker took the request within {limit} s; try later")
                event = coming.result()
                if not isinstance(event, Started):
                    return event
                limit = None
        finally:
            leaving.cancel()

    async def _events_as_lines(self, ticket: Ticket, event: Event) -> AsyncIterator[str]:
        while True:
            if isinstance(event, Text):
                yield _line({"text": event.text})
            elif isinstance(event, Done):
                yield _line(event.completion)
            elif isinstance(event, Failure):
                yield _line(event.body())
            if isinstance(event, (Done, Failure)):
                yield "data: [DONE]\n\n"
                return
            event = await ticket.next_event()

    def _end_worker(self, worker_id: int, watched: int) -> None:
        """Answer what a dead worker had taken; if none is left, everything."""
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)
        self._dead_workers.add(worker_id)
        are_all_dead = len(self._dead_workers) == len(self._worker_pids)
        for ticket in list(self._mailbox.tickets.values()):
            if ticket.worker_id == worker_id or are_all_dead:
                ticket.put(DIED)

    def _drain(self) -> None:
        """Take nothing new, let what runs finish for a while, and end this process."""
        loop = asyncio.get_running_loop()
        assert self._lifeline is not None
        loop.remove_reader(self._lifeline.read_end)
        self._is_draining = True
        loop.call_later(DRAIN_S, self._end_all)
        self._end_if_orphaned()

    def _end_if_orphaned(self) -> None:
        """End this process once the main one is gone; a dying process lets go of its pipes before its children."""
        if self.is_orphaned:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            asyncio.get_running_loop().call_later(0.1, self._end_if_orphaned)

    def _end_all(self) -> None:
        for ticket in list(self._mailbox.tickets.values()):
            ticket.put(STOPPING)


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _line(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _say(failure: Failure) -> JSONResponse:
    return JSONResponse(failure.body(), status_code=failure.status)


async def _say_http_error(request: Request, error: Any) -> Response:
    """Give what FastAPI and LitServe refuse (404, 405, 401, 413) the form of every other error."""
    return JSONResponse(
        Failure(error.status_code, str(error.detail)).body(), status_code=error.status_code, headers=error.headers
    )


async def _say_server_error(request: Request, error: Exception) -> Response:
    return _say(Failure(500, "the server failed; its log says why"))
