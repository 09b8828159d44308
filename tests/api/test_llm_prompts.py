"""LLM: prompts, lists of them, and what of a prompt is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from litspec import LLM, SamplingParams
from litspec.engine.params import ParameterError
from tests.api.small_models import (
    answers,
    is_idle,
    load_checkpoint,
    load_debug,
    save_checkpoint,
    set_generation_config,
)

GREEDY = {"temperature": 0.0, "ignore_eos": True}
CHAT = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load_debug(max_seq_length=128) as llm:
        yield llm


@pytest.fixture(scope="module")
def chat_llm(tmp_path_factory) -> Iterator[LLM]:
    with load_checkpoint(save_checkpoint(tmp_path_factory.mktemp("model")), max_batch_size=2) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_is_left(llm) -> Iterator[None]:
    yield
    assert is_idle(llm)


def test_text_is_used_as_it_stands_and_ids_untouched(llm):
    from_text = llm.generate("abc", max_new_tokens=8, **GREEDY)
    from_ids = llm.generate([256, *b"abc"], max_new_tokens=8, **GREEDY)
    without_bos = llm.generate(tuple(b"abc"), max_new_tokens=8, **GREEDY)
    assert from_text.prompt_tokens == from_ids.prompt_tokens == 4
    assert without_bos.prompt_tokens == 3
    assert from_text.token_ids == from_ids.token_ids != without_bos.token_ids


def test_list_keeps_the_order_and_equals_single_calls(llm):  # RB-05
    prompts = ["a", "a longer prompt with more to read", "", [7, 8, 9]]
    params = [SamplingParams(max_new_tokens=n, temperature=1.0, seed=n, ignore_eos=True) for n in (3, 40, 17, 5)]
    together = llm.generate(prompts, params)
    alone = [llm.generate(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    assert [c.completion_tokens for c in together] == [3, 40, 17, 5]
    assert answers(together) == answers(alone)
    assert len({c.text for c in together}) == 4
    assert together[1].stats.batch_rows > 1


def test_list_longer_than_the_batch_is_answered_in_order():
    with load_debug(max_batch_size=2) as llm:
        prompts = [chr(97 + i) * (i + 1) for i in range(7)]
        params = [SamplingParams(max_new_tokens=2 + i, **GREEDY) for i in range(7)]
        completions = llm.generate(prompts, params)
        assert [c.completion_tokens for c in completions] == list(range(2, 9))
        assert answers(completions) == answers(list(map(llm.generate, prompts, params)))


def test_one_params_serves_a_whole_list(llm):
    completions = llm.generate(["a", "bc"], SamplingParams(max_new_tokens=6, **GREEDY))
    assert [c.completion_tokens for c in completions] == [6, 6]
    assert answers(completions) == answers(llm.generate(["a", "bc"], max_new_tokens=6, **GREEDY))


def test_list_of_one_gives_a_list(llm):
    assert len(llm.generate(["a"], max_new_tokens=2)) == 1
    assert len(llm.generate([[5, 6]], max_new_tokens=2)) == 1


def test_no_prompts_give_no_completions(llm):
    assert llm.generate([]) == []
    with pytest.raises(ParameterError, match="unknown sampling parameter 'max_tokens'"):
        llm.generate([], max_tokens=3)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([[]], "prompt 0: the prompt has no tokens; allowed: at least one"),
        (["a", []], "prompt 1: the prompt has no tokens"),
        ([[5, 272]], "prompt 0: prompt token 1 was 272; allowed: ids from 0 to 271"),
        ([5, -1], "prompt token 1 was -1; allowed: ids from 0 to 271"),
        ([5, 10**30], "prompt token 1 was 1000000000"),
        ([5, 6.0], "prompt token 1 was float 6.0; allowed in a list of token ids: Python integers"),
        ([True, 6], "prompt token 0 was bool True"),
        (["a", 6], "prompt 1: the prompt was int 6; allowed: text, a list of token ids"),
        (["a", None], "prompt 1: the prompt was NoneType None"),
        (["ok", "x" * 128], "prompt 1: the prompt has 129 tokens; allowed: up to 127"),
        (None, "the prompt was NoneType None; allowed: text, a list of token ids"),
        (b"abc", "the prompt was bytes; allowed: text"),
        (np.array([5, 6]), r"the prompt was ndarray \(convert it with .tolist\(\)\); allowed"),
        (torch.tensor([5, 6]), r"the prompt was Tensor \(convert it with .tolist\(\)\); allowed"),
        (list(np.array([5, 6])), r"prompt token 0 was int64 \(convert it with .tolist\(\)\)"),
        (["a", np.array([5])], r"prompt 1: the prompt was ndarray \(convert it"),
        ([np.array([5]), np.array([6])], r"prompt token 0 was ndarray \(convert it"),
        ("half \ud800 pair", "half of a surrogate pair"),
        (["a", "\ud800"], "prompt 1: the text holds"),
        (CHAT, r"the prompt was a list of messages; call chat\(messages\)"),
        (CHAT[0], r"the prompt was a list of messages; call chat\(messages\)"),
        ([CHAT, CHAT], r"prompt 0: the prompt was a list of messages; call chat\(messages\)"),
    ],
)
def test_bad_prompt_is_refused_before_anything_runs(llm, monkeypatch, prompt, message):
    monkeypatch.setattr(llm.engine, "step", lambda: pytest.fail("something ran"))
    with pytest.raises(ParameterError, match=message) as caught:
        llm.generate(prompt, max_new_tokens=3)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [[], [5, 272], 7, "x" * 128])
def test_bad_prompt_is_refused_before_a_stream_begins(llm, prompt):
    with pytest.raises(ParameterError):
        llm.stream(prompt)


def test_longest_prompt_leaves_room_for_one_token(llm):
    completion = llm.generate([7] * 127, max_new_tokens=50, **GREEDY)
    assert (completion.completion_tokens, completion.finish_reason) == (1, "length")
    with pytest.raises(ParameterError, match=r"128 tokens; allowed: up to 127.*max_seq_length 128. Shorten it"):
        llm.generate([7] * 128)


@pytest.mark.parametrize("draft", [None, "ngram", "debug", "early-exit:4"])
def test_answer_is_cut_to_what_fits(draft):  # KV-06
    with load_debug(max_seq_length=128, draft=draft, num_draft_tokens=5) as llm:
        completion = llm.generate([7, 8] * 62 + [9], max_new_tokens=50, **GREEDY)
        assert (completion.completion_tokens, completion.finish_reason) == (3, "length")
        with load_debug(max_seq_length=256, draft=None) as roomy:
            assert completion.token_ids == roomy.generate([7, 8] * 62 + [9], max_new_tokens=3, **GREEDY).token_ids


def test_chat_applies_the_template_and_generate_does_not(chat_llm):
    chat = chat_llm.chat(CHAT, max_new_tokens=6, **GREEDY)
    ids = chat_llm.tokenizer.encode("<|part|>Hello</s><|part|>")
    assert chat.prompt_tokens == len(ids)
    assert chat.token_ids == chat_llm.generate(ids, max_new_tokens=6, **GREEDY).token_ids
    plain = chat_llm.generate("Hello", max_new_tokens=6, **GREEDY)
    assert plain.prompt_tokens < chat.prompt_tokens
    assert plain.token_ids != chat.token_ids


def test_list_of_chats_equals_single_chats(chat_llm):
    chats = [CHAT, [*CHAT, {"role": "assistant", "content": "Rain"}, {"role": "user", "content": "falls"}]]
    params = [SamplingParams(max_new_tokens=5, **GREEDY), SamplingParams(max_new_tokens=9, **GREEDY)]
    together = chat_llm.chat(chats, params)
    assert answers(together) == answers(list(map(chat_llm.chat, chats, params)))
    assert [c.completion_tokens for c in together] == [5, 9]


def test_empty_message_is_a_chat_like_any_other(chat_llm):
    assert chat_llm.chat([{"role": "user", "content": ""}], max_new_tokens=2, **GREEDY).completion_tokens == 2


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages were empty"),
        ("Hello", "messages were str"),
        ([{"role": "user"}], "message 0 has no 'content'"),
        ([CHAT[0], "Hello"], "message 1 was str"),
        ([{"role": "system", "content": "x"}], "no system role here"),
        ([CHAT, [{"role": "system", "content": "x"}]], "prompt 1: no system role here"),
    ],
)
def test_bad_messages_are_refused(chat_llm, messages, message):
    with pytest.raises(ParameterError, match=message) as caught:
        chat_llm.chat(messages)
    assert caught.value.param == "messages"


def test_model_without_a_template_says_so(llm):
    with pytest.raises(ParameterError, match="no chat template; give a prompt as text instead"):
        llm.chat(CHAT)


def test_model_without_bos_refuses_the_empty_text(chat_llm):
    with pytest.raises(ParameterError, match="the prompt has no tokens; allowed: at least one"):
        chat_llm.generate("")
    with pytest.raises(ParameterError, match="prompt 1: the prompt has no tokens"):
        chat_llm.generate(["a", ""])


def test_generation_config_fills_only_what_was_not_given(tmp_path: Path):
    folder = save_checkpoint(tmp_path)
    plain = [*b"Hello"]
    with load_checkpoint(folder) as llm:
        greedy = llm.generate(plain, temperature=0.0, max_new_tokens=7, ignore_eos=True)
        sampled = llm.generate(plain, temperature=1.0, seed=5, max_new_tokens=12, ignore_eos=True)
        narrow = llm.generate(plain, temperature=1.0, top_k=2, seed=5, max_new_tokens=12, ignore_eos=True)
        assert len({str(c.token_ids[:7]) for c in (greedy, sampled, narrow)}) == 3, "the cases can be told apart"
    set_generation_config(folder, do_sample=False, max_new_tokens=7)
    with load_checkpoint(folder) as llm:
        assert llm.generate(plain, ignore_eos=True).token_ids == greedy.token_ids
        given = llm.generate(plain, temperature=1.0, seed=5, max_new_tokens=12, ignore_eos=True)
        assert given.token_ids == sampled.token_ids
    set_generation_config(folder, do_sample=True, temperature=1.0, top_k=2)
    with load_checkpoint(folder) as llm:
        assert llm.generate(plain, seed=5, max_new_tokens=12, ignore_eos=True).token_ids == narrow.token_ids
        without = llm.generate(plain, seed=5, top_k=None, max_new_tokens=12, ignore_eos=True)
        assert without.token_ids == sampled.token_ids


def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenised(llm, monkeypatch):
    monkeypatch.setattr(type(llm.tokenizer), "encode", lambda *_, **__: pytest.fail("it was tokenised"))
    for refused in (
        lambda: llm.generate("x" * 10_000),
        lambda: llm.generate(["y" * 10_000]),
        lambda: llm.stream("z" * 10_000),
        lambda: llm.prepare([{"role": "user", "content": "z" * 10_000}], SamplingParams()),
        lambda: llm.chat([{"role": "user", "content": "z" * 10_000}]),
    ):
        with pytest.raises(ParameterError, match="10000 characters; allowed: up to 127 tokens"):
            refused()
