"""`litspec chat` with somebody at the keyboard: a pseudo-terminal in place of a pipe."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

pty = pytest.importorskip("pty")

# A process whose LLM answers with the number of messages it was given, then with one dot after another, slowly.
CHAT = """
import sys, time, types

class Chunk:
    completion = None
    def __init__(self, text):
        self.text = text

class LLM:
    @classmethod
    def load_cold(cls, config):
        return cls()
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def stream(self, messages, params):
        if messages[-1]["content"] == "too long":
            raise ValueError("the prompt has 9 tokens; allowed: 8")
        yield Chunk(f"[{len(messages)}]")
        while messages[-1]["content"] == "endless":
            time.sleep(0.01)
            yield Chunk(".")

module = types.ModuleType("litspec.api.llm")
module.LLM = LLM
sys.modules["litspec.api.llm"] = module
from litspec.cli import main
sys.exit(main(["chat"]))
"""


class Terminal:
    """Types into a process and reads what it shows."""

    def __init__(self) -> None:
        self.keyboard, far_end = pty.openpty()
        command = [sys.executable, "-c", CHAT]
        # The far end becomes the process's controlling terminal, so that Ctrl-C typed here is its SIGINT.
        take_terminal = ["sh", "-c", 'exec 0<>"$0" 1>&0 2>&0 && exec "$@"', os.ttyname(far_end), *command]
        self.process = subprocess.Popen(take_terminal, start_new_session=True, env={**os.environ, "TERM": "dumb"})
        self.far_end = far_end
        self.unread = ""

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    def type_until(self, keys: str, expected: str) -> None:
        """Type again until it helps: Python loses a signal that comes just before its line editor waits for keys."""
        for _ in range(30):
            self.type(keys)
            with suppress(AssertionError):
                self.read_until(expected, timeout_s=1.0)
                return
        pytest.fail(f"{keys!r} did not bring {expected!r}")

    def read_until(self, expected: str, timeout_s: float = 30.0) -> str:
        deadline = time.monotonic() + timeout_s
        while expected not in self.unread:
            assert time.monotonic() < deadline, f"{expected!r} did not appear in {self.unread!r}"
            if select.select([self.keyboard], [], [], 0.1)[0]:
                self.unread += os.read(self.keyboard, 4096).decode()
        shown, found, self.unread = self.unread.partition(expected)
        return shown + found

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)
        os.close(self.keyboard)
        os.close(self.far_end)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_a_conversation_at_the_keyboard(terminal):
    terminal.read_until("/exit leaves")
    terminal.read_until("> ")
    terminal.type("Hi\n")
    terminal.read_until("[1]")
    terminal.read_until("> ")
    terminal.type("too long\n")
    terminal.read_until("litspec: error: the prompt has 9 tokens; allowed: 8 (/clear starts anew)")
    terminal.read_until("> ")
    terminal.type("Again\n")
    terminal.read_until("[3]")  # what could not be answered is not in the history
    terminal.read_until("> ")
    terminal.type("/exit\n")
    assert terminal.process.wait(timeout=10) == 0


def test_ctrl_c_ends_the_answer_and_ctrl_d_the_chat(terminal):
    terminal.read_until("> ")
    terminal.type("endless\n")
    terminal.read_until("[1]...")
    terminal.type("\x03")
    terminal.read_until("> ")
    terminal.type("half a line")
    terminal.read_until("half a line")  # its echo
    terminal.type_until("\x03", "> ")
    terminal.type("Hi\n")
    terminal.read_until("[3]")
    terminal.read_until("> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=10) == 0
