"""The server over HTTP, with a scripted LLM: answers, errors, streams, clients that leave."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.fake_llm import answer_text
from tests.api.server_process import ServerProcess, cpu_seconds, running

TEMPLATE_ERROR = {"messages": [{"role": "nobody", "content": "x"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(ServerProcess.fake(log, batch_timeout=0.05, timeout=1.5)) as process:
        yield process.wait_until_ready()


def events_of(response: httpx.Response) -> list[Any]:
    """Return the events of a stream; the last is the word DONE."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_an_answer_has_the_fields_of_a_completion(server: ServerProcess):
    response = server.ask(prompt="hello", max_new_tokens=5, seed=3)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer.keys() == {
        *("text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason", "seed", "stats"),
        *("logprobs", "prompt_logprobs", "error"),
    }
    assert answer["text"] == answer_text("hello", 3, 5)
    assert (answer["prompt_tokens"], answer["completion_tokens"], answer["seed"]) == (5, 5, 3)
    same = server.ask(messages=[{"role": "user", "content": "hello"}], max_new_tokens=5, seed=3).json()
    assert same["text"] == answer["text"]
    assert server.ask(prompt=list(b"hello"), max_new_tokens=5, seed=3).json()["text"] == answer["text"]


def test_eight_at_once_share_a_batch_and_one_bad_among_them_is_alone_with_its_error(server: ServerProcess):
    bodies = [{"prompt": f"request {i}", "max_new_tokens": 40 + 2 * i, "seed": i} for i in range(8)]
    bodies[3] |= TEMPLATE_ERROR
    del bodies[3]["prompt"]
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda body: server.ask(**body), bodies))
    assert [response.status_code for response in responses] == [200, 200, 200, 400, 200, 200, 200, 200]
    assert responses[3].json()["error"]["message"] == "the chat template says: no role nobody"
    for index in (0, 1, 2, 4, 5, 6, 7):
        answer = responses[index].json()
        assert answer["text"] == answer_text(f"request {index}", index, 40 + 2 * index)
        assert answer["stats"]["batch_rows"] > 1


