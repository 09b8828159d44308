"""A conversation in the terminal, which is what `litspec chat` runs.

Reads one message a line, streams each answer as it becomes certain, and keeps the history. Works on a pipe as well,
where a message that cannot be answered ends the conversation. It knows no flags and loads no model.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from litspec.api.llm import LLM
    from litspec.engine.params import SamplingParams

HELP = "Ctrl-C ends an answer, /clear starts anew, Ctrl-D or /exit leaves."


def chat(llm: LLM, params: SamplingParams) -> None:
    """Hold a conversation over standard input and output until the input ends or says /exit.

    Raises:
        ValueError: a message cannot be answered (the conversation is longer than the context, say) and nobody is at
            the keyboard to mend it.
    """
    is_interactive = sys.stdin.isatty()
    if is_interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (gives input() its line editing)
        print(HELP, file=sys.stderr)
    messages: list[dict[str, str]] = []
    for line in _lines("> " if is_interactive else ""):
        if line == "/exit":
            return
        if line == "/clear":
            messages.clear()
            continue
        messages.append({"role": "user", "content": line})
        try:
            messages.append({"role": "assistant", "content": _answer(llm, messages, params)})
        except ValueError as error:
            if not is_interactive:
                raise
            messages.pop()
            print(f"litspec: error: {error} (/clear starts anew)", file=sys.stderr)


def _lines(prompt: str) -> Iterator[str]:
    """Yield what is typed, line by line; Ctrl-C at a prompt drops the line."""
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not prompt:
                raise
            print()
            continue
        if line:
            yield line


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Stream one answer and return its text; Ctrl-C ends it and keeps what has been said."""
    text = ""
    with _interrupts_collected() as interrupts:
        for chunk in llm.stream(list(messages), params):  # leaving the loop ends the request
            text += chunk.text
            print(chunk.text, end="", flush=True)
            if chunk.completion is not None and chunk.completion.finish_reason == "error":
                print(f"\nlitspec: error: {chunk.completion.error}", file=sys.stderr)
            if interrupts:
                break
    print()
    return text


@contextlib.contextmanager
def _interrupts_collected() -> Iterator[list[int]]:
    """Collect the first Ctrl-C instead of raising it in the middle of a round; a second one raises."""
    interrupts: list[int] = []

    def collect(signal_number: int, _frame: Any) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(signal_number)

    previous = signal.signal(signal.SIGINT, collect)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)
