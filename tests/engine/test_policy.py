"""The choice of widths, on recorded traces and on rows made by hand; no model runs here."""

from __future__ import annotations

import pytest

from litspec.draft import DraftCost
from litspec.engine.acceptance import AcceptanceTracker, RowOutlook, shown
from litspec.engine.costs import CostTable
from litspec.engine.policy import PROBE_SHARE, WidthPolicy, choose_width
from litspec.model.window import Shapes
from tests.engine.policy_cases import made_up_cases, made_up_trace, other_machine_cases, recorded_cases
from tests.engine.rounds_of_traces import SHAPES, load_traces, measured_costs, regret, replay

ALLOWED_REGRET = 0.03


def costs_of(share: float, draft: DraftCost | None = None, shapes: Shapes = SHAPES) -> CostTable:
    """Return a table in which a further token of a step costs so many plain steps of one row."""
    pairs = [(rows, width) for rows in shapes.row_buckets for width in shapes.step_widths]
    steps = {(rows, width): 1.0 + share * (rows * width - 1) for rows, width in pairs}
    return CostTable(steps, dict.fromkeys(shapes.row_buckets, draft or DraftCost()))


def row(limit: int = 7, rate: float = 0.5, **more) -> RowOutlook:
    """Return a row all of whose draft tokens are right with one probability, as far as is certain."""
    outlook = WidthPolicy(costs_of(0.0), SHAPES).outlook(AcceptanceTracker(), limit, **more)
    certain = outlook.first._replace(mean=rate, error=0.0)
    return RowOutlook(limit, certain, certain, **more)


def test_noise_costs_at_every_position_and_only_where_a_row_samples():
    costs = CostTable(costs_of(0.01).step_s, noise_s=0.3)
    greedy, sampled = row(rate=0.6), row(rate=0.6, is_noisy=True)
    assert (
        choose_width([sampled], costs, SHAPES).num_draft_tokens < choose_width([greedy], costs, SHAPES).num_draft_tokens
    )


@pytest.mark.parametrize("case", list(recorded_cases()), ids=lambda case: case.name)
def test_regret_on_recorded_traces_with_the_measured_costs(case):
    found, best, _ = regret(case.traces, case.costs, rows=case.rows, is_free=case.is_free)
    assert found <= ALLOWED_REGRET, f"{found:.1%} worse than {best} draft tokens in every round"


@pytest.mark.parametrize("case", [*other_machine_cases(), *made_up_cases()], ids=lambda case: case.name)
def test_regret_on_other_machines_and_with_drafts_that_change(case):
    found, best, _ = regret(case.traces, case.costs, rows=case.rows, is_free=case.is_free)
    assert found <= ALLOWED_REGRET, f"{found:.1%} worse than {best} draft tokens in every round"


def test_it_gains_where_drafts_change():
    traces = [made_up_trace(lambda request, position: 0.95 if position < 150 else 0.05, i) for i in range(8)]
    found, _, _ = regret(traces, costs_of(0.15, DraftCost(0.15, 0.15)), rows=1, is_free=False)
    assert found < -0.02


def test_the_same_rounds_are_chosen_the_same_way_again():
    traces, costs = load_traces("ngram"), measured_costs(drafts=False)
    first, second = (replay(traces, costs, rows=4, policy=WidthPolicy(costs, SHAPES)) for _ in range(2))
    assert first == second and sum(count > 0 for count in first.chosen) > 2


@pytest.mark.parametrize("num_rows", [1, 3, 8])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.06, 0.5])
def test_the_best_of_the_numbers_that_fill_a_width_is_chosen(num_rows, rate, share):
    costs = costs_of(share, DraftCost(0.1, 0.05))
    rows = [row(rate=rate) for _ in range(num_rows)]
    bucket = SHAPES.row_bucket(num_rows)
    tokens = [num_rows * sum(rate**place for place in range(g + 1)) for g in range(8)]
    per_s = {width - 1: tokens[width - 1] / costs.round_s(bucket, width, width - 1) for width in SHAPES.step_widths}
    assert per_s[choose_width(rows, costs, SHAPES).num_draft_tokens] == pytest.approx(max(per_s.values()))


@pytest.mark.parametrize(("limits", "allowed"), [([0, 0], {0}), ([2, 0], {2}), ([4, 4], {4}), ([7, 1], {7})])
def test_no_more_is_chosen_than_any_row_can_have(limits, allowed):
    rows = [row(limit, rate=1.0) for limit in limits]
    assert choose_width(rows, costs_of(0.0), SHAPES).num_draft_tokens in allowed


def test_a_row_with_its_own_number_keeps_it_and_others_use_the_width_it_pays_for():
    fixed = row(5, rate=0.0, is_fixed=True)
    costs = costs_of(0.5)
    assert choose_width([row(rate=0.3), row(rate=0.3)], costs, SHAPES).num_draft_tokens == 0
    chosen = choose_width([row(rate=0.3), fixed], costs, SHAPES).num_draft_tokens
    assert chosen == 5 and fixed.num_drafted(chosen) == fixed.num_drafted(0) == 5
    off = row(0, is_fixed=True)
    assert [off.num_drafted(g) for g in range(8)] == [0] * 8
    assert choose_width([off], costs, SHAPES, purse=9.0) == (0, 1.0, 0.0)