def test_a_stream_says_what_the_plain_answer_says(server: ServerProcess):
    body = {"prompt": "stream", "max_new_tokens": 12, "seed": 7}
    plain = server.ask(**body).json()
    response = server.ask(**body, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *texts, completion = events_of(response)
    assert [set(event) for event in texts] == [{"text"}] * 12
    assert "".join(event["text"] for event in texts) == plain["text"]
    assert {**completion, "stats": None} == {**plain, "stats": None}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"{", None, "JSON"),
        (b'{"messages": [{"role": "user", "content": "x", "k": ' + b"[" * 900 + b"]" * 900 + b"}]}", None, "64 deep"),
        (b'{"prompt": "x", "n": 2}', "n", "n was 2"),
        (b'{"prompt": "x", "top_k": "' + b"y" * 9000 + b'"}', "top_k", "y…"),
        (b"", None, "JSON"),
        (b'{"prompt": "\xff"}', None, "Unicode"),
        (b"[" * 100_000, None, "JSON"),
        (b'["a prompt"]', None, "one JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', None, "NaN"),
        (b'{"prompt": "a", "top_p": -Infinity}', None, "-Infinity"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature", "inf"),
        (b'{"prompt": "\\ud800"}', None, "Unicode"),
        ({}, "prompt", "exactly one"),
        ({"prompt": "a", "messages": []}, "prompt", "exactly one"),
        ({"prompt": None}, "prompt", "null"),
        ({"prompt": ["a", "b"]}, "prompt", "token ids"),
        ({"prompt": [True]}, "prompt", "token ids"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "Hi"}, "messages", '"Hi"'),
        ({"messages": [{"role": "user"}]}, "messages[0]", "content"),
        ({"prompt": "a", "stream": "yes"}, "stream", "true or false"),
        ({"prompt": "a", "max_tokens": 3}, "max_tokens", "did you mean max_new_tokens?"),
        ({"prompt": "a", "max_new_tokens": "3"}, "max_new_tokens", "'3'"),
        ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens", "from 1"),
        ({"prompt": "a", "temperature": -0.5}, "temperature", "-0.5"),
        ({"prompt": "a", "top_p": 0}, "top_p", "above 0"),
        ({"prompt": "a", "stop": [""]}, "stop", "empty"),
        ({"prompt": ""}, "prompt", "at least one token"),
        ({"prompt": "x" * 200}, "prompt", "200 tokens"),
        (TEMPLATE_ERROR, None, "chat template"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_told_what_was_wrong(
    server: ServerProcess, body: Any, param: str | None, words: str, stream: bool
):
    if isinstance(body, dict):
        body = json.dumps({"stream": stream, **body}).encode()
    response = httpx.post(f"{server.url}/predict", content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"]


def test_other_refusals_have_the_same_form(server: ServerProcess):
    for method, path, status in [("GET", "/predict", 405), ("POST", "/nowhere", 404)]:
        response = httpx.request(method, server.url + path)
        assert (response.status_code, response.json()["error"]["type"]) == (status, "invalid_request_error")
    response = httpx.post(f"{server.url}/predict", content=b" " * (33 * 1024 * 1024))
    assert (response.status_code, response.json()["error"]["type"]) == (413, "invalid_request_error")


def test_a_failure_while_running_is_a_500_and_an_event_in_a_stream(server: ServerProcess):
    response = server.ask(prompt="fault", seed=1)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    *texts, failure = events_of(server.ask(prompt="fault", seed=1, stream=True))
    assert len(texts) == 3
    assert failure["error"]["type"] == "server_error"


def test_a_failing_step_ends_what_is_in_flight_and_the_server_goes_on(server: ServerProcess):
    with ThreadPoolExecutor(1) as pool:
        mate = pool.submit(server.ask, prompt="mate", max_new_tokens=500, seed=1)
        time.sleep(0.3)
        assert server.ask(prompt="crash", seed=1).status_code == 500
        assert mate.result().status_code == 500
    assert server.ask(prompt="next", max_new_tokens=4, seed=1).json()["text"] == answer_text("next", 1, 4)


def test_clients_that_leave_free_their_slots(server: ServerProcess):
    """Each of 16 requests would take 5 s in one of 8 slots; a request that comes after them is answered at once."""

    def leave(index: int) -> None:
        with pytest.raises(httpx.ReadTimeout):
            server.ask(prompt=f"leaver {index}", max_new_tokens=250, stream=False, timeout=0.3)

    def leave_stream(index: int) -> None:
        body = {"prompt": f"leaver {index}", "max_new_tokens": 250, "stream": True}
        with httpx.stream("POST", f"{server.url}/predict", json=body, timeout=10.0) as response:
            lines = response.iter_lines()
            for _ in range(5):
                next(lines)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave_stream, range(8)))
        list(pool.map(leave, range(8)))
    begun = time.monotonic()
    answer = server.ask(prompt="after", max_new_tokens=5, seed=1).json()
    assert time.monotonic() - begun < 3.0
    assert answer["text"] == answer_text("after", 1, 5)
    assert answer["stats"]["batch_rows"] == 1, "the rows of those who left are gone"


def test_a_request_that_waits_too_long_for_a_slot_is_refused_and_never_runs(server: ServerProcess):
    with ThreadPoolExecutor(9) as pool:
        long = [pool.submit(server.ask, prompt=f"long {i}", max_new_tokens=250, seed=1) for i in range(8)]
        time.sleep(1.0)
        refused = server.ask(prompt="late", max_new_tokens=3, seed=1)
        assert (refused.status_code, refused.json()["error"]["type"]) == (504, "server_error")
        assert all(request.result().status_code == 200 for request in long), "what runs is never cut"


def test_an_idle_server_rests(server: ServerProcess):
    server.ask(prompt="wake", max_new_tokens=1)
    time.sleep(0.5)
    before = {pid: cpu_seconds(pid) for pid in server.family()}
    time.sleep(3.0)
    used = sum(cpu_seconds(pid) - start for pid, start in before.items())
    assert used < 0.15, "under 5 % of a core, all processes together"


def test_no_client_file_is_written(server: ServerProcess):
    assert not (Path.cwd() / "client.py").exists()
