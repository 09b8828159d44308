"""Statistics: the definitions of the ratios (MT-01, MT-02, MT-03), and that those of a real run add up.

MT-03's counters over all requests belong to the server's metrics, which come with that door.
"""

from __future__ import annotations

import json

import pytest

from litspec.engine.stats import RequestStats
from tests.engine.scripted import ScriptedProposer, ScriptedTarget
from tests.engine.support import DRAFTS, ask, make_engine, run
from tests.engine.test_exactness import eight


def counted(drafted: int, lengths: list[int]) -> RequestStats:
    stats = RequestStats()
    for accepted in lengths:
        stats.count_round(drafted=drafted, accepted=accepted, emitted=accepted + 1, rows=2)
    return stats


def test_MT_01_the_ratios():
    stats = counted(3, [0] * 20 + [1] * 5 + [2] * 3 + [3] * 4)
    assert (stats.rounds, stats.drafted, stats.accepted) == (32, 96, 23)
    assert stats.acceptance_rate == pytest.approx(0.2395833, abs=1e-7)
    assert stats.acceptance_length == 1.71875
    assert stats.batch_rows == 2.0


def test_MT_02_acceptance_per_position():
    stats = counted(3, [3, 1, 0, 3])
    assert stats.accepted_per_position == [0.75, 0.5, 0.5]
    assert (stats.accepted, stats.drafted, stats.acceptance_length) == (7, 12, 2.75)


def test_per_position_counts_only_the_rounds_that_drafted_so_far():
    stats = RequestStats()
    for drafted, accepted in ((1, 1), (3, 3), (2, 0), (0, 0)):
        stats.count_round(drafted=drafted, accepted=accepted, emitted=accepted + 1, rows=1)
    assert stats.accepted_per_position == [2 / 3, 1 / 2, 1.0]
    assert (stats.drafted, stats.accepted, stats.rounds) == (6, 4, 4)


def test_MT_03_each_request_counts_from_zero_and_a_bonus_token_is_not_accepted():
    script, lengths = (lambda tokens: len(tokens) % 20), [2, 0, 1]
    proposer = ScriptedProposer(script, lambda name, step, limit: (4, lengths[step]))
    engine = make_engine(ScriptedTarget(script), draft=proposer)
    for name in ("first", "second"):
        stats = run(engine, [ask(name, [1, 2], eos=[8], max_new_tokens=50)])[0].stats  # prefill 2, then 3 to 8
        assert (stats.rounds, stats.drafted, stats.accepted, stats.emitted_by_rounds) == (3, 12, 3, 6)
        assert stats.acceptance_rate == 0.25
        assert stats.accepted_per_position == [2 / 3, 1 / 3, 0, 0]
        assert stats.emitted == 7


def test_what_has_no_value_is_none():
    public = RequestStats().to_dict()
    assert public["acceptance_rate"] is public["acceptance_length"] is public["batch_rows"] is None
    assert public["decode_tokens_per_s"] is public["ttft_s"] is public["queue_s"] is None
    assert public["accepted_per_position"] == []
    assert counted(0, [0, 0]).acceptance_length == 1.0
    json.dumps(public)


def test_times_run_from_the_arrival_and_from_the_first_token():
    stats = RequestStats()
    stats.count_tokens(1, 12.5, arrival_s=10.0)
    assert (stats.ttft_s, stats.decode_tokens_per_s) == (2.5, None)
    stats.count_tokens(3, 13.0, arrival_s=10.0)
    stats.count_tokens(2, 14.5, arrival_s=10.0)
    assert (stats.ttft_s, stats.emitted, stats.decode_tokens_per_s) == (2.5, 6, 2.5)


def test_impossible_counts_are_faults_of_ours():
    for drafted, accepted, emitted in ((1, 2, 3), (3, 2, 1), (3, 0, 2), (1, -1, 0)):
        with pytest.raises(AssertionError):
            RequestStats().count_round(drafted=drafted, accepted=accepted, emitted=emitted, rows=1)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_statistics_of_a_run_add_up(draft):
    requests = eight("sampled")
    engine = make_engine(draft=draft, slots=3)
    for request, completion in zip(requests, run(engine, requests), strict=True):
        stats = completion.stats
        assert completion.completion_tokens == len(completion.token_ids) == stats.emitted
        assert completion.prompt_tokens == len(request.prompt_ids)
        assert stats.emitted == stats.emitted_by_rounds + 1
        assert stats.accepted <= stats.drafted == sum(stats.drafted_per_position)
        assert stats.accepted == sum(stats.accepted_counts)
        assert stats.emitted_by_rounds in (stats.rounds + stats.accepted, stats.rounds + stats.accepted - 1)
        assert (stats.acceptance_length or 1.0) >= 1.0
        assert stats.accepted_counts == sorted(stats.accepted_counts, reverse=True)
        assert stats.queue_s is not None and stats.ttft_s is not None
        assert 0 <= stats.queue_s < stats.ttft_s
        assert stats.target_s > 0
        assert (stats.draft_s > 0) == (stats.rounds > 0)
        assert stats.batch_rows is None or 1.0 <= stats.batch_rows <= 3.0
        if draft == "none":
            assert (stats.drafted, stats.rounds) == (0, stats.emitted - 1)
