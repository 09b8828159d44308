"""Steps an engine under a load and notes when tokens came; the one place of the load scenario that reads a clock.

No server and no thread stands between: what is measured is the engine. A token's moment is the end of the step that
emitted it, so tokens of one round came at once and the next gap is a whole round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from litspec.bench.traffic import Arrivals
from litspec.engine.emission import Emission
from litspec.engine.request import Completion, Request


class Clock(Protocol):
    """Tells the time, and waits."""

    def now(self) -> float: ...  # noqa: D102
    def sleep(self, seconds: float) -> None: ...  # noqa: D102


class MonotonicClock:
    """The clock that requests note their arrival with."""

    def now(self) -> float:
        """Return seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Steppable(Protocol):
    """What a load needs of an engine."""

    def add_request(self, request: Request) -> None: ...  # noqa: D102
    def step(self) -> list[Emission]: ...  # noqa: D102
    def abort(self, request_id: str) -> Emission | None: ...  # noqa: D102


@dataclass
class Timeline:
    """When one request was due and when its tokens came, in seconds of the clock; `counts[i]` came at `times_s[i]`."""

    due_s: float
    times_s: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    completion: Completion | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from when it was due to its first token."""
        return self.times_s[0] - self.due_s if self.times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after those that came first; None where nothing came later."""
        later = sum(self.counts[1:])
        return (self.times_s[-1] - self.times_s[0]) / later if later else None

    @property
    def longest_gap_s(self) -> float | None:
        """The longest time between two moments at which tokens came."""
        return max((b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)), default=None)


@dataclass(frozen=True)
class Run:
    """One arm at one level, once.

    Attributes:
        timelines: its requests, in order.
        seconds: from start to end.
        mean_in_flight: requests that waited or ran, averaged over time.
        decode_s: seconds of the steps in which no prompt was read.
        decode_tokens: tokens that these brought.
    """

    timelines: Sequence[Timeline]
    seconds: float
    mean_in_flight: float
    decode_s: float = 0.0
    decode_tokens: int = 0

    @property
    def completions(self) -> list[Completion]:
        """The answers, in the order of the requests."""
        return [timeline.completion for timeline in self.timelines if timeline.completion is not None]

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens of all requests a second of wall clock; None where no time passed."""
        return sum(c.completion_tokens for c in self.completions) / self.seconds if self.seconds > 0 else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens a second of the steps in which no prompt was read; None where there was no such step."""
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a round, over all rounds of all rows; None without a round."""
        rounds = [(c.stats.acceptance_length, c.stats.rounds) for c in self.completions]
        total = sum(count for _, count in rounds)
        return sum(length * count for length, count in rounds if length is not None) / total if total else None


def drive(
    engine: Steppable,
    make_request: Callable[[int], Request],
    num_requests: int,
    arrivals: Arrivals,
    *,
    clock: Clock | None = None,
) -> Run:
    """Send requests as they are due and step the engine until all have ended.

    Args:
        engine: idle; whatever happens, it is left idle.
        make_request: makes request i, whose id no other one has.
        num_requests: how many to send.
        arrivals: when each is due.
        clock: the time; tests bring their own.

    Raises:
        RuntimeError: a request ended with an error, so that nothing was measured.
    """
    clock = clock or MonotonicClock()
    timelines: list[Timeline] = []
    in_flight: dict[str, Timeline] = {}
    busy_s = decode_s = 0.0
    decode_tokens = 0
    start_s = now_s = clock.now()
    try:
        while len(timelines) < num_requests or in_flight:
            wait_s = None
            while len(timelines) < num_requests:
                wait_s = arrivals.wait_s(len(timelines), len(in_flight), now_s - start_s)
                if wait_s != 0.0:
                    break
                request = make_request(len(timelines))
                request.arrival_s = start_s + arrivals.due_s(len(timelines), now_s - start_s)
                timelines.append(Timeline(request.arrival_s))
                in_flight[request.id] = timelines[-1]
                engine.add_request(request)
                now_s = clock.now()
            if not in_flight:
                assert wait_s is not None, "nothing is in flight that the next request could wait for"
                clock.sleep(wait_s)
                now_s = clock.now()
                continue
            num_in_flight, before_s = len(in_flight), now_s
            reads_prompts = any(not timeline.times_s for timeline in in_flight.values())
            emissions = engine.step()
            now_s = clock.now()
            busy_s += num_in_flight * (now_s - before_s)
            if not reads_prompts:
                decode_s += now_s - before_s
                decode_tokens += sum(len(emission.token_ids) for emission in emissions)
            for emission in emissions:
                _note(emission, in_flight, now_s)
    finally:
        for request_id in in_flight:
            engine.abort(request_id)
    seconds = now_s - start_s
    return Run(timelines, seconds, busy_s / seconds if seconds > 0 else 0.0, decode_s, decode_tokens)


def _note(emission: Emission, in_flight: dict[str, Timeline], now_s: float) -> None:
    timeline = in_flight[emission.request.id]
    if emission.token_ids:
        timeline.times_s.append(now_s)
        timeline.counts.append(len(emission.token_ids))
    if emission.completion is not None:
        timeline.completion = emission.completion
        del in_flight[emission.request.id]
        if emission.completion.finish_reason not in ("stop", "length"):
            reason = emission.completion.error or emission.completion.finish_reason
            raise RuntimeError(f"request {emission.request.id} was not answered: {reason}")
