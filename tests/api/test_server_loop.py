"""The loop, turn by turn, with a plain queue and a scripted engine."""

from __future__ import annotations

import multiprocessing
import queue
import time
from typing import Any

import pytest

from litspec.api.loop import Turns
from litspec.api.messages import Done, Failure, Order, Started, Text
from litspec.engine.params import SamplingParams
from tests.api.fake_llm import FakeLLM, answer_text


class Worker:
    """Turns with its queue, and what it sent."""

    def __init__(self, *, num_slots: int = 8, with_cancels: bool = False, **options: Any) -> None:
        self.llm = FakeLLM(num_slots=num_slots, step_s=0.0)
        self.orders: queue.Queue[Any] = queue.Queue()
        self.messages: list[tuple[int, list[Any]]] = []
        self.cancels: Any
        reader, self.cancels = multiprocessing.Pipe(duplex=False) if with_cancels else (None, None)
        self.turns = Turns(
            self.llm,  # pyright: ignore[reportArgumentType]
            self.orders,
            lambda consumer, events: self.messages.append((consumer, events)),
            max_batch_size=num_slots,
            cancels=reader,
            **options,
        )

    def order(self, uid: str, prompt: Any, *, stream: bool = False, consumer: int = 0, age: float = 0.0, n: int = 4):
        order = Order(prompt, SamplingParams(max_new_tokens=n, seed=1), stream)
        self.orders.put((consumer, uid, time.monotonic() - age, order))

    def run(self) -> None:
        while not self.orders.empty() or self.llm.engine.has_active_requests():
            self.turns.turn()

    def events(self, uid: str) -> list[Any]:
        return [event for _, events in self.messages for owner, event in events if owner == uid]


def test_orders_that_wait_start_together_and_each_gets_its_own_answer():
    worker = Worker()
    for index in range(8):
        worker.order(f"u{index}", f"prompt {index}", n=3 + index)
    worker.run()
    for index in range(8):
        started, done = worker.events(f"u{index}")
        assert isinstance(started, Started)
        assert isinstance(done, Done)
        assert done.completion["text"] == answer_text(f"prompt {index}", 1, 3 + index)
        assert done.completion["stats"]["batch_rows"] > 3


def test_an_idle_worker_waits_for_company_no_longer_than_batch_timeout():
    worker = Worker(batch_timeout=0.2)
    worker.order("first", "one")
    begun = time.monotonic()
    worker.turns.turn()
    assert 0.15 < time.monotonic() - begun < 0.6
    full = Worker(batch_timeout=30.0, num_slots=2)
    full.order("a", "one")
    full.order("b", "two")
    begun = time.monotonic()
    full.turns.turn()
    assert time.monotonic() - begun < 1.0, "a full batch waits for nobody"


def test_a_busy_worker_takes_only_what_can_run():
    worker = Worker(num_slots=2)
    for index in range(5):
        worker.order(f"u{index}", f"{index}", n=3)
    worker.turns.turn()
    assert worker.orders.qsize() == 3, "the rest stays for other workers"
    worker.run()
    assert all(isinstance(worker.events(f"u{index}")[-1], Done) for index in range(5))


def test_one_message_a_step_and_api_process():
    worker = Worker()
    for index in range(6):
        worker.order(f"u{index}", f"{index}", stream=True, consumer=index % 2, n=5)
    worker.turns.turn()
    assert [consumer for consumer, _ in worker.messages] == [0, 1, 0, 1], "Started before the step, texts after it"
    worker.messages.clear()
    worker.turns.turn()
    assert [(consumer, len(events)) for consumer, events in worker.messages] == [(0, 3), (1, 3)]


def test_text_goes_only_to_those_who_stream():
    worker = Worker()
    worker.order("stream", "same", stream=True)
    worker.order("plain", "same")
    worker.run()
    assert [type(event) for event in worker.events("plain")] == [Started, Done]
    _, *texts, done = worker.events("stream")
    assert all(isinstance(event, Text) for event in texts)
    assert "".join(event.text for event in texts) == done.completion["text"]
    assert done.completion["text"] == worker.events("plain")[-1].completion["text"]


@pytest.mark.parametrize(
    ("prompt", "status", "param"),
    [
        ("", 400, "prompt"),
        ("x" * 200, 400, "prompt"),
        ([{"role": "nobody", "content": "x"}], 400, None),
        ("broken tokenizer", 500, None),
        ("fault", 500, None),
    ],
)
def test_a_failure_stays_with_its_request(prompt: Any, status: int, param: str | None):
    worker = Worker()
    worker.order("good", "good", n=6)
    worker.order("bad", prompt, n=6)
    worker.order("fine", "fine", n=6)
    worker.run()
    failure = worker.events("bad")[-1]
    assert isinstance(failure, Failure)
    assert (failure.status, failure.param) == (status, param)
    for uid in ("good", "fine"):
        assert worker.events(uid)[-1].completion["text"] == answer_text(uid, 1, 6)


def test_a_failing_step_ends_what_is_in_flight_and_the_loop_goes_on():
    worker = Worker()
    worker.order("bad", "crash")
    worker.order("mate", "mate")
    worker.run()
    for uid in ("bad", "mate"):
        assert worker.events(uid)[-1].status == 500
    worker.order("next", "next")
    worker.run()
    assert isinstance(worker.events("next")[-1], Done)


def test_an_order_that_waited_too_long_never_runs():
    worker = Worker(timeout=1.0)
    worker.order("old", "old", age=2.0)
    worker.order("young", "young")
    worker.run()
    assert [event.status for event in worker.events("old")] == [504]
    assert isinstance(worker.events("young")[-1], Done)


def test_a_cancel_frees_the_slot_whether_it_comes_before_or_after_the_order():
    worker = Worker(with_cancels=True)
    worker.order("running", "running", stream=True, n=90)
    worker.order("stays", "stays", n=6)
    worker.turns.turn()
    worker.cancels.send_bytes(b"running")
    worker.cancels.send_bytes(b"queued")
    worker.cancels.send_bytes(b"unheard of")
    worker.run()
    assert worker.llm.engine.aborted == ["running"]
    assert worker.events("stays")[-1].completion["text"] == answer_text("stays", 1, 6)
    assert not any(isinstance(event, Done) for event in worker.events("running"))
    worker.order("queued", "queued")
    worker.order("after", "after")
    worker.run()
    assert worker.events("queued") == []
    assert isinstance(worker.events("after")[-1], Done)
