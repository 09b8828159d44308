"""How long rows that decode are held up while a long prompt is read.

The engine feeds a prompt in chunks and lets every decoding row have its round after each, so two moments at which a row
is brought tokens should lie no further apart than one chunk and one round take. What these take is what the engine
counted for each while the prompt was read. Times move with the machine; the number of steps that brought a row nothing
does not, and is 0 where the bound holds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from litspec.bench.traffic import Question
from litspec.bench.workload import AUTO, Workload
from litspec.engine.params import SamplingParams

if TYPE_CHECKING:
    from litspec.api.llm import LLM
    from litspec.engine.engine import Engine
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
        median_round_s: a round of the rows alone, before it.
        longest_round_s: the slowest round from its arrival on.
        longest_chunk_s: the slowest chunk of it.
        num_chunks: the steps in which it was read.
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
        """The slowest chunk and the slowest round."""
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


def measure_gap(llm: LLM, workload: Workload, questions: Sequence[Question]) -> GapFigures | None:
    """Have rows decode and a long prompt arrive, a few times; None where the workload leaves it out.

    The prompt is random token ids, cut to what fits the context.
    """
    if not workload.gap_rows:
        return None
    random = Random(workload.seed)
    num_tokens = max(1, min(workload.gap_prompt_tokens, llm.max_seq_length - 16))
    runs = []
    for _ in range(min(workload.repeats, MAX_RUNS)):
        # Each prompt is new, so that nothing of it is in the cache already.
        prompt_ids = [random.randrange(llm.engine.target.vocab_size) for _ in range(num_tokens)]
        runs.append(_watch(llm, workload.gap_rows, questions, prompt_ids))
    return GapFigures(workload.gap_rows, num_tokens, runs)


class _Watch:
    """Steps an engine and notes when each row was last brought tokens, and what chunks and rounds took."""

    def __init__(self, engine: Engine, rows: Sequence[Request]) -> None:
        self._engine = engine
        self._last_s = dict.fromkeys((row.id for row in rows), time.monotonic())
        self._empty = dict.fromkeys(self._last_s, 0)
        self.forget()

    def forget(self) -> None:
        """Start anew what is noted, but for when each row was last brought tokens."""
        self.longest_gap_s = 0.0
        self.most_empty = 0
        self.chunks_s: list[float] = []
        self.rounds_s: list[float] = []

    def step(self) -> None:
        """Step once."""
        stats = self._engine.stats
        before = stats.prefill_s, stats.draft_s + stats.target_s
        emissions = self._engine.step()
        now_s = time.monotonic()
        self.chunks_s.append(stats.prefill_s - before[0])
        self.rounds_s.append(stats.draft_s + stats.target_s - before[1])
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


def _watch(llm: LLM, num_rows: int, questions: Sequence[Question], prompt_ids: list[int]) -> GapRun:
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
        watch = _Watch(engine, rows)
        for _ in range(ROUNDS_BEFORE):
            watch.step()
        median_round_s, gap_before_s = median(watch.rounds_s), watch.longest_gap_s
        watch.forget()
        engine.add_request(arriving)
        while arriving.is_prefilling:
            watch.step()
        num_chunks = len(watch.chunks_s)
        for _ in range(ROUNDS_AFTER):
            watch.step()
    finally:
        for request in (*rows, arriving):
            engine.abort(request.id)
    return GapRun(
        longest_gap_s=watch.longest_gap_s,
        longest_gap_before_s=gap_before_s,
        median_round_s=median_round_s,
        longest_round_s=max(watch.rounds_s),
        longest_chunk_s=max(watch.chunks_s),
        num_chunks=num_chunks,
        empty_steps=watch.most_empty,
    )
