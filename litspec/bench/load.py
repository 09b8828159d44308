"""The scenario `load`: many requests at once, and what the choice of draft tokens is worth under them.

One model is loaded; the arms differ in the `num_draft_tokens` of their requests alone. Each has an engine of its own,
and they answer the same questions side by side, a step at a time (bench/drive.py), so that what drifts on the machine
meets all alike. What counts is wall clock from the first request to the last token while the arm had the machine,
prompts included; since reading prompts is the same work in every arm and hides what they differ in, the steps in which
none is read are also counted by themselves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from litspec.api.config import EngineConfig
from litspec.api.memory import readable
from litspec.api.progress import show_progress
from litspec.bench.decode import describe_machine
from litspec.bench.drive import Load, Run, drive
from litspec.bench.figures import ArmFigures, LevelFigures
from litspec.bench.gap import GapFigures, measure_gap
from litspec.bench.ties import Answer, Sameness, compare
from litspec.bench.traffic import Level, Question, plan_levels, plan_questions
from litspec.bench.workload import AUTO, Arm, Workload, arm_name
from litspec.engine.request import Request

if TYPE_CHECKING:
    from litspec.api.llm import LLM
    from litspec.engine.engine import Engine
    from litspec.model.compile import CompiledGPT

Runs = dict[tuple[int, Arm], list[Run]]
"""The runs of each level (by its index) and arm, one a repeat."""


@dataclass(frozen=True)
class LoadReport:
    """The figures of all levels, with what they were measured on."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    levels: list[LevelFigures]
    sameness: Sameness
    gap: GapFigures | None

    @property
    def worst_ratio(self) -> float | None:
        """The lowest ratio, over the closed levels, of auto over the best of the other arms."""
        ratios = [level.ratio(AUTO, level.best_other) for level in self.levels if level.kind == "closed"]
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    @property
    def worst_decode_ratio(self) -> float | None:
        """The same where no prompt is read."""
        ratios = [level.decode_ratio for level in self.levels if level.kind == "closed"]
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values, the ratios first."""
        return {
            "scenario": "load",
            "worst_ratio": self.worst_ratio,
            "worst_decode_ratio": self.worst_decode_ratio,
            "levels": [level.to_dict() for level in self.levels],
            "gap": None if self.gap is None else self.gap.to_dict(),
            "compared": self.sameness.num_compared,
            "equal": self.sameness.num_equal,
            "ties": self.sameness.num_ties,
            "differences": [asdict(difference) for difference in self.sameness.differences],
            "settings": self.settings,
            "machine": self.machine,
        }


def check_load(workload: Workload, config: EngineConfig) -> None:
    """Raise ValueError where the engine that a config describes cannot run the arms of a workload."""
    given = config.num_draft_tokens
    if AUTO in workload.arms and given != AUTO:
        raise ValueError(
            f"num_draft_tokens was {given!r}; allowed while auto is among the workload's arms: auto. The arms "
            "themselves say how many tokens are drafted"
        )
    if config.batching != "continuous":
        raise ValueError(f"batching was {config.batching}; allowed: continuous, so that so many are kept in flight")
    if config.max_batch_size < workload.num_slots:
        raise ValueError(
            f"max_batch_size was {config.max_batch_size}; allowed: at least {workload.num_slots}, the most requests at "
            "once of the workload (concurrency, and gap_rows with the prompt that arrives)"
        )
    widest = max((arm for arm in workload.arms if arm != AUTO), default=0)
    if isinstance(given, int) and given < widest:
        raise ValueError(f"num_draft_tokens was {given}; allowed: auto, or at least the widest arm, {widest}")


def check_memory(facts: Mapping[str, Any], num_arms: int) -> None:
    """Raise ValueError where the memory that a model left does not hold a cache for every arm."""
    one_bytes = facts["cache_bytes"] + facts["draft_cache_bytes"]
    used_bytes = sum(facts[f"{name}_bytes"] for name in ("weight", "draft_weight", "working"))
    if used_bytes + num_arms * one_bytes > facts["available_bytes"]:
        raise ValueError(
            f"the caches of {num_arms} arms need {readable(num_arms * one_bytes)} of "
            f"{readable(facts['available_bytes'] - used_bytes)} that the model leaves; take a smaller max_seq_length, "
            "max_batch_size or concurrency, or fewer arms"
        )


def measure_load(workload: Workload, config: EngineConfig) -> LoadReport:
    """Load the model and measure every arm at every level, then the gap that a long prompt makes."""
    check_load(workload, config)
    from litspec.api.llm import LLM

    levels = plan_levels(workload)
    with LLM.load(config.model, **config.load_options()) as llm:
        settings = {**asdict(config), "dtype": llm.describe()["dtype"], "max_seq_length": llm.max_seq_length}
        questions = plan_questions(llm, workload, max(level.num_requests for level in levels))
        check_memory(llm.describe(), len(workload.arms))
        engines: dict[Arm, Engine] = {arm: llm.engine if arm == AUTO else llm.engine.twin() for arm in workload.arms}
        first = replace(levels[0], num_requests=1)
        drive([_load(llm, engine, first, questions, arm, "warm-up") for arm, engine in engines.items()])
        with show_progress(len(levels) * workload.repeats, "load") as advance:
            runs = take_turns(llm, engines, workload, levels, questions, advance)
        gap = measure_gap(llm, workload, questions)
        sameness = compare(
            cast("CompiledGPT", llm.engine.target).gpt, questions, list_answers(levels, runs, workload.repeats)
        )
    return LoadReport(
        settings={**settings, "workload": asdict(workload)},
        machine=describe_machine(),
        levels=[_figures(level, index, workload.arms, runs) for index, level in enumerate(levels)],
        sameness=sameness,
        gap=gap,
    )


def take_turns(
    llm: LLM,
    engines: Mapping[Arm, Engine],
    workload: Workload,
    levels: Sequence[Level],
    questions: Sequence[Question],
    advance: Callable[[], None] = lambda: None,
) -> Runs:
    """Run all arms at every level, once a repeat; after the first repeat, say how long all of them will take."""
    runs: Runs = {(index, arm): [] for index in range(len(levels)) for arm in engines}
    started_s = time.monotonic()
    for repeat in range(workload.repeats):
        arms = list(engines)[:: 1 if repeat % 2 == 0 else -1]
        for index, level in enumerate(levels):
            loads = [_load(llm, engines[arm], level, questions, arm, f"{repeat}-{index}") for arm in arms]
            for arm, run in zip(arms, drive(loads), strict=True):
                runs[index, arm].append(run)
            advance()
        if repeat == 0 and workload.repeats > 1:
            _say_estimate((time.monotonic() - started_s) * (workload.repeats - 1), workload.repeats - 1)
    return runs


def _say_estimate(seconds: float, num_repeats: int) -> None:
    minutes = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    print(f"load: {num_repeats} more repeats will take about {minutes}", file=sys.stderr)


def _load(llm: LLM, engine: Engine, level: Level, questions: Sequence[Question], arm: Arm, label: str) -> Load:
    def make_request(index: int) -> Request:
        question = questions[index]
        return llm.prepare(question.prompt_ids, question.params(arm), request_id=f"{label}-{index}")

    return Load(engine, make_request, level.num_requests, level.arrivals)


def list_answers(levels: Sequence[Level], runs: Runs, num_repeats: int) -> list[Answer]:
    """Return every answer, in the order in which the arms are listed."""
    return [
        Answer(question, levels[index].name, arm_name(arm), repeat, completion.token_ids)
        for repeat in range(num_repeats)
        for (index, arm), of_arm in runs.items()
        for question, completion in enumerate(of_arm[repeat].completions)
    ]


def _figures(level: Level, index: int, arms: Sequence[Arm], runs: Runs) -> LevelFigures:
    of_arms: dict[Arm, ArmFigures] = {arm: ArmFigures.of(runs[index, arm]) for arm in arms}
    return LevelFigures(level.name, level.kind, level.value, level.num_requests, of_arms)
