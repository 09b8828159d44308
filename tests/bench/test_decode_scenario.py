"""The decode scenario against a fake LLM: turns, medians, ratios, and what is shown where."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import pytest
import torch

from litspec.api.config import EngineConfig
from litspec.bench.decode import (
    DecodeReport,
    PromptResult,
    builtin_prompts,
    first_difference,
    measure_decode,
    tie_tolerance,
)
from litspec.bench.report import draw_ratios, show
from litspec.bench.scenario import BenchOptions, run_scenario
from litspec.engine.params import SamplingParams
from litspec.engine.request import Completion
from litspec.engine.stats import RequestStats


def stats_at(speed: float) -> RequestStats:
    """The statistics of three tokens at so many tokens a second."""
    stats = RequestStats(emitted=3, rounds=2, drafted=8, accepted=6, emitted_by_rounds=8)
    stats.first_token_s, stats.last_token_s = 1.0, 1.0 + 2 / speed
    return stats


class FakeGPT:
    """After the prompt and the tokens 1, 2 the tokens 3 and 4 score `gap` apart."""

    gap = 0.0
    device, dtype = torch.device("cpu"), torch.float32

    def __call__(self, idx: torch.Tensor) -> torch.Tensor:
        assert idx.tolist() == [[9, 9, 1, 2]]
        return torch.tensor([0.0, 0.0, 0.0, 5.0, 5.0 + self.gap]).expand(1, 4, 5)


class FakeLLM:
    """Decodes at 30 tokens a second with a draft and 10 without, and notes whose turn it was."""

    turns: list[str]

    def __init__(self, draft: str | None) -> None:
        self.draft = draft
        self.engine = types.SimpleNamespace(target=types.SimpleNamespace(gpt=FakeGPT()))

    def prepare(self, messages: list[dict[str, str]], params: SamplingParams) -> Any:
        return types.SimpleNamespace(prompt_ids=[9, 9])

    @classmethod
    def load(cls, model: str, *, draft: str | None, **_: Any) -> FakeLLM:
        return cls(draft)

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def chat(self, messages: list[dict[str, str]], params: SamplingParams) -> Completion:
        assert params.temperature == 0.0
        FakeLLM.turns.append(str(self.draft))
        stats = stats_at(30.0 if self.draft else 10.0)
        ids = [1, 2, 3] if self.draft else [1, 2, 4]
        return Completion("abc", ids, 5, 3, "stop", seed=0, stats=stats)


@pytest.fixture
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("litspec.api.llm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litspec.api.llm", module)
    FakeLLM.turns = []


@pytest.fixture
def report(fake_llm: None) -> DecodeReport:
    return measure_decode(BenchOptions(repeats=2), EngineConfig())


def result(**changes: Any) -> PromptResult:
    fields: dict[str, Any] = dict.fromkeys(PromptResult.__dataclass_fields__)
    given = {"id": "a", "kind": "open", "completion_tokens": 11, "draft_runs": [], "plain_runs": []}
    return PromptResult(**{**fields, **given, **changes})


def test_arms_take_turns_and_the_first_one_changes(report):
    turns = FakeLLM.turns[2:]  # after one warm-up each
    half = len(turns) // 2
    assert turns[:half] == ["ngram", "None"] * (half // 2)
    assert turns[half:] == ["None", "ngram"] * (half // 2)
    assert half == 2 * len(builtin_prompts())


def test_report_has_ratio_acceptance_and_the_first_difference(report):
    first = report.to_dict()["prompts"][0]
    assert report.to_dict()["ratio"] == pytest.approx(3.0)
    assert (first["ratio"], first["acceptance_rate"], first["acceptance_length"]) == (3.0, 0.75, 4.0)
    assert first["first_difference"] == 2
    assert report.num_equal == 0


@pytest.mark.parametrize(("gap", "is_tie"), [(0.00005, True), (0.001, False)])
def test_a_difference_is_a_tie_only_where_scores_are_alike(monkeypatch, fake_llm, gap, is_tie):
    monkeypatch.setattr(FakeGPT, "gap", gap)
    report = measure_decode(BenchOptions(repeats=1), EngineConfig())
    assert {p.is_tie for p in report.prompts} == {is_tie}
    assert report.num_ties == (len(report.prompts) if is_tie else 0)


def test_tie_tolerance():
    assert tie_tolerance(20.0, torch.float32) == 1e-4
    assert tie_tolerance(20.0, torch.float64) == 0.0
    assert tie_tolerance(20.0, torch.bfloat16) == 2 * 0.125  # between 16 and 32 bfloat16 steps by an eighth


def test_overall_ratio_weighs_by_time():
    slow = result(id="slow", plain_tokens_per_s=1.0, draft_tokens_per_s=2.0)  # 10 s and 5 s
    fast = result(id="fast", kind="copy", plain_tokens_per_s=10.0, draft_tokens_per_s=1.0)  # 1 s and 10 s
    single = result(id="one token", completion_tokens=1)
    report = DecodeReport(settings={}, machine={}, prompts=[slow, fast, single])
    assert report.ratio() == pytest.approx(11 / 15)
    assert report.ratio("open") == pytest.approx(2.0)
    assert DecodeReport({}, {}, [single]).ratio() is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [1], 0), ([1, 2, 3], [1], 1)],
)
def test_first_difference(a, b, expected):
    assert first_difference(a, b) == expected


def test_builtin_prompts_are_varied():
    prompts = builtin_prompts()
    assert len({p.id for p in prompts}) == len(prompts)
    assert {p.kind for p in prompts} == {"open", "copy"}


def test_json_on_standard_output_is_alone_there(report, capsys):
    show(report, BenchOptions(json_file="-"))
    out, err = capsys.readouterr()
    assert json.loads(out)["scenario"] == "decode"
    assert "summarise" in err


def test_table_and_json_file(report, capsys, tmp_path):
    file = tmp_path / "decode.json"
    show(report, BenchOptions(json_file=str(file)))
    out, err = capsys.readouterr()
    assert "3.00" in out
    assert err == ""
    assert json.loads(file.read_text())["settings"]["model"] == "smollm2-135m-instruct"


def test_plot_needs_matplotlib_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr("litspec.bench.scenario.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'litspec\[bench\]'"):
        BenchOptions(plot_file="ratios.png")


def test_plot(report, tmp_path):
    pytest.importorskip("matplotlib")
    draw_ratios(report, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").stat().st_size > 1000


def test_bench_without_a_draft_is_refused():
    with pytest.raises(ValueError, match="draft was none"):
        run_scenario(BenchOptions(), EngineConfig(draft="none"))


def test_output_folder_must_exist(tmp_path):
    with pytest.raises(ValueError, match="folder that does not exist"):
        BenchOptions(json_file=str(tmp_path / "missing" / "x.json"))
