"""SamplingParams: what is allowed, what is refused and by which name, what is filled in (limits of SP-02 and SP-15)."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest

from litspec.engine.params import ParameterError, SamplingParams, shown


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
        ({"min_p": -0.1}, r"a number from 0 \(keeps every token\) to 1"),
        ({"min_p": 1.1}, "a number from 0"),
        ({"min_p": math.nan}, "a number from 0"),
        ({"min_p": None}, "number"),
        ({"seed": -1}, "an integer from 0"),
        ({"seed": 2**63}, "an integer from 0"),
        ({"n": 0}, "an integer from 1 to 128"),
        ({"n": 129}, "an integer from 1 to 128"),
        ({"n": True}, "integer"),
        ({"stop": [""]}, "none of them empty"),
        ({"stop": 3}, "a string or a list of strings"),
        ({"stop": ["a", 3]}, "a string or a list of strings"),
        ({"stop": ["a"] * 17}, "at most 16 stop strings"),
        ({"stop_token_ids": 3}, "a list of token ids, integers from 0"),
        ({"stop_token_ids": "3"}, "a list of token ids"),
        ({"stop_token_ids": [1, -1]}, "a list of token ids"),
        ({"stop_token_ids": [True]}, "a list of token ids"),
        ({"stop_token_ids": [1.0]}, "a list of token ids"),
        ({"stop_token_ids": [2**31]}, "a list of token ids"),
        ({"stop_token_ids": {1: 2}}, "a list of token ids"),
        ({"include_stop_str_in_output": 1}, "boolean"),
        ({"ignore_eos": "yes"}, "boolean"),
        ({"min_tokens": -1}, "an integer from 0"),
        ({"min_tokens": 1.0}, "integer"),
        ({"min_tokens": 257}, "an integer from 0 to max_new_tokens, 256"),
        ({"min_tokens": 9, "max_new_tokens": 8}, "an integer from 0 to max_new_tokens, 8"),
        ({"repetition_penalty": 0}, r"a number above 0 and up to 10 \(1 is none\)"),
        ({"repetition_penalty": -1.0}, "a number above 0"),
        ({"repetition_penalty": 10.1}, "a number above 0"),
        ({"repetition_penalty": math.inf}, "a number above 0"),
        ({"repetition_penalty": math.nan}, "a number above 0"),
        ({"presence_penalty": 2.1}, r"a number from -2 to 2 \(0 is none\)"),
        ({"frequency_penalty": -2.1}, r"a number from -2 to 2 \(0 is none\)"),
        ({"frequency_penalty": math.nan}, "a number from -2 to 2"),
        ({"logit_bias": [1]}, "a mapping from token ids to numbers"),
        ({"logit_bias": {"x": 1}}, "token ids from 0 as keys, which 'x' is not"),
        ({"logit_bias": {-1: 1}}, "token ids from 0"),
        ({"logit_bias": {"-1": 1}}, "token ids from 0"),
        ({"logit_bias": {"\u0663": 1}}, "token ids from 0"),
        ({"logit_bias": {" 1": 1}}, "token ids from 0"),
        ({"logit_bias": {True: 1}}, "token ids from 0"),
        ({"logit_bias": {1.0: 1}}, "token ids from 0"),
        ({"logit_bias": {2**31: 1}}, "token ids from 0"),
        ({"logit_bias": {"9" * 5000: 1}}, "token ids from 0"),
        ({"logit_bias": {1: 100.5}}, "numbers from -100 to 100, which 100.5 for 1 is not"),
        ({"logit_bias": {1: math.nan}}, "numbers from -100 to 100"),
        ({"logit_bias": {1: "5"}}, "numbers from -100 to 100"),
        ({"logit_bias": {1: True}}, "numbers from -100 to 100"),
        ({"logit_bias": {1: 1, "1": 2}}, "every token id once, which 1 is not"),
        ({"logit_bias": {"1": 1, "01": 2}}, "every token id once, which 1 is not"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "at most 1024 token ids"),
        ({"bad_words": ["a", ""]}, "none of them empty"),
        ({"bad_words": [1]}, "a string or a list of strings"),
        ({"bad_words": ["a"] * 129}, "at most 128 bad words"),
        ({"logprobs": -1}, "an integer from 0 to 20, or None"),
        ({"logprobs": 21}, "an integer from 0 to 20, or None"),
        ({"logprobs": True}, "integer"),
        ({"prompt_logprobs": 21}, "an integer from 0 to 20, or None"),
        ({"num_draft_tokens": -1}, "an integer from 0 to 64, or None"),
        ({"num_draft_tokens": 65}, "an integer from 0 to 64, or None"),
        ({"num_draft_tokens": "auto"}, "integer"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(given, allowed):
    with pytest.raises(ParameterError, match=allowed) as caught:
        SamplingParams(**given)
    assert caught.value.param == next(iter(given))
    name, value = next(iter(given.items()))
    assert str(caught.value).startswith(f"{name} was {shown(value)}; allowed: ") and len(shown(value)) <= 101


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 2.0},
        {"temperature": 0},
        {"top_p": 1.0},
        {"top_p": 5e-324},
        {"min_p": 0},
        {"min_p": 1},
        {"seed": 2**63 - 1},
        {"n": 128},
        {"stop_token_ids": (0, 2**31 - 1)},
        {"min_tokens": 256},
        {"max_new_tokens": 300, "min_tokens": 300},
        {"repetition_penalty": 10},
        {"repetition_penalty": 5e-324},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"logit_bias": {0: -100.0, 5: 100.0}},
        {"bad_words": ("a",) * 128},
        {"logprobs": 0},
        {"prompt_logprobs": 20},
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 64},
    ],
)
def test_the_edges_are_allowed(given):
    params = SamplingParams(**given)
    assert {name: getattr(params, name) for name in given} == given


def test_forms_that_mean_the_same_become_one():
    assert SamplingParams(stop="x", bad_words="y") == SamplingParams(stop=["x"], bad_words=["y"])
    assert SamplingParams(stop=None, bad_words=None, stop_token_ids=None) == SamplingParams()
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)
    given = json.loads('{"logit_bias": {"7": 2, "0": -1.5}}')
    params = SamplingParams(**given)
    assert params.logit_bias == {7: 2.0, 0: -1.5} and all(type(x) is float for x in params.logit_bias.values())
    assert given == {"logit_bias": {"7": 2, "0": -1.5}}
    assert SamplingParams(logit_bias={}).logit_bias is None


def test_min_tokens_is_not_blamed_for_what_is_wrong_elsewhere():
    with pytest.raises(ParameterError) as caught:
        SamplingParams(max_new_tokens=0, min_tokens=5)
    assert caught.value.param == "max_new_tokens"


def test_params_are_a_value():
    params = SamplingParams(logit_bias={3: 1.0, 4: 2.0}, stop="x", seed=1)
    same = SamplingParams(logit_bias={"4": 2, "3": 1}, stop=["x"], seed=1)
    assert params == same and hash(params) == hash(same) and len({params, same, SamplingParams(seed=1)}) == 2
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 2


def test_an_unknown_parameter_is_refused():
    with pytest.raises(
        ParameterError, match="unknown sampling parameter 'top_q'; known: max_new_tokens, temp"
    ) as caught:
        SamplingParams(top_q=0.5)
    assert caught.value.param == "top_q"


def test_what_was_not_given_comes_from_the_model_and_what_was_given_stays():
    params = SamplingParams(temperature=1.0, top_k=None).with_defaults(
        {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "repetition": 7, "min_p": 0.05, "repetition_penalty": 1.1}
    )
    assert (params.temperature, params.top_k, params.top_p, params.max_new_tokens) == (1.0, None, 0.9, 256)
    assert (params.min_p, params.repetition_penalty) == (0.05, 1.1)
    biased = SamplingParams(logit_bias={"5": 1}, stop="x", min_tokens=20).with_defaults({"max_new_tokens": 30})
    assert (biased.logit_bias, biased.stop, biased.min_tokens, biased.max_new_tokens) == ({5: 1.0}, ("x",), 20, 30)


def test_a_default_of_the_model_that_cannot_be_used_is_passed_over_with_a_warning():
    with pytest.warns(UserWarning, match=r"the model's own repetition_penalty, 50\.0, is ignored: .*allowed: "):
        params = SamplingParams().with_defaults({"repetition_penalty": 50.0, "top_p": 0.9})
    assert (params.repetition_penalty, params.top_p) == (1.0, 0.9)
    with pytest.warns(UserWarning, match="max_new_tokens, 10, is ignored: min_tokens was 20"):
        params = SamplingParams(min_tokens=20).with_defaults({"max_new_tokens": 10})
    assert (params.min_tokens, params.max_new_tokens) == (20, 256)
