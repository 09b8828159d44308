"""LLM: the Python door. Load a model, generate, chat, stream.

It is safe to call from several threads: concurrent calls share one batch (api/driver.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from litspec.api.config import Batching, Compile, DType, EngineConfig, Quantize
from litspec.api.description import facts_of
from litspec.api.driver import Driver
from litspec.api.loading import OpenedModel, build_engine, check_placement, open_model
from litspec.api.memory import MemoryPlan
from litspec.api.params import at_index, check_one_answer, one_params, params_for
from litspec.api.progress import show_progress
from litspec.api.requests import Answer, make_requests, regroup
from litspec.api.text import Messages, Prompt, chat_ids, check_size, is_prompt_list, plain_ids, prompt_ids
from litspec.engine.engine import Engine
from litspec.engine.params import SamplingParams
from litspec.engine.request import Completion, Request
from litspec.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream: text that became certain, and the tokens behind it; the last has the Completion."""

    text: str
    token_ids: list[int]
    completion: Completion | None = None


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C during a list of prompts; `completions` holds what was finished, None where an answer was not."""

    def __init__(self, completions: list[Any]) -> None:
        super().__init__(f"interrupted with {sum(map(_is_whole, completions))} of {len(completions)} finished")
        self.completions = completions


class LLM:
    """A loaded model; use `LLM.load`. A context manager that closes itself."""

    def __init__(
        self, opened: OpenedModel, engine: Engine, config: EngineConfig, plan: MemoryPlan | None = None
    ) -> None:
        self._opened = opened
        self._config = config
        self._plan = plan
        self._driver = Driver(engine)

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        *,
        draft: str | os.PathLike[str] | None = "ngram",
        num_draft_tokens: int | Literal["auto"] = "auto",
        max_batch_size: int = 8,
        max_seq_length: int | None = None,
        prefix_reuse: bool = True,
        batching: Batching = "continuous",
        dtype: DType = "auto",
        quantize: Quantize = "none",
        compile: Compile = "thunder",
        device: str = "auto",
        tokenizer: str | os.PathLike[str] | None = None,
    ) -> LLM:
        """Load a model and compile the shapes it will be fed.

        Args:
            model: a name (`smollm2-135m-instruct`, `debug`), a hub id, a folder, or a `.gguf` file.
            draft: "ngram", "early-exit:N" (the target's first N layers), a model, or None; it never changes the text.
            num_draft_tokens: tokens that are drafted in a round: "auto" lets the engine choose each time, up to 7; a
                number is always the most.
            max_batch_size: requests that run at once.
            max_seq_length: tokens of prompt and answer together; None is 2048, or the model's own context if smaller,
                halved (down to 256) while the caches would take more than half of the memory that the weights leave.
            prefix_reuse: start a request from what the cache still holds of its prompt; the text is the same.
            batching: "continuous" (a request joins when a slot is free) or "fixed" (when all that run have ended).
            dtype: "auto" (bfloat16 where the hardware computes in it, else float32), "float32", "bfloat16", "float16"
                or "float64".
            quantize: "none".
            compile: "thunder" or "none"; the tokens are the same.
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
            tokenizer: a folder or file to take the tokenizer from; None is the model's own.

        Raises:
            ValueError: the model, the draft or a setting cannot be used; the message says what, what is allowed and
                what to do.
        """
        config = EngineConfig(
            model=os.fspath(model) if isinstance(model, os.PathLike) else model,
            draft=os.fspath(draft) if isinstance(draft, os.PathLike) else draft,
            num_draft_tokens=num_draft_tokens,
            max_batch_size=max_batch_size,
            max_seq_length=max_seq_length,
            prefix_reuse=prefix_reuse,
            batching=batching,
            dtype=dtype,
            quantize=quantize,
            compile=compile,
            device=device,
        )
        llm = cls.load_cold(config, tokenizer=tokenizer)
        llm.engine.warm_up()
        return llm

    @classmethod
    def load_cold(cls, config: EngineConfig, *, tokenizer: str | os.PathLike[str] | None = None) -> LLM:
        """Load what a config names and compile each shape when it is first met, which suits a single answer.

        A server's config sets the engine's time limit, too.

        Raises:
            ValueError: as `load`.
        """
        check_placement(config)
        opened = open_model(config.model, tokenizer=tokenizer)
        engine, plan = build_engine(opened, config)
        return cls(opened, engine, config, plan)

    @property
    def engine(self) -> Engine:
        """The engine; a server that steps it itself may not call generate, chat or stream beside that."""
        return self._driver.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._opened.tokenizer

    @property
    def max_seq_length(self) -> int:
        """Tokens of prompt and answer together that a request may have."""
        return self.engine.target.max_seq_length

    def describe(self) -> dict[str, Any]:
        """Return what is loaded, JSON-ready: names, shapes, and the memory plan in words (`memory`) and bytes."""
        return facts_of(self._opened.name, self.engine, self._config, self._plan)

    def prepare(self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None) -> Request:
        """Turn a prompt into a request: tokenise it, and fill what `params` leaves open from the model's own defaults.

        Raises:
            ParameterError: names the field at fault.
        """
        check_one_answer(params)
        return make_requests(self._opened, self._any_ids(prompt), params, request_id=request_id)[0]

    @overload
    def generate(self, prompt: str | list[int], params: SamplingParams | None = None, **given: Any) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **given: Any,
    ) -> list[Completion]: ...
    def generate(self, prompt: Any, params: Any = None, **given: Any) -> Any:
        """Complete a prompt, or each of a list of them.

        Args:
            prompt: text (used as it stands, without a chat template), a list of token ids, or a list of either; an
                empty list is no prompts, and gives an empty list.
            params: how to choose tokens; for a list of prompts one for all, or a list with one for each.
            **given: SamplingParams' fields, instead of `params`.

        Returns:
            A Completion, or a list of them in the order of the prompts; with n > 1 a list of n in each one's place.

        Raises:
            ParameterError: a bad prompt or parameter; in a list the message starts with its index, and nothing has run.
            GenerationInterrupted: Ctrl-C; it holds what was finished.
        """
        if not is_prompt_list(prompt):
            return self._run([self._ids(prompt)], [one_params(params, given)], is_list=False)[0]
        ids = [self._ids(item, index) for index, item in enumerate(prompt)]
        return self._run(ids, params_for(params, given, len(ids)), is_list=True)

    @overload
    def chat(self, messages: Messages, params: SamplingParams | None = None, **given: Any) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **given: Any,
    ) -> list[Completion]: ...
    def chat(self, messages: Any, params: Any = None, **given: Any) -> Any:
        """Answer a chat, or each of a list of chats; the model's chat template is applied.

        Args:
            messages: a list of {"role": …, "content": …}, or a list of such lists.
            params: as in `generate`.
            **given: as in `generate`.

        Returns:
            As `generate`.

        Raises:
            ParameterError: as in `generate`, or the template refuses the messages.
        """
        if isinstance(messages, (list, tuple)) and messages and isinstance(messages[0], (list, tuple)):
            ids = [self._chat_ids(item, index) for index, item in enumerate(messages)]
            return self._run(ids, params_for(params, given, len(ids)), is_list=True)
        return self._run([self._chat_ids(messages)], [one_params(params, given)], is_list=False)[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **given: Any
    ) -> Generator[Chunk, None, None]:
        """Complete a prompt, or answer a chat, piece by piece.

        A piece's text is certain: it holds no half of a character and nothing that a stop string may still take back.
        The last piece has the Completion. Leaving the loop early ends the request.

        Args:
            prompt: text, a list of token ids, or a list of messages.
            params: as in `generate`.
            **given: as in `generate`.

        Raises:
            ParameterError: as in `generate`, before the first piece.
        """
        request = self.prepare(prompt, one_params(params, given))
        self.engine.check_request(request)
        return self._chunks(request)

    async def astream(self, prompt: Prompt, params: SamplingParams | None = None, **given: Any) -> AsyncIterator[Chunk]:
        """Do what `stream` does without blocking the event loop; end it early with `aclose()`."""
        chunks = self.stream(prompt, params, **given)
        waiting: asyncio.Future[Chunk | None] | None = None
        try:
            while True:
                waiting = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
                chunk = await asyncio.shield(waiting)  # a thread cannot be cancelled: it comes to its next piece
                if chunk is None:
                    return
                yield chunk
        finally:
            if waiting is not None and not waiting.done():
                await asyncio.wait([waiting])
            chunks.close()

    def close(self) -> None:
        """End every request and let go of the model; calls after this one raise RuntimeError."""
        self._driver.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ids(self, prompt: Any, index: int | None = None) -> list[int]:
        at_index(index, lambda: check_size(prompt, self.tokenizer, self.max_seq_length))
        return at_index(index, lambda: plain_ids(prompt, self.tokenizer))

    def _any_ids(self, prompt: Any) -> list[int]:
        check_size(prompt, self.tokenizer, self.max_seq_length)
        return prompt_ids(prompt, self.tokenizer, self._opened.template)

    def _chat_ids(self, messages: Any, index: int | None = None) -> list[int]:
        at_index(index, lambda: check_size(messages, self.tokenizer, self.max_seq_length))
        return at_index(index, lambda: chat_ids(messages, self.tokenizer, self._opened.template))

    def _run(self, prompts: list[list[int]], params: list[SamplingParams], *, is_list: bool) -> list[Answer]:
        groups = []
        for index, (ids, each) in enumerate(zip(prompts, params, strict=True)):
            place = index if is_list else None
            groups.append(at_index(place, lambda ids=ids, each=each: make_requests(self._opened, ids, each)))
            at_index(place, lambda group=groups[-1]: self.engine.check_request(group[0]))
        requests = [request for group in groups for request in group]
        sizes = [len(group) for group in groups]
        completions: list[Completion | None] = [None] * len(requests)
        try:
            self._driver.submit(requests)
            with show_progress(len(requests)) as advance:
                for index, request in enumerate(requests):
                    for emission in self._driver.emissions(request):
                        completions[index] = emission.completion
                    advance()
        except KeyboardInterrupt:
            finished = [c or _finished(request) for request, c in zip(requests, completions, strict=True)]
            raise GenerationInterrupted(regroup(finished, sizes)) from None
        finally:
            self._driver.leave(requests)
        return regroup(completions, sizes)

    def _chunks(self, request: Request) -> Generator[Chunk, None, None]:
        token_ids: list[int] = []
        try:
            self._driver.submit([request])
            for emission in self._driver.emissions(request):
                token_ids += emission.token_ids
                if emission.text or emission.completion is not None:
                    yield Chunk(emission.text, token_ids, emission.completion)
                    token_ids = []
        finally:
            self._driver.leave([request])


def _is_whole(answer: Any) -> bool:
    return None not in answer if isinstance(answer, list) else answer is not None


def _finished(request: Request) -> Completion | None:
    """Return the completion of a request that had ended before an interrupt ended the rest."""
    return None if request.finish_reason in (None, "abort") else request.completion()
