"""Driver with an engine that is beyond repair: nobody is left waiting. What a sound one does is tested through LLM."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from litspec.api.driver import Driver
from litspec.engine.params import SamplingParams
from litspec.engine.request import Request
from tests.engine.support import ask, make_engine


class LostEngine:
    """Fails in every step, and again when a request is to be ended, as after a device error."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.scheduler = SimpleNamespace(running=self.requests, waiting=[])

    def add_request(self, request: Request) -> None:
        self.requests.append(request)

    def step(self) -> Any:
        raise RuntimeError("device lost")

    def fail(self, request_id: str, error: str) -> Any:
        raise RuntimeError("device lost")


def test_every_caller_of_a_lost_engine_gets_its_error():
    driver = Driver(cast(Any, LostEngine()))
    requests = [Request(id=str(i), prompt_ids=[1], params=SamplingParams()) for i in range(3)]
    driver.submit(requests)
    errors: list[str] = []

    def read(request: Request) -> None:
        try:
            next(driver.emissions(request))
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=read, args=(request,), daemon=True) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert errors == ["device lost"] * 3


def test_who_finds_the_queue_full_is_told_and_the_others_are_answered():
    driver = Driver(make_engine(slots=1, max_waiting=1))
    requests = [ask(str(index), [1, 2], max_new_tokens=3) for index in range(4)]
    driver.submit(requests)
    completions = [[*driver.emissions(request)][-1].completion for request in requests]
    driver.leave(requests)
    assert [c and c.finish_reason for c in completions] == ["length", "length", "error", "error"]
    assert completions[3] is not None and "allowed: 1 waiting" in (completions[3].error or "")
