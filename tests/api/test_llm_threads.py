"""LLM: several threads at once, closing, Ctrl-C, and engine steps that fail."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from litspec import LLM, Completion, SamplingParams
from litspec.api.llm import Chunk, GenerationInterrupted
from tests.api.small_models import answers, breaking, is_idle, load_debug

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPTS = ["abc", "x", "a longer prompt than the others", "", "abcabcabc", "0123456789" * 4]
PARAMS = [SamplingParams(seed=i, max_new_tokens=10 + 7 * i, ignore_eos=True) for i in range(6)]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with load_debug(max_batch_size=3, max_seq_length=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    with load_debug(max_batch_size=1, max_seq_length=512, draft=None) as llm:
        return [llm.generate(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def test_threads_get_what_they_get_alone(llm, expected):
    def ask(index: int) -> Completion:
        if index % 2:
            return llm.generate(PROMPTS[index], PARAMS[index])
        *_, last = llm.stream(PROMPTS[index], PARAMS[index])
        return last.completion

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, [*range(6)] * 2))
    assert answers(found) == answers(expected * 2)
    assert max(c.stats.batch_rows for c in found if c.stats.rounds) > 1.2, "they shared a batch"
    assert is_idle(llm)


def test_short_answer_does_not_wait_for_a_long_one(llm):  # RB-12 through LLM
    thread, results = in_thread(lambda: llm.generate("abc", max_new_tokens=450, **GREEDY))
    wait_until(lambda: llm.engine.scheduler.num_running)
    assert llm.generate("x", max_new_tokens=4, **GREEDY).completion_tokens == 4
    assert not results, "the long one still runs"
    thread.join(60)
    assert results[0].completion_tokens == 450


def test_stream_that_is_read_slowly_holds_nobody_up(llm):
    stream = llm.stream("abc", max_new_tokens=40, **GREEDY)
    first = next(stream)
    other = llm.generate("x", max_new_tokens=60, **GREEDY)
    assert other.completion_tokens == 60
    rest = list(stream)
    assert "".join(c.text for c in [first, *rest]) == rest[-1].completion.text
    assert rest[-1].completion.token_ids == llm.generate("abc", max_new_tokens=40, **GREEDY).token_ids


def test_close_ends_what_runs_and_waits():
    llm = load_debug(max_batch_size=1, max_seq_length=512)
    streams = [llm.stream("abc", max_new_tokens=400, **GREEDY) for _ in range(2)]
    pieces = [next(streams[0]).text]
    thread, results = in_thread(lambda: llm.generate(["x", "y"], max_new_tokens=400, **GREEDY))
    wait_until(lambda: llm.engine.scheduler.num_waiting)
    llm.close()
    thread.join(60)
    assert [c.finish_reason for c in results[0]] == ["abort", "abort"]
    chunks = list(streams[0])
    assert chunks[-1].completion.finish_reason == "abort"
    assert "".join([*pieces, *(chunk.text for chunk in chunks)]) == chunks[-1].completion.text
    for call in (lambda: llm.generate("abc"), lambda: llm.stream("abc"), llm.describe, lambda: next(streams[1])):
        with pytest.raises(RuntimeError, match="this LLM is closed; load it again"):
            call()
    llm.close()


def test_close_lets_the_model_go():
    with load_debug() as llm:
        stream = llm.stream("abc", max_new_tokens=40, **GREEDY)
        next(stream)
        target = weakref.ref(llm.engine.target)
    gc.collect()
    assert target() is None, "the weights are still held"
    assert list(stream)[-1].completion.finish_reason == "abort"


def test_context_manager_closes_on_an_error():
    with pytest.raises(ZeroDivisionError), load_debug() as llm:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("abc")


@pytest.mark.parametrize("at_call", [1, 2, 12])
@pytest.mark.parametrize("place", ["propose", "hidden", "logits", "step"])
def test_ctrl_c_keeps_what_is_finished(llm, monkeypatch, place, at_call):
    expected = llm.generate(["abc", "x"], [SamplingParams(max_new_tokens=n, **GREEDY) for n in (3, 60)])
    owner = {"propose": llm.engine.proposer, "step": llm.engine}.get(place, llm.engine.target)
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, breaking(getattr(owner, place), at_call=at_call, error=KeyboardInterrupt()))
        with pytest.raises(GenerationInterrupted) as caught:
            llm.generate(["abc", "x"], [SamplingParams(max_new_tokens=n, **GREEDY) for n in (3, 60)])
    first, second = caught.value.completions
    assert isinstance(caught.value, KeyboardInterrupt)
    assert second is None
    if at_call == 12:
        assert answers([first]) == answers(expected[:1])
    elif at_call == 1:
        assert first is None
    assert str(caught.value) == f"interrupted with {first is not None:d} of 2 finished"
    assert is_idle(llm)
    again = llm.generate(["abc", "x"], [SamplingParams(max_new_tokens=n, **GREEDY) for n in (3, 60)])
    assert answers(again) == answers(expected)


def test_ctrl_c_keeps_what_finished_out_of_order(llm, monkeypatch):
    params = [SamplingParams(max_new_tokens=n, **GREEDY) for n in (60, 3, 60)]
    expected = llm.generate(["abc", "x", "yz"], params)
    monkeypatch.setattr(llm.engine, "step", breaking(llm.engine.step, at_call=10, error=KeyboardInterrupt()))
    with pytest.raises(GenerationInterrupted) as caught:
        llm.generate(["abc", "x", "yz"], params)
    first, second, third = caught.value.completions
    assert first is None and third is None
    assert answers([second]) == answers(expected[1:2])


def test_ctrl_c_in_a_single_prompt_and_in_a_stream(llm, monkeypatch):
    step = llm.engine.step
    monkeypatch.setattr(llm.engine, "step", breaking(step, at_call=3, error=KeyboardInterrupt()))
    with pytest.raises(GenerationInterrupted) as caught:
        llm.generate("abc", max_new_tokens=60, **GREEDY)
    assert caught.value.completions == [None]
    monkeypatch.setattr(llm.engine, "step", breaking(step, at_call=3, error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(llm.stream("abc", max_new_tokens=60, **GREEDY))
    assert is_idle(llm)


def test_interrupted_step_ends_the_other_threads_rows_in_abort(llm, monkeypatch):
    pieces: list[Chunk] = []
    go_on = threading.Event()

    def read() -> None:
        for chunk in llm.stream("x", max_new_tokens=200, **GREEDY):
            pieces.append(chunk)
            assert go_on.wait(60)

    thread, results = in_thread(read)
    wait_until(lambda: pieces)  # it pauses there, so the main thread drives both
    with monkeypatch.context() as patch:
        hidden = breaking(llm.engine.target.hidden, at_call=9, error=KeyboardInterrupt())
        patch.setattr(llm.engine.target, "hidden", hidden)
        with pytest.raises(GenerationInterrupted) as caught:
            llm.generate("abc", max_new_tokens=200, **GREEDY)
    go_on.set()
    thread.join(60)
    assert caught.value.completions == [None]
    assert results == [None], "the other thread came to an end of its own"
    last = pieces[-1].completion
    assert last.finish_reason == "abort"
    assert "".join(p.text for p in pieces) == last.text
    assert [i for p in pieces for i in p.token_ids] == last.token_ids
    assert is_idle(llm)
    whole = llm.generate("x", max_new_tokens=200, **GREEDY)
    assert len(last.token_ids) > 3
    assert whole.token_ids[: len(last.token_ids)] == last.token_ids


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no memory to copy")], ids=["ctrl-c", "failure"])
def test_a_prefix_that_cannot_be_copied_ends_its_request_alone(llm, monkeypatch, error):
    prompt = "a prompt that is long enough to be copied"
    expected = llm.generate([prompt, "x"], max_new_tokens=9, **GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.cache, "copy_prefix", breaking(llm.engine.cache.copy_prefix, at_call=1, error=error))
        patch.setattr(llm.engine.cache, "rewind", breaking(llm.engine.cache.rewind, at_call=1, error=error))
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(GenerationInterrupted):
                llm.generate([prompt, "x"], max_new_tokens=9, **GREEDY)
        else:
            first, second = llm.generate([prompt, "x"], max_new_tokens=9, **GREEDY)
            assert (first.finish_reason, first.error) == ("error", "the engine failed: RuntimeError: no memory to copy")
            assert answers([second]) == answers(expected[1:])
    assert is_idle(llm)
    assert answers(llm.generate([prompt, "x"], max_new_tokens=9, **GREEDY)) == answers(expected)


@pytest.mark.parametrize("place", ["propose", "hidden", "logits"])
def test_failing_step_is_the_error_of_what_ran_in_it(llm, monkeypatch, place):
    params = [SamplingParams(max_new_tokens=n, **GREEDY) for n in (3, 40, 40, 5)]
    expected = llm.generate(["abc", "x", "yz", "late"], params)
    owner = llm.engine.proposer if place == "propose" else llm.engine.target
    fault = RuntimeError("out of memory, as the test wants")
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, breaking(getattr(owner, place), at_call=6, error=fault))
        found = llm.generate(["abc", "x", "yz", "late"], params)
    assert [c.finish_reason for c in found[1:3]] == ["error", "error"]
    for broken, whole in zip(found[1:3], expected[1:3], strict=True):
        assert broken.error == "the engine failed: RuntimeError: out of memory, as the test wants"
        assert broken.token_ids == whole.token_ids[: broken.completion_tokens]
    assert answers([found[0]]) == answers([expected[0]])
    assert found[3].finish_reason in ("length", "error")
    assert is_idle(llm)
    assert answers(llm.generate(["abc", "x", "yz", "late"], params)) == answers(expected)


def test_failing_step_between_prompt_and_first_token_leaves_no_broken_row(llm, monkeypatch):
    """The prompt is in the cache and its first token is not drawn: feeding that row again would be an empty feed."""
    expected = llm.generate("abc", max_new_tokens=5, **GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.target, "logits", breaking(llm.engine.target.logits, at_call=1, error=OSError("x")))
        assert llm.generate("abc", max_new_tokens=5, **GREEDY).finish_reason == "error"
    assert answers([llm.generate("abc", max_new_tokens=5, **GREEDY)]) == answers([expected])


def test_progress_is_shown_for_lists_on_a_terminal_alone(llm, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    llm.generate("abc", max_new_tokens=2)
    assert capsys.readouterr().err == ""
    llm.generate(["abc", "x"], max_new_tokens=2)
    shown = capsys.readouterr()
    assert "generating" in shown.err and "2/2" in shown.err
    assert shown.out == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    llm.generate(["abc", "x"], max_new_tokens=2)
    assert capsys.readouterr().err == ""
