"""Request and Completion: a prompt on its way through the engine, and what comes back.

A request's counters tell one story: `length` positions are committed in the target's cache, `tokens` holds prompt and
output, and once the prompt is in, `length == num_tokens - 1`: the last token is pending (emitted, not yet cached). This
module runs no model, and knows no text rules and no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from litspec.engine.params import SamplingParams
from litspec.engine.stats import RequestStats
from litspec.engine.stop import StopMatcher
from litspec.model.edits import RowEdits
from litspec.model.logprobs import TokenLogprob
from litspec.ops.noise import choice_seed

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


class Detokenizer(Protocol):
    """Turns a request's tokens into text, bit by bit (`model/detokenizer.py` has the real one)."""

    def push(self, token_id: int) -> str:
        """Take one more token; return the text that has become certain with it (often one word, may be empty)."""
        ...

    def flush(self) -> str:
        """Return what is still held back; no token comes after it."""
        ...


@dataclass
class Completion:
    """The answer to one prompt.

    `error` carries the message where finish_reason is "error" or "timeout". `logprobs` has an entry for each of
    `token_ids` and `prompt_logprobs` one for each token of the prompt, the first None; both are None unless asked for.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: FinishReason
    seed: int
    stats: RequestStats
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, the statistics as a nested object."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "stats"}
        for name in ("logprobs", "prompt_logprobs"):
            if fields[name] is not None:
                fields[name] = [entry and asdict(entry) for entry in fields[name]]
        return {**fields, "stats": self.stats.to_dict()}


@dataclass
class Request:
    """One prompt on its way through the engine.

    Args:
        id: what it is called; no other request in the engine has the same.
        prompt_ids: the prompt's tokens, at least one.
        params: how to choose tokens; its texts (`stop`, `bad_words`) need a detokeniser and `bad_words_ids`.
        eos_token_ids: tokens that end the text.
        detokenizer: turns tokens into text; None where only tokens are wanted.
        choice: the index of this answer among the `params.n` that its prompt gets; each has noise of its own.
        bad_words_ids: `params.bad_words` as token ids, in every spelling that is to be avoided.
        arrival_s: when it was asked, on the monotonic clock.
        queue_timeout_s: seconds that it may wait for a slot; None leaves it to the engine's options.
        generate_timeout_s: seconds that it may run; None leaves it to the engine's options.

    Attributes:
        tokens: prompt and emitted token ids, in order; the only place they are kept.
        length: positions of `tokens` that are committed in the target's cache.
        slot: the cache row it owns, None while it waits and after it ended.
        max_new_tokens: how many tokens it may emit: its parameter, cut by the engine to what fits the context.
        end_token_ids: the tokens that end this request's text: its own, and the model's where they count.
        edits: what it changes in its logits; None where it changes nothing.
        logprobs: of the emitted tokens, where asked for.
        prompt_logprobs: of the prompt's tokens, where asked for; the first has none.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    detokenizer: Detokenizer | None = None
    choice: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    arrival_s: float = field(default_factory=time.monotonic)
    queue_timeout_s: float | None = None
    generate_timeout_s: float | None = None
    tokens: list[int] = field(init=False)
    text: str = field(default="", init=False)
    length: int = field(default=0, init=False)
    slot: int | None = field(default=None, init=False)
    max_new_tokens: int = field(init=False)
    end_token_ids: frozenset[int] = field(init=False)
    noise_seed: int = field(init=False)
    edits: RowEdits | None = field(init=False)
    stops: StopMatcher = field(init=False)
    admitted_s: float | None = field(default=None, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    logprobs: list[TokenLogprob] | None = field(default=None, init=False)
    prompt_logprobs: list[TokenLogprob | None] | None = field(default=None, init=False)
    stats: RequestStats = field(default_factory=RequestStats, init=False)

    def __post_init__(self) -> None:
        self.params = self.params.with_seed()
        assert self.params.seed is not None and 0 <= self.choice < self.params.n
        self.tokens = list(self.prompt_ids)
        self.max_new_tokens = self.params.max_new_tokens
        self.end_token_ids = frozenset(self.params.stop_token_ids)
        if not self.params.ignore_eos:
            self.end_token_ids |= self.eos_token_ids
        self.noise_seed = choice_seed(self.params.seed, self.choice)
        self.edits = RowEdits.of(self.params, self.prompt_ids, end_ids=self.end_token_ids, bad_words=self.bad_words_ids)
        self.stops = StopMatcher(self.params.stop, keeps_match=self.params.include_stop_str_in_output)
        self.logprobs = None if self.params.logprobs is None else []
        self.prompt_logprobs = None if self.params.prompt_logprobs is None else []

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)

    @property
    def num_emitted(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        """The emitted token ids."""
        return self.tokens[len(self.prompt_ids) :]

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_new_tokens - self.num_emitted

    @property
    def is_prefilling(self) -> bool:
        """Whether part of the prompt is still to be fed."""
        return self.num_emitted == 0

    def completion(self) -> Completion:
        """Return the answer as it stands; asserts that the request has ended."""
        assert self.finish_reason is not None and self.params.seed is not None
        return Completion(
            text=self.text,
            token_ids=self.output_ids,
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_emitted,
            finish_reason=self.finish_reason,
            seed=self.params.seed,
            stats=self.stats,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            error=self.error,
        )