def test_a_row_with_good_drafts_does_not_make_many_others_slow():
    costs = costs_of(0.1)
    assert choose_width([row(rate=0.95)], costs, SHAPES).num_draft_tokens == 7
    others = [row(rate=0.05) for _ in range(7)]
    assert choose_width([row(rate=0.95), *others], costs, SHAPES).num_draft_tokens == 0


def test_a_long_way_to_catch_up_must_be_paid_for_by_what_is_left():
    costs = costs_of(0.0, DraftCost(0.1, 0.1, 1.0))
    assert choose_width([row(rate=0.8)], costs, SHAPES).num_draft_tokens > 0
    assert choose_width([row(rate=0.8, lag_chunks=30, num_remaining=10)], costs, SHAPES).num_draft_tokens == 0
    assert choose_width([row(rate=0.8, lag_chunks=30, num_remaining=1000)], costs, SHAPES).num_draft_tokens > 0


def test_rows_catch_up_together():
    costs = costs_of(0.0, DraftCost(0.1, 0.1, 1.0))
    rows = [row(rate=0.8, lag_chunks=20, num_remaining=200) for _ in range(8)]
    chosen = choose_width(rows, costs, SHAPES).num_draft_tokens
    assert chosen == choose_width(rows[:1], costs, SHAPES).num_draft_tokens > 0


def test_trying_again_takes_little_time_and_goes_on():
    costs = costs_of(0.3, DraftCost(0.3, 0.3))
    traces = [made_up_trace(lambda request, position: 0.0, 0, num_tokens=6000)]
    result = replay(traces, costs, rows=1, policy=WidthPolicy(costs, SHAPES), is_free=False)
    lost = result.seconds / 6000 - 1.0
    assert 0.5 * PROBE_SHARE < lost < 2 * PROBE_SHARE


def test_a_draft_that_gets_good_is_found():
    costs = costs_of(0.06, DraftCost(0.2, 0.2))
    policy, tracker = WidthPolicy(costs, SHAPES), AcceptanceTracker()
    chosen = []
    for step in range(1000):
        g = policy.choose([policy.outlook(tracker, 7, num_remaining=1000)])
        policy.observe(tracker, g, 0 if step < 500 else g)
        chosen.append(g)
    assert sum(g > 0 for g in chosen[100:500]) < 60
    assert all(g >= 5 for g in chosen[700:])


def test_what_all_rows_did_is_where_a_new_row_starts_and_its_own_drafts_outweigh_it():
    policy = WidthPolicy(costs_of(0.3, DraftCost(0.3, 0.3)), SHAPES)
    hopeful = policy.outlook(AcceptanceTracker(), 7)
    for _ in range(50):
        policy.observe(AcceptanceTracker(), 7, 0)
    new = policy.outlook(AcceptanceTracker(), 7)
    assert new.first.mean < 0.1 < hopeful.first.mean
    good = AcceptanceTracker()
    for _ in range(20):
        policy.observe(good, 7, 7)
    assert policy.outlook(good, 7).first.mean > 0.8


def test_old_drafts_are_forgotten():
    tracker = AcceptanceTracker(memory=16.0)
    for _ in range(100):
        tracker.observe(3, 3)
    assert tracker.first.estimate(0.5).mean > 0.85
    for _ in range(32):
        tracker.observe(3, 0)
    assert tracker.first.estimate(0.5).mean < 0.25
    worn, error = tracker.first.estimate(0.5)
    for _ in range(2000):
        tracker.observe(0, 0)
    idle = tracker.first.estimate(0.5)
    assert idle.mean == pytest.approx(0.5) and idle.error > error and worn < 0.25


@pytest.mark.parametrize(
    ("drafted", "accepted", "first", "following"),
    [
        (0, 0, (0, 0), (0, 0)),
        (3, 0, (0, 1), (0, 0)),
        (3, 1, (1, 1), (0, 1)),
        (3, 3, (1, 1), (2, 2)),
        (1, 1, (1, 1), (0, 0)),
    ],
)
def test_a_token_after_a_wrong_one_says_nothing(drafted, accepted, first, following):
    tracker, prior = AcceptanceTracker(), 0.5
    tracker.observe(drafted, accepted)
    for rate, (right, known) in ((tracker.first, first), (tracker.following, following)):
        assert rate.estimate(prior).mean == pytest.approx((right + 4 * prior) / (known + 4))


@pytest.mark.parametrize(
    ("draft", "block", "expected"),
    [
        ([], [5], (0, 0)),
        ([5, 6, 7], [5], (1, 1)),
        ([5, 6, 7], [4], (1, 0)),
        ([5, 6, 7], [5, 9], (2, 1)),
        ([5, 6], [5, 6, 9], (2, 2)),
    ],
)
def test_a_block_shows_the_truth_of_as_many_draft_tokens_as_it_has(draft, block, expected):
    assert shown(draft, block) == expected


def test_a_free_draft_that_was_not_verified_is_learnt_from():
    policy, tracker = WidthPolicy(costs_of(1.0), SHAPES), AcceptanceTracker()
    for _ in range(30):
        policy.observe(tracker, 1, 1)
    assert policy.outlook(tracker, 7).first.mean > 0.9
