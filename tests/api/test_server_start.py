"""serve.py as a command: what it refuses before it starts anything, and that it runs as a plain script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from litspec import serve
from litspec.api.config import ServeConfig
from tests.api.server_process import REPOSITORY

SCRIPT = REPOSITORY / "litspec" / "serve.py"


@pytest.fixture(autouse=True)
def _keep_signal_handlers() -> Iterator[None]:
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config", "serve/smolm2-135m"], "Did you mean serve/smollm2-135m?"),
        (["--config", "serve/debug", "--port", "80"], "port was 80; allowed: an integer from 1024 to 65535"),
        (["--config", "serve/debug", "--port", "eighty"], "eighty"),
        (["--model", "smolm2-135m-instruct"], "smollm2-135m-instruct"),
        (["--model", "./nowhere/at-all"], "nowhere/at-all"),
        (["--model", "debug", "--draft", "./nowhere/at-all"], "nowhere/at-all"),
        (["--model", "debug", "--num-draft", "3"], "--num-draft"),
        (["--modle", "debug"], "--modle"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
):
    monkeypatch.chdir(tmp_path)
    assert serve.main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("litspec: error: ")
    assert error.count("litspec: error: ") == 1
    assert words in error


def test_building_a_server_starts_nothing():
    server = serve.build_server(ServeConfig(model="debug", device="cuda:1", workers_per_device=2, timeout=None))
    assert server._inference_workers_config_for_api("/predict") == [["cuda:1"], ["cuda:1"]]
    assert server.timeout is False
    assert (server.lit_api.max_batch_size, server.lit_api.batch_timeout) == (8, 0.01)


def test_it_runs_as_a_script_from_any_folder(tmp_path: Path):
    """In script mode litspec/ itself stands on sys.path, where its `model` or `api` would shadow others' modules."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(SCRIPT), "--config", "config_hub/serve/debug.yaml"]
    found = subprocess.run(
        [*command, "--port", "80"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stderr) == (
        2,
        "litspec: error: port was 80; allowed: an integer from 1024 to 65535\n",
    )
    environment["LITSPEC_PORT"] = "none"
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert "LITSPEC_PORT" in found.stderr
