"""EngineStats: its definitions, and that the totals of a run are the sums of what its requests say.

Cases: MT-01, MT-02, MT-03 (the counters of all requests), MT-09 (with n).
"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litspec.draft import NgramProposer
from litspec.engine.stats import RequestStats
from litspec.engine.totals import SECONDS, EngineStats, Histogram
from tests.engine.scripted import Letters, ScriptedProposer, ScriptedTarget
from tests.engine.support import DRAFTS, ask, make_engine, random_prompt, run
from tests.engine.test_exactness import eight


def drafts(drafted: int, lengths: list[int]) -> EngineStats:
    stats = EngineStats(4)
    for accepted in lengths:
        stats.count_round(rows=1, width=drafted + 1, draft_s=0.5, target_s=2.0)
        stats.count_draft(drafted=drafted, accepted=accepted)
    return stats


@given(values=st.lists(st.floats(0, 100), max_size=30))
def test_a_histogram_counts_every_value_once_in_the_first_bucket_that_holds_it(values):
    histogram = Histogram((0.5, 1.0, 20.0))
    for value in values:
        histogram.observe(value)
    lower = (-math.inf, 0.5, 1.0, 20.0)
    upper = (0.5, 1.0, 20.0, math.inf)
    assert histogram.counts == [sum(a < v <= b for v in values) for a, b in zip(lower, upper, strict=True)]
    assert histogram.num_observations == len(values)
    assert histogram.mean == (pytest.approx(sum(values) / len(values)) if values else None)


def test_histograms_do_not_share_their_counts():
    first, second = EngineStats(1), EngineStats(1)
    first.ttft_s.observe(0.1)
    assert (first.queue_s.num_observations, second.ttft_s.num_observations) == (0, 0)
    assert list(SECONDS) == sorted(SECONDS) and len(first.ttft_s.counts) == len(SECONDS) + 1


def test_MT_01_the_ratios_of_all_requests():
    stats = drafts(3, [0] * 20 + [1] * 5 + [2] * 3 + [3] * 4)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (32, 96, 23)
    assert stats.acceptance_rate == pytest.approx(0.2395833, abs=1e-7)
    assert (stats.rounds, stats.rounds_by_width, stats.draft_s, stats.target_s) == (32, {4: 32}, 16.0, 64.0)


def test_MT_02_accepted_tokens_by_position():
    stats = drafts(3, [3, 1, 0, 3])
    assert stats.num_accepted_tokens_per_pos == [3, 2, 2]
    stats.count_draft(drafted=5, accepted=4)
    stats.count_draft(drafted=0, accepted=0)
    assert stats.num_accepted_tokens_per_pos == [4, 3, 3, 1, 0]
    assert stats.num_drafts == 5, "a round without a draft is none"


def test_MT_03_a_request_counts_from_zero_while_the_totals_add_up():
    script, lengths = (lambda tokens: len(tokens) % 20), [2, 0, 1]
    proposer = ScriptedProposer(script, lambda name, step, limit: (4, lengths[step]))
    engine = make_engine(ScriptedTarget(script), draft=proposer)
    for number in (1, 2, 3):
        row = ask(f"{number}", [1, 2], eos=[8], max_new_tokens=50)  # the prefill gives 2, three rounds 3 to 8
        stats = run(engine, [row])[0].stats
        assert (stats.drafted, stats.accepted, stats.acceptance_rate, stats.emitted_by_rounds) == (12, 3, 0.25, 6)
        totals = engine.stats
        assert (totals.num_drafts, totals.num_draft_tokens) == (3 * number, 12 * number)
        assert (totals.num_accepted_tokens, totals.acceptance_rate) == (3 * number, 0.25)
        assert totals.num_accepted_tokens_per_pos == [2 * number, number, 0, 0]
        assert (totals.generated_tokens, totals.rounds, totals.prompt_tokens) == (7 * number, 3 * number, 2 * number)
        assert totals.finished == {"stop": number}


@pytest.mark.parametrize("num_right", [0, 2, 5])
def test_MT_09_usage_of_several_answers_is_what_they_return(num_right):
    """Two answers of one prompt end by a stop string in a block, a third by an end of text, a fourth by its limit."""
    script = lambda tokens: (tokens[-1] + 1) % 26  # noqa: E731
    proposer = ScriptedProposer(script, lambda name, step, limit: (5, num_right))
    engine = make_engine(ScriptedTarget(script), draft=proposer, num_draft_tokens=5)
    rows = [
        *(ask(f"n{i}", [1, 2], text=Letters(), stop="jk", n=2, choice=i) for i in range(2)),
        ask("eos", [2], text=Letters(), eos=[8]),
        ask("length", [2], text=Letters(), max_new_tokens=9),
    ]
    completions = run(engine, rows)
    assert [c.completion_tokens for c in completions] == [len(c.token_ids) for c in completions] == [8, 8, 6, 9]
    assert [c.text for c in completions] == ["defghi", "defghi", "defgh", "defghijkl"]
    assert engine.stats.generated_tokens == 31
    assert engine.stats.num_accepted_tokens == sum(c.stats.accepted for c in completions)
    assert engine.stats.num_accepted_tokens <= 31 - 4, "what lies behind a stop is not accepted"
    assert (engine.stats.num_accepted_tokens == 0) == (num_right == 0)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_totals_are_the_sums_over_the_requests(draft):
    engine = make_engine(draft=draft, slots=3)
    completions = run(engine, eight("sampled"))
    stats = engine.stats
    assert stats.generated_tokens == sum(c.completion_tokens for c in completions)
    assert stats.prompt_tokens == sum(c.prompt_tokens for c in completions)
    assert stats.cached_tokens == sum(c.stats.cached_tokens for c in completions)
    assert stats.num_draft_tokens == sum(c.stats.drafted for c in completions)
    assert stats.num_accepted_tokens == sum(c.stats.accepted for c in completions)
    assert stats.rows == sum(c.stats.rounds for c in completions)
    assert sum(stats.rounds_by_width.values()) == stats.rounds <= stats.steps
    assert stats.occupancy == pytest.approx(stats.rows / stats.rounds / 3) and 0.5 < stats.occupancy <= 1.0
    assert stats.finished == {"length": 8}
    per_position = [sum(x) for x in zip(*(_padded(c.stats.accepted_counts) for c in completions), strict=True)]
    assert _padded(stats.num_accepted_tokens_per_pos) == per_position
    assert stats.queue_s.num_observations == stats.ttft_s.num_observations == 8
    assert stats.tpot_s.num_observations == 7, "one has a single token"
    assert stats.ttft_s.total == pytest.approx(sum(c.stats.ttft_s for c in completions))
    assert stats.tpot_s.total == pytest.approx(sum(c.stats.tpot_s or 0 for c in completions))
    assert stats.prefill_s > 0 and stats.target_s > 0 and (stats.draft_s > 0) == (stats.rounds > 0)
    assert sum(c.stats.target_s for c in completions) >= stats.target_s
    public = json.loads(json.dumps(stats.to_dict(), allow_nan=False))
    assert public["ttft_s"]["count"] == sum(public["ttft_s"]["counts"]) == 8
    assert public["acceptance_rate"] == stats.acceptance_rate
    assert list(public["rounds_by_width"]) == [str(width) for width in sorted(stats.rounds_by_width)]


def _padded(counts: list[int]) -> list[int]:
    return [*counts, *[0] * (4 - len(counts))]


def test_the_occupancy_is_the_mean_share_of_slots_in_a_round():
    engine = make_engine(ScriptedTarget(lambda tokens: 1), slots=4)
    assert engine.stats.occupancy is None and engine.stats.acceptance_rate is None
    run(engine, [ask(f"{n}", [2], max_new_tokens=n) for n in (5, 3, 1)])
    assert (engine.stats.rounds, engine.stats.rows, engine.stats.occupancy) == (4, 6, 6 / 16)
    assert engine.stats.rounds_by_width == {1: 4}


def test_each_way_to_end_is_counted_and_counters_never_fall():
    engine = make_engine(ScriptedTarget(lambda tokens: 1), draft=NgramProposer(min_n=1), slots=2)
    before: dict = {}
    for number, how in enumerate(("abort", "fail", "stop", "length", "queued abort")):
        row = ask(f"{number}", [*random_prompt(30, seed=1, vocab_size=60)], text=Letters(), max_new_tokens=30)
        if how == "stop":
            row = ask(f"{number}", row.prompt_ids, eos=[1])
        engine.add_request(row)
        if how != "queued abort":
            engine.step()
        if how == "fail":
            engine.fail(row.id, "gone")
        elif "abort" in how:
            engine.abort(row.id)
        while engine.has_active_requests():
            engine.step()
        now = {k: v for k, v in engine.stats.to_dict().items() if isinstance(v, int)}
        assert all(now[name] >= value for name, value in before.items())
        before = now
    assert engine.stats.finished == {"abort": 2, "error": 1, "stop": 1, "length": 1}
    assert engine.stats.queue_s.num_observations == 4, "one never had a slot"


def test_time_per_token_is_counted_after_the_first():
    stats = RequestStats()
    assert stats.tpot_s is None
    stats.count_tokens(1, 10.0, arrival_s=4.0)
    assert (stats.ttft_s, stats.tpot_s) == (6.0, None)
    stats.count_tokens(3, 11.5, arrival_s=4.0)
    assert (stats.tpot_s, stats.decode_tokens_per_s, stats.to_dict()["tpot_s"]) == (0.5, 2.0, 0.5)


def test_a_snapshot_stays_as_it_was():
    stats = drafts(3, [3, 1])
    stats.finished["stop"] = 1
    before = stats.to_dict()
    stats.count_draft(drafted=3, accepted=3)
    stats.finished["stop"] = 2
    assert (before["finished"], before["num_accepted_tokens_per_pos"]) == ({"stop": 1}, [2, 1, 1])
