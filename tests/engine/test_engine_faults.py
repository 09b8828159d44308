"""Requests that cannot run, that fail, that are aborted, and that are many: the others go on and nothing is left.

Cases: MG-02 (without resident memory: all tables and all requests are gone) and MG-03.
"""

from __future__ import annotations

import gc
import weakref

import pytest

from litspec.draft import NgramProposer, Proposer
from litspec.engine.params import ParameterError
from tests.engine.scripted import Letters, ScriptedProposer, ScriptedTarget
from tests.engine.support import (
    ODD_SHAPES,
    ask,
    assert_idle,
    make_engine,
    random_prompt,
    recompute,
    run,
    same,
    tiny_model,
)


def count_up(tokens: list[int]) -> int:
    return (tokens[-1] + 1) % 26


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt has no tokens"),
        ([1] * 16, r"the prompt has 16 tokens; allowed: up to 15, so that .* fits max_seq_length 16"),
        ([1, 96], "prompt token 1 was 96; allowed: ids from 0 to 95"),
        ([-1], "prompt token 0 was -1"),
        ([1, True], "prompt token 1 was True"),
        ([1, 2.0], "prompt token 1 was 2.0"),
    ],
)
def test_a_prompt_that_can_never_run_is_refused_and_the_others_go_on(prompt, message):
    engine = make_engine(tiny_model(context=16), draft="ngram")
    good = ask("good", [1] * 15, max_new_tokens=9)
    engine.add_request(good)
    with pytest.raises(ParameterError, match=message) as caught:
        engine.add_request(ask("bad", prompt))
    assert caught.value.param == "prompt"
    engine.step()
    assert (good.num_emitted, good.finish_reason) == (1, "length")
    assert_idle(engine)


def test_an_id_in_use_is_refused_and_may_be_used_again_later():
    engine = make_engine(draft="ngram", slots=1)
    for name in ("running", "waiting"):
        engine.add_request(ask(name, [1, 2], max_new_tokens=5))
    engine.step()
    for name in ("running", "waiting"):
        with pytest.raises(ParameterError, match=f"request_id was '{name}', which is in use") as caught:
            engine.add_request(ask(name, [1, 2, 3]))
        assert caught.value.param == "request_id"
    while engine.has_active_requests():
        engine.step()
    again = ask("running", [1, 2], max_new_tokens=5)
    assert run(engine, [again])[0].token_ids == recompute(again)


def test_a_request_runs_once():
    engine = make_engine(slots=1)
    request = ask("a", [1, 2], max_new_tokens=2)
    engine.generate([request])
    with pytest.raises(AssertionError, match="has run already"):
        engine.add_request(request)
    engine.add_request(queued := ask("b", [1]))
    engine.abort("b")
    with pytest.raises(AssertionError, match="has run already"):
        engine.add_request(queued)


@pytest.mark.parametrize("num_right", [0, 2, 4])
@pytest.mark.parametrize("fails_at", [3, 4, 6])
def test_a_detokeniser_that_fails_ends_its_own_request_alone(num_right, fails_at):
    """Token 3 comes with the prefill; the others come in blocks of one, three or five."""
    proposer = ScriptedProposer(count_up, lambda name, step, limit: (4, num_right))
    engine = make_engine(ScriptedTarget(count_up), draft=proposer, slots=3)
    rows = [
        ask("good", [2], text=Letters(), max_new_tokens=12),
        ask("bad", [2], text=Letters(fails_at=fails_at), stop="fz", max_new_tokens=12),
        ask("other", [7], text=Letters(), stop="n", max_new_tokens=12),
    ]
    good, bad, other = run(engine, rows)
    assert (bad.finish_reason, bad.error) == ("error", f"RuntimeError: no text for token {fails_at}")
    assert bad.token_ids == list(range(3, fails_at + 1))
    assert bad.text == "def"[: fails_at - 3]
    assert bad.stats.emitted == bad.completion_tokens == len(bad.token_ids)
    assert (good.text, good.finish_reason, good.error) == ("defghijklmno", "length", None)
    assert (other.text, other.finish_reason) == ("ijklm", "stop")
    assert sorted(proposer.released) == ["bad", "good", "other"]
    assert_idle(engine)


def test_a_detokeniser_that_fails_at_the_end_keeps_the_tokens():
    class FailsToFlush(Letters):
        def flush(self) -> str:
            raise ValueError("half a character")

    engine = make_engine(ScriptedTarget(count_up))
    completion = run(engine, [ask("a", [2], text=FailsToFlush(), max_new_tokens=3)])[0]
    assert (completion.finish_reason, completion.error) == ("error", "ValueError: half a character")
    assert completion.token_ids == [3, 4, 5]
    assert_idle(engine)


