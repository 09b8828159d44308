"""A small load, a small LLM to carry it, and runs and levels with figures that a test chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from litspec.bench.drive import Run, Timeline
from litspec.bench.figures import ArmFigures, LevelFigures
from litspec.bench.workload import AUTO, Workload, read_workload
from litspec.engine.params import ParameterError, SamplingParams
from litspec.engine.request import Completion, Request
from litspec.engine.stats import RequestStats
from tests.engine.support import make_engine

TINY = """\
prompts: random
prompt_tokens: [3, 9]
max_new_tokens: [4, 6]
arms: [off, 2, auto]
concurrency: [1, 3]
requests_per_stream: 1
least_requests: 2
rates: [500]
requests_per_rate: 3
repeats: 2
gap_rows: 2
gap_prompt_tokens: 300
"""


def tiny_workload(folder: Path, text: str = TINY, **overrides: Any) -> Workload:
    file = folder / "load.yaml"
    file.write_text(text)
    return read_workload(str(file), overrides)


class SmallLLM:
    """What the scenario uses of an LLM, around a tiny engine: quick, and without a chat template."""

    def __init__(self, **options: Any) -> None:
        self.engine = make_engine(slots=4, **options)
        self.max_seq_length = self.engine.target.max_seq_length
        self._count = 0

    def prepare(self, prompt: Any, params: SamplingParams, *, request_id: str | None = None) -> Request:
        if isinstance(prompt[0], dict):
            raise ParameterError("this model has no chat template", param="messages")
        self._count += 1
        return Request(request_id or f"r{self._count}", list(prompt), params)


def small_llm() -> Any:
    """Return one with a draft."""
    return SmallLLM(draft="early-exit:1")


def run_of(tokens_per_s: float) -> Run:
    completion = Completion("", [1] * 10, 2, 10, "length", seed=0, stats=RequestStats(rounds=4, emitted_by_rounds=9))
    timeline = Timeline(0.0, [1.0, 3.0], [1, 9], completion)
    return Run([timeline], 10 / tokens_per_s, 1.0, decode_s=9 / tokens_per_s, decode_tokens=18)


def level_of(name: str = "4 in flight", kind: str = "closed", **speeds: list[float]) -> LevelFigures:
    arms = {AUTO if arm == "auto" else int(arm[1:]): ArmFigures.of([run_of(s) for s in v]) for arm, v in speeds.items()}
    return LevelFigures(name, kind, 4, 1, arms)  # pyright: ignore[reportArgumentType]
