"""Steps engines under a load and notes when tokens came.

No server and no thread stands between: what is measured is the engine. A token's moment is the end of the step that
emitted it, so tokens of one round came at once and the next gap is a whole round.

Several loads run side by side, a step at a time, each on an engine of its own and in a time of its own: it passes while
that load is served, and stands still while others are. A machine that is shared is slow for seconds and then fast
again; so all of them meet the same of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from litspec.bench.traffic import Arrivals
from litspec.engine.emission import Emission
from litspec.engine.request import Completion, Request


class Steppable(Protocol):
    """What a load needs of an engine."""

    def add_request(self, request: Request) -> None: ...  # noqa: D102
    def step(self) -> list[Emission]: ...  # noqa: D102
    def abort(self, request_id: str) -> Emission | None: ...  # noqa: D102


@dataclass
class Timeline:
    """When one request was due and when its tokens came, in seconds of its load; `counts[i]` came at `times_s[i]`."""

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
        seconds: from start to end, in the load's own time.
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
        """Output tokens of all requests a second; None where no time passed."""
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


class Load:
    """One load on its way, on an engine of its own.

    Args:
        engine: idle.
        make_request: makes request i, whose id no other one has.
        num_requests: how many to send.
        arrivals: when each is due.
        now: the time in seconds; tests bring their own.

    Attributes:
        elapsed_s: its own time since it began: that of its steps, and of the waits between arrivals, which are skipped.
    """

    def __init__(
        self,
        engine: Steppable,
        make_request: Callable[[int], Request],
        num_requests: int,
        arrivals: Arrivals,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.elapsed_s = 0.0
        self._engine, self._make_request = engine, make_request
        self._num_requests, self._arrivals = num_requests, arrivals
        self._now = now
        self._timelines: list[Timeline] = []
        self._in_flight: dict[str, Timeline] = {}
        self._busy_s = self._decode_s = 0.0
        self._decode_tokens = 0

    @property
    def is_done(self) -> bool:
        """Whether all requests have been answered."""
        return len(self._timelines) == self._num_requests and not self._in_flight

    def advance(self) -> None:
        """Send what is due and step once; where nothing runs, skip to the next arrival.

        Raises:
            RuntimeError: a request ended with an error, so that nothing was measured.
        """
        wait_s = self._send()
        if not self._in_flight:
            assert wait_s is not None, "nothing is in flight that the next request could wait for"
            self.elapsed_s += wait_s
            return
        num_in_flight = len(self._in_flight)
        reads_prompts = any(not timeline.times_s for timeline in self._in_flight.values())
        started_s = self._now()
        emissions = self._engine.step()
        step_s = self._now() - started_s
        self.elapsed_s += step_s
        self._busy_s += num_in_flight * step_s
        if not reads_prompts:
            self._decode_s += step_s
            self._decode_tokens += sum(len(emission.token_ids) for emission in emissions)
        for emission in emissions:
            self._note(emission)

    def finish(self) -> Run:
        """Return what happened."""
        assert self.is_done
        mean_in_flight = self._busy_s / self.elapsed_s if self.elapsed_s > 0 else 0.0
        return Run(self._timelines, self.elapsed_s, mean_in_flight, self._decode_s, self._decode_tokens)

    def abort(self) -> None:
        """Leave the engine idle."""
        for request_id in self._in_flight:
            self._engine.abort(request_id)
        self._in_flight.clear()

    def _send(self) -> float | None:
        """Send what is due; return how long the next one must wait, None where it waits for another's end."""
        while len(self._timelines) < self._num_requests:
            index = len(self._timelines)
            wait_s = self._arrivals.wait_s(index, len(self._in_flight), self.elapsed_s)
            if wait_s != 0.0:
                return wait_s
            started_s = self._now()
            request = self._make_request(index)
            timeline = Timeline(self._arrivals.due_s(index, self.elapsed_s))
            self._timelines.append(timeline)
            self._in_flight[request.id] = timeline
            self._engine.add_request(request)
            self.elapsed_s += self._now() - started_s
        return None

    def _note(self, emission: Emission) -> None:
        timeline = self._in_flight[emission.request.id]
        if emission.token_ids:
            timeline.times_s.append(self.elapsed_s)
            timeline.counts.append(len(emission.token_ids))
        if emission.completion is not None:
            timeline.completion = emission.completion
            del self._in_flight[emission.request.id]
            if emission.completion.finish_reason not in ("stop", "length"):
                reason = emission.completion.error or emission.completion.finish_reason
                raise RuntimeError(f"request {emission.request.id} was not answered: {reason}")


def drive(loads: Sequence[Load]) -> list[Run]:
    """Serve loads side by side: always a step of the one that has had the least time.

    Whatever happens, the engines are left idle.
    """
    try:
        while waiting := [load for load in loads if not load.is_done]:
            min(waiting, key=lambda load: load.elapsed_s).advance()
    finally:
        for load in loads:
            load.abort()
    return [load.finish() for load in loads]
