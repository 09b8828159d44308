"""LLM: sampling parameters, given either way, and seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from litspec import LLM, SamplingParams
from litspec.engine.params import ParameterError
from tests.api.small_models import is_idle, load_debug


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load_debug(max_seq_length=256) as llm:
        yield llm


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -0.1}, r"temperature was -0.1; allowed: a number from 0 \(greedy\) to 2.0"),
        ({"temperature": math.nan}, "temperature was nan; allowed: a number from 0"),
        ({"temperature": math.inf}, "temperature was inf; allowed: a number from 0"),
        ({"temperature": 2.1}, "temperature was 2.1; allowed: a number from 0"),
        ({"temperature": "hot"}, "temperature was 'hot'; allowed"),
        ({"temperature": True}, "temperature was True; allowed"),
        ({"top_p": 0.0}, "top_p was 0.0; allowed: a number above 0 and up to 1"),
        ({"top_p": 1.5}, "top_p was 1.5; allowed: a number above 0 and up to 1"),
        ({"top_p": math.nan}, "top_p was nan; allowed"),
        ({"top_k": 0}, "top_k was 0; allowed: an integer from 1, or None"),
        ({"top_k": True}, "top_k was True; allowed"),
        ({"top_k": 1.0}, "top_k was 1.0; allowed"),
        ({"seed": -1}, "seed was -1; allowed: an integer from 0"),
        ({"seed": 2**63}, "seed was 9223372036854775808; allowed: an integer from 0"),
        ({"seed": True}, "seed was True; allowed"),
        ({"max_new_tokens": 0}, "max_new_tokens was 0; allowed: an integer from 1"),
        ({"max_new_tokens": True}, "max_new_tokens was True; allowed"),
        ({"max_new_tokens": None}, "max_new_tokens was None; allowed"),
        ({"ignore_eos": 1}, "ignore_eos was 1; allowed"),
        ({"stop": ""}, "stop was ''; allowed: a string or a list of strings, none of them empty"),
        ({"stop": ["a", ""]}, "none of them empty"),
        ({"stop": 5}, "stop was 5; allowed: a string or a list of strings"),
        ({"stop": ["x"] * 17}, "allowed: at most 16 stop strings"),
        ({"max_tokens": 5}, "unknown sampling parameter 'max_tokens'; known: max_new_tokens, temperature"),
    ],
)
def test_bad_parameter_is_refused_by_name(llm, given, message):
    with pytest.raises(ValueError, match=message) as from_params:
        SamplingParams(**given)
    for call in (llm.generate, llm.stream):
        with pytest.raises(ParameterError, match=message) as from_keywords:
            call("abc", **given)
        assert from_keywords.value.param == from_params.value.param == next(iter(given))
    assert is_idle(llm)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"stream": True}, r"stream= is LitGPT's form; call llm.stream\("),
        ({"return_as_token_ids": True}, "return_as_token_ids= is LitGPT's form; read completion.token_ids"),
        ({"sys_prompt": "Be brief"}, r"sys_prompt= is LitGPT's form; call llm.chat\(\[\{\"role\": \"system\""),
    ],
)
def test_litgpt_forms_are_refused_with_ours_named(llm, given, form):
    for prompt in ("abc", ["abc", "d"]):
        with pytest.raises(ParameterError, match=form):
            llm.generate(prompt, **given)
    with pytest.raises(ParameterError, match=form):
        llm.generate("abc", SamplingParams(), **given)


@pytest.mark.parametrize("prompt", ["abc", ["abc", "d"]])
def test_params_and_keywords_together_are_refused(llm, prompt):
    with pytest.raises(ParameterError, match="params and temperature were both given; allowed: one of the two"):
        llm.generate(prompt, SamplingParams(), temperature=0.0)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("abc", {"temperature": 0.0}, "params was dict; allowed: SamplingParams"),
        ("abc", [SamplingParams()], "params was list; allowed: SamplingParams"),
        (["a", "b"], [SamplingParams()], "1 params were given for 2 prompts; give one for each, or one for all"),
        (["a", "b"], [SamplingParams(), None], None),
        (["a", "b"], [SamplingParams(), 5], "prompt 1: params was int; allowed: SamplingParams"),
    ],
)
def test_params_fit_the_prompts(llm, prompt, params, message):
    if message is None:
        assert len(llm.generate(prompt, params)) == 2
        return
    with pytest.raises(ParameterError, match=message):
        llm.generate(prompt, params)
    assert is_idle(llm)


def test_tiny_temperatures_and_narrow_filters_are_greedy(llm):  # SP-02 and SP-04 through LLM
    greedy = llm.generate("abc", temperature=0.0, max_new_tokens=30, ignore_eos=True).token_ids
    for given in (
        {"temperature": 1e-10, "top_k": 40, "top_p": 0.9},
        {"temperature": 5e-324},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1, "top_p": 5e-324},
    ):
        assert llm.generate("abc", max_new_tokens=30, ignore_eos=True, **given).token_ids == greedy, given


def test_top_k_beyond_every_number_keeps_all(llm):
    everything = llm.generate("abc", temperature=1.0, seed=3, max_new_tokens=20, ignore_eos=True)
    for top_k in (272, 2**31, 2**63, 2**70):
        kept = llm.generate("abc", temperature=1.0, seed=3, top_k=top_k, max_new_tokens=20, ignore_eos=True)
        assert (kept.finish_reason, kept.token_ids) == ("length", everything.token_ids), top_k


def test_seed_is_random_unless_given_and_reported(llm):
    first, second = (llm.generate("abc", max_new_tokens=20, ignore_eos=True) for _ in range(2))
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    for completion in (first, second):
        again = llm.generate("abc", seed=completion.seed, max_new_tokens=20, ignore_eos=True)
        assert (again.token_ids, again.seed) == (completion.token_ids, completion.seed)


def test_every_prompt_of_a_list_gets_a_seed_of_its_own(llm):  # SP-07
    completions = llm.generate(["abc"] * 6, max_new_tokens=10, ignore_eos=True)
    assert len({c.seed for c in completions}) == 6
    assert len({c.text for c in completions}) >= 5


def test_seeded_text_does_not_depend_on_the_neighbours(llm):  # SP-05
    alone = llm.generate("abc", seed=42, max_new_tokens=40, ignore_eos=True)
    unseeded = SamplingParams(max_new_tokens=25, ignore_eos=True)
    seeded = SamplingParams(seed=42, max_new_tokens=40, ignore_eos=True)
    beside = llm.generate(["x", "yz", "abc", "w" * 50], [unseeded, unseeded, seeded, unseeded])
    assert beside[2].token_ids == alone.token_ids
    assert llm.generate("abc", seed=43, max_new_tokens=40, ignore_eos=True).token_ids != alone.token_ids


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
@pytest.mark.parametrize("draft", ["ngram", "debug", "early-exit:1", "early-exit:4"])
def test_draft_never_shows(llm, draft, num_draft_tokens):
    prompts = ["abcabcabcabc", "x", "a longer prompt, of other length"]
    params = [
        SamplingParams(temperature=0.0, max_new_tokens=40, ignore_eos=True),
        SamplingParams(temperature=0.8, top_k=30, seed=7, max_new_tokens=25, ignore_eos=True),
        SamplingParams(temperature=0.5, top_p=0.9, seed=8, max_new_tokens=33, ignore_eos=True),
    ]
    with load_debug(draft=None) as plain, load_debug(draft=draft, num_draft_tokens=num_draft_tokens) as drafting:
        expected = [c.token_ids for c in plain.generate(prompts, params)]
        found = drafting.generate(prompts, params)
        assert [c.token_ids for c in found] == expected
        assert sum(c.stats.drafted for c in found) > 0


def test_self_draft_accepts_every_token():  # MT-05, the library's half
    with load_debug(draft="early-exit:4", num_draft_tokens=3, max_seq_length=512) as llm:
        completion = llm.generate("Repeat this line.", temperature=0.0, max_new_tokens=260, ignore_eos=True)
        stats = completion.stats
        assert completion.completion_tokens == 260
        # One token of the prefill, 64 rounds of 4, and a last one that may only draft the two before its bonus.
        assert (stats.rounds, stats.drafted, stats.accepted) == (65, 194, 194)
        assert stats.acceptance_rate == 1.0
        assert stats.acceptance_length == pytest.approx(259 / 65)
