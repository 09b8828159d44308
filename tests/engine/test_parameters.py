"""Every sampling parameter through the engine: what it does, and that neither a draft nor a neighbour changes it.

Cases: SP-02, SP-03, SP-04, SP-06, SP-07 (n = 16), SP-09, SP-12, SP-13, SP-15. SP-05 and SP-08 are in test_exactness.py
and test_rounds.py; what is refused is in test_refusals.py, log-probabilities are in test_reported.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from litspec.draft import NgramProposer
from litspec.engine.params import ParameterError
from litspec.engine.request import Request
from tests.engine.scripted import FixedTarget, Letters, ScriptedProposer, ScriptedTarget
from tests.engine.support import TINY, ask, assert_idle, make_engine, plain, random_prompt, recompute, run, same

DRAFTED = (NgramProposer(min_n=1), "self", "model")
PROMPT = random_prompt(6, seed=3) * 3
V = TINY.vocab_size
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.2, "min_p": 0.2},
    {"temperature": 1.5, "top_k": 30, "top_p": 0.95, "min_p": 0.05},
    {"repetition_penalty": 1.6},
    {"repetition_penalty": 0.7, "temperature": 0.8},
    {"presence_penalty": 1.5},
    {"presence_penalty": -1.0, "temperature": 1.0},
    {"frequency_penalty": 1.2},
    {"frequency_penalty": -2.0, "temperature": 1.3},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4, "temperature": 0.7, "top_k": 12},
    {"logit_bias": {i: (-1.0) ** i * (i % 7) for i in range(0, V, 3)}},
    {"logit_bias": {1: 100.0, 2: 100.0}, "temperature": 2.0},
    {"logit_bias": dict.fromkeys(range(40), -100.0), "temperature": 1.0, "top_p": 0.9},
    {"bad": [[i] for i in range(0, V, 2)]},
    {"bad": [[i, j] for i in range(V) for j in (i % 5, i % 11, i % 23)], "temperature": 1.0},
    {"min_tokens": 9, "eos": range(48)},
    {"min_tokens": 9, "eos": [], "stop_token_ids": [*range(48)], "temperature": 1.0},
    {"eos": range(0, V, 5), "temperature": 1.0},
    {"eos": range(0, V, 5), "temperature": 1.0, "ignore_eos": True},
]


def greedy(name: str, **given: Any) -> Request:
    return ask(name, given.pop("prompt", PROMPT), **{"max_new_tokens": 24, "seed": 5, **given})


@pytest.fixture(scope="module")
def settled() -> list[tuple[Request, list[int]]]:
    """Return a request for each setting, with the tokens that it has alone and without a draft."""
    requests = [greedy(f"{i}", **dict(given)) for i, given in enumerate(SETTINGS)]
    return [(request, plain(request)) for request in requests]


def test_each_setting_changes_the_text(settled):
    for given, (_, tokens) in zip(SETTINGS, settled, strict=True):
        without = {"temperature": given["temperature"]} if "temperature" in given else {}
        if not given.get("ignore_eos"):
            assert tokens != recompute(greedy("without", **without)), given


@pytest.mark.parametrize("num_draft_tokens", [1, 4])
@pytest.mark.parametrize("draft", DRAFTED)
def test_all_settings_in_one_batch_with_a_draft_equal_each_alone_without(settled, draft, num_draft_tokens):
    engine = make_engine(draft=draft, num_draft_tokens=num_draft_tokens)
    requests = [request for request, _ in settled]
    completions = run(engine, requests)
    for given, completion, (_, tokens) in zip(SETTINGS, completions, settled, strict=True):
        assert completion.token_ids == tokens, given
    assert sum(c.stats.accepted for c in completions) > 20
    if draft == "self":  # all but where a draft token changes the penalties of the next
        lengths = [c for c in completions if c.finish_reason == "length"]
        assert sum(c.stats.accepted for c in lengths) > 0.9 * sum(c.stats.drafted for c in lengths)
    assert_idle(engine)


@pytest.mark.parametrize("draft", ["none", "model"])
def test_SP_02_a_tiny_temperature_is_greedy(draft):
    wanted = recompute(greedy("greedy"))
    for given in ({"temperature": 1e-10, "top_k": 40, "top_p": 0.9}, {"temperature": 5e-324}, {"temperature": 0.0}):
        assert run(make_engine(draft=draft), [greedy("a", **given)])[0].token_ids == wanted


@pytest.mark.parametrize("draft", ["none", *DRAFTED])
def test_SP_03_a_greedy_row_without_its_favourite_beside_a_row_that_samples(draft):
    favourite = recompute(greedy("free"))[3]
    biased = greedy("biased", logit_bias={str(favourite): -100})
    banned = greedy("banned", bad=[[favourite]])
    samples = greedy("samples", temperature=0.7, top_p=0.8)
    first, second, third = run(make_engine(draft=draft), [biased, samples, banned])
    assert first.token_ids == third.token_ids == plain(biased) and favourite not in first.token_ids
    assert second.token_ids == recompute(samples), "its neighbour's bias is none of its own"


@pytest.mark.parametrize("draft", ["none", "ngram", "model"])
def test_SP_04_three_ways_to_be_greedy(draft):
    ways = ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 1e-9})
    requests = [greedy(f"{i}", max_new_tokens=64, **way) for i, way in enumerate(ways)]
    texts = [c.token_ids for c in run(make_engine(draft=draft), requests)]
    assert texts == [recompute(requests[0])] * 3


def test_SP_06_a_seed_holds_beside_any_neighbour():
    seeded = greedy("seeded", temperature=1.0, seed=42)
    others = [greedy("other", temperature=1.0, seed=None) for _ in range(4)] + [greedy("other", temperature=1, seed=7)]
    runs = [run(make_engine(draft="ngram"), [seeded, other]) for other in others]
    assert all(first.token_ids == recompute(seeded) for first, _ in runs)
    assert len({tuple(second.token_ids) for _, second in runs[:4]}) > 1
    assert runs[4][1].token_ids == recompute(others[4])


@pytest.mark.parametrize("draft", ["none", NgramProposer(min_n=1)])
def test_SP_07_sixteen_answers_have_noise_of_their_own_and_the_first_is_the_plain_one(draft):
    target = FixedTarget(torch.zeros(32, dtype=torch.float64))
    given = {"temperature": 1.0, "max_new_tokens": 10, "seed": 11}
    choices = [ask(f"{i}", [1, 2, 3], n=16, choice=i, **given) for i in range(16)]
    engine = make_engine(target, draft=draft, slots=8)
    texts = [tuple(c.token_ids) for c in run(engine, choices)]
    assert len(set(texts)) >= 12
    agreement = sum(a[0] == b[0] for a, b in itertools.combinations(texts, 2)) / 120
    assert abs(agreement - 1 / 32) < 0.1
    assert [*texts[0]] == run(make_engine(target), [ask("plain", [1, 2, 3], **given)])[0].token_ids
    again = run(make_engine(target, slots=1), [choices[9], choices[4]])
    assert [tuple(c.token_ids) for c in again] == [texts[9], texts[4]]
    assert {c.seed for c in again} == {11}


def repeats(favourite: int, *, size: int = 16) -> FixedTarget:
    """A target that has one favourite, 4 above the rest, everywhere."""
    logits = torch.linspace(0.0, 0.5, size, dtype=torch.float64)
    logits[favourite] = 4.0
    return FixedTarget(logits)


@pytest.mark.parametrize("draft", ["none", NgramProposer(min_n=1), "fives"])
def test_SP_09_penalties_hold_at_every_position_of_a_window(draft):
    if draft == "fives":
        draft = ScriptedProposer(lambda tokens: 5, lambda name, step, limit: (3, 3))
    engine = make_engine(repeats(5), draft=draft, num_draft_tokens=3)
    given = {"max_new_tokens": 12}
    rows = [ask(f"{penalty}", [5] * 8, frequency_penalty=penalty, **given) for penalty in (-1.5, 0.0, 1.5)]
    rows.append(ask("presence", [5] * 8, presence_penalty=2.0, logit_bias={5: -1.71}, **given))
    texts = [c.token_ids for c in run(engine, rows)]
    assert texts[:2] == [[5] * 12] * 2
    assert texts[2][:4] == [5, 5, 5, 15], "after three of them 4 - 4.5 is below the next best"
    assert texts[3] == [5, 15, 14, 13, 12, 11, 10, 9, 5, 5, 5, 5], "only the output counts, each token once"


@pytest.mark.parametrize("draft", ["none", *DRAFTED])
def test_SP_12_a_penalised_row_and_its_neighbours(draft):
    rows = [
        greedy("a", prompt=[0, 3]),
        greedy("b", prompt=[0] * 20 + PROMPT, frequency_penalty=0.8),
        greedy("c", prompt=[0, 0, 7], repetition_penalty=1.3),
    ]
    assert [c.token_ids for c in run(make_engine(draft=draft), rows)] == [plain(row) for row in rows]
    assert plain(rows[0]) == recompute(rows[0])


@pytest.mark.parametrize("draft", ["none", NgramProposer(min_n=1)])
def test_SP_13_prompt_tokens_are_not_penalised_and_reported_logprobs_are_raw(draft):
    target = repeats(9)
    engine = make_engine(target, draft=draft, num_draft_tokens=3)
    rows = [ask(f"{i}", [9] * (4 + i), frequency_penalty=1.0, logprobs=3, max_new_tokens=10) for i in range(3)]
    raw = target._logits_V.log_softmax(-1)
    for completion in run(engine, rows):
        assert completion.token_ids == [9, 9, 9, 9, 15, 14, 13, 12, 11, 10]
        assert completion.logprobs is not None
        for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
            assert (entry.token_id, entry.logprob) == (token, pytest.approx(float(raw[token]), abs=1e-9))
            assert [top for top, _ in entry.top] == [9, 15, 14]


@pytest.mark.parametrize("draft", ["none", NgramProposer(min_n=1)])
@pytest.mark.parametrize("end", ["eos", "stop_token_ids"])
def test_SP_15_the_shortest_answer_is_counted_without_the_prompt(draft, end):
    given = {end: [5]}
    rows = [ask(f"{n}", [5] * 50, min_tokens=n, max_new_tokens=9, **given) for n in (0, 5, 9)]
    first, second, third = run(make_engine(repeats(5), draft=draft, num_draft_tokens=3), rows)
    assert first.token_ids == [5]
    assert (second.token_ids, second.finish_reason) == ([15] * 5 + [5], "stop")
    assert (third.token_ids, third.finish_reason) == ([15] * 9, "length")
    with pytest.raises(ParameterError) as caught:
        ask("x", [5], min_tokens=10, max_new_tokens=9)
    assert caught.value.param == "min_tokens"


def abc(tokens: list[int]) -> int:
    return (tokens[-1] + 1) % 3


@pytest.mark.parametrize("num_right", [0, 2, 4])
def test_min_tokens_leaves_the_stop_strings_of_the_first_tokens_unmatched(num_right):
    proposer = ScriptedProposer(abc, lambda name, step, limit: (4, num_right))
    engine = make_engine(ScriptedTarget(abc), draft=proposer)
    cases = {
        ("b", 0): "a",
        ("b", 2): "abca",
        ("b", 4): "abca",
        ("b", 5): "abcabca",
        ("ca", 3): "abcab",
        ("ca", 0): "ab",
    }
    rows = [ask(f"{stop} {n}", [2], text=Letters(), stop=stop, min_tokens=n, max_new_tokens=12) for stop, n in cases]
    assert [c.text for c in run(engine, rows)] == [*cases.values()]


@pytest.mark.parametrize("num_right", [0, 1, 2, 4])
def test_a_stop_token_of_ones_own_is_shown_only_where_asked_for(num_right):
    proposer = ScriptedProposer(lambda t: t[-1] + 1, lambda name, step, limit: (4, num_right))
    engine = make_engine(ScriptedTarget(lambda tokens: tokens[-1] + 1), draft=proposer)
    shown = {"include_stop_str_in_output": True}
    rows = [
        ask("hidden", [0], text=Letters(), stop_token_ids=[5, 60]),
        ask("shown", [0], text=Letters(), stop_token_ids=[5], **shown),
        ask("end", [0], text=Letters(), stop_token_ids=[5], eos=[5], **shown),
        ask("ignored", [0], text=Letters(), stop_token_ids=[6], eos=[5], ignore_eos=True, **shown),
        ask("held", [0], text=Letters(), stop_token_ids=[5], stop="fg", **shown),
    ]
    completions = run(engine, rows)
    assert [c.text for c in completions] == ["bcde", "bcdef", "bcde", "bcdefg", "bcdef"]
    assert [c.token_ids for c in completions] == [[1, 2, 3, 4, 5]] * 3 + [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5]]
    assert {c.finish_reason for c in completions} == {"stop"}


@pytest.mark.parametrize("draft", DRAFTED)
@pytest.mark.parametrize("size", [2, 3])
def test_a_bad_word_of_several_tokens_is_avoided_wherever_a_window_ends(draft, size):
    free = recompute(greedy("free"))
    words = list(dict.fromkeys(tuple(free[i : i + size]) for i in range(20)))
    rows = [greedy(f"{i}", bad=[word]) for i, word in enumerate(words)]
    undrafted = run(make_engine(draft="none", slots=16), rows)
    for word, other, completion in zip(words, undrafted, run(make_engine(draft=draft), rows), strict=True):
        tokens = completion.token_ids
        assert tokens == other.token_ids
        text = [*PROMPT, *tokens]
        assert word not in {tuple(text[i - size : i]) for i in range(len(PROMPT) + 1, len(text) + 1)}
        at = next(i for i in range(len(free)) if tuple(free[i : i + size]) == word) + size - 1
        assert tokens[:at] == free[:at] and tokens[at] != free[at], "all but its last token may be written"


@pytest.mark.parametrize("draft", DRAFTED)
def test_a_request_has_its_own_number_of_draft_tokens(draft):
    engine = make_engine(draft=draft, num_draft_tokens=4)
    rows = [greedy(f"{own}", num_draft_tokens=own) for own in (0, 1, None, 4)]
    completions = run(engine, rows)
    assert [c.token_ids for c in completions] == [recompute(same(row)) for row in rows]
    assert completions[0].stats.drafted == 0 and completions[0].stats.rounds == 23
    assert [len(c.stats.accepted_per_position) for c in completions[1:]] == [1, 4, 4]
    with pytest.raises(ParameterError, match=r"num_draft_tokens was 5; allowed: 0 \(off\) to 4") as caught:
        engine.add_request(greedy("much", num_draft_tokens=5))
    assert caught.value.param == "num_draft_tokens"
    undrafted = make_engine(draft="none")
    assert run(undrafted, [greedy("any", num_draft_tokens=64)])[0].token_ids == completions[0].token_ids
