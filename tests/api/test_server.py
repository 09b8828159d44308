"""The debug pair behind /predict, as a Studio deployment starts it: real batches, exact answers, clean ends."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from litspec.api.llm import LLM
from litspec.engine.params import SamplingParams
from litspec.engine.request import Completion
from tests.api.server_process import REPOSITORY, ServerProcess, free_port, running, wait_until_gone

MAX_SEQ_LENGTH = 256
# Lengths, prompts and temperatures all differ; float64 leaves no ties (README.md, Limits).
BODIES: list[dict[str, Any]] = [
    {"prompt": "abc " * (1 + 3 * i), "max_new_tokens": 8 + 7 * i, "seed": i, "temperature": (0.0, 0.7, 1.0)[i % 3]}
    for i in range(8)
]


def start(log: Path, *flags: str, cwd: Path) -> ServerProcess:
    port = free_port()
    script = str(REPOSITORY / "litspec" / "serve.py")
    command = [sys.executable, script, "--config", "config_hub/serve/debug.yaml", "--port", str(port), *flags]
    return ServerProcess(command, port, log, cwd=cwd)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    flags = ("--dtype", "float64", "--compile", "none", "--max-seq-length", str(MAX_SEQ_LENGTH))
    flags += ("--batch-timeout", "0.1", "--num-draft-tokens", "4")
    with running(start(folder / "log", *flags, cwd=folder)) as process:
        yield process.wait_until_ready()
        assert [path.name for path in folder.iterdir()] == ["log"], "nothing is written into the user's folder"


@pytest.fixture(scope="module")
def solo() -> list[Completion]:
    """What LLM says to each body alone, without a draft."""
    with LLM.load("debug", draft=None, dtype="float64", compile="none", max_seq_length=MAX_SEQ_LENGTH) as llm:
        bodies = [dict(body) for body in BODIES]
        return [llm.generate(body.pop("prompt"), SamplingParams(**body)) for body in bodies]


def test_the_start_says_what_runs(server: ServerProcess):
    facts = ("model debug", "draft debug", "dtype float64", "slots 8", "compiled shapes", " MiB cache + draft ")
    for words in (*facts, server.url):
        assert words in server.output


def test_eight_at_once_are_one_batch_and_each_says_what_it_says_alone(server: ServerProcess, solo: list[Completion]):
    with ThreadPoolExecutor(8) as pool:
        answers = [response.json() for response in pool.map(lambda body: server.ask(**body), BODIES)]
    assert [answer["token_ids"] for answer in answers] == [completion.token_ids for completion in solo]
    assert [answer["text"] for answer in answers] == [completion.text for completion in solo]
    assert [answer["completion_tokens"] for answer in answers] == [body["max_new_tokens"] for body in BODIES]
    assert min(answer["stats"]["batch_rows"] for answer in answers) > 1
    assert sum(answer["stats"]["drafted"] for answer in answers) > 0
    assert server.ask(**BODIES[3]).json()["token_ids"] == solo[3].token_ids, "alone over HTTP too"


def test_one_bad_among_eight_is_alone_with_its_error(server: ServerProcess, solo: list[Completion]):
    bodies = [dict(body) for body in BODIES]
    bodies[5]["prompt"] = [1, 2, 99_999]
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda body: server.ask(**body), bodies))
    assert [response.status_code for response in responses] == [200] * 5 + [400] + [200] * 2
    error = responses[5].json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "prompt")
    assert "99999" in error["message"]
    for index in (0, 1, 2, 3, 4, 6, 7):
        assert responses[index].json()["token_ids"] == solo[index].token_ids


def test_a_stream_says_what_the_plain_answer_says_whoever_runs_beside_it(server: ServerProcess, solo: list[Completion]):
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda pair: server.ask(**pair[1], stream=pair[0] % 2 == 0), enumerate(BODIES)))
    for index, response in enumerate(responses):
        if index % 2:
            assert response.json()["token_ids"] == solo[index].token_ids
            continue
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        *texts, completion = [json.loads(line) for line in lines[:-1]]
        assert lines[-1] == "[DONE]"
        assert "".join(event["text"] for event in texts) == completion["text"] == solo[index].text
        assert len(texts) > 1


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "x" * 300}, "prompt", str(MAX_SEQ_LENGTH)),
        ({"prompt": []}, "prompt", "at least one"),
        ({"prompt": [-1]}, "prompt", "-1"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "messages", "chat template"),
        ({"prompt": "a", "temperature": -1}, "temperature", "-1"),
        ({"prompt": "a", "top_p": 1.5}, "top_p", "1.5"),
    ],
)
def test_a_bad_request_is_told_what_was_wrong(server: ServerProcess, body: Any, param: str, words: str):
    response = server.ask(**body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"]


def test_an_answer_ends_where_the_context_does(server: ServerProcess):
    answer = server.ask(prompt=[1] * (MAX_SEQ_LENGTH - 6), max_new_tokens=100, ignore_eos=True).json()
    assert (answer["completion_tokens"], answer["finish_reason"]) == (6, "length")


def test_a_client_that_leaves_takes_its_row_along(server: ServerProcess):
    with pytest.raises(httpx.ReadTimeout):
        server.ask(timeout=0.3, prompt="leaver", max_new_tokens=240, ignore_eos=True)
    answer = server.ask(prompt="after", max_new_tokens=20, ignore_eos=True).json()
    assert answer["stats"]["batch_rows"] == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_leaves_no_process(tmp_path: Path, signum: int):
    with running(start(tmp_path / "log", "--compile", "none", cwd=tmp_path)) as server, ThreadPoolExecutor(1) as pool:
        server.wait_until_ready()
        family = server.family()
        assert len(family) >= 4, "main, manager, API and worker"
        answer = server.begin(pool, prompt="running", max_new_tokens=30, ignore_eos=True)
        assert server.stop(signum, whole_group=signum == signal.SIGINT) == 0
        assert wait_until_gone(family) == set()
        assert '"completion_tokens": 30' in answer.result() and answer.result().endswith("data: [DONE]\n\n")
        assert "Traceback" not in server.output
