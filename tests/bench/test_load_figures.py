"""Percentiles, paired ratios, bounds and ties, from numbers that are written here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from litspec.bench.figures import ArmFigures, Spread, percentile
from litspec.bench.load import LoadReport
from litspec.bench.ties import Answer, Sameness, compare, is_tie
from litspec.bench.traffic import Question
from litspec.bench.workload import AUTO
from litspec.ops.noise import gumbel_noise
from tests.bench.load_support import level_of, run_of
from tests.engine.support import tiny_gpt


class TestFigures:
    def test_percentile(self):
        assert percentile([3.0, 1.0, 2.0], 50) == 2.0
        assert percentile([1.0, 2.0], 95) == pytest.approx(1.95)
        assert percentile([5.0], 95) == 5.0
        assert percentile(range(101), 95) == 95.0

    def test_spread(self):
        assert Spread.of([1.0, None, 2.0, 6.0]) == Spread(3.0, 2.0, pytest.approx(5.6))
        assert Spread.of([None]) is None

    def test_an_arm_sums_up_its_repeats(self):
        figures = ArmFigures.of([run_of(2.0), run_of(8.0), run_of(4.0)])
        assert (figures.tokens_per_s, figures.runs) == (pytest.approx(4.0), pytest.approx([2.0, 8.0, 4.0]))
        assert figures.decode_runs == pytest.approx([4.0, 16.0, 8.0])
        assert figures.decode_tokens_per_s == pytest.approx(8.0)
        assert figures.ttft_s == Spread(1.0, 1.0, 1.0)
        assert figures.tpot_s is not None
        assert figures.tpot_s.median == pytest.approx(2 / 9)
        assert (figures.longest_gap_s, figures.acceptance_length) == (2.0, 9 / 4)

    def test_a_ratio_is_the_median_of_the_pairs(self):
        # The ratio of the medians would be 20 / 10; the pairs' own ratios are 0.5, 2 and 3.
        level = level_of(d0=[10.0, 10.0, 20.0], auto=[5.0, 20.0, 60.0])
        assert level.ratio(AUTO, 0) == pytest.approx(2.0)
        assert level_of(d0=[10.0, 40.0, 4.0], auto=[5.0, 20.0, 60.0]).ratio(AUTO, 0) == pytest.approx(0.5)

    def test_best_arms(self):
        level = level_of(d0=[5.0, 5.0], d1=[4.0, 4.0], d3=[4.5, 4.5], auto=[4.8, 4.8])
        assert (level.best_fixed, level.best_other) == (3, 0)
        figures = level.to_dict()
        assert (figures["best_fixed"], figures["best"]) == ("3", "off")
        assert figures["auto_over_best_fixed"] == pytest.approx(4.8 / 4.5)
        assert figures["auto_over_best"] == figures["auto_over_off"] == pytest.approx(4.8 / 5.0)

    def test_decoding_has_a_best_arm_of_its_own(self):
        level = level_of(d0=[5.0], d3=[4.0], auto=[4.8])
        swift = replace(level.arms[3], decode_tokens_per_s=20.0, decode_runs=[20.0])
        level = replace(level, arms={**level.arms, 3: swift})
        assert level.best_other == 0
        assert level.decode_ratio == pytest.approx(9.6 / 20.0)
        assert level_of(d0=[5.0]).decode_ratio is None

    def test_without_an_arm_there_is_no_ratio(self):
        level = level_of(d0=[5.0])
        assert (level.best_fixed, level.best_other, level.ratio(AUTO, 0)) == (None, 0, None)
        assert level_of(auto=[5.0]).to_dict()["auto_over_best"] is None

    def test_worst_ratio_is_of_closed_levels(self):
        good, bad = level_of(d0=[1.0], auto=[1.1]), level_of(d0=[1.0], auto=[0.9])
        opened = level_of(kind="open", d0=[1.0], auto=[0.5])
        report = LoadReport({}, {}, [good, bad, opened], Sameness(0, []), None)
        assert report.worst_ratio == pytest.approx(0.9)


class TestTies:
    def question(self, temperature: float = 0.0) -> Question:
        return Question([5, 6, 7], 8, temperature, seed=11)

    def test_a_planted_difference_is_counted(self):
        gpt = tiny_gpt()
        question = self.question()
        answers = [
            Answer(0, "1 in flight", "off", 0, [1, 2, 3]),
            Answer(0, "1 in flight", "auto", 0, [1, 2, 3]),
            Answer(0, "2 in flight", "3", 1, [1, 9, 3]),
            Answer(0, "2 in flight", "auto", 1, [1, 2]),
        ]
        sameness = compare(gpt, [question], answers)
        assert (sameness.num_compared, sameness.num_equal, sameness.num_ties) == (3, 1, 0)
        first, second = sameness.differences
        assert (first.level, first.arm, first.repeat, first.index, first.is_tie) == ("2 in flight", "3", 1, 1, False)
        assert (second.arm, second.index, second.is_tie) == ("auto", 2, False)
        assert str(sameness) == "same tokens: 1 of 3, 0 ties"

    @pytest.mark.parametrize("temperature", [0.0, 0.7])
    def test_a_tie_is_where_both_are_nearly_the_best(self, temperature):
        question = self.question(temperature)
        gpt = tiny_gpt(dtype=torch.float32)
        scores_V = gpt(torch.tensor([[5, 6, 7, 1]]))[0, -1].double()
        if temperature:
            noise = gumbel_noise(torch.tensor([11]), torch.tensor([[4]]), torch.arange(len(scores_V)))[0, 0]
            scores_V = scores_V / temperature + noise
        best, second, *_ = scores_V.argsort(descending=True).tolist()
        shift = torch.zeros(len(scores_V))
        shift[second] = (scores_V[best] - scores_V[second]) * (temperature or 1.0)

        def nearly_tied(idx: torch.Tensor) -> torch.Tensor:
            return gpt(idx) + shift

        nearly_tied.device, nearly_tied.dtype = gpt.device, gpt.dtype  # type: ignore[attr-defined]
        assert not is_tie(gpt, question, [1], (best, second))
        assert is_tie(nearly_tied, question, [1], (best, second))  # type: ignore[arg-type]
        third = scores_V.argsort(descending=True).tolist()[2]
        assert not is_tie(nearly_tied, question, [1], (best, third))  # type: ignore[arg-type]
