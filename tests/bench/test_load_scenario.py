"""The load scenario: turns, the gap, a whole run with the `debug` model, what is shown, and the command.

No test looks at how long anything took.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from litspec.api.config import EngineConfig
from litspec.bench.gap import GapFigures, GapRun, measure_gap
from litspec.bench.load import LoadReport, check_memory, measure_load, take_turns
from litspec.bench.load_report import draw_load, load_tables
from litspec.bench.report import show
from litspec.bench.scenario import BenchOptions, run_scenario
from litspec.bench.traffic import plan_levels, plan_questions
from litspec.bench.workload import Workload
from litspec.cli import main
from litspec.engine.emission import Emission
from tests.bench.load_support import TINY, level_of, run_of, small_llm, tiny_workload


@pytest.fixture
def llm() -> Any:
    return small_llm()


def engines_of(llm: Any, workload: Workload) -> dict[Any, Any]:
    return {arm: llm.engine.twin() for arm in workload.arms}


class TestTurns:
    def test_arms_run_side_by_side_and_their_order_changes(self, tmp_path, llm, monkeypatch, capsys):
        turns: list[list[Any]] = []

        def note(loads: list[Any]) -> list[Any]:
            turns.append([load._engine for load in loads])
            return [run_of(1.0) for _ in loads]

        monkeypatch.setattr("litspec.bench.load.drive", note)
        workload = tiny_workload(tmp_path)
        levels = plan_levels(workload)
        engines = engines_of(llm, workload)
        steps: list[None] = []
        runs = take_turns(llm, engines, workload, levels, [], lambda: steps.append(None))
        assert turns == [list(engines.values())] * 3 + [list(engines.values())[::-1]] * 3
        assert len(steps) == 6
        assert {len(of_arm) for of_arm in runs.values()} == {2}
        assert "1 more repeats will take about" in capsys.readouterr().err

    def test_answers_are_the_same_in_every_arm(self, tmp_path, llm):
        workload = tiny_workload(tmp_path, arms=(0, 2, 4))
        levels = plan_levels(workload)
        questions = plan_questions(llm, workload, 3)
        runs = take_turns(llm, engines_of(llm, workload), workload, levels, questions)
        for index in range(len(levels)):
            of_arms = [[c.token_ids for c in run.completions] for arm in (0, 2, 4) for run in runs[index, arm]]
            assert all(answers == of_arms[0] for answers in of_arms)
        drafted = {arm: sum(c.stats.drafted for c in runs[1, arm][0].completions) for arm in (0, 2, 4)}
        assert drafted[0] == 0 < drafted[2] < drafted[4]


def test_caches_of_all_arms_must_fit():
    facts = {"weight_bytes": 40, "cache_bytes": 10, "draft_weight_bytes": 5, "draft_cache_bytes": 2}
    facts |= {"working_bytes": 3, "available_bytes": 84}
    check_memory(facts, 3)
    with pytest.raises(ValueError, match="the caches of 4 arms need "):
        check_memory(facts, 4)


class TestGap:
    def test_each_row_is_served_after_each_chunk(self, tmp_path, llm):
        workload = tiny_workload(tmp_path, gap_rows=3, gap_prompt_tokens=230, repeats=1)
        questions = plan_questions(llm, workload, 2)
        gap = measure_gap(llm, workload, questions)
        assert gap is not None
        assert (gap.num_rows, gap.prompt_tokens, len(gap.runs)) == (3, 230, 1)
        assert gap.empty_steps == 0
        assert not llm.engine.has_active_requests()

    def test_a_row_that_is_passed_over_is_noticed(self, tmp_path, llm, monkeypatch):
        workload = tiny_workload(tmp_path, repeats=1, gap_prompt_tokens=200)
        step, calls = llm.engine.step, []

        def step_and_lose_some() -> list[Emission]:
            calls.append(None)
            emissions = step()
            return emissions if len(calls) % 3 == 0 else []

        monkeypatch.setattr(llm.engine, "step", step_and_lose_some)
        gap = measure_gap(llm, workload, plan_questions(llm, workload, 2))
        assert gap is not None
        assert gap.empty_steps == 2

    def test_gap_may_be_left_out(self, tmp_path, llm):
        assert measure_gap(llm, tiny_workload(tmp_path, gap_rows=0), []) is None

    def test_bound_is_a_chunk_and_a_round(self):
        run = GapRun(
            longest_gap_s=0.75,
            longest_gap_before_s=0.25,
            median_round_s=0.125,
            longest_round_s=0.25,
            longest_chunk_s=0.5,
            num_chunks=6,
            empty_steps=0,
        )
        assert run.bound_s == 0.75
        late = replace(run, longest_gap_s=1.0, empty_steps=1)
        assert GapFigures(7, 1500, [run, run, late]).is_within_bound
        assert not GapFigures(7, 1500, [run, late, late]).is_within_bound
        figures = GapFigures(7, 1500, [run, run, late]).to_dict()
        assert (figures["longest_gap_s"], figures["empty_steps"], len(figures["runs"])) == (0.75, 1, 3)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> LoadReport:
    """One whole run of the `debug` model with its draft."""
    workload = tiny_workload(tmp_path_factory.mktemp("load"))
    config = EngineConfig(
        model="debug", draft="debug", dtype="float64", compile="none", max_batch_size=workload.num_slots
    )
    return measure_load(workload, config)


def printed(tables: list[Any]) -> str:
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as capture:
        console.print(*tables)
    return capture.get()


class TestReport:
    def test_every_level_has_every_arm(self, report):
        figures = report.to_dict()
        assert [level["level"] for level in figures["levels"]] == ["1 in flight", "3 in flight", "500 per s"]
        for level in figures["levels"]:
            assert list(level["arms"]) == ["off", "2", "auto"]
            assert all(len(arm["runs"]) == 2 for arm in level["arms"].values())
            assert level["auto_over_best"] > 0
        assert figures["worst_ratio"] == min(level["auto_over_best"] for level in figures["levels"][:2])
        json.dumps(figures)

    def test_answers_are_the_same(self, report):
        # 2, 3 and 3 requests in 3 arms and 2 repeats, less the first answer to each of 3 questions.
        assert report.sameness.num_compared == (2 + 3 + 3) * 3 * 2 - 3
        assert report.sameness.differences == []

    def test_closed_levels_keep_their_requests_in_flight(self, report):
        for level in report.levels[:2]:
            for arm in level.arms.values():
                assert 0.0 < arm.mean_in_flight <= level.value + 1e-9

    def test_gap_is_shown(self, report):
        assert report.gap.prompt_tokens == 300
        assert report.gap.empty_steps == 0
        assert "2 rows decode, a prompt of 300 tokens arrives" in printed(load_tables(report))

    def test_tables(self, report):
        text = printed(load_tables(report))
        assert "same tokens: 45 of 45, 0 ties" in text
        assert "lowest in flight: " in text
        for word in ("off", "auto", "1 in flight", "500 per s", "TTFT, s", "TPOT, ms", "tokens/round"):
            assert word in text
        assert len(load_tables(replace(report, gap=None))) == 2

    def test_ratios_name_the_arm_they_are_against(self, report):
        level = level_of(d0=[5.0], d3=[4.0], auto=[4.8])
        settings = {"model": "m", "draft": "d", "dtype": "float32", "workload": {"repeats": 1}}
        text = printed(load_tables(replace(report, settings=settings, levels=[level], gap=None)))
        assert "0.96 (off)" in text
        assert "1.20 (3)" in text

    def test_json_on_standard_output_is_alone_there(self, report, capsys):
        show(report, BenchOptions(scenario="load", json_file="-"))
        out, err = capsys.readouterr()
        assert json.loads(out)["scenario"] == "load"
        assert "in flight" in err

    def test_plot(self, report, tmp_path):
        pytest.importorskip("matplotlib")
        file = tmp_path / "load.png"
        show(report, BenchOptions(scenario="load", plot_file=str(file)))
        assert file.read_bytes().startswith(b"\x89PNG")
        draw_load(replace(report, levels=report.levels[:1]), tmp_path / "one.png")
        assert (tmp_path / "one.png").stat().st_size > 1000


class TestCommand:
    def test_scenario_sets_what_the_engine_needs(self, tmp_path):
        (tmp_path / "w.yaml").write_text(TINY)
        options = BenchOptions(scenario="load", workload_file=str(tmp_path / "w.yaml"), concurrency=(2, 9))
        assert options.engine_defaults() == {
            "max_batch_size": 9,
            "num_draft_tokens": "auto",
            "prefix_reuse": False,
        }
        assert BenchOptions().engine_defaults() == {"max_batch_size": 1}

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            (["--workload", "{tmp}/none.yaml"], "none.yaml cannot be read"),
            (["--workload", "{tmp}/typo.yaml"], "did you mean repeats?"),
            (["--workload", "~nobody-of-this-name/x"], "path was '~nobody-of-this-name/x'"),
            (["--json", "~nobody-of-this-name/x"], "path was '~nobody-of-this-name/x'"),
            (["--concurrency", "1,x"], "concurrency was '1,x'; allowed: integers with commas"),
            (["--concurrency", "0"], "concurrency was [0]; allowed"),
            (["--repeats", "0"], "repeats was 0; allowed"),
            (["--max-new-tokens", "1"], "max_new_tokens was 1; allowed"),
            (["--num-draft-tokens", "4"], "num_draft_tokens was 4; allowed while auto is among"),
            (["--max-batch-size", "7"], "max_batch_size was 7; allowed: at least 16, the most requests at once"),
            (["--batching", "fixed"], "batching was fixed; allowed: continuous"),
            (["--draft", "none"], "draft was none; allowed"),
            (["--scenario", "decode", "--concurrency", "2"], "concurrency was given with the scenario decode"),
            (["--scenario", "decode", "--workload", "w.yaml"], "workload was given with the scenario decode"),
            (["--scenario", "lod"], "scenario was 'lod'; allowed: decode, load"),
        ],
    )
    def test_mistakes_are_one_message_before_anything_is_loaded(self, tmp_path, capsys, monkeypatch, flags, expected):
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a model was loaded")

        monkeypatch.setattr("litspec.api.llm.LLM.load", refuse)
        (tmp_path / "typo.yaml").write_text("repeat: 3\n")
        flags = [flag.replace("{tmp}", str(tmp_path)) for flag in flags]
        scenario = [] if "--scenario" in flags else ["--scenario", "load"]
        assert main(["bench", "--model", "debug", *scenario, *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("litspec: error: ")
        assert expected in err
        assert err.count("\n") == 1

    def test_flags_reach_the_measurement(self, tmp_path, monkeypatch):
        seen: list[tuple[Workload, EngineConfig]] = []

        def measure(workload: Workload, config: EngineConfig) -> None:
            seen.append((workload, config))
            raise ValueError("measured")

        monkeypatch.setattr("litspec.bench.load.measure_load", measure)
        (tmp_path / "w.yaml").write_text(TINY)
        flags = ["--repeats", "1", "--max-new-tokens", "5", "--concurrency", "1, 2", "--max-batch-size", "6"]
        assert main(["bench", "--scenario", "load", "--workload", str(tmp_path / "w.yaml"), *flags]) == 2
        (workload, config), *_ = seen
        assert (workload.repeats, workload.max_new_tokens, workload.concurrency) == (1, (4, 5), (1, 2))
        assert (config.max_batch_size, config.num_draft_tokens, config.prefix_reuse) == (6, "auto", False)

    def test_ctrl_c_is_130(self, monkeypatch, capsys):
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("litspec.api.llm.LLM.load", interrupt)
        assert main(["bench", "--scenario", "load"]) == 130
        assert capsys.readouterr() == ("", "")

    def test_a_draft_is_needed(self):
        with pytest.raises(ValueError, match="draft was none"):
            run_scenario(BenchOptions(scenario="load"), EngineConfig(draft=None))
