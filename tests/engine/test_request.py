"""Request and Completion: what is filled in, what is told, and ways of asking that come to the same."""

from __future__ import annotations

import json

import pytest

from tests.engine.scripted import ScriptedTarget
from tests.engine.support import ask, make_engine, random_prompt, recompute, run


def test_a_request_without_a_seed_gets_one_that_is_reported():
    first, second = (ask(name, [1], seed=None, max_new_tokens=1) for name in "ab")
    assert first.params.seed != second.params.seed
    completions = run(make_engine(ScriptedTarget(lambda tokens: 4)), [first, ask("c", [1], seed=0, max_new_tokens=1)])
    assert completions[0].seed == first.params.seed
    assert completions[1].seed == 0


def test_a_completion_is_json():
    completion = run(make_engine(ScriptedTarget(lambda tokens: 4)), [ask("a", [1, 2], max_new_tokens=3)])[0]
    fields = json.loads(json.dumps(completion.to_dict()))
    assert fields["token_ids"] == [4, 4, 4]
    assert (fields["prompt_tokens"], fields["completion_tokens"], fields["finish_reason"]) == (2, 3, "length")
    assert (fields["text"], fields["seed"], fields["error"]) == ("", 0, None)
    assert fields["stats"]["rounds"] == 2


@pytest.mark.parametrize("draft", ["none", "ngram", "model"])
@pytest.mark.parametrize("temperature", [1e-10, 5e-324, 9e-6])
def test_SP_02_a_tiny_temperature_is_greedy(temperature, draft):
    prompt = random_prompt(9, seed=3)
    request = ask("a", prompt, max_new_tokens=20, temperature=temperature, top_k=40, top_p=0.9)
    assert run(make_engine(draft=draft), [request])[0].token_ids == recompute(ask("b", prompt, max_new_tokens=20))


@pytest.mark.parametrize("draft", ["none", "model"])
def test_SP_04_three_ways_to_ask_for_the_best_token(draft):
    prompt = random_prompt(9, seed=3)
    ways = ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 1e-9})
    requests = [ask(str(i), prompt, max_new_tokens=64, **way, seed=i) for i, way in enumerate(ways)]
    texts = [c.token_ids for c in run(make_engine(draft=draft), requests)]
    assert texts[0] == texts[1] == texts[2] == recompute(requests[0])
