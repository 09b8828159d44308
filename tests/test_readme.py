"""README and its neighbours say what is so: their code runs, their commands parse, their tables hold the defaults."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

from litspec.api.config import EngineConfig, ServeConfig
from litspec.api.config_sources import find_config, load_config
from litspec.cli import _parse
from litspec.engine.params import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "docs/deploy.md", "docs/engine.md", "docs/kernels.md")
START_S = 120


class Block(NamedTuple):
    page: str
    number: int
    language: str
    text: str


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(language: str) -> list[Block]:
    fence = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    found = [Block(page, n, *match) for page in PAGES for n, match in enumerate(fence.findall(read(page)))]
    return [block for block in found if block.language == language]


def shell_lines() -> list[str]:
    """Return the words of every command in the bash blocks, the long curl call apart."""
    lines = [line.strip() for block in blocks("bash") if "curl" not in block.text for line in block.text.splitlines()]
    return [line for line in lines if line]


def name_of(value: object) -> str:
    return f"{value.page}-{value.number}" if isinstance(value, Block) else str(value).split("#")[0].strip()


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.parametrize("block", blocks("python"), ids=name_of)
def test_python_block_runs(block, tmp_path):
    done = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Serve what `make serve` serves, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    command = [sys.executable, "-m", "litspec", "serve", "--config", "serve/smollm2-135m", "--port", str(number)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until_healthy(process, number)
        yield number
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def wait_until_healthy(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.2)
    pytest.fail(f"the server was not healthy within {START_S} s")


def curl(block: Block, port: int) -> str:
    assert "127.0.0.1:8000" in block.text
    script = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True).stdout


CURL_BLOCKS = [block for block in blocks("bash") if "curl" in block.text]


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("block", CURL_BLOCKS, ids=name_of)
def test_curl_block_is_answered(block, port):
    answer = json.loads(curl(block, port))
    assert "Paris" in answer["text"]
    for field in ("text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason", "seed", "stats"):
        assert field in answer
        assert f"`{field}`" in read("README.md")


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_block_streams_as_the_readme_says(port):
    block = CURL_BLOCKS[0]
    streaming = block._replace(text=block.text.replace('"max_new_tokens"', '"stream": true, "max_new_tokens"'))
    events = [line.removeprefix("data: ") for line in curl(streaming, port).splitlines() if line]
    assert events[-1] == "[DONE]"
    whole = json.loads(events[-2])
    assert "".join(json.loads(event)["text"] for event in events[:-2]) == whole["text"]
    assert whole == {**json.loads(curl(block, port)), "seed": whole["seed"], "stats": whole["stats"]}


def test_there_is_something_to_test():
    assert blocks("python")
    assert CURL_BLOCKS
    assert any(line.startswith("make serve") for line in shell_lines())
    assert any(line.startswith("litspec chat") for line in shell_lines())


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("make ")], ids=name_of)
def test_make_targets_exist(line):
    targets = re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE)
    assert shlex.split(line, comments=True)[1] in targets


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("litspec ")], ids=name_of)
def test_commands_parse(line):
    words = shlex.split(line, comments=True)
    words = words[1 : words.index("<")] if "<" in words else words[1:]
    arguments = _parse(words)
    if "config" in arguments[words[0]]:
        find_config(arguments[words[0]].config)


@pytest.mark.parametrize("line", [line for line in shell_lines() if "python litspec/serve.py" in line], ids=name_of)
def test_deployment_commands_name_a_script_and_a_config(line):
    words = shlex.split(line)
    config = load_config(ROOT / words[words.index("--config") + 1], ServeConfig, environ={})
    assert config.model
    assert (ROOT / words[words.index("python") + 1]).is_file()


def test_dockerfile_serves_a_config_that_exists():
    command = json.loads(re.findall(r"^CMD (\[.*\])$", read("Dockerfile"), re.MULTILINE)[0])
    assert command[0] == "python"
    assert (ROOT / command[1]).is_file()
    assert load_config(ROOT / command[3], ServeConfig, environ={}).model


def test_every_default_is_in_the_table():
    written = {
        name: ast.literal_eval(value)
        for name, value in re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", read("README.md"), re.MULTILINE)
    }
    engine_and_server = {item.name: item.default for item in fields(ServeConfig)}
    assert {item.name for item in fields(EngineConfig)} < set(engine_and_server)
    sampling = {name: field.default for name, field in SamplingParams.model_fields.items()}
    assert written == {**engine_and_server, **sampling}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", read(page)):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


def test_environment_variables_are_those_of_the_code():
    documented = set(re.findall(r"LITSPEC_\w+", read("docs/deploy.md")))
    in_code = {
        name
        for file in (ROOT / "litspec").rglob("*.py")
        for name in re.findall(r"\bLITSPEC_[A-Z]+\b", file.read_text(encoding="utf-8"))
    }
    assert documented == in_code
