"""FakeLLM: an LLM with slots and timed steps but no model, for tests of the server.

Each step gives every row the next letter of its answer, which depends on prompt and seed alone. Some prompts fail on
purpose: see `prepare` and `FakeEngine.step`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from litspec.api.config import ServeConfig
from litspec.api.litapi import SpecLitAPI
from litspec.engine.params import ParameterError, SamplingParams
from litspec.engine.request import Completion, Request


@dataclass
class Emission:
    request: Request
    token_ids: list[int]
    text: str
    completion: Completion | None = None


class FakeStats:
    def __init__(self) -> None:
        self.rows: list[int] = []

    def to_dict(self) -> dict[str, Any]:
        return {"rounds": len(self.rows), "batch_rows": sum(self.rows) / len(self.rows) if self.rows else None}


class FakeEngine:
    compiled_shapes = 3

    def __init__(self, *, num_slots: int, step_s: float) -> None:
        self.num_slots = num_slots
        self.step_s = step_s
        self.requests: dict[str, Request] = {}
        self.aborted: list[str] = []
        self.steps = 0

    def add_request(self, request: Request) -> None:
        self.requests[request.id] = request

    def has_active_requests(self) -> bool:
        return bool(self.requests)

    def has_capacity(self) -> bool:
        return len(self.requests) < self.num_slots

    def step(self) -> list[Emission]:
        self.steps += 1
        time.sleep(self.step_s)
        rows = list(self.requests.values())[: self.num_slots]
        if any(text_of(row) == "crash" for row in rows):
            raise RuntimeError("the engine broke, as the test wants")
        if any(text_of(row) == "die" for row in rows):
            os._exit(9)
        emissions = []
        for request in rows:
            if text_of(request) == "fault" and request.num_emitted == 3:
                request.error = "this row broke, as the test wants"
                emissions.append(self._end(request, [], "error"))
                continue
            token_id = answer_token(request.prompt_ids, request.params.seed or 0, request.num_emitted)
            request.tokens.append(token_id)
            request.text += chr(token_id)
            request.stats.rows.append(len(rows))  # pyright: ignore[reportAttributeAccessIssue]
            if request.num_remaining == 0:
                emissions.append(self._end(request, [token_id], "length"))
            else:
                emissions.append(Emission(request, [token_id], chr(token_id)))
        return emissions

    def abort(self, request_id: str) -> Emission | None:
        self.aborted.append(request_id)
        request = self.requests.get(request_id)
        return None if request is None else self._end(request, [], "abort")

    def fail(self, request_id: str, error: str) -> Emission | None:
        request = self.requests.get(request_id)
        return None if request is None else self._end(request, [], "error")

    def _end(self, request: Request, token_ids: list[int], reason: Any) -> Emission:
        del self.requests[request.id]
        request.finish_reason = reason
        return Emission(request, token_ids, "".join(map(chr, token_ids)), request.completion())


class FakeLLM:
    max_seq_length = 100

    def __init__(self, *, num_slots: int = 8, step_s: float = 0.005) -> None:
        self.engine = FakeEngine(num_slots=num_slots, step_s=step_s)

    def prepare(self, prompt: Any, params: SamplingParams, *, request_id: str | None = None) -> Request:
        if prompt == "broken tokenizer":
            raise RuntimeError("the tokenizer broke, as the test wants")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            if prompt[0]["role"] == "nobody":
                raise ValueError("the chat template says: no role nobody")
            prompt = "".join(message["content"] for message in prompt)
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        if not ids:
            raise ParameterError("prompt was empty; allowed: at least one token", param="prompt")
        if len(ids) >= self.max_seq_length:
            raise ParameterError(f"prompt has {len(ids)} tokens; allowed: {self.max_seq_length - 1}", param="prompt")
        request = Request(request_id or "?", ids, params)
        request.stats = FakeStats()  # pyright: ignore[reportAttributeAccessIssue]
        return request

    def describe(self) -> dict[str, Any]:
        return {"model": "fake", "slots": self.engine.num_slots}


class FakeLitAPI(SpecLitAPI):
    """SpecLitAPI with a FakeLLM; some model names fail on purpose."""

    def load_llm(self, device: str) -> Any:
        name = self.config.model
        if name == "mistake":
            raise ValueError("the checkpoint is truncated, as the test wants")
        if name == "bug":
            raise KeyError("a bug, as the test wants")
        if name == "killed":
            os.kill(os.getpid(), 9)
        print("loading", flush=True)
        if name == "slow":
            time.sleep(3.0)
        return FakeLLM(num_slots=self.config.max_batch_size, step_s=0.02)


def answer_token(prompt_ids: list[int], seed: int, index: int) -> int:
    return 97 + (sum(prompt_ids) * 31 + seed * 17 + index * index * 7 + index) % 26


def answer_text(prompt: str, seed: int, length: int) -> str:
    return "".join(chr(answer_token(list(prompt.encode()), seed, index)) for index in range(length))


def text_of(request: Request) -> str:
    return bytes(request.prompt_ids).decode(errors="replace")


if __name__ == "__main__":
    import sys

    from litspec.serve import run

    model, port, *rest = sys.argv[1:]
    options: dict[str, Any] = {"max_batch_size": 8, "batch_timeout": 0.05}
    options |= {key: float(value) if "." in value else int(value) for key, value in (item.split("=") for item in rest)}
    config = ServeConfig(model=model, draft="none", port=int(port), **options)
    sys.exit(run(config, FakeLitAPI(config)))
