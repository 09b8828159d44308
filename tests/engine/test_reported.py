"""Log-probabilities of what was emitted and of the prompt: against a model that is fed the whole text at once.

Cases: OA-12 and OA-19 (their engine halves).
"""

from __future__ import annotations

import json
import math
from functools import cache as remember

import pytest
import torch

from litspec.draft import NgramProposer
from litspec.engine.emission import emit
from litspec.engine.request import Completion
from litspec.model.logprobs import TokenLogprob
from litspec.model.window import Shapes
from tests.engine.scripted import Letters, ScriptedProposer, ScriptedTarget
from tests.engine.support import ask, make_engine, random_prompt, recompute, run, tiny_gpt

DRAFTED = ("none", NgramProposer(min_n=1), "self", "model", "early-exit:1")
PROMPT = random_prompt(5, seed=3) * 4
TIGHT = 1e-9


@remember
@torch.inference_mode()
def logprobs_of(text: tuple[int, ...]) -> list[list[float]]:
    """Return for each position the log-probability of every token that may come after it."""
    return tiny_gpt()(torch.tensor([text]))[0].double().log_softmax(-1).tolist()


def check(entries: list[TokenLogprob], text: list[int], first: int, num_top: int) -> None:
    """Assert that entries are those of text[first], text[first + 1], …"""
    wanted = logprobs_of(tuple(text))
    for position, entry in enumerate(entries, start=first):
        line = wanted[position - 1]
        assert entry.token_id == text[position]
        assert entry.logprob == pytest.approx(line[text[position]], abs=TIGHT)
        best = sorted(range(len(line)), key=lambda i: -line[i])[:num_top]
        assert [token for token, _ in entry.top] == best
        assert [value for _, value in entry.top] == pytest.approx([line[i] for i in best], abs=TIGHT)


@pytest.mark.parametrize("num_draft_tokens", [1, 4])
@pytest.mark.parametrize("draft", DRAFTED)
def test_OA_12_every_emitted_token_has_its_logprob_at_any_draft(draft, num_draft_tokens):
    rows = [
        ask("greedy", PROMPT, max_new_tokens=20, logprobs=3),
        ask("samples", PROMPT, max_new_tokens=20, logprobs=0, temperature=1.0, seed=4),
        ask("penalised", PROMPT, max_new_tokens=20, logprobs=20, frequency_penalty=1.5, logit_bias={3: 50}),
        ask("none", PROMPT[1:], max_new_tokens=20),
    ]
    completions = run(make_engine(draft=draft, num_draft_tokens=num_draft_tokens), rows)
    assert [len(c.token_ids) for c in completions] == [20] * 4
    for row, completion, num_top in zip(rows[:3], completions[:3], (3, 0, 20), strict=True):
        assert completion.logprobs is not None and len(completion.logprobs) == 20
        check(completion.logprobs, [*PROMPT, *completion.token_ids], len(PROMPT), num_top)
        assert row.id != "greedy" or completion.token_ids == recompute(row)
    assert any(entry.logprob < -0.1 for entry in completions[0].logprobs or ())
    assert completions[3].logprobs is None and completions[3].prompt_logprobs is None
    assert draft == "none" or sum(c.stats.accepted for c in completions[:3]) > 0


@pytest.mark.parametrize("num_right", [0, 1, 3, 4])
@pytest.mark.parametrize("end", ["eos", "stop", "stop_token_ids", "max_new_tokens"])
def test_a_block_that_is_cut_has_an_entry_for_each_token_that_is_left(num_right, end):
    proposer = ScriptedProposer(lambda t: t[-1] + 1, lambda name, step, limit: (4, num_right))
    engine = make_engine(ScriptedTarget(lambda tokens: tokens[-1] + 1), draft=proposer)
    given = {"eos": {"eos": [4]}, "stop": {"stop": "e"}, "stop_token_ids": {"stop_token_ids": [4]}}
    row = ask("a", [0], text=Letters(), logprobs=2, **given.get(end, {"max_new_tokens": 4}))
    completion = run(engine, [row])[0]
    assert completion.token_ids == [1, 2, 3, 4]
    assert completion.logprobs is not None
    assert [entry.token_id for entry in completion.logprobs] == [1, 2, 3, 4]
    assert [entry.top[0][0] for entry in completion.logprobs] == [1, 2, 3, 4]


def test_a_detokeniser_that_fails_leaves_an_entry_for_each_token():
    row = ask("a", [0], text=Letters(fails_at=3), logprobs=0)
    emit(row, [2, 3, 4], [TokenLogprob(i, -1.0, ()) for i in (2, 3, 4)])
    completion = row.completion()
    assert completion.token_ids == [2, 3] == [entry.token_id for entry in completion.logprobs or ()]


@pytest.mark.parametrize("draft", ["none", "self", "ngram"])
def test_OA_19_ragged_prompts_in_chunks_have_an_entry_for_each_token_and_the_first_has_none(draft):
    lengths = (1, 16, 17, 70, 33, 2)
    rows = [
        ask(f"{n}", random_prompt(n, seed=n), max_new_tokens=3, prompt_logprobs=k, logprobs=k)
        for n, k in zip(lengths, (1, 0, 5, 20, 2, 3), strict=True)
    ]
    engine = make_engine(draft=draft, shapes=Shapes((1, 4, 8), (1, 5), (16,)))
    for n, row, completion in zip(lengths, rows, run(engine, rows), strict=True):
        entries = completion.prompt_logprobs
        assert entries is not None and len(entries) == n and entries[0] is None
        text = [*row.prompt_ids, *completion.token_ids]
        check([entry for entry in entries if entry is not None], text, 1, row.params.prompt_logprobs)
        assert len([entry for entry in entries if entry is None]) == 1
        assert completion.token_ids == recompute(row)
        check(completion.logprobs or [], text, n, row.params.logprobs)


def test_prompt_logprobs_are_the_same_whoever_fed_the_prefix_before():
    prompt = random_prompt(60, seed=2)
    engine = make_engine(draft="ngram", slots=2)
    first = ask("first", prompt, max_new_tokens=30)
    engine.add_request(first)
    engine.step()
    asks = ask("asks", prompt, max_new_tokens=2, prompt_logprobs=1)
    again = ask("again", [*prompt, 7], max_new_tokens=2)
    engine.add_request(asks)
    while engine.has_active_requests():
        engine.step()
    assert asks.prompt_logprobs is not None and len(asks.prompt_logprobs) == 60
    check([entry for entry in asks.prompt_logprobs if entry is not None], prompt, 1, 1)
    assert (asks.output_ids, first.output_ids) == (recompute(asks), recompute(first))
    assert run(engine, [again])[0].stats.cached_tokens == 60, "what it fed serves the next one"


def test_a_completion_with_logprobs_is_json():
    row = ask("a", PROMPT, max_new_tokens=3, logprobs=2, prompt_logprobs=1, bad=[[4]], logit_bias={5: -100})
    completion: Completion = run(make_engine(), [row])[0]
    public = json.loads(json.dumps(completion.to_dict(), allow_nan=False))
    assert [entry["token_id"] for entry in public["logprobs"]] == completion.token_ids
    assert public["prompt_logprobs"][0] is None and public["prompt_logprobs"][1]["token_id"] == PROMPT[1]
    assert [len(entry["top"]) for entry in public["logprobs"]] == [2, 2, 2]
    assert all(math.isfinite(entry["logprob"]) for entry in public["logprobs"])
