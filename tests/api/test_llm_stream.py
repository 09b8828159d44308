"""LLM.stream and astream: every piece is certain, the pieces are the whole, and leaving early leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from litspec import LLM, SamplingParams
from litspec.api.config import EngineConfig
from litspec.api.llm import Chunk
from litspec.api.loading import open_model
from litspec.draft import NgramProposer
from litspec.engine.engine import Engine
from litspec.model.window import Shapes
from tests.api.small_models import answers, collected, is_idle, load_checkpoint, load_debug, save_checkpoint
from tests.engine.scripted import ScriptedTarget, continuing

PROMPT = [65, 66]
EOS = 257


def scripted_llm(output: bytes | list[int], *, num_draft_tokens: int = 4) -> LLM:
    """Return an LLM that answers PROMPT with these bytes and ends; n-gram drafts are checked as ever."""
    target = ScriptedTarget(continuing({tuple(PROMPT): [*output]}, otherwise=EOS), vocab_size=272)
    engine = Engine(
        target,
        target.new_cache(4),
        shapes=Shapes.plan(max_batch_size=4, num_draft_tokens=num_draft_tokens),
        proposer=NgramProposer(min_n=1) if num_draft_tokens else None,
        num_draft_tokens=num_draft_tokens,
    )
    return LLM(open_model("debug"), engine, EngineConfig())


def joined(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load_debug(max_batch_size=2, max_seq_length=512) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_is_left(llm) -> Iterator[None]:
    yield
    assert is_idle(llm)


@pytest.mark.parametrize("read", [lambda llm, *a, **k: list(llm.stream(*a, **k)), collected], ids=["stream", "astream"])
@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"seed": 3}, {"seed": 4, "stop": ["a", "\n"]}, {"seed": 5}])
def test_pieces_are_what_generate_gives(llm, read, given):
    given = {"max_new_tokens": 60, **given}
    chunks = read(llm, "abcabc", **given)
    whole = llm.generate("abcabc", **given)
    assert joined(chunks) == whole.text
    assert [i for chunk in chunks for i in chunk.token_ids] == whole.token_ids
    assert answers([chunks[-1].completion]) == answers([whole])
    assert chunks[-1].completion.stats.ttft_s > 0
    assert all(chunk.completion is None and chunk.text for chunk in chunks[:-1])
    assert len(chunks) > 3 or "stop" in given


def test_stream_takes_ids_messages_and_params(tmp_path):
    with load_checkpoint(save_checkpoint(tmp_path)) as llm:
        messages = [{"role": "user", "content": "Hello"}]
        params = SamplingParams(temperature=0.0, max_new_tokens=9, ignore_eos=True)
        assert joined(list(llm.stream(messages, params))) == llm.chat(messages, params).text
        assert joined(list(llm.stream([5, 6], params))) == llm.generate([5, 6], params).text


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 8])
@pytest.mark.parametrize("text", ["řeka", "바다가 보여요", "a 🦊 b", "real \ufffd one", "řřřřřřřřřř"])
def test_no_piece_holds_half_a_character(text, num_draft_tokens):  # UT-01, UT-05, UT-11
    with scripted_llm(text.encode(), num_draft_tokens=num_draft_tokens) as llm:
        chunks = list(llm.stream(PROMPT, temperature=0.0))
        assert joined(chunks) == text
        assert sum(chunk.text.count("\ufffd") for chunk in chunks) == text.count("\ufffd")
        assert [i for chunk in chunks for i in chunk.token_ids] == [*text.encode(), EOS]
        assert chunks[-1].completion.finish_reason == "stop"


def test_character_cut_by_the_limit_shows_as_replacement():
    with scripted_llm("ař".encode()) as llm:
        assert joined(list(llm.stream(PROMPT, temperature=0.0, max_new_tokens=2))) == "a\ufffd"


@pytest.mark.parametrize("num_draft_tokens", [0, 8])
@pytest.mark.parametrize(
    ("output", "given", "text", "reason"),
    [
        ("a b c d e f g h", {"stop": ["g"]}, "a b c d e f ", "stop"),  # ST-10
        ("a b c d e f g h", {"stop": "g"}, "a b c d e f ", "stop"),
        ("red green blue", {"stop": ["blue\n####"]}, "red green blue", "stop"),  # ST-06, ended by EOS
        ("red green blue", {"stop": ["blue\n####"], "max_new_tokens": 14}, "red green blue", "length"),
        ("red green blue", {"stop": ["blue\n####"], "max_new_tokens": 11}, "red green b", "length"),
        ("end!\nmore", {"stop": ["\n"]}, "end!", "stop"),  # ST-07
        (" Nora! Nora said", {"stop": ["\n", "Nora:"]}, " Nora! Nora said", "stop"),  # ST-08
        ("xaxaxaxaxbyy", {"stop": ["xb"]}, "xaxaxaxa", "stop"),
        ("copy<end>copy<end>", {"stop": ["<end>"]}, "copy", "stop"),  # ST-04
        ('{"a": "b"}\n', {"stop": ['"}']}, '{"a": "b', "stop"),  # ST-17
        ("a b", {"stop": [" "]}, "a", "stop"),
        ("one\n\ntwo", {"stop": ["\n\n"]}, "one", "stop"),
        ("fox 🦊 dog", {"stop": ["🦊"]}, "fox ", "stop"),
        ("abcd", {"stop": ["你好"], "max_new_tokens": 4}, "abcd", "length"),  # ST-12
    ],
)
def test_stop_string_never_leaks(output, given, text, reason, num_draft_tokens):
    given = {"temperature": 0.0, **given}
    with scripted_llm(output.encode(), num_draft_tokens=num_draft_tokens) as llm:
        chunks = list(llm.stream(PROMPT, **given))
        assert joined(chunks) == text
        assert chunks[-1].completion.text == text
        assert chunks[-1].completion.finish_reason == reason
        assert answers([llm.generate(PROMPT, **given)]) == answers([chunks[-1].completion])


def test_end_of_text_is_no_text_and_can_be_ignored():  # ST-13's ignore_eos, TK-06
    with scripted_llm([97, EOS, 98, 258, 99]) as llm:
        ended = llm.generate(PROMPT, temperature=0.0)
        assert (ended.text, ended.token_ids, ended.finish_reason) == ("a", [97, EOS], "stop")
        went_on = llm.generate(PROMPT, temperature=0.0, ignore_eos=True, max_new_tokens=5)
        assert (went_on.text, went_on.token_ids, went_on.finish_reason) == ("abc", [97, EOS, 98, 258, 99], "length")


def test_every_eos_of_generation_config_ends_the_text(tmp_path):  # ST-13
    folder = save_checkpoint(tmp_path)
    with load_checkpoint(folder) as llm:
        free = llm.generate("Rain", temperature=0.0, max_new_tokens=30, ignore_eos=True).token_ids
        eos = free[9]
        first = free.index(eos)
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [1, {eos}]}}')
    with load_checkpoint(folder) as llm:
        ended = llm.generate("Rain", temperature=0.0, max_new_tokens=30)
        assert (ended.token_ids, ended.finish_reason) == (free[: first + 1], "stop")


@pytest.mark.parametrize("leave", ["close", "drop", "raise"])
def test_leaving_a_stream_frees_its_slot(llm, leave):  # KV-09
    before = llm.generate("other", temperature=0.0, max_new_tokens=30, ignore_eos=True)
    stream = llm.stream("abc", seed=1, max_new_tokens=400, ignore_eos=True)
    next(stream)
    next(stream)
    assert llm.engine.scheduler.num_running == 1
    if leave == "close":
        stream.close()
    elif leave == "raise":
        with pytest.raises(ZeroDivisionError):
            stream.throw(ZeroDivisionError())
    del stream
    gc.collect()
    assert is_idle(llm)
    assert answers([llm.generate("other", temperature=0.0, max_new_tokens=30, ignore_eos=True)]) == answers([before])


def test_stream_that_is_never_read_takes_no_slot(llm):
    streams = [llm.stream("abc", max_new_tokens=400, ignore_eos=True) for _ in range(5)]
    assert llm.generate("abc", temperature=0.0, max_new_tokens=2).completion_tokens == 2
    assert is_idle(llm)
    assert next(streams[0]).text
    streams[0].close()


def test_stream_left_to_the_collector_inside_a_step_does_not_hang(llm, monkeypatch):
    class Cycle:
        def __init__(self, stream: Any) -> None:
            self.stream, self.me = stream, self

    cycle = Cycle(llm.stream("abc", seed=1, max_new_tokens=400, ignore_eos=True))
    next(cycle.stream)
    gc.disable()
    try:
        del cycle
        step = llm.engine.step
        monkeypatch.setattr(llm.engine, "step", lambda: (gc.collect(), step())[1])
        done = []
        thread = threading.Thread(
            target=lambda: done.append(llm.generate("x", temperature=0.0, max_new_tokens=3)), daemon=True
        )
        thread.start()
        thread.join(60)
    finally:
        gc.enable()
    assert done and done[0].completion_tokens == 3


def test_results_do_not_depend_on_what_ran_before(llm):  # KV-09
    given = {"temperature": 0.0, "ignore_eos": True}
    short = llm.generate("abc", max_new_tokens=5, **given)
    long = llm.generate([*b"0123456789"] * 12, max_new_tokens=50, **given)
    again = llm.generate("abc", max_new_tokens=5, **given)
    with load_debug(max_seq_length=512) as fresh:
        assert answers([long]) == answers([fresh.generate([*b"0123456789"] * 12, max_new_tokens=50, **given)])
    assert answers([short]) == answers([again])


def test_leaving_astream_early_frees_its_slot(llm):
    chunks = collected(llm, "abc", 2, seed=1, max_new_tokens=400, ignore_eos=True)
    assert len(chunks) == 2
    assert is_idle(llm)


def test_two_astreams_run_in_one_batch(llm):
    async def read(prompt: str) -> list[Chunk]:
        return [c async for c in llm.astream(prompt, temperature=0.0, max_new_tokens=60, ignore_eos=True)]

    async def read_both() -> list[list[Chunk]]:
        return await asyncio.gather(read("abc"), read("x"))

    both = asyncio.run(read_both())
    for prompt, chunks in zip(("abc", "x"), both, strict=True):
        alone = llm.generate(prompt, temperature=0.0, max_new_tokens=60, ignore_eos=True)
        assert joined(chunks) == alone.text
    assert max(chunks[-1].completion.stats.batch_rows for chunks in both) > 1.2


def test_cancelled_astream_frees_its_slot_and_stays_cancelled(llm):
    async def read() -> None:
        async for _ in llm.astream("abc", seed=1, max_new_tokens=400, ignore_eos=True):
            pass

    async def cancel() -> None:
        task = asyncio.create_task(read())
        while not llm.engine.scheduler.num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert is_idle(llm)
