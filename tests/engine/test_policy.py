"""The width policy: it loses at most 3 % against the best fixed width on recorded answers, whatever rounds cost."""

from __future__ import annotations

import pytest

from litspec.draft import DraftCost
from litspec.engine.acceptance import AcceptanceTracker, shown
from litspec.engine.costs import CostTable
from litspec.engine.options import MAX_AUTO_DRAFT_TOKENS
from litspec.engine.policy import PROBE_SHARE, WidthPolicy, choose_width
from tests.engine.policy_cases import made_up_cases, other_machine_cases, recorded_cases
from tests.engine.rounds_of_traces import SHAPES, regret, replay

MOST_REGRET = 0.03
FLAT = CostTable({(rows, width): 1.0 for rows in SHAPES.row_buckets for width in SHAPES.step_widths})
LINEAR = CostTable({(rows, width): float(rows * width) for rows in SHAPES.row_buckets for width in SHAPES.step_widths})


@pytest.mark.parametrize("cases", [recorded_cases, other_machine_cases, made_up_cases])
def test_regret_is_three_per_cent_at_most(cases):
    regrets = {case.name: regret(case.traces, case.costs, rows=case.rows, is_free=case.is_free)[0] for case in cases()}
    worst = max(regrets, key=regrets.__getitem__)
    print(f"{len(regrets)} cases, mean regret {sum(regrets.values()) / len(regrets):.2%}, worst {regrets[worst]:.2%}")
    assert regrets[worst] <= MOST_REGRET, worst


def outlooks(policy: WidthPolicy, observed: list[tuple[int, int]], *, limits=(7,), **given):
    """Return the outlooks of rows that all saw the same rounds of (drafted, accepted)."""
    tracker = AcceptanceTracker()
    for drafted, accepted in observed:
        tracker.observe(drafted, accepted)
    return [policy.outlook(tracker, limit, **given) for limit in limits]


def test_what_is_always_right_is_drafted_as_far_as_it_goes_and_what_never_is_not_at_all():
    policy = WidthPolicy(FLAT, SHAPES)
    assert choose_width(outlooks(policy, [(7, 7)] * 40), FLAT, SHAPES).num_draft_tokens == 7
    assert choose_width(outlooks(policy, [(7, 0)] * 40), LINEAR, SHAPES).num_draft_tokens == 0


@pytest.mark.parametrize("limits", [(0,), (3,), (2, 5), (0, 0, 1), (7, 7, 7, 7, 7, 7, 7, 7)])
def test_no_row_drafts_beyond_its_limit_and_the_choice_fills_a_width(limits):
    policy = WidthPolicy(FLAT, SHAPES)
    rows = outlooks(policy, [(7, 5)] * 20, limits=limits)
    chosen = choose_width(rows, FLAT, SHAPES).num_draft_tokens
    assert all(row.num_drafted(chosen) <= limit for row, limit in zip(rows, limits, strict=True))
    assert chosen <= max(limits)
    assert chosen + 1 in SHAPES.step_widths or chosen == max(limits)


def test_a_row_that_named_its_own_number_keeps_it_and_the_others_go_along():
    policy = WidthPolicy(LINEAR, SHAPES)
    own = policy.outlook(AcceptanceTracker(), 5, is_fixed=True)
    poor = outlooks(policy, [(7, 0)] * 40)[0]
    chosen = choose_width([own, poor], LINEAR, SHAPES).num_draft_tokens
    assert own.num_drafted(chosen) == 5
    assert choose_width([own], LINEAR, SHAPES).num_draft_tokens == 0, "nobody is left to choose for"


def test_catching_up_counts_and_more_so_where_little_is_left_to_pay_for_it():
    costs = CostTable(FLAT.step_s, {rows: DraftCost(0.1, 0.1, 5.0) for rows in SHAPES.row_buckets})
    policy = WidthPolicy(costs, SHAPES)
    for num_remaining, drafts in ((2000, True), (8, False)):
        rows = outlooks(policy, [(7, 6)] * 30, lag_chunks=3, num_remaining=num_remaining)
        assert (choose_width(rows, costs, SHAPES).num_draft_tokens > 0) == drafts


def test_what_no_longer_pays_is_given_up_and_tried_again_now_and_then():
    bad_then_good = "0" * 600 + "7654321" * 200
    policy = WidthPolicy(CostTable.assumed(SHAPES, DraftCost(0.3, 0.3, 0.3)), SHAPES)
    bad = replay(["0" * 600], policy.costs, rows=1, policy=policy, is_free=False)
    assert 0 < sum(bad.chosen[1:]) < 0.1 * sum(bad.chosen)
    fresh = WidthPolicy(policy.costs, SHAPES)
    both = replay([bad_then_good], policy.costs, rows=1, policy=fresh, is_free=False)
    assert sum(both.chosen[1:]) > 100, "it noticed that drafts had become good"


def test_trying_costs_its_share_of_the_time_and_no_more():
    costs = CostTable(LINEAR.step_s, {rows: DraftCost(1.0, 1.0, 1.0) for rows in SHAPES.row_buckets})
    never_right = "0" * 5000
    plain = replay([never_right], costs, rows=1, fixed=0, is_free=False)
    policy = replay([never_right], costs, rows=1, policy=WidthPolicy(costs, SHAPES), is_free=False)
    assert policy.seconds_per_token / plain.seconds_per_token - 1.0 < 2 * PROBE_SHARE


def test_the_choice_is_the_same_for_the_same_observations():
    runs = []
    for _ in range(2):
        policy = WidthPolicy(CostTable.assumed(SHAPES), SHAPES)
        runs.append(replay(["0123456710" * 30], policy.costs, rows=2, policy=policy, is_free=True).chosen)
    assert runs[0] == runs[1] and len(runs[0]) == MAX_AUTO_DRAFT_TOKENS + 1


@pytest.mark.parametrize(
    ("draft", "block", "expected"),
    [
        ([], [5], (0, 0)),
        ([5, 6, 7], [5, 6, 7, 8], (3, 3)),
        ([5, 6, 7], [5, 9], (2, 1)),
        ([5, 6, 7], [4], (1, 0)),
        ([5, 6, 7], [5], (1, 1)),
    ],
)
def test_a_block_shows_the_truth_of_a_draft_as_far_as_it_goes(draft, block, expected):
    assert shown(draft, block) == expected


def test_rates_follow_what_was_seen_and_forget_what_is_old():
    tracker = AcceptanceTracker()
    for _ in range(200):
        tracker.observe(3, 3)
    assert tracker.first.estimate(0.0).mean > 0.85
    for _ in range(100):
        tracker.observe(3, 0)
    assert tracker.first.estimate(1.0).mean < 0.2
    assert tracker.following.estimate(0.5).mean > 0.0
