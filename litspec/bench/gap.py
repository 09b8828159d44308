"""How long rows that decode are held up while a long prompt is read.

The engine feeds a prompt in chunks and lets every decoding row have its round after each, so two moments at which a row
is brought tokens should lie no further apart than one chunk and one round take. What these take is measured beside it:
the chunks while the prompt is read alone, the rounds before it arrives. Times move with the machine; the number of
steps that brought a row nothing does not, and is 0 where the bound holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from litspec.bench.drive import Clock, MonotonicClock
from litspec.bench.traffic import Question
from litspec.bench.workload import AUTO, Workload
from litspec.engine.params import SamplingParams

if TYPE_CHECKING:
    from litspec.api.llm import LLM
    from litspec.engine.request import Request

ROUNDS_BEFORE = 12
ROUNDS_AFTER = 4
"""Rounds that are still watched once the prompt is in: the first ones of the new row belong to its arrival."""
MAX_RUNS = 3


@dataclass(frozen=True)
class GapRun:
    """One arrival of the prompt; seconds.

    Attributes:
        longest_gap_s: between two moments at which one row was brought tokens, from the prompt's arrival on.
        longest_gap_before_s: the same before it.
        median_round_s, longest_round_s: rounds of the rows alone, before it.
        longest_chunk_s: the slowest chunk of the same prompt when it is read alone.
        num_chunks: the steps in which it was read beside the rows.
        empty_steps: the most steps in a row that brought some row nothing.
    """

    longest_gap_s: float
    longest_gap_before_s: float
    median_round_s: float
    longest_round_s: float
    longest_chunk_s: float
    num_chunks: int
    empty_steps: int

    @property
    def bound_s(self) -> float:
        """One chunk and one round."""
        return self.longest_chunk_s + self.longest_round_s


@dataclass(frozen=True)
class GapFigures:
    """All arrivals, with what they were measured on; figures are medians over the runs."""

    num_rows: int
    prompt_tokens: int
    runs: list[GapRun]

    def median(self, name: str) -> float:
        """Return the median of one of GapRun's figures."""
        return median(getattr(run, name) for run in self.runs)

    @property
    def is_within_bound(self) -> bool:
        """Whether the longest gap was at most a chunk and a round, by the clock."""
        return self.median("longest_gap_s") <= self.median("bound_s")

    @property
    def empty_steps(self) -> int:
        """The most steps in a row, over all runs, that brought some row nothing."""
        return max(run.empty_steps for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        names = [*GapRun.__dataclass_fields__, "bound_s"]
        medians = {name: self.median(name) for name in names if name != "empty_steps"}
        return {
            "rows": self.num_rows,
            "prompt_tokens": self.prompt_tokens,
            **medians,
            "empty_steps": self.empty_steps,
            "is_within_bound": self.is_within_bound,
            "runs": [{name: getattr(run, name) for name in names} for run in self.runs],
        }


def measure_gap(
    llm: LLM, workload: Workload, questions: Sequence[Question], *, clock: Clock | None = None
) -> GapFigures | None:
    """Have rows decode and a long prompt arrive, a few times; None where the workload leaves it out.

    The prompt is random token ids, cut to what fits the context.
    """
    if not workload.gap_rows:
        return None
    clock = clock or MonotonicClock()
    random = Random(workload.seed)
    num_tokens = max(1, min(workload.gap_prompt_tokens, llm.max_seq_length - 16))
    runs = []
    for _ in range(min(workload.repeats, MAX_RUNS)):
        # Each prompt is new, so that nothing of it is in the cache already.
        alone, beside = ([random.randrange(llm.engine.target.vocab_size) for _ in range(num_tokens)] for _ in range(2))
        chunks_s = _read_alone(llm, alone, clock)
        runs.append(_watch(llm, workload.gap_rows, questions, beside, max(chunks_s), clock))
    return GapFigures(workload.gap_rows, num_tokens, runs)


def _read_alone(llm: LLM, prompt_ids: list[int], clock: Clock) -> list[float]:
    """Return the seconds of each step that reads a prompt."""
    request = llm.prepare(prompt_ids, SamplingParams(max_new_tokens=1, temperature=0.0))
    llm.engine.add_request(request)
    seconds = []
    while llm.engine.has_active_requests():
        before_s = clock.now()
        llm.engine.step()
        seconds.append(clock.now() - before_s)
    return seconds


class _Watch:
    """Steps an engine and notes when each row was last brought tokens."""

    def __init__(self, llm: LLM, rows: Sequence[Request], clock: Clock) -> None:
        self._engine = llm.engine
        self._clock = clock
        self._last_s = dict.fromkeys((row.id for row in rows), clock.now())
        self._empty = dict.fromkeys(self._last_s, 0)
        self.forget()

    def forget(self) -> None:
        """Start anew what is noted about gaps, but for the moments themselves."""
        self.longest_gap_s = 0.0
        self.most_empty = 0
        self.steps_s: list[float] = []

    def step(self) -> None:
        """Step once."""
        before_s = self._clock.now()
        emissions = self._engine.step()
        now_s = self._clock.now()
        self.steps_s.append(now_s - before_s)
        served = {emission.request.id for emission in emissions if emission.token_ids}
        ended = {emission.request.id for emission in emissions if emission.completion is not None}
        for row_id, last_s in list(self._last_s.items()):
            self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
            self._empty[row_id] = 0 if row_id in served else self._empty[row_id] + 1
            self.most_empty = max(self.most_empty, self._empty[row_id])
            if row_id in served:
                self._last_s[row_id] = now_s
            if row_id in ended:
                del self._last_s[row_id]


def _watch(
    llm: LLM, num_rows: int, questions: Sequence[Question], prompt_ids: list[int], longest_chunk_s: float, clock: Clock
) -> GapRun:
    engine = llm.engine
    room = llm.max_seq_length
    rows = []
    for index in range(num_rows):
        question = questions[index % len(questions)]
        # Long enough for every row to outlast the prompt, whatever it accepts.
        params = question.params(AUTO).model_copy(update={"max_new_tokens": room, "ignore_eos": True})
        rows.append(llm.prepare(question.prompt_ids, params))
        engine.add_request(rows[-1])
    arriving = llm.prepare(prompt_ids, SamplingParams(max_new_tokens=16, temperature=0.0, ignore_eos=True))
    try:
        while any(row.is_prefilling for row in rows):
            engine.step()
        watch = _Watch(llm, rows, clock)
        for _ in range(ROUNDS_BEFORE):
            watch.step()
        rounds_s, gap_before_s = watch.steps_s, watch.longest_gap_s
        watch.forget()
        engine.add_request(arriving)
        while arriving.is_prefilling:
            watch.step()
        num_chunks = len(watch.steps_s)
        for _ in range(ROUNDS_AFTER):
            watch.step()
    finally:
        for request in (*rows, arriving):
            engine.abort(request.id)
    return GapRun(
        longest_gap_s=watch.longest_gap_s,
        longest_gap_before_s=gap_before_s,
        median_round_s=median(rounds_s),
        longest_round_s=max(rounds_s),
        longest_chunk_s=longest_chunk_s,
        num_chunks=num_chunks,
        empty_steps=watch.most_empty,
    )
