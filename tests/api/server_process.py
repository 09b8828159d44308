"""ServerProcess: a server in a subprocess of its own, for tests: start, ask, stop by its own pid, look for orphans."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = Path(__file__).resolve().parents[2]
FAKE_SERVER = REPOSITORY / "tests" / "api" / "fake_llm.py"
LOAD_S = 120.0


class ServerProcess:
    """One server; its standard output and error go to one file."""

    def __init__(self, command: list[str], port: int, log: Path, *, cwd: Path | None = None) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=cwd, start_new_session=True
            )

    @classmethod
    def fake(cls, log: Path, *, model: str = "fake", **options: Any) -> ServerProcess:
        """Start a server with a FakeLLM."""
        port = free_port()
        settings = [f"{name}={value}" for name, value in options.items()]
        return cls([sys.executable, str(FAKE_SERVER), model, str(port), *settings], port, log)

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def health(self) -> int | None:
        """Return the status of /health; None while nobody listens."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code
        except httpx.TransportError:
            return None

    def wait_until_ready(self) -> ServerProcess:
        deadline = time.monotonic() + LOAD_S
        while self.health() != 200:
            assert self.process.poll() is None, f"the server ended:\n{self.output}"
            assert time.monotonic() < deadline, f"the server was not ready after {LOAD_S} s:\n{self.output}"
            time.sleep(0.1)
        return self

    def ask(self, timeout: float = 60.0, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/predict", json=body, timeout=timeout)

    def begin(self, pool: Executor, **body: Any) -> Future[str]:
        """Ask for a stream, wait for its first piece, and return what it will have been in the end."""
        has_begun = threading.Event()

        def read() -> str:
            with httpx.stream("POST", f"{self.url}/predict", json={**body, "stream": True}, timeout=60.0) as response:
                pieces = []
                for piece in response.iter_text():
                    pieces.append(piece)
                    has_begun.set()
                return "".join(pieces)

        text = pool.submit(read)
        assert has_begun.wait(60.0)
        return text

    def family(self) -> set[int]:
        """Return the pids of the server and all its descendants."""
        pids = {self.process.pid}
        parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
        while True:
            more = {pid for pid, parent in parents.items() if parent in pids} - pids
            if not more:
                return pids
            pids |= more

    def worker(self) -> int:
        """Return the pid of the process that holds the model."""
        return next(pid for pid in self.family() if "spawn_main" in command_of(pid))

    def stop(self, signum: int = signal.SIGTERM, *, whole_group: bool = False, within: float = 15.0) -> int:
        """Send a signal (to the group, as a terminal does, or to the main process) and return the exit code."""
        (os.killpg if whole_group else os.kill)(self.process.pid, signum)
        return self.process.wait(within)

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        family = self.family()
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.stop()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(server: ServerProcess) -> Iterator[ServerProcess]:
    """Give a server to a test and end it afterwards."""
    try:
        yield server
    finally:
        server.end()


def wait_until_gone(pids: set[int], within: float = 10.0) -> set[int]:
    """Return those that still run after a while."""
    deadline = time.monotonic() + within
    while (left := {pid for pid in pids if parent_of(pid) is not None}) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def parent_of(pid: int) -> int | None:
    """Return the parent of a living process (a zombie has ended)."""
    with contextlib.suppress(OSError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return None if state in "ZX" else int(parent)
    return None


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
