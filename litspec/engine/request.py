"""What a user asks for and what comes back: SamplingParams, Request, Completion.

A `SamplingParams` is a frozen, checked value that remembers which of its fields were given, so that the model's own
generation_config can fill in the rest. A `Request` is one prompt on its way through the engine; its counters tell one
story: `length` positions are committed in the target's cache, `tokens` holds prompt and output, and once the prompt is
in, `length == num_tokens - 1`: the last token is pending (emitted, not yet cached). This module knows no tensors, no
text rules and no HTTP.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from litspec.engine.stats import RequestStats
from litspec.engine.stop import StopMatcher

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]

MAX_STOP_STRINGS = 16
MAX_TEMPERATURE = 2.0


class ParameterError(ValueError):
    """A parameter that a user gave is not usable; `param` names the field (None where no single one is at fault)."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class SamplingParams(BaseModel):
    """How to choose the tokens of one request.

    Args:
        max_new_tokens: at most this many tokens are generated, from 1; what does not fit the context is cut ("length").
        temperature: 0 is greedy; up to 2.0. Below 1e-5 counts as 0.
        top_k: keep the k highest scores (and their equals); None keeps all.
        top_p: keep the smallest set of highest scores whose probability reaches this, in (0, 1].
        seed: any integer in [0, 2**63); None takes a random one, which the Completion reports.
        stop: strings that end the text, at most 16, none empty; one string may be given bare.
        ignore_eos: go on after an end-of-text token.

    Raises:
        ParameterError: a ValueError that says what was given, what is allowed and which field (`param`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    if not TYPE_CHECKING:

        def __init__(self, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise _explain(error, given) from None

    @field_validator("max_new_tokens")
    @classmethod
    def _check_max_new_tokens(cls, value: int) -> int:
        if value < 1:
            raise ValueError("allowed: an integer from 1")
        return value

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float) -> float:
        if not (math.isfinite(value) and 0.0 <= value <= MAX_TEMPERATURE):
            raise ValueError(f"allowed: a number from 0 (greedy) to {MAX_TEMPERATURE}")
        return value

    @field_validator("top_k")
    @classmethod
    def _check_top_k(cls, value: int | None) -> int | None:
        if value is not None and value < 1:
            raise ValueError("allowed: an integer from 1, or None to keep every token")
        return value

    @field_validator("top_p")
    @classmethod
    def _check_top_p(cls, value: float) -> float:
        if not 0.0 < value <= 1.0:
            raise ValueError("allowed: a number above 0 and up to 1 (1 keeps every token)")
        return value

    @field_validator("seed")
    @classmethod
    def _check_seed(cls, value: int | None) -> int | None:
        if value is not None and not 0 <= value < 2**63:
            raise ValueError("allowed: an integer from 0 to 2**63 - 1, or None for a random one")
        return value

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stop(cls, value: Any) -> tuple[str, ...]:
        strings = (value,) if isinstance(value, str) else () if value is None else value
        if not (isinstance(strings, (list, tuple)) and all(isinstance(s, str) and s for s in strings)):
            raise ValueError("allowed: a string or a list of strings, none of them empty")
        if len(strings) > MAX_STOP_STRINGS:
            raise ValueError(f"allowed: at most {MAX_STOP_STRINGS} stop strings")
        return tuple(strings)

    def with_defaults(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Return these parameters with every field that was not given taken from `defaults` where it has one."""
        taken = {k: v for k, v in defaults.items() if k in type(self).model_fields and k not in self.model_fields_set}
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**taken, **given})

    def with_seed(self) -> SamplingParams:
        """Return these parameters with a seed: their own, or a fresh random one."""
        return self if self.seed is not None else self.model_copy(update={"seed": secrets.randbits(63)})


def _explain(error: ValidationError, given: Mapping[str, Any]) -> ParameterError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "extra_forbidden":
        known = ", ".join(SamplingParams.model_fields)
        return ParameterError(f"unknown sampling parameter {name!r}; known: {known}", param=name)
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason if reason.startswith("allowed:") else f"allowed: {reason[0].lower()}{reason[1:]}"
    value = given.get(name) if name else None
    return ParameterError(f"{name} was {value!r}; {reason}", param=name)


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

    `error` carries the message where finish_reason is "error"; `logprobs` and `prompt_logprobs` are None unless asked.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: FinishReason
    seed: int
    stats: RequestStats
    logprobs: list[Any] | None = None
    prompt_logprobs: list[Any] | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, the statistics as a nested object."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "stats"}
        return {**fields, "stats": self.stats.to_dict()}


@dataclass
class Request:
    """One prompt on its way through the engine.

    Attributes:
        tokens: prompt and emitted token ids, in order; the only place they are kept.
        length: positions of `tokens` that are committed in the target's cache.
        slot: the cache row it owns, None while it waits and after it ended.
        max_new_tokens: how many tokens it may emit: its parameter, cut by the engine to what fits the context.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    detokenizer: Detokenizer | None = None
    arrival_s: float = field(default_factory=time.monotonic)
    tokens: list[int] = field(init=False)
    text: str = field(default="", init=False)
    length: int = field(default=0, init=False)
    slot: int | None = field(default=None, init=False)
    max_new_tokens: int = field(init=False)
    stops: StopMatcher = field(init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    stats: RequestStats = field(default_factory=RequestStats, init=False)

    def __post_init__(self) -> None:
        self.params = self.params.with_seed()
        self.tokens = list(self.prompt_ids)
        self.max_new_tokens = self.params.max_new_tokens
        self.stops = StopMatcher(self.params.stop)

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
            error=self.error,
        )


def check_token_ids(prompt_ids: Iterable[int], vocab_size: int) -> None:
    """Raise ParameterError unless every id lies in [0, vocab_size)."""
    for position, token_id in enumerate(prompt_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise ParameterError(
                f"prompt token {position} was {token_id!r}; allowed: ids from 0 to {vocab_size - 1}", param="prompt"
            )
