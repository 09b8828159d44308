"""SamplingParams: how the tokens of one request are chosen, as a frozen and checked value.

It remembers which of its fields were given, so that the model's own generation_config can fill in the rest. Whatever
can be said about a parameter without the model is said here; what needs its vocabulary or context, the engine says.
This module knows no tensors and no HTTP.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from litspec.engine.options import MAX_DRAFT_TOKENS

MAX_STOP_STRINGS = 16
MAX_TEMPERATURE = 2.0
MAX_CHOICES = 128
MAX_REPETITION_PENALTY = 10.0
MAX_LOGIT_BIASES = 1024
MAX_BIAS = 100.0
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_LOGPROBS = 20


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
        min_p: keep what is at least this share as probable as the best token, in [0, 1].
        seed: any integer in [0, 2**63); None takes a random one, which the Completion reports.
        n: how many answers, from 1 to 128; each has noise of its own.
        stop: strings that end the text, at most 16, none empty; one string may be given bare.
        stop_token_ids: tokens that end the text.
        include_stop_str_in_output: keep what ended the text at its end: a stop string, or the text of a stop token.
        ignore_eos: go on after an end-of-text token.
        min_tokens: no end-of-text or stop token before so many were emitted, up to max_new_tokens.
        repetition_penalty: divides positive scores and multiplies others of what prompt or output has, above 0 and up
            to 10; 1 is none.
        presence_penalty: taken from the score of every token that the output has, in [-2, 2].
        frequency_penalty: taken from a token's score as often as the output has it, in [-2, 2].
        logit_bias: added to the scores of some token ids, in [-100, 100], at most 1024 of them; the ids may be decimal
            strings, as JSON has them.
        bad_words: strings that are not to be written, at most 128 of up to 256 characters, none empty; one string may
            be given bare.
        logprobs: report each token's log-probability, with this many of the best (0 to 20); None reports none.
        prompt_logprobs: likewise for the prompt's tokens.
        num_draft_tokens: this many draft tokens a round, 0 to 64, as far as the draft has them; None leaves it to the
            engine. The text is the same.

    Raises:
        ParameterError: a ValueError that says what was given, what is allowed and which field (`param`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    num_draft_tokens: int | None = None

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

    @field_validator("min_p")
    @classmethod
    def _check_min_p(cls, value: float) -> float:
        if not 0.0 <= value <= 1.0:
            raise ValueError("allowed: a number from 0 (keeps every token) to 1")
        return value

    @field_validator("seed")
    @classmethod
    def _check_seed(cls, value: int | None) -> int | None:
        if value is not None and not 0 <= value < 2**63:
            raise ValueError("allowed: an integer from 0 to 2**63 - 1, or None for a random one")
        return value

    @field_validator("n")
    @classmethod
    def _check_n(cls, value: int) -> int:
        if not 1 <= value <= MAX_CHOICES:
            raise ValueError(f"allowed: an integer from 1 to {MAX_CHOICES}")
        return value

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stop(cls, value: Any) -> tuple[str, ...]:
        return _strings(value, most=MAX_STOP_STRINGS, what="stop strings")

    @field_validator("bad_words", mode="before")
    @classmethod
    def _check_bad_words(cls, value: Any) -> tuple[str, ...]:
        words = _strings(value, most=MAX_BAD_WORDS, what="bad words")
        if any(len(word) > MAX_BAD_WORD_CHARS for word in words):
            raise ValueError(f"allowed: words of at most {MAX_BAD_WORD_CHARS} characters")
        return words

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _check_stop_token_ids(cls, value: Any) -> tuple[int, ...]:
        ids = () if value is None else value
        if not (isinstance(ids, (list, tuple)) and all(_is_token_id(i) for i in ids)):
            raise ValueError("allowed: a list of token ids, integers from 0")
        return tuple(ids)

    @field_validator("min_tokens")
    @classmethod
    def _check_min_tokens(cls, value: int, info: ValidationInfo) -> int:
        if value < 0:
            raise ValueError("allowed: an integer from 0")
        most = info.data.get("max_new_tokens", value)  # not there where it is not usable itself
        if value > most:
            raise ValueError(f"allowed: an integer from 0 to max_new_tokens, {most}")
        return value

    @field_validator("repetition_penalty")
    @classmethod
    def _check_repetition_penalty(cls, value: float) -> float:
        if not 0.0 < value <= MAX_REPETITION_PENALTY:
            raise ValueError(f"allowed: a number above 0 and up to {MAX_REPETITION_PENALTY:g} (1 is none)")
        return value

    @field_validator("presence_penalty", "frequency_penalty")
    @classmethod
    def _check_penalty(cls, value: float) -> float:
        if not -2.0 <= value <= 2.0:
            raise ValueError("allowed: a number from -2 to 2 (0 is none)")
        return value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _check_logit_bias(cls, value: Any) -> dict[int, float] | None:
        return None if value is None else _biases(value)

    @field_validator("logprobs", "prompt_logprobs")
    @classmethod
    def _check_logprobs(cls, value: int | None) -> int | None:
        if value is not None and not 0 <= value <= MAX_LOGPROBS:
            raise ValueError(f"allowed: an integer from 0 to {MAX_LOGPROBS}, or None to report none")
        return value

    @field_validator("num_draft_tokens")
    @classmethod
    def _check_num_draft_tokens(cls, value: int | None) -> int | None:
        if value is not None and not 0 <= value <= MAX_DRAFT_TOKENS:
            raise ValueError(f"allowed: an integer from 0 to {MAX_DRAFT_TOKENS}, or None for the engine's own")
        return value

    def __hash__(self) -> int:
        biases = None if self.logit_bias is None else frozenset(self.logit_bias.items())
        return hash(tuple(biases if name == "logit_bias" else getattr(self, name) for name in type(self).model_fields))

    def with_defaults(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Return these parameters with every field that was not given taken from `defaults` where it has one.

        A default that is not allowed here, alone or beside what was given, is passed over with a warning: it is the
        model's fault, not the caller's.
        """
        params = self
        for name, value in defaults.items():
            if name in type(self).model_fields and name not in self.model_fields_set:
                given = {field: getattr(params, field) for field in params.model_fields_set}
                try:
                    params = type(self)(**given, **{name: value})
                except ParameterError as error:
                    warnings.warn(f"the model's own {name}, {value!r}, is ignored: {error}", stacklevel=2)
        return params

    def with_seed(self) -> SamplingParams:
        """Return these parameters with a seed: their own, or a fresh random one."""
        return self if self.seed is not None else self.model_copy(update={"seed": secrets.randbits(63)})


