"""What a round costs: measured on the scratch slot, and made plausible where the machine was busy."""

from __future__ import annotations

import random

import pytest
import torch

from litspec.draft import DraftCost, EarlyExitProposer, ModelProposer, NgramProposer
from litspec.engine.costs import CostTable, measure_costs, smooth
from litspec.model.window import Shapes
from tests.engine.scripted import ScriptedTarget, Spy
from tests.engine.support import make_engine, tiny_model

SHAPES = Shapes((1, 3), (1, 2, 5), (4,))
TRUE_S = {(rows, width): 0.01 + 0.002 * rows * width for rows in (1, 2, 4, 8) for width in (1, 2, 3, 4, 6, 8)}


def test_every_step_is_fed_to_the_scratch_slot_and_nothing_else_changes():
    target = Spy(ScriptedTarget(lambda tokens: 1))
    cache = target.new_cache(3)
    before = cache.k[0].clone()
    costs = measure_costs(target, cache, SHAPES, NgramProposer())
    assert set(costs.step_s) == {(rows, width) for rows in (1, 3) for width in (1, 2, 5)} == set(target.shapes)
    assert all(s > 0 for s in costs.step_s.values())
    assert {slot for _, _, slots in target.calls for slot in slots} == {cache.scratch_slot}
    assert cache.k[0][: cache.num_slots].equal(before[: cache.num_slots])
    assert cache.fed_S[: cache.num_slots].tolist() == [0, 0, 0]
    assert costs.round_s(3, 5, 4) == costs.step_s[3, 5]


@pytest.mark.parametrize("draft", ["model", "early-exit"])
def test_drafting_is_measured_too(draft):
    target = tiny_model()
    cache = target.new_cache(3)
    if draft == "model":
        proposer = ModelProposer(tiny_model(n_layer=1), num_slots=3, shapes=SHAPES, vocab_size=target.vocab_size)
    else:
        proposer = EarlyExitProposer(target, cache, num_layers=1, shapes=SHAPES)
    costs = measure_costs(target, cache, SHAPES, proposer)
    for rows in SHAPES.row_buckets:
        assert costs.draft[rows].first_s > 0 and costs.draft[rows].step_s >= 0
        assert (costs.chunk_s(rows) > 0) is (draft == "model")
        assert costs.round_s(rows, 2, 1) > costs.step_s[rows, 2]
    assert cache.fed_S[: cache.num_slots].tolist() == [0, 0, 0]


def test_without_time_the_corners_are_timed_and_the_rest_lies_between():
    shapes = Shapes((1, 2, 3), (1, 2, 5), (4,))
    target = Spy(ScriptedTarget(lambda tokens: 1))
    cache = target.new_cache(3)
    costs = measure_costs(target, cache, shapes, budget_s=0.0)
    assert set(target.shapes) == {(1, 1), (1, 5), (3, 1), (3, 5)}
    assert set(costs.step_s) == {(rows, width) for rows in (1, 2, 3) for width in (1, 2, 5)}
    assert costs.step_s[1, 1] <= costs.step_s[2, 2] <= costs.step_s[3, 5]


def test_without_time_drafts_of_the_least_and_the_most_rows_are_timed():
    measured = []

    class Timed(NgramProposer):
        def measure(self, num_rows: int) -> DraftCost:
            measured.append(num_rows)
            return DraftCost(num_rows, 2.0 * num_rows, 0.0)

    target = ScriptedTarget(lambda tokens: 1)
    shapes = Shapes((1, 2, 3), (1, 2), (4,))
    costs = measure_costs(target, target.new_cache(3), shapes, Timed(), budget_s=0.0)
    assert measured == [1, 3] and costs.draft[2] == DraftCost(2.0, 4.0, 0.0)


@pytest.mark.parametrize("shapes", [Shapes((1,), (1,), (4,)), Shapes((2,), (1, 3), (4,)), Shapes((1, 2), (4,), (4,))])
def test_few_shapes_are_measured_as_well(shapes):
    target = ScriptedTarget(lambda tokens: 1)
    costs = measure_costs(target, target.new_cache(2), shapes, budget_s=0.0)
    assert len(costs.step_s) == len(shapes.row_buckets) * len(shapes.step_widths)


def test_a_round_costs_its_drafting_and_its_step():
    costs = CostTable({(1, 1): 1.0, (1, 4): 1.5}, {1: DraftCost(0.3, 0.2, 0.9)})
    assert costs.round_s(1, 1, 0) == 1.0
    assert costs.round_s(1, 4, 1) == pytest.approx(1.8)
    assert costs.round_s(1, 4, 3) == pytest.approx(2.2)
    assert costs.chunk_s(1) == 0.9


def test_true_figures_are_left_as_they_are():
    assert smooth(TRUE_S) == TRUE_S


@pytest.mark.parametrize("slow", list(TRUE_S), ids=str)
def test_one_figure_that_is_far_too_large_is_brought_near_the_truth(slow):
    found = smooth({**TRUE_S, slow: 5 * TRUE_S[slow]})
    for pair, seconds in TRUE_S.items():
        assert seconds <= found[pair] + 1e-12 and found[pair] <= 2.0 * seconds


@pytest.mark.parametrize("seed", range(5))
def test_a_narrower_step_never_costs_more(seed):
    chance = random.Random(seed)
    found = smooth({pair: seconds * chance.uniform(1.0, 3.0) for pair, seconds in TRUE_S.items()})
    for (rows, width), seconds in found.items():
        assert all(seconds <= other for (r, w), other in found.items() if r >= rows and w >= width)


def test_an_assumed_table_has_every_step_and_grows():
    costs = CostTable.assumed(SHAPES, DraftCost(0.3, 0.2, 0.5))
    assert set(costs.step_s) == {(rows, width) for rows in (1, 3) for width in (1, 2, 5)}
    assert costs.step_s[1, 1] == 1.0 < costs.step_s[1, 2] < costs.step_s[1, 5] < costs.step_s[3, 5]
    assert costs.draft[1] == DraftCost(0.3, 0.2, 0.5) and costs.draft[3].first_s > 0.3
    assert CostTable.assumed(SHAPES).round_s(1, 5, 4) == costs.step_s[1, 5]


def test_noise_over_the_vocabulary_is_timed():
    engine = make_engine(num_draft_tokens=3, draft="ngram", slots=2)
    with torch.inference_mode():
        assert measure_costs(engine.target, engine.cache, engine.shapes, engine.proposer).noise_s > 0
