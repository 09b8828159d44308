"""Cost tables: complete, sane whatever a busy machine measured, and measured without a trace in any slot."""

from __future__ import annotations

import random

import pytest
import torch

from litspec.draft import DraftCost
from litspec.engine.costs import CostTable, measure_costs, smooth
from litspec.model.window import Shapes
from tests.engine.support import make_engine, tiny_model

SHAPES = Shapes.plan(max_batch_size=8, num_draft_tokens=7)
PAIRS = {(rows, width) for rows in SHAPES.row_buckets for width in SHAPES.step_widths}


def test_the_assumed_table_knows_every_step_and_grows():
    table = CostTable.assumed(SHAPES, DraftCost(0.1, 0.2, 0.3))
    assert set(table.step_s) == PAIRS
    for rows, width in PAIRS:
        assert all(table.step_s[rows, width] <= s for (r, w), s in table.step_s.items() if r >= rows and w >= width)
    assert table.round_s(1, 4, 3) == pytest.approx(table.step_s[1, 4] + 0.1 + 2 * 0.2)
    assert table.round_s(1, 1, 0) == table.step_s[1, 1], "no draft, no cost of one"
    assert table.chunk_s(1) == pytest.approx(0.3)


@pytest.mark.parametrize("seed", range(10))
def test_noise_cannot_make_a_wider_step_cheaper_or_dearer_than_two_that_do_its_work(seed):
    chance = random.Random(seed)
    noisy = {(rows, width): (1 + 0.1 * rows * width) * chance.choice([1, 1, 1, 2, 4]) for rows, width in PAIRS}
    table = smooth(noisy)
    assert set(table) == PAIRS
    for (rows, width), s in table.items():
        assert s <= noisy[rows, width]
        assert all(s <= wider for (r, w), wider in table.items() if r >= rows and w >= width)
        assert s <= 2 * table[rows, max(w for w in SHAPES.step_widths if w <= max(1, width // 2))] or width % 2


@pytest.mark.parametrize("draft", [None, "ngram", "model", "early-exit:2"])
def test_measuring_covers_every_step_and_leaves_the_slots_alone(draft):
    engine = make_engine(tiny_model(), draft=draft, num_draft_tokens=7, slots=4)
    cache = engine.cache
    for tensor in (*cache.k, *cache.v):
        tensor.normal_(generator=torch.Generator().manual_seed(1))
    before = [tensor[:-1].clone() for tensor in (*cache.k, *cache.v)]
    with torch.inference_mode():
        table = measure_costs(engine.target, cache, engine.shapes, engine.proposer)
    assert set(table.step_s) == {(rows, width) for rows in (1, 2, 4) for width in engine.shapes.step_widths}
    assert all(seconds > 0 for seconds in table.step_s.values())
    assert all(torch.equal(t[:-1], was) for t, was in zip((*cache.k, *cache.v), before, strict=True))
    assert cache.fed_S[:-1].tolist() == [0] * cache.num_slots
    if draft in ("model", "early-exit:2"):
        assert all(cost.first_s > 0 and cost.step_s > 0 for cost in table.draft.values())
    assert (table.chunk_s(4) > 0) == (draft == "model")