def shown(value: Any) -> str:
    """Return a value as messages show it: its repr, of which a long one is cut."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than some thousand digits
        return "a huge integer"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _is_token_id(value: Any) -> TypeGuard[int]:
    """Whether a value can be a token id at all; what the vocabulary has, the engine knows."""
    return type(value) is int and 0 <= value < 2**31


def _strings(value: Any, *, most: int, what: str) -> tuple[str, ...]:
    """Return one string or several as a tuple."""
    strings = (value,) if isinstance(value, str) else () if value is None else value
    if not (isinstance(strings, (list, tuple)) and all(isinstance(s, str) and s for s in strings)):
        raise ValueError("allowed: a string or a list of strings, none of them empty")
    if len(strings) > most:
        raise ValueError(f"allowed: at most {most} {what}")
    return tuple(strings)


def _biases(value: Any) -> dict[int, float] | None:
    """Return biases by id; None where there are none."""
    if not isinstance(value, Mapping):
        raise ValueError("allowed: a mapping from token ids to numbers")
    if len(value) > MAX_LOGIT_BIASES:
        raise ValueError(f"allowed: at most {MAX_LOGIT_BIASES} token ids")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        is_decimal = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10
        token_id = int(key) if is_decimal else key
        if not _is_token_id(token_id):
            raise ValueError(f"allowed: token ids from 0 as keys, which {shown(key)} is not")
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(
                f"allowed: numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}, which {shown(bias)} for {shown(key)} is not"
            )
        if token_id in biases:
            raise ValueError(f"allowed: every token id once, which {token_id} is not")
        biases[token_id] = float(bias)
    return biases or None


def _explain(error: ValidationError, given: Mapping[str, Any]) -> ParameterError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "extra_forbidden":
        known = ", ".join(SamplingParams.model_fields)
        return ParameterError(f"unknown sampling parameter {shown(name)}; known: {known}", param=name)
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason if reason.startswith("allowed:") else f"allowed: {reason[0].lower()}{reason[1:]}"
    value = given.get(name) if name else None
    return ParameterError(f"{name} was {shown(value)}; {reason}", param=name)
