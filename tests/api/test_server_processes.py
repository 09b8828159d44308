"""The server's processes: how it starts, what it says when it cannot, and that none of them outlives it."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.fake_llm import answer_text
from tests.api.server_process import ServerProcess, running, wait_until_gone


@pytest.mark.parametrize(
    ("signum", "whole_group"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)],
    ids=["SIGINT", "Ctrl-C in a terminal", "SIGTERM"],
)
def test_a_stop_signal_lets_requests_finish_and_leaves_no_process(tmp_path: Path, signum: int, whole_group: bool):
    with running(ServerProcess.fake(tmp_path / "log")) as server, ThreadPoolExecutor(2) as pool:
        server.wait_until_ready()
        family = server.family()
        plain = pool.submit(server.ask, prompt="running", max_new_tokens=75)
        time.sleep(0.3)
        stream = server.begin(pool, prompt="running", max_new_tokens=75)
        assert server.stop(signum, whole_group=whole_group) == 0
        assert wait_until_gone(family) == set()
        assert plain.result().json()["completion_tokens"] == 75
        assert stream.result().endswith("data: [DONE]\n\n")
        assert "Traceback" not in server.output
        assert "litspec: error" not in server.output


@pytest.mark.slow
def test_what_cannot_finish_in_time_is_told_so(tmp_path: Path):
    with running(ServerProcess.fake(tmp_path / "log")) as server, ThreadPoolExecutor(2) as pool:
        server.wait_until_ready()
        family = server.family()
        plain = pool.submit(server.ask, prompt="endless", max_new_tokens=5000)
        stream = pool.submit(server.ask, prompt="endless", max_new_tokens=5000, stream=True)
        time.sleep(0.5)
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 8.0
        assert wait_until_gone(family) == set()
        assert plain.result().status_code == 503
        assert "shutting down" in stream.result().text
        assert "Traceback" not in server.output


def test_not_ready_until_the_model_is_loaded(tmp_path: Path):
    """Loading takes 3 s: until then nobody listens, or the answer is 503; a request is refused or answered."""
    begun = time.monotonic()
    with running(ServerProcess.fake(tmp_path / "log", model="slow")) as server:
        while (status := server.health()) != 200:
            assert status in (None, 503)
            assert time.monotonic() - begun < 60.0
            time.sleep(0.05)
        assert time.monotonic() - begun > 3.0
        assert server.ask(prompt="now", max_new_tokens=1).status_code == 200
        assert f"http://127.0.0.1:{server.port}" in server.output.splitlines()[-1] or "serving" in server.output


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_while_the_model_loads(tmp_path: Path, signum: int):
    with running(ServerProcess.fake(tmp_path / "log", model="slow")) as server:
        deadline = time.monotonic() + 30.0
        while "loading" not in server.output and time.monotonic() < deadline:
            time.sleep(0.05)
        family = server.family()
        assert len(family) > 2, "the worker has started"
        assert server.stop(signum, whole_group=signum == signal.SIGINT) == 0
        assert wait_until_gone(family) == set()
        assert "Traceback" not in server.output


@pytest.mark.parametrize(
    ("model", "exit_code", "words"),
    [
        ("mistake", 2, "litspec: error: the checkpoint is truncated"),
        ("bug", 1, "litspec: error: bug could not be loaded"),
        ("killed", 1, "litspec: error: a process of the server was ended by signal 9"),
    ],
)
def test_a_model_that_does_not_load_ends_the_server_with_one_message(
    tmp_path: Path, model: str, exit_code: int, words: str
):
    with running(ServerProcess.fake(tmp_path / "log", model=model)) as server:
        assert server.process.wait(60.0) == exit_code
        assert wait_until_gone(server.family() - {server.process.pid}) == set()
        assert server.output.count("litspec: error:") == 1
        assert words in server.output
        assert ("Traceback" in server.output) == (model == "bug"), "a traceback only where it helps to mend litspec"


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ServerProcess.fake(tmp_path / "log")
        server.end()
        port = taken.getsockname()[1]
        command = [*server.process.args[:-1], str(port)]  # pyright: ignore[reportIndexIssue, reportGeneralTypeIssues]
        with running(ServerProcess(command, port, tmp_path / "second")) as second:
            assert second.process.wait(60.0) == 2
            assert second.output.startswith(f"litspec: error: port {port} on 127.0.0.1 cannot be opened")


def test_a_worker_that_dies_is_an_error_to_its_clients_and_ends_the_server(tmp_path: Path):
    with running(ServerProcess.fake(tmp_path / "log", timeout=30)) as server, ThreadPoolExecutor(3) as pool:
        server.wait_until_ready()
        family = server.family()
        waiting: list[Future[httpx.Response]] = [
            pool.submit(server.ask, prompt="mine", max_new_tokens=500),
            pool.submit(server.ask, prompt="mine too", max_new_tokens=500),
        ]
        stream = pool.submit(server.ask, prompt="mine", max_new_tokens=500, stream=True)
        time.sleep(0.5)
        begun = time.monotonic()
        os.kill(server.worker(), signal.SIGKILL)
        assert [request.result().status_code for request in waiting] == [500, 500]
        assert "has died" in stream.result().text
        assert time.monotonic() - begun < 4.0, "not the 10 s that the answers would have taken"
        assert server.process.wait(15.0) == 1
        assert wait_until_gone(family) == set()
        assert server.output.count("litspec: error:") == 1
        assert "Traceback" not in server.output


def test_no_process_outlives_a_main_process_that_was_killed(tmp_path: Path):
    with running(ServerProcess.fake(tmp_path / "log")) as server:
        family = server.wait_until_ready().family()
        assert len(family) >= 4, "main, manager, API and worker"
        server.stop(signal.SIGKILL)
        assert wait_until_gone(family) == set()


@pytest.mark.slow
def test_two_workers_share_the_queue_and_both_hear_of_clients_that_leave(tmp_path: Path):
    """Two slots in each of two workers, 20 ms a step."""
    server = ServerProcess.fake(tmp_path / "log", workers_per_device=2, max_batch_size=2, batch_timeout=0)
    with running(server), ThreadPoolExecutor(8) as pool:
        server.wait_until_ready()
        begun = time.monotonic()
        four = list(pool.map(lambda i: server.ask(prompt=f"p{i}", max_new_tokens=100, seed=i), range(4)))
        assert time.monotonic() - begun < 3.8, "all four ran at once: one worker would have taken 4 s"
        assert [answer.json()["text"] for answer in four] == [answer_text(f"p{i}", i, 100) for i in range(4)]
        for leaver in [pool.submit(server.ask, 0.5, prompt=f"l{i}", max_new_tokens=5000) for i in range(6)]:
            assert isinstance(leaver.exception(), httpx.ReadTimeout)
        begun = time.monotonic()
        assert server.ask(prompt="after", max_new_tokens=5, seed=1).json()["text"] == answer_text("after", 1, 5)
        assert time.monotonic() - begun < 3.0
