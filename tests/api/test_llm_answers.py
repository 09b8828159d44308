"""LLM: several answers to a prompt, and the parameters that reach the engine from here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from litspec import LLM, Completion, SamplingParams
from litspec.api.llm import GenerationInterrupted
from litspec.engine.params import ParameterError
from tests.api.small_models import answers, breaking, is_idle, load_debug

SAMPLED = {"temperature": 1.0, "max_new_tokens": 12, "ignore_eos": True}
GREEDY = {"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load_debug(max_seq_length=256, max_batch_size=4) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_is_left(llm) -> Iterator[None]:
    yield
    assert is_idle(llm)


def test_n_answers_stand_in_the_place_of_their_prompt(llm):
    choices = llm.generate("abcabc", n=3, seed=7, **SAMPLED)
    assert isinstance(choices, list) and len(choices) == 3 and all(isinstance(c, Completion) for c in choices)
    assert len({c.text for c in choices}) == 3
    assert {c.seed for c in choices} == {7}
    assert {c.prompt_tokens for c in choices} == {7}
    assert [c.completion_tokens for c in choices] == [12] * 3
    plain = llm.generate("abcabc", seed=7, **SAMPLED)
    assert answers([choices[0]]) == answers([plain]), "the first is what the seed alone gives"
    assert answers(llm.generate("abcabc", n=3, seed=7, **SAMPLED)) == answers(choices)
    assert answers(llm.generate("abcabc", n=2, seed=7, **SAMPLED)) == answers(choices[:2])


def test_answers_share_the_feeding_of_their_prompt():
    with load_debug(max_seq_length=256, max_batch_size=4) as llm:
        choices = llm.generate([7] * 90, n=4, seed=1, **SAMPLED)
        assert [c.stats.cached_tokens for c in choices] == [0, 89, 89, 89]
    with load_debug(max_seq_length=256, max_batch_size=4, prefix_reuse=False) as llm:
        without = llm.generate([7] * 90, n=4, seed=1, **SAMPLED)
        assert [c.stats.cached_tokens for c in without] == [0] * 4
    assert answers(without) == answers(choices)


def test_more_answers_than_slots_and_without_a_seed(llm):
    choices = llm.generate("abc", n=7, **SAMPLED)
    assert len({c.seed for c in choices}) == 1 and len({c.text for c in choices}) > 4
    again = llm.generate("abc", n=7, seed=choices[0].seed, **SAMPLED)
    assert answers(again) == answers(choices)


def test_greedy_answers_are_equal(llm):
    first, second = llm.generate("abc", n=2, **GREEDY)
    assert answers([first]) == answers([second])


def test_prompts_of_a_list_have_numbers_of_their_own(llm):
    prompts = ["a", "bc", [5, 6, 7]]
    params = [SamplingParams(n=n, seed=n, **SAMPLED) for n in (2, 1, 3)]
    together = llm.generate(prompts, params)
    assert [len(place) if isinstance(place, list) else None for place in together] == [2, None, 3]
    for place, prompt, each in zip(together, prompts, params, strict=True):
        alone = llm.generate(prompt, each)
        assert answers(place if isinstance(place, list) else [place]) == answers(
            alone if isinstance(alone, list) else [alone]
        )
    both = llm.generate(["a", "bc"], n=2, seed=2, **SAMPLED)
    assert [len(place) for place in both] == [2, 2]
    assert answers(both[0]) == answers(together[0])


@pytest.mark.parametrize("call", ["stream", "astream"])
def test_a_stream_has_one_answer(llm, call):
    with pytest.raises(ParameterError, match=r"n was 2; this call gives one answer, so allowed: 1") as caught:
        getattr(llm, call)("abc", n=2, **SAMPLED) if call == "stream" else _first(llm.astream("abc", n=2, **SAMPLED))
    assert caught.value.param == "n"


def _first(chunks) -> None:
    async def read() -> None:
        async for _ in chunks:
            break

    asyncio.run(read())


def test_an_interrupt_keeps_finished_answers_in_their_places(llm, monkeypatch):
    params = [SamplingParams(n=n, seed=1, **{**SAMPLED, "max_new_tokens": m}) for n, m in ((2, 1), (1, 2), (2, 90))]
    whole = llm.generate(["a", "b", "c"], params)
    monkeypatch.setattr(llm.engine, "step", breaking(llm.engine.step, at_call=8, error=KeyboardInterrupt()))
    with pytest.raises(GenerationInterrupted, match="interrupted with 2 of 3 finished") as caught:
        llm.generate(["a", "b", "c"], params)
    first, second, third = caught.value.completions
    assert answers(first) == answers(whole[0]) and answers([second]) == answers([whole[1]])
    assert third == [None, None]


def test_bad_words_are_texts(llm):
    free = llm.generate("abc", **GREEDY)
    word = chr(free.token_ids[2]) if free.token_ids[2] < 128 else "\x00"
    banned = llm.generate("abc", logit_bias={free.token_ids[3]: -100}, bad_words=["xyz", word], **GREEDY)
    assert word not in banned.text and free.token_ids[3] not in banned.token_ids
    letters = [chr(c) for c in range(97, 123)]
    assert not set(llm.generate("abc", seed=3, bad_words=letters, **SAMPLED).text) & set(letters)
    pair = "ab"
    given = {"temperature": 0.0, "max_new_tokens": 20, "logit_bias": {97: 50, 98: 49.9}, "frequency_penalty": 0.1}
    assert pair in llm.generate("abc", **given).text
    without = llm.generate("abc", bad_words=pair, **given).text
    assert pair not in without and "b" in without and "a" in without


def test_bad_words_that_are_no_words_are_refused_by_name(llm):
    for given in ({"bad_words": ["a", ""]}, {"bad_words": [3]}):
        with pytest.raises(ParameterError) as caught:
            llm.generate("abc", **given)
        assert caught.value.param == "bad_words"


@pytest.mark.parametrize("draft", [None, "ngram", "debug"])
def test_logprobs_are_in_the_completion_and_in_its_json(draft):
    with load_debug(max_seq_length=256, max_batch_size=4, draft=draft) as llm:
        plain = llm.generate("abcabc", seed=1, **SAMPLED)
        completion = llm.generate("abcabc", seed=1, logprobs=3, prompt_logprobs=2, **SAMPLED)
        first, second = llm.generate("abcabc", seed=1, n=2, logprobs=0, **SAMPLED)
    assert completion.token_ids == plain.token_ids == first.token_ids != second.token_ids
    assert plain.logprobs is None and "logprobs" in plain.to_dict()
    public = json.loads(json.dumps(completion.to_dict(), allow_nan=False))
    assert [entry["token_id"] for entry in public["logprobs"]] == completion.token_ids
    assert [entry and entry["token_id"] for entry in public["prompt_logprobs"]] == [None, *b"abcabc"]
    assert all(entry["logprob"] < 0 and len(entry["top"]) == 3 for entry in public["logprobs"])
    assert [entry.logprob for entry in first.logprobs or ()] == pytest.approx(
        [entry.logprob for entry in completion.logprobs or ()], abs=1e-9
    )
    assert [entry.token_id for entry in second.logprobs or ()] == second.token_ids


def test_ends_and_shortest_answers_reach_the_engine(llm):
    free = llm.generate("abc", **GREEDY)
    at = next(i for i in range(1, 12) if free.token_ids[i] not in free.token_ids[:i])
    end = free.token_ids[at]
    ended = llm.generate("abc", stop_token_ids=[end], **GREEDY)
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[: at + 1], "stop")
    shown = llm.generate("abc", stop_token_ids=[end], include_stop_str_in_output=True, **GREEDY)
    assert shown.token_ids == ended.token_ids and shown.text.startswith(ended.text)
    later = llm.generate("abc", stop_token_ids=[end], min_tokens=at + 3, **GREEDY)
    assert later.completion_tokens > at + 1 and later.token_ids[at] != end
    stopped = llm.generate("abc", stop="b", logit_bias={98: 100}, include_stop_str_in_output=True, **GREEDY)
    assert (stopped.text, stopped.finish_reason) == ("b", "stop")
    for given, param in (
        ({"stop_token_ids": [70000]}, "stop_token_ids"),
        ({"logit_bias": {"900001": 1}}, "logit_bias"),
    ):
        with pytest.raises(ParameterError) as caught:
            llm.generate(["abc", "d"], **given)
        assert caught.value.param == param and str(caught.value).startswith("prompt 0: ")


@pytest.mark.parametrize(
    "given",
    [
        {"min_p": 0.5},
        {"repetition_penalty": 1.8},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"logit_bias": {"65": 30}},
        {"top_k": 2},
    ],
)
def test_each_of_them_changes_the_text_and_the_draft_does_not(llm, given):
    params = {"seed": 5, **SAMPLED, "max_new_tokens": 24, **given}
    changed = llm.generate("abcabc", **params)
    assert changed.token_ids != llm.generate("abcabc", seed=5, **{**SAMPLED, "max_new_tokens": 24}).token_ids
    assert changed.token_ids == llm.generate("abcabc", num_draft_tokens=0, **params).token_ids
    with pytest.raises(ParameterError, match="num_draft_tokens was 64; allowed: 0") as caught:
        llm.generate("abcabc", num_draft_tokens=64, **params)
    assert caught.value.param == "num_draft_tokens"
