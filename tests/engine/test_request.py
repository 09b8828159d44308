"""SamplingParams, Request and Completion: what is allowed, what is filled in, what is told (case SP-02's limits)."""

from __future__ import annotations

import json
import math

import pytest

from litspec.engine.request import ParameterError, SamplingParams
from tests.engine.scripted import ScriptedTarget
from tests.engine.support import ask, make_engine, random_prompt, recompute, run


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"max_new_tokens": 0}, "an integer from 1"),
        ({"max_new_tokens": 1.5}, "integer"),
        ({"max_new_tokens": True}, "integer"),
        ({"temperature": -0.1}, r"a number from 0 \(greedy\) to 2.0"),
        ({"temperature": 2.1}, "a number from 0"),
        ({"temperature": math.nan}, "a number from 0"),
        ({"temperature": math.inf}, "a number from 0"),
        ({"temperature": "1"}, "number"),
        ({"top_k": 0}, "an integer from 1, or None"),
        ({"top_k": -1}, "an integer from 1, or None"),
        ({"top_p": 0.0}, "a number above 0 and up to 1"),
        ({"top_p": 1.0001}, "a number above 0 and up to 1"),
        ({"top_p": math.nan}, "a number above 0 and up to 1"),
        ({"seed": -1}, "an integer from 0"),
        ({"seed": 2**63}, "an integer from 0"),
        ({"stop": [""]}, "none of them empty"),
        ({"stop": 3}, "a string or a list of strings"),
        ({"stop": ["a", 3]}, "a string or a list of strings"),
        ({"ignore_eos": "yes"}, "boolean"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(given, allowed):
    with pytest.raises(ParameterError, match=allowed) as caught:
        SamplingParams(**given)
    assert caught.value.param == next(iter(given))
    name, value = next(iter(given.items()))
    assert str(caught.value).startswith(f"{name} was {value!r}; allowed: ")


def test_the_edges_are_allowed():
    for given in ({"temperature": 2.0}, {"temperature": 0}, {"top_p": 1.0}, {"top_p": 5e-324}, {"seed": 2**63 - 1}):
        name, value = next(iter(given.items()))
        assert getattr(SamplingParams(**given), name) == value
    assert SamplingParams(stop="x").stop == ("x",)
    assert SamplingParams(stop=None).stop == ()


def test_an_unknown_parameter_is_refused():
    with pytest.raises(
        ParameterError, match="unknown sampling parameter 'top_q'; known: max_new_tokens, temp"
    ) as caught:
        SamplingParams(top_q=0.5)
    assert caught.value.param == "top_q"


def test_what_was_not_given_comes_from_the_model_and_what_was_given_stays():
    params = SamplingParams(temperature=1.0, top_k=None).with_defaults(
        {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "repetition": 7}
    )
    assert (params.temperature, params.top_k, params.top_p, params.max_new_tokens) == (1.0, None, 0.9, 256)


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
