"""What litspec relies on in LitServe and is promised nowhere: if one of these fails, read the rooms before upgrading.

Each test names the room that would break.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
from collections import deque
from importlib.metadata import version
from typing import Any

import litserve
import pytest
from litserve.loops.base import LitLoop
from litserve.loops.loops import inference_worker
from litserve.server import LitServer, response_queue_to_buffer
from litserve.specs.base import LitSpec
from litserve.utils import LitAPIStatus, LoopResponseType, ResponseBufferItem

from litspec.api.config import ServeConfig
from litspec.api.litapi import SpecLitAPI
from litspec.api.loop import MAILBOX, EngineLoop
from litspec.api.mailbox import Mailbox, Ticket
from litspec.api.messages import Done, Text
from litspec.api.spec import DoorSpec
from litspec.serve import SpecLitServer, build_server


def make_server() -> SpecLitServer:
    return build_server(ServeConfig(model="debug", draft="none", device="cpu"))


def test_the_version_is_the_one_that_was_read():
    assert version("litserve") == "0.2.19"


def test_a_spec_owns_the_doors_alone():
    """api/spec.py: with a spec there is no /predict of LitServe's own, and streaming is what the spec says."""
    server = make_server()
    predict = [route for route in server.app.routes if getattr(route, "path", None) == "/predict"]
    assert [route.endpoint.__name__ for route in predict] == ["predict"]  # pyright: ignore[reportAttributeAccessIssue]
    assert server.lit_api.stream is True
    assert server.lit_api.api_path == "/predict"
    assert server.lit_api.doors._server is server


def test_the_response_pump_hands_every_message_to_one_queue():
    """api/spec.py, api/mailbox.py: the shape of messages and of response_buffer's items."""
    mailbox, ticket = Mailbox(), Ticket()
    mailbox.tickets[ticket.uid] = ticket
    messages: list[Any] = []

    class Transport:
        def send(self, item: Any, consumer_id: int) -> None:
            messages.append(item)

        async def areceive(self, consumer_id: int) -> Any:
            if messages:
                return messages.pop(0)
            raise asyncio.CancelledError

    loop = EngineLoop()
    transport: Any = Transport()
    for events in (["not even a pair"], [(ticket.uid, Text("a"))], [("nobody", Text("b")), (ticket.uid, Done({}))]):
        status: Any = LitAPIStatus.OK
        loop.put_response(transport, 0, MAILBOX, events, status, LoopResponseType.STREAMING)

    async def pump() -> list[Any]:
        item = ResponseBufferItem(event=asyncio.Event(), response_queue=mailbox)  # pyright: ignore[reportArgumentType]
        with contextlib.suppress(asyncio.CancelledError):
            await response_queue_to_buffer(transport, {MAILBOX: item}, 0, make_server().litapi_connector)
        return [await ticket.next_event(), await ticket.next_event()]

    assert asyncio.run(pump()) == [Text("a"), Done({})], "a message that cannot be read does not end the pump"


def test_the_pump_ends_when_append_raises():
    """api/mailbox.py: the reason why Mailbox.append must not; may go when LitServe goes on."""

    class Raises(deque[Any]):
        def append(self, _: Any) -> None:
            raise RuntimeError("as the test wants")

    class Transport:
        async def areceive(self, consumer_id: int) -> Any:
            return MAILBOX, (None, LitAPIStatus.OK, LoopResponseType.STREAMING, 0)

    async def pump() -> None:
        item = ResponseBufferItem(event=asyncio.Event(), response_queue=Raises())
        transport: Any = Transport()
        await asyncio.wait_for(
            response_queue_to_buffer(transport, {MAILBOX: item}, 0, make_server().litapi_connector), timeout=5.0
        )

    asyncio.run(pump())


def test_hooks_and_private_names_are_where_they_were():
    """serve.py overrides or calls these; each name with what it takes."""
    expected = {
        "verify_worker_status": ["self"],
        "launch_inference_worker": ["self", "lit_api"],
        "lifespan": ["self", "app"],
        "_init_manager": ["self", "num_api_servers"],
        "_start_worker_monitoring": ["self", "manager", "uvicorn_workers"],
        "_perform_graceful_shutdown": ["self", "manager", "uvicorn_workers", "shutdown_reason"],
        "_inference_workers_config_for_api": ["self", "api_path"],
        "_get_request_queue": ["self", "api_path"],
    }
    assert {name: list(inspect.signature(getattr(LitServer, name)).parameters) for name in expected} == expected
    assert list(inspect.signature(LitServer._start_server).parameters)[:2] == ["self", "port"]
    run = inspect.getsource(LitServer.run)
    calls = ("_init_manager(", "launch_inference_worker(", "verify_worker_status(", "_start_server(", "wait()")
    assert [run.index(call) for call in calls] == sorted(run.index(call) for call in calls)
    server = make_server()
    assert server._shutdown_event is None
    assert server.uvicorn_graceful_timeout == 5
    assert server._callback_runner is not None
    assert server.workers_per_device == 1
    assert "workers_setup_status" in inspect.getsource(LitServer._init_manager)


def test_a_worker_that_exits_in_setup_is_no_exception_to_litserve():
    """api/litapi.py: SystemExit passes LitServe's `except Exception`, so that nothing but our message is printed."""
    source = inspect.getsource(inference_worker)
    assert "lit_api.setup(device)" in source
    assert "except Exception" in source
    assert "except BaseException" not in source
    assert 'os.environ["LITSERVE_WORKER_ID"]' in source


def test_the_loop_is_called_with_what_it_takes():
    """api/loop.py: LitLoop.run's parameters, and the shape of what _submit_request puts on the queue."""
    assert list(inspect.signature(EngineLoop.run).parameters) == list(inspect.signature(LitLoop.run).parameters)
    assert not inspect.iscoroutinefunction(EngineLoop.run)


def test_what_travels_to_a_worker_leaves_the_api_side_at_home():
    """api/spec.py, api/litapi.py: LitServe pickles the LitAPI, its spec and its loop into each worker."""
    api = make_server().lit_api
    api.doors._mailbox.tickets["x"] = Ticket()
    copy = pickle.loads(pickle.dumps(api))
    assert isinstance(copy, SpecLitAPI)
    assert copy.config == api.config
    assert isinstance(copy.loop, EngineLoop)
    assert isinstance(copy.doors, DoorSpec)
    assert not hasattr(copy.doors, "_mailbox")
    assert copy.api_path == "/predict"
    assert copy.stream


def test_a_spec_of_litserves_own_still_does_what_ours_builds_on():
    """api/spec.py: endpoints of a spec are registered with auth, and `_server` is set on it."""
    assert "spec._server = self" in inspect.getsource(LitServer._register_spec_endpoints)
    assert {"response_buffer", "request_queue", "response_queue_id", "_server"} <= set(vars(LitSpec()))
    assert "spec.response_queue_id = response_queue_id" in inspect.getsource(LitServer._start_server)
    assert 'get_context("fork")' in inspect.getsource(LitServer._start_server)


@pytest.mark.parametrize("name", ["LitAPI", "LitServer", "Callback"])
def test_public_names(name: str):
    assert hasattr(litserve, name)
