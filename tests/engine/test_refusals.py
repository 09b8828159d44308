"""A bad request is refused by the name of its field, and the ones that run go on as if it had not come.

Cases: OA-08 and OA-09 (their engine halves), the refusal of SP-15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from litspec.engine.params import ParameterError
from tests.engine.support import TINY, ask, assert_idle, make_engine, random_prompt, recompute, same

V = TINY.vocab_size
BAD: list[tuple[str, str, Callable[[], Any]]] = [
    ("logit_bias", "a key of logit_bias was 900001; allowed: ids from 0", lambda: {"logit_bias": {"900001": 1}}),
    ("logit_bias", f"logit_bias was {V}; allowed: ids from 0 to {V - 1}", lambda: {"logit_bias": {0: 1, V: 1}}),
    ("logit_bias", "which '-1' is not", lambda: {"logit_bias": {"-1": 1}}),
    ("logit_bias", "which 'abc' is not", lambda: {"logit_bias": {"abc": 1}}),
    ("logit_bias", "which 101 for '5' is not", lambda: {"logit_bias": {"5": 101}}),
    ("logit_bias", "which 'x' for '5' is not", lambda: {"logit_bias": {"5": "x"}}),
    ("stop_token_ids", r"stop_token_ids\[1\] was 70000; allowed: ids from 0", lambda: {"stop_token_ids": [3, 70000]}),
    ("stop_token_ids", "allowed: a list of token ids", lambda: {"stop_token_ids": [-3], "min_tokens": 5}),
    ("stop_token_ids", "allowed: a list of token ids", lambda: {"stop_token_ids": ["2"]}),
    ("stop_token_ids", "was 70000", lambda: {"stop_token_ids": [70000], "min_tokens": 5}),
    ("prompt", "prompt token 1 was 99999; allowed", lambda: {"prompt": [3, 99999]}),
    ("prompt", "the prompt has no tokens", lambda: {"prompt": []}),
    ("bad_words", "token 1 of bad word 1 was 500", lambda: {"bad": [[3], [4, 500]]}),
    ("bad_words", f"bad_words ban all {V} tokens", lambda: {"bad": [[i] for i in range(V)]}),
    ("bad_words", "leave at least one", lambda: {"bad": [[i] for i in range(V - 1)], "eos": [V - 1]}),
    ("stop_token_ids", f"stop_token_ids ban all {V} tokens", lambda: {"stop_token_ids": [*range(V)], "min_tokens": 1}),
    ("min_tokens", "allowed: an integer from 0 to max_new_tokens, 4", lambda: {"min_tokens": 5, "max_new_tokens": 4}),
    ("num_draft_tokens", "was 9; allowed: 0", lambda: {"num_draft_tokens": 9}),
    ("logprobs", "an integer from 0 to 20", lambda: {"logprobs": 31}),
    ("n", "an integer from 1 to 128", lambda: {"n": 0}),
]


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_OA_08_and_OA_09_three_requests_run_on_while_every_bad_one_is_refused(draft):
    engine = make_engine(draft=draft)
    running = [
        ask(f"{i}", random_prompt(5 + 9 * i, seed=i), max_new_tokens=30, temperature=i / 2, seed=i) for i in range(3)
    ]
    for request in running:
        engine.add_request(request)
    for number, (param, message, given) in enumerate(BAD):
        refused = {"prompt": [1, 2], **given()}
        with pytest.raises(ParameterError, match=message) as caught:
            engine.add_request(ask(f"bad {number}", refused.pop("prompt"), **refused))
        assert caught.value.param == param
        engine.step()
        assert engine.scheduler.num_waiting == 0
    while engine.has_active_requests():
        engine.step()
    assert [request.output_ids for request in running] == [recompute(same(request)) for request in running]
    assert engine.stats.finished == {"length": 3}
    assert_idle(engine)


def test_ids_that_end_the_text_may_be_all_that_are_not_bad_words_but_one():
    engine = make_engine()
    request = ask("a", [1], bad=[[i] for i in range(V - 2)], eos=[V - 1], max_new_tokens=5, temperature=1.0)
    engine.add_request(request)
    while engine.has_active_requests():
        engine.step()
    assert set(request.output_ids) <= {V - 2, V - 1}


def test_every_token_may_end_the_text():
    engine = make_engine()
    request = ask("a", [1], eos=range(V), max_new_tokens=5)
    engine.add_request(request)
    engine.step()
    assert (request.num_emitted, request.finish_reason) == (1, "stop")
