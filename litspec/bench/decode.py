"""The scenario `decode`: one stream, greedy, with the draft and without it.

Both arms answer the same prompts in turns, so that what drifts on the machine meets both alike; the first arm changes
with every repeat. What counts is the time from the first token to the last, as the Completion's statistics give it.
Answers end where the model ends them: text forced beyond that repeats itself, which would flatter a draft.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import litspec
from litspec.api.config import EngineConfig
from litspec.api.progress import show_progress
from litspec.bench.scenario import BenchOptions
from litspec.engine.params import SamplingParams
from litspec.engine.request import Completion

if TYPE_CHECKING:
    import torch

    from litspec.api.llm import LLM
    from litspec.model.compile import CompiledGPT

DEFAULT_REPEATS = 3
DEFAULT_MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class Prompt:
    """One built-in prompt; `kind` is "open" (free text) or "copy" (the answer repeats parts of the prompt)."""

    id: str
    kind: str
    prompt: str


@dataclass(frozen=True)
class PromptResult:
    """What one prompt gave; times are medians over the repeats, None where the answer had fewer than two tokens.

    `ratio` is draft speed over plain speed, the median of the repeats' own ratios. `first_difference` is the index of
    the first token that differs between the arms, and `is_tie` says whether rounding can explain it; None where the
    arms are equal.
    """

    id: str
    kind: str
    ratio: float | None
    draft_tokens_per_s: float | None
    plain_tokens_per_s: float | None
    completion_tokens: int
    acceptance_rate: float | None
    acceptance_length: float | None
    first_difference: int | None
    is_tie: bool | None
    draft_runs: list[float | None]
    plain_runs: list[float | None]


@dataclass(frozen=True)
class DecodeReport:
    """The results of all prompts, with what they were measured on."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    prompts: list[PromptResult]

    def ratio(self, kind: str | None = None) -> float | None:
        """Return plain seconds over draft seconds, summed over the prompts (of one kind); None with nothing timed."""
        timed = [p for p in self.prompts if kind in (None, p.kind) and p.plain_tokens_per_s and p.draft_tokens_per_s]
        plain_s = sum((p.completion_tokens - 1) / p.plain_tokens_per_s for p in timed if p.plain_tokens_per_s)
        draft_s = sum((p.completion_tokens - 1) / p.draft_tokens_per_s for p in timed if p.draft_tokens_per_s)
        return plain_s / draft_s if draft_s else None

    @property
    def num_equal(self) -> int:
        """Prompts whose token ids are the same in both arms."""
        return sum(p.first_difference is None for p in self.prompts)

    @property
    def num_ties(self) -> int:
        """Prompts whose token ids differ, the first time at a tie."""
        return sum(p.is_tie is True for p in self.prompts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values, the ratio first."""
        return {
            "scenario": "decode",
            "ratio": self.ratio(),
            "ratio_by_kind": {kind: self.ratio(kind) for kind in sorted({p.kind for p in self.prompts})},
            "equal": self.num_equal,
            "ties": self.num_ties,
            "prompts": [asdict(p) for p in self.prompts],
            "settings": self.settings,
            "machine": self.machine,
        }


def builtin_prompts() -> list[Prompt]:
    """Return the prompts that travel with the package."""
    lines = files("litspec.bench").joinpath("prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [Prompt(**json.loads(line)) for line in lines]


def measure_decode(options: BenchOptions, config: EngineConfig) -> DecodeReport:
    """Load the model with its draft and without, and time both on every prompt."""
    from litspec.api.llm import LLM

    prompts = builtin_prompts()
    repeats = options.repeats or DEFAULT_REPEATS
    params = SamplingParams(temperature=0.0, max_new_tokens=options.max_new_tokens or DEFAULT_MAX_NEW_TOKENS)
    plain_config = replace(config, draft=None)
    with (
        LLM.load(config.model, **config.load_options()) as drafting,
        LLM.load(config.model, **plain_config.load_options()) as plain,
    ):
        arms = (drafting, plain)
        for llm in arms:
            _answer(llm, prompts[0], params.model_copy(update={"max_new_tokens": 8}))
        with show_progress(len(prompts) * repeats * len(arms), "decode") as advance:
            runs = _take_turns(arms, prompts, params, repeats, advance)
        results = [_result(plain, prompt, *pair) for prompt, pair in zip(prompts, runs, strict=True)]
    settings = {**asdict(config), "repeats": repeats, "max_new_tokens": params.max_new_tokens}
    return DecodeReport(settings=settings, machine=describe_machine(), prompts=results)


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt.prompt}]


def _answer(llm: LLM, prompt: Prompt, params: SamplingParams) -> Completion:
    completion = llm.chat(_messages(prompt), params)
    assert isinstance(completion, Completion)
    return completion


def _take_turns(
    arms: Sequence[LLM], prompts: Sequence[Prompt], params: SamplingParams, repeats: int, advance: Callable[[], None]
) -> list[tuple[list[Completion], ...]]:
    """Return, for each prompt, the Completions of each arm, one a repeat."""
    runs: list[tuple[list[Completion], ...]] = [tuple([] for _ in arms) for _ in prompts]
    for repeat in range(repeats):
        order = list(range(len(arms)))[:: 1 if repeat % 2 == 0 else -1]
        for prompt, completions in zip(prompts, runs, strict=True):
            for arm in order:
                completions[arm].append(_answer(arms[arm], prompt, params))
                advance()
    return runs


def _result(llm: LLM, prompt: Prompt, drafted: list[Completion], plain: list[Completion]) -> PromptResult:
    a, b = drafted[0].token_ids, plain[0].token_ids
    index = first_difference(a, b)
    draft_runs = [completion.stats.decode_tokens_per_s for completion in drafted]
    plain_runs = [completion.stats.decode_tokens_per_s for completion in plain]
    stats = drafted[0].stats
    return PromptResult(
        id=prompt.id,
        kind=prompt.kind,
        ratio=_median(d / p if d and p else None for d, p in zip(draft_runs, plain_runs, strict=True)),
        draft_tokens_per_s=_median(draft_runs),
        plain_tokens_per_s=_median(plain_runs),
        completion_tokens=plain[0].completion_tokens,
        acceptance_rate=stats.acceptance_rate,
        acceptance_length=stats.acceptance_length,
        first_difference=index,
        is_tie=None
        if index is None
        else _is_tie(llm, prompt, b[:index], {*a[index : index + 1], *b[index : index + 1]}),
        draft_runs=draft_runs,
        plain_runs=plain_runs,
    )


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the index of the first token that is not the same in both; None where all are."""
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _is_tie(llm: LLM, prompt: Prompt, common_ids: list[int], candidates: set[int]) -> bool:
    """Return whether two tokens after a common text score so alike that rounding may prefer either."""
    import torch

    if len(candidates) < 2:
        return False
    prompt_ids = llm.prepare(_messages(prompt), SamplingParams()).prompt_ids
    gpt = cast("CompiledGPT", llm.engine.target).gpt
    with torch.inference_mode():
        idx = torch.tensor([prompt_ids + common_ids], device=gpt.device)
        scores = gpt(idx)[0, -1, sorted(candidates)]
    return float(scores.max() - scores.min()) <= tie_tolerance(float(scores.max()), gpt.dtype)


def tie_tolerance(score: float, dtype: torch.dtype) -> float:
    """Return how far from `score` another still ties with it: 1e-4 in float32, 2 units in its last place in less."""
    import torch

    if dtype.itemsize >= 4:
        return 1e-4 if dtype == torch.float32 else 0.0
    return 2 * torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(abs(score), 1e-30)))


def describe_machine() -> dict[str, Any]:
    """Return what the figures were measured on: processor, threads, versions."""
    import torch

    return {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "thunder": metadata.version("lightning-thunder"),
        "litspec": litspec.__version__,
    }


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
