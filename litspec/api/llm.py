"""LLM: the Python door. Load a model, generate, chat, stream.

It is safe to call from several threads: whoever waits for an answer drives the engine one step at a time under a lock,
and every step's results go to the requests they belong to, so concurrent calls share one batch.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from litspec.api.loading import LoadOptions, OpenedModel, build_engine, open_model
from litspec.api.progress import show_progress
from litspec.api.text import Messages, chat_ids, is_messages, is_token_ids, prompt_ids
from litspec.engine.emission import Emission
from litspec.engine.engine import Engine
from litspec.engine.request import Completion, ParameterError, Request, SamplingParams
from litspec.model.compile import CompileMode
from litspec.model.tokenizer import IncrementalDetokenizer, Tokenizer


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream: text that became certain, and the tokens behind it; the last has the Completion."""

    text: str
    token_ids: list[int]
    completion: Completion | None = None


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C during a list of prompts; `completions` holds what was finished, None where a prompt was not."""

    def __init__(self, completions: list[Completion | None]) -> None:
        super().__init__(f"interrupted with {sum(c is not None for c in completions)} of {len(completions)} finished")
        self.completions = completions


class LLM:
    """A loaded model; use `LLM.load`. A context manager that closes itself."""

    def __init__(self, opened: OpenedModel, engine: Engine, options: LoadOptions) -> None:
        self.engine = engine
        self._opened = opened
        self._options = options
        self._lock = threading.Lock()
        self._inboxes: dict[str, deque[Emission]] = {}
        self._is_closed = False

    @classmethod
    def load(
        cls,
        model: str,
        *,
        draft: str | None = "ngram",
        num_draft_tokens: int = 4,
        max_batch_size: int = 8,
        max_seq_length: int | None = None,
        dtype: str = "auto",
        quantize: str = "none",
        compile: CompileMode = "thunder",
        device: str = "auto",
        tokenizer: str | None = None,
    ) -> LLM:
        """Load a model and compile the shapes it will be fed.

        Args:
            model: a name (`smollm2-135m-instruct`, `debug`), a hub id, a folder, or a `.gguf` file.
            draft: "ngram", "early-exit:N" (the target's first N layers), a model's name, or None. It never changes the
                text.
            num_draft_tokens: tokens that are drafted in a round, at most.
            max_batch_size: requests that run at once.
            max_seq_length: tokens of prompt and answer together; None is 2048, or the model's own context if smaller.
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
        options = LoadOptions(
            draft=draft,
            num_draft_tokens=num_draft_tokens,
            max_batch_size=max_batch_size,
            max_seq_length=max_seq_length,
            dtype=dtype,
            quantize=quantize,
            compile=compile,
            device=device,
        )
        opened = open_model(model, tokenizer=tokenizer)
        engine = build_engine(opened, options)
        if compile == "thunder":
            engine.warm_up()
        return cls(opened, engine, options)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._opened.tokenizer

    @property
    def max_seq_length(self) -> int:
        """Tokens of prompt and answer together that a request may have."""
        return self.engine.target.max_seq_length

    def describe(self) -> dict[str, Any]:
        """Return what is loaded: names, sizes and shapes, ready for printing."""
        return {
            "model": self._opened.name,
            "draft": self._options.draft or "none",
            "num_draft_tokens": self.engine.num_draft_tokens,
            "dtype": str(self.engine.cache.k[0].dtype).removeprefix("torch."),
            "device": str(self.engine.target.device),
            "compile": self._options.compile,
            "slots": self.engine.cache.num_slots,
            "max_seq_length": self.max_seq_length,
            "cache_bytes": self.engine.cache.num_bytes,
            "row_buckets": list(self.engine.shapes.row_buckets),
            "widths": [*self.engine.shapes.step_widths, *self.engine.shapes.chunk_widths],
            "compiled_shapes": self.engine.compiled_shapes,
        }

    def prepare(
        self, prompt: str | Sequence[int] | Messages, params: SamplingParams, *, request_id: str | None = None
    ) -> Request:
        """Turn a prompt into a request: tokenise it, and fill what `params` leaves open from the model's own defaults.

        Raises:
            ParameterError: a ValueError that names the field at fault.
        """
        ids = prompt_ids(prompt, self.tokenizer, self._opened.template)
        return self._request(ids, params, request_id)

    def _request(self, ids: list[int], params: SamplingParams, request_id: str | None = None) -> Request:
        return Request(
            id=request_id or uuid.uuid4().hex,
            prompt_ids=ids,
            params=params.with_defaults(self._opened.generation_config),
            eos_token_ids=self._opened.eos_token_ids,
            detokenizer=IncrementalDetokenizer(self.tokenizer, ids),
        )

    @overload
    def generate(self, prompt: str, params: SamplingParams | None = None, **given: Any) -> Completion: ...
    @overload
    def generate(self, prompt: list[int], params: SamplingParams | None = None, **given: Any) -> Completion: ...
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
            prompt: text (used as it stands, without a chat template), a list of token ids, or a list of either.
            params: how to choose tokens; for a list of prompts one for all, or a list with one for each.
            **given: SamplingParams' fields, instead of `params`.

        Returns:
            A Completion, or a list of them in the order of the prompts.

        Raises:
            ParameterError: a bad prompt or parameter; in a list the message starts with its index, and nothing has run.
            GenerationInterrupted: Ctrl-C; it holds what was finished.
        """
        if isinstance(prompt, str) or (is_token_ids(prompt) and prompt != []):
            return self._run([self._ids(prompt)], _one_params(params, given), is_list=False)[0]
        if isinstance(prompt, Mapping) or is_messages(prompt):
            raise ParameterError("the prompt was a list of messages; use chat(messages) for them", param="prompt")
        if not isinstance(prompt, (list, tuple)):
            raise ParameterError(
                f"the prompt was {type(prompt).__name__}; allowed: text, a list of token ids, or a list of either",
                param="prompt",
            )
        ids = [self._ids(item, index) for index, item in enumerate(prompt)]
        return self._run(ids, _params_for(params, given, len(ids)), is_list=True)

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
            A Completion, or a list of them in the order of the chats.

        Raises:
            ParameterError: as in `generate`, or the template refuses the messages.
        """
        if isinstance(messages, (list, tuple)) and messages and isinstance(messages[0], (list, tuple)):
            ids = [self._chat_ids(item, index) for index, item in enumerate(messages)]
            return self._run(ids, _params_for(params, given, len(ids)), is_list=True)
        return self._run([self._chat_ids(messages)], _one_params(params, given), is_list=False)[0]

    def stream(
        self, prompt: str | Sequence[int] | Messages, params: SamplingParams | None = None, **given: Any
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
        ids = prompt_ids(prompt, self.tokenizer, self._opened.template)
        request = self._request(ids, _one_params(params, given)[0])
        self._submit([request])
        return self._chunks(request)

    async def astream(
        self, prompt: str | Sequence[int] | Messages, params: SamplingParams | None = None, **given: Any
    ) -> AsyncIterator[Chunk]:
        """Do what `stream` does without blocking the event loop."""
        chunks = self.stream(prompt, params, **given)
        try:
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                yield chunk
        finally:
            await asyncio.to_thread(chunks.close)

    def close(self) -> None:
        """End every request and let go of the model; calls after this one raise RuntimeError."""
        with self._lock:
            for request in [*self.engine.scheduler.running, *self.engine.scheduler.waiting]:
                self._deliver([emission] if (emission := self.engine.abort(request.id)) else [])
            self._is_closed = True

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ids(self, prompt: Any, index: int | None = None) -> list[int]:
        if is_messages(prompt):
            prompt = None  # a chat inside generate's list: refused like any other type
        return _at_index(index, lambda: prompt_ids(prompt, self.tokenizer, None))

    def _chat_ids(self, messages: Any, index: int | None = None) -> list[int]:
        return _at_index(index, lambda: chat_ids(messages, self.tokenizer, self._opened.template))

    def _run(self, prompts: list[list[int]], params: list[SamplingParams], *, is_list: bool) -> list[Completion]:
        requests = [self._request(ids, each) for ids, each in zip(prompts, params, strict=True)]
        self._submit(requests, is_list=is_list)
        completions: list[Completion | None] = [None] * len(requests)
        try:
            with show_progress(len(requests)) as advance:
                for index, request in enumerate(requests):
                    for emission in self._emissions(request):
                        completions[index] = emission.completion
                    advance()
        except KeyboardInterrupt:
            raise GenerationInterrupted(self._finished(requests, completions)) from None
        finally:
            self._forget(requests)
        return [completion for completion in completions if completion is not None]

    def _finished(self, requests: list[Request], done: list[Completion | None]) -> list[Completion | None]:
        return [
            completion or (request.completion() if request.finish_reason is not None else None)
            for request, completion in zip(requests, done, strict=True)
        ]

    def _submit(self, requests: list[Request], *, is_list: bool = False) -> None:
        """Check all requests, then queue all; a bad one leaves nothing behind."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this LLM is closed; load it again")
            for index, request in enumerate(requests):
                _at_index(index if is_list else None, lambda request=request: self.engine.check_request(request))
            for request in requests:
                self._inboxes[request.id] = deque()
                self.engine.add_request(request)

    def _chunks(self, request: Request) -> Generator[Chunk, None, None]:
        try:
            for emission in self._emissions(request):
                if emission.text or emission.completion is not None:
                    yield Chunk(emission.text, emission.token_ids, emission.completion)
        finally:
            self._forget([request])

    def _emissions(self, request: Request) -> Iterator[Emission]:
        """Yield a request's emissions up to its last, driving the engine while there are none."""
        inbox = self._inboxes[request.id]
        while True:
            while inbox:
                emission = inbox.popleft()
                yield emission
                if emission.completion is not None:
                    return
            with self._lock:
                if not inbox:
                    self._deliver(self.engine.step())

    def _deliver(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            if (inbox := self._inboxes.get(emission.request.id)) is not None:
                inbox.append(emission)

    def _forget(self, requests: list[Request]) -> None:
        """Drop the requests' inboxes, ending those that still run."""
        with self._lock:
            for request in requests:
                if self._inboxes.pop(request.id, None) is not None and request.finish_reason is None:
                    self.engine.abort(request.id)


def _at_index(index: int | None, check: Any) -> Any:
    """Return check(), putting the index of a list's element before its error."""
    try:
        return check()
    except ParameterError as error:
        if index is None:
            raise
        raise ParameterError(f"prompt {index}: {error}", param=error.param) from None


_LITGPT_FORMS = {
    "stream": "call llm.stream(…) instead",
    "return_as_token_ids": "read completion.token_ids instead",
    "sys_prompt": 'call llm.chat([{"role": "system", …}, …]) instead',
}


def _one_params(params: Any, given: dict[str, Any]) -> list[SamplingParams]:
    return _params_for(params, given, 1)


def _params_for(params: Any, given: dict[str, Any], num_prompts: int) -> list[SamplingParams]:
    for name, form in _LITGPT_FORMS.items():
        if name in given:
            raise ParameterError(f"{name}= is LitGPT's form; {form}", param=name)
    if params is not None and given:
        raise ParameterError(f"params and {', '.join(given)} were both given; allowed: one of the two", param="params")
    if params is None:
        params = SamplingParams(**given)
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, (list, tuple)) or not all(isinstance(each, SamplingParams) for each in params):
        raise ParameterError(
            f"params was {type(params).__name__}; allowed: SamplingParams, or a list of them", param="params"
        )
    if len(params) != num_prompts:
        raise ParameterError(
            f"{len(params)} params were given for {num_prompts} prompts; give one each", param="params"
        )
    return list(params)