@pytest.mark.parametrize("draft", ["none", "ngram", "model"])
def test_abort_while_queued_while_reading_the_prompt_and_while_decoding(draft):
    engine = make_engine(draft=draft, slots=2, shapes=ODD_SHAPES)
    keeps = ask("keeps", random_prompt(6, seed=1), max_new_tokens=30)
    decoding = ask("decoding", random_prompt(5, seed=2), max_new_tokens=200, text=Letters(), stop="\0")
    reading = ask("reading", random_prompt(200, seed=3))
    queued = ask("queued", random_prompt(5, seed=4))
    for request in (keeps, decoding, queued, reading):
        engine.add_request(request)
    for _ in range(4):
        engine.step()
    last = engine.abort("queued")
    assert last is not None and last.completion is not None
    assert (last.completion.finish_reason, last.completion.token_ids) == ("abort", [])
    assert last.completion.stats.queue_s is None
    last = engine.abort("decoding")
    assert last is not None and last.completion is not None
    assert last.token_ids == []
    assert last.completion.token_ids == recompute(same(decoding))[: len(last.completion.token_ids)]
    assert last.completion.text == "".join(chr(97 + t % 26) for t in last.completion.token_ids)
    assert engine.has_capacity() is False, "the freed slot is spoken for"
    engine.step()
    assert (reading.slot, reading.length) == (1, 40)
    last = engine.abort("reading")
    assert last is not None and last.completion is not None
    assert last.completion.finish_reason == "abort"
    while engine.has_active_requests():
        engine.step()
    assert keeps.output_ids == recompute(same(keeps))
    assert_idle(engine)


def test_a_request_that_the_caller_fails_keeps_its_message_and_frees_its_slot():
    engine = make_engine(ScriptedTarget(count_up), slots=1)
    for name in ("a", "b"):
        engine.add_request(ask(name, [2], text=Letters(), max_new_tokens=4))
    engine.step()
    last = engine.fail("a", "the device is gone")
    assert last is not None and last.completion is not None
    assert (last.completion.finish_reason, last.completion.error) == ("error", "the device is gone")
    assert (last.completion.text, last.completion.token_ids) == ("d", [3])
    assert engine.fail("a", "again") is None
    while engine.has_active_requests():
        emissions = engine.step()
    assert emissions[-1].completion is not None
    assert emissions[-1].completion.text == "defg"
    assert_idle(engine)


def test_MG_03_aborts_of_what_has_ended_or_never_was():
    proposer = NgramProposer()
    engine = make_engine(ScriptedTarget(count_up), draft=proposer)
    for number in range(1000):
        request = ask(f"{number}", [number % 26, 3], max_new_tokens=1)
        engine.add_request(request)
        emissions = engine.step()
        assert emissions[-1].completion is not None
        assert engine.abort(request.id) is None
        assert engine.abort("unknown") is None
        engine.add_request(ask("twice", [1]))
        assert engine.abort("twice") is not None
        assert engine.abort("twice") is None
    assert_idle(engine)
    assert engine.scheduler._by_id == {}


def test_MG_02_thousands_of_requests_that_end_in_their_first_step_leave_nothing():
    engine = make_engine(ScriptedTarget(count_up), draft="ngram", slots=16)
    watched: list[weakref.ref] = []
    reasons: list[str] = []
    for number in range(0, 3000, 30):
        requests = []
        for i in range(number, number + 30):
            prompt = [i % 26, i // 26 % 26, i // 676 + 1, i % 13]
            kind = ({"max_new_tokens": 1}, {"eos": range(26)}, {"stop": list("abcdefghijklmn")})[i % 3]
            requests.append(ask(f"{i}", prompt, text=Letters(), **kind))
        watched += [weakref.ref(request) for request in requests]
        reasons += [c.finish_reason for c in engine.generate(requests)]
        del requests
    gc.collect()
    assert reasons == ["length", "stop", "stop"] * 1000
    assert [alive for ref in watched if (alive := ref()) is not None] == []
    assert_idle(engine)


def test_a_proposer_is_told_of_every_end_once_and_before_the_slot_is_given_away():
    class Recorder(Proposer):
        def __init__(self) -> None:
            self.ended: list[tuple[str, int | None]] = []

        def propose(self, rows, limits):
            return NgramProposer().propose(rows, limits)

        def release(self, row):
            self.ended.append((row.id, row.slot))

    recorder = Recorder()
    engine = make_engine(draft=recorder, slots=1)
    for name in ("a", "b", "c", "d"):
        engine.add_request(ask(name, [1, 2], max_new_tokens=4))
    engine.step()
    engine.abort("c")
    engine.abort("a")
    while engine.has_active_requests():
        engine.step()
    assert recorder.ended == [("a", 0), ("b", 0), ("d", 0)]


def test_an_idle_engine_steps_without_doing_anything():
    engine = make_engine(draft="model")
    assert engine.step() == []
    assert engine.has_capacity()
    assert not engine.has_active_requests()
