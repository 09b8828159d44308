"""EngineConfig and ServeConfig: every setting, its default, its help line and what is allowed.

Each is a frozen value that is checked when it is built. The fields are the one table of settings: flags, YAML keys and
the environment are read by it (`config_sources.py`). This module reads no file and loads no model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from litspec.engine.options import MAX_AUTO_DRAFT_TOKENS, MAX_DRAFT_TOKENS, Batching

DType = Literal["auto", "float64", "float32", "bfloat16", "float16"]
Quantize = Literal["none"]
Compile = Literal["thunder", "none"]
Host = Literal["127.0.0.1", "0.0.0.0", "::"]
LogLevel = Literal["critical", "error", "warning", "info", "debug"]

MAX_BATCH_SIZE = 1024


class ConfigError(ValueError):
    """A user's configuration cannot be used; `key` names the setting (None where no single one is at fault)."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def about(help: str, *, allowed: str, accepts: Callable[[Any], bool]) -> dict[str, Any]:
    """Return a field's metadata: its help line, what is allowed in words, and the check of a value."""
    return {"help": help, "allowed": allowed, "accepts": accepts}


def one_of(options: Any, help: str) -> dict[str, Any]:
    """Return the metadata of a field whose values are the strings of a Literal."""
    names = get_args(options)
    return about(help, allowed=", ".join(names), accepts=lambda value: value in names)


