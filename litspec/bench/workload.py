"""Workload: what the load scenario sends, as a frozen and checked value.

`load.yaml` beside this file holds every default; a user's file replaces some of its keys, and flags win over both. An
unknown key or a value that is not allowed is an error before any model is loaded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from typing import Any, Literal

from litspec.api.config import MAX_AUTO_DRAFT_TOKENS, MAX_BATCH_SIZE, ConfigError, about
from litspec.api.config_sources import check_keys, read_mapping
from litspec.engine.params import MAX_TEMPERATURE
from litspec.paths import expanded

AUTO = "auto"
OFF = 0
Arm = int | Literal["auto"]
PROMPT_SOURCES = ("builtin", "random")


MOST_REQUESTS, MOST_TOKENS = 10_000, 1_000_000


def arm_name(arm: Arm) -> str:
    """Return an arm as tables and JSON name it."""
    return "off" if arm == OFF else str(arm)


def _is_int(value: Any, low: int, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any, low: float, high: float = math.inf) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high < math.inf


def _is_positive(value: Any) -> bool:
    return _is_number(value, 0.0, 1e6) and value > 0


def _is_list(value: Any, accepts: Callable[[Any], bool], *, least: int = 1) -> bool:
    """Whether a value is a list of distinct allowed items."""
    return isinstance(value, tuple) and len(value) >= least and all(map(accepts, value)) and len({*value}) == len(value)


def _is_range(value: Any, low: int) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and all(_is_int(v, low, MOST_TOKENS) for v in value) and value[0] <= value[1]


def _setting(allowed: str, accepts: Callable[[Any], bool]) -> Any:
    return field(metadata=about("", allowed=allowed, accepts=accepts))


def _count(low: int, high: int | None = None) -> Any:
    allowed = f"an integer from {low}" + ("" if high is None else f" to {high}")
    return _setting(allowed, lambda value: _is_int(value, low, math.inf if high is None else high))


@dataclass(frozen=True)
class Workload:
    """The settings of a load, one field a YAML key.

    Attributes:
        seed: of everything that is drawn at random: lengths, seeds, arrival times.
        repeats: turns of every arm at every level.
        arms: draft tokens in a round to compare: 0 is off, "auto" leaves the choice to the engine.
        concurrency: closed levels, each a number of requests kept in flight.
        requests_per_stream: requests of a closed level, as a multiple of its concurrency.
        least_requests: requests of a closed level at least.
        rates: open levels, each a mean number of arrivals in a second.
        requests_per_rate: requests of an open level.
        prompts: "builtin" chats or "random" token ids.
        prompt_tokens: shortest and longest random prompt.
        max_new_tokens: the range of the requests' own limits.
        temperatures: the requests take these in turns.
        gap_rows: rows that decode while a long prompt arrives; 0 leaves that out.
        gap_prompt_tokens: length of that prompt.

    Raises:
        ConfigError: a value is not allowed; the message says which, what was given and what is allowed.
    """

    seed: int = _count(0, 2**32 - 1)
    repeats: int = _count(1, 1000)
    arms: tuple[Arm, ...] = _setting(
        f"a list of off, auto and numbers of draft tokens up to {MAX_AUTO_DRAFT_TOKENS}, each once",
        lambda value: _is_list(value, lambda arm: arm == AUTO or _is_int(arm, OFF, MAX_AUTO_DRAFT_TOKENS)),
    )
    concurrency: tuple[int, ...] = _setting(
        f"a list of different integers from 1 to {MAX_BATCH_SIZE}",
        lambda value: _is_list(value, lambda level: _is_int(level, 1, MAX_BATCH_SIZE), least=0),
    )
    requests_per_stream: int = _count(1, MOST_REQUESTS)
    least_requests: int = _count(1, MOST_REQUESTS)
    rates: tuple[float, ...] = _setting(
        "a list of different numbers above 0, in requests a second",
        lambda value: _is_list(value, _is_positive, least=0),
    )
    requests_per_rate: int = _count(1, MOST_REQUESTS)
    prompts: str = _setting(", ".join(PROMPT_SOURCES), lambda value: value in PROMPT_SOURCES)
    prompt_tokens: tuple[int, int] = _setting(
        f"the shortest and the longest length up to {MOST_TOKENS}, as in [16, 64]", lambda value: _is_range(value, 1)
    )
    max_new_tokens: tuple[int, int] = _setting(
        f"the lowest and the highest limit, from 2 to {MOST_TOKENS}, as in [16, 24]", lambda value: _is_range(value, 2)
    )
    temperatures: tuple[float, ...] = _setting(
        f"a list of different numbers from 0 to {MAX_TEMPERATURE}",
        lambda value: _is_list(value, lambda item: _is_number(item, 0.0, MAX_TEMPERATURE)),
    )
    gap_rows: int = _count(0, MAX_BATCH_SIZE - 1)
    gap_prompt_tokens: int = _count(1, MOST_TOKENS)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not item.metadata["accepts"](value):
                shown = list(value) if isinstance(value, tuple) else value
                raise ConfigError(f"{item.name} was {shown!r}; allowed: {item.metadata['allowed']}", key=item.name)
        if not self.concurrency and not self.rates:
            raise ConfigError("concurrency and rates were both empty; allowed: a level in one of them at least")

    @property
    def num_slots(self) -> int:
        """Requests that must run at once for what is measured."""
        return max(*self.concurrency, self.gap_rows + 1 if self.gap_rows else 1, 8 if self.rates else 1, 1)


def read_workload(path: str | None = None, overrides: Mapping[str, Any] | None = None) -> Workload:
    """Build a Workload from the defaults, a YAML file over them, and `overrides` over both.

    Args:
        path: the file; None for the defaults alone.
        overrides: values of flags; an integer for `max_new_tokens` is the highest limit.

    Raises:
        ConfigError: the file cannot be read, a key is unknown (the nearest is named) or a value is not allowed.
    """
    with as_file(files("litspec.bench").joinpath("load.yaml")) as defaults:
        values = read_mapping(defaults)
    sources = [(read_mapping(expanded(path)), f" (in {path})")] if path is not None else []
    origin: dict[str, str] = {}
    for settings, where in sources:
        check_keys(settings, [item.name for item in dataclasses.fields(Workload)], where)
        values.update(settings)
        origin.update(dict.fromkeys(settings, where))
    flags = dict(overrides or {})
    if _is_int(flags.get("max_new_tokens"), 2) and isinstance(values["max_new_tokens"], list):
        highest = flags["max_new_tokens"]
        flags["max_new_tokens"] = [*(min(v, highest) for v in values["max_new_tokens"][:1] if _is_int(v, 2)), highest]
    values.update(flags)
    origin.update(dict.fromkeys(flags, ""))
    try:
        return Workload(**{name: _frozen(name, value) for name, value in values.items()})
    except ConfigError as error:
        raise ConfigError(f"{error}{origin.get(error.key or '', '')}", key=error.key) from None


def _frozen(name: str, value: Any) -> Any:
    """Return a YAML value as a Workload keeps it: lists as tuples, and the arm `off`, which YAML reads as false."""
    if not isinstance(value, (list, tuple)):
        return value
    items = tuple(item if isinstance(item, (int, float, str)) else repr(item) for item in value)
    return tuple(OFF if item is False or item == "off" else item for item in items) if name == "arms" else items