def count(help: str, *, most: int) -> dict[str, Any]:
    """Return the metadata of a field that counts something, from 1 to `most`."""
    return about(help, allowed=f"an integer from 1 to {most}", accepts=lambda value: _is_int(value, 1, most))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_int(value: Any, low: int, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_port(value: Any) -> bool:
    return _is_int(value, 1024, 65535)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value < math.inf


def _is_limit(value: Any) -> bool:
    return value is None or (_is_seconds(value) and value > 0)


def _is_draft(value: Any) -> bool:
    if value is None or not _is_text(value):
        return value is None
    kind, colon, layers = value.partition(":")
    return kind != "early-exit" or (colon == ":" and layers.isdecimal() and int(layers) >= 1)


def _is_device(value: Any) -> bool:
    kind, colon, index = value.partition(":") if isinstance(value, str) else ("", "", "")
    return (value in ("auto", "cpu", "cuda", "mps")) or (kind == "cuda" and colon == ":" and index.isdecimal())


@dataclass(frozen=True)
class EngineConfig:
    """The settings of `LLM.load`, with its defaults.

    Raises:
        ConfigError: a value is not allowed; the message says which, what was given and what is allowed.
    """

    model: str = field(
        default="smollm2-135m-instruct",
        metadata=about(
            "the target: a name (smollm2-135m-instruct, debug), a hub id (org/name), a folder or a .gguf file",
            allowed="a name, a hub id (org/name), a folder or a .gguf file",
            accepts=_is_text,
        ),
    )
    draft: str | None = field(
        default="ngram",
        metadata=about(
            "what proposes tokens: ngram, early-exit:N (the target's first N layers), none, or a model as in --model",
            allowed="ngram, early-exit:N with N from 1, none, or a model",
            accepts=_is_draft,
        ),
    )
    num_draft_tokens: int | Literal["auto"] = field(
        default="auto",
        metadata=about(
            f"tokens that the draft proposes in a round: auto lets the engine choose each time, up to "
            f"{MAX_AUTO_DRAFT_TOKENS}; a number is always the most. `draft: none` switches drafting off",
            allowed=f"auto, or an integer from 1 to {MAX_DRAFT_TOKENS}",
            accepts=lambda value: value == "auto" or _is_int(value, 1, MAX_DRAFT_TOKENS),
        ),
    )
    max_batch_size: int = field(
        default=8, metadata=count("requests that run at once, each in a slot of the cache", most=MAX_BATCH_SIZE)
    )
    max_seq_length: int | None = field(
        default=None,
        metadata=about(
            "tokens of prompt and answer together; null is 2048, or the model's own context if that is smaller, and "
            "less, down to 256, where memory is short",
            allowed="an integer from 2, or null for what suits model and memory, 2048 at most",
            accepts=lambda value: value is None or _is_int(value, 2),
        ),
    )
    prefix_reuse: bool = field(
        default=True,
        metadata=about(
            "start a request from what the cache still holds of its prompt: true or false, the same text",
            allowed="true or false",
            accepts=lambda value: isinstance(value, bool),
        ),
    )
    batching: Batching = field(
        default="continuous",
        metadata=one_of(
            Batching, "continuous: a request joins when a slot is free; fixed: when all that run have ended"
        ),
    )
    dtype: DType = field(
        default="auto",
        metadata=one_of(DType, "number type of weights and cache; auto is bfloat16 where the hardware has it"),
    )
    quantize: Quantize = field(default="none", metadata=one_of(Quantize, "how weights are packed in memory"))
    compile: Compile = field(
        default="thunder", metadata=one_of(Compile, "how the model's blocks run: traced by Thunder, or eagerly (none)")
    )
    device: str = field(
        default="auto",
        metadata=about(
            "where the model runs: auto, cpu, cuda, cuda:N or mps",
            allowed="auto, cpu, cuda, cuda:N, mps",
            accepts=_is_device,
        ),
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not item.metadata["accepts"](value):
                raise ConfigError(f"{item.name} was {value!r}; allowed: {item.metadata['allowed']}", key=item.name)

    @property
    def is_drafting(self) -> bool:
        """Whether anything proposes tokens."""
        return self.draft not in (None, "none")

    @property
    def most_draft_tokens(self) -> int:
        """The most draft tokens that a round can have, G; 0 without a draft."""
        if not self.is_drafting:
            return 0
        return MAX_AUTO_DRAFT_TOKENS if self.num_draft_tokens == "auto" else self.num_draft_tokens

    @property
    def early_exit_layers(self) -> int | None:
        """N of a draft "early-exit:N"; None for another draft."""
        kind, _, layers = (self.draft or "").partition(":")
        return int(layers) if kind == "early-exit" else None

    @property
    def draft_model(self) -> str | None:
        """The name of a draft that is a model; None for another kind."""
        is_model = self.is_drafting and self.draft != "ngram" and self.early_exit_layers is None
        return self.draft if is_model else None

    def load_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `LLM.load` (without `model`)."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(EngineConfig) if f.name != "model"}


@dataclass(frozen=True)
class ServeConfig(EngineConfig):
    """EngineConfig and what the server adds.

    Raises:
        ConfigError: a value is not allowed; the message says which, what was given and what is allowed.
    """

    host: Host = field(
        default="127.0.0.1", metadata=one_of(Host, "address to listen on; 0.0.0.0 or :: lets other machines in")
    )
    port: int = field(
        default=8000, metadata=about("port to listen on", allowed="an integer from 1024 to 65535", accepts=_is_port)
    )
    batch_timeout: float = field(
        default=0.01,
        metadata=about(
            "seconds that an idle server waits for more requests to start together",
            allowed="a number of seconds from 0 to 60",
            accepts=lambda value: _is_seconds(value) and value <= 60,
        ),
    )
    timeout: float | None = field(
        default=60.0,
        metadata=about(
            "seconds that a request may wait for a slot before it is answered 504; null waits without end",
            allowed="a number of seconds above 0, or null for no limit",
            accepts=_is_limit,
        ),
    )
    generate_timeout: float | None = field(
        default=None,
        metadata=about(
            "seconds that a request may run once it has a slot; then it ends with what it has and finish_reason "
            "timeout; null never cuts one",
            allowed="a number of seconds above 0, or null for no limit",
            accepts=_is_limit,
        ),
    )
    workers_per_device: int = field(
        default=1, metadata=count("copies of the model on each device, each in a process of its own", most=64)
    )
    served_model_name: str | None = field(
        default=None,
        metadata=about(
            "the name that clients see; null takes the name in `model`",
            allowed="a name, or null for the name in `model`",
            accepts=lambda value: value is None or _is_text(value),
        ),
    )
    log_level: LogLevel = field(default="info", metadata=one_of(LogLevel, "what is logged"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout is not None and self.batch_timeout >= self.timeout:
            raise ConfigError(
                f"batch_timeout was {self.batch_timeout!r}; allowed: less than timeout, which is {self.timeout!r}",
                key="batch_timeout",
            )

    @property
    def name(self) -> str:
        """The model's name to the outside."""
        return self.served_model_name or self.model
