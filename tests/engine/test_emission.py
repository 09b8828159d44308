"""What a block of tokens becomes (D6): ends of text, stop strings and limits, in whatever blocks they come.

Cases: ST-02, ST-03, ST-04, ST-06, ST-07, ST-08, ST-10 (without HTTP; the most stop strings is 16 here), ST-11, ST-12,
ST-13, MT-09 (without n). include_stop_str_in_output (ST-04's second half) comes with its parameter.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from litspec.draft import NgramProposer
from litspec.engine.emission import Emission, emit, end_early
from litspec.engine.params import MAX_STOP_STRINGS, ParameterError, SamplingParams
from litspec.engine.request import Request
from tests.engine.scripted import Letters, ScriptedProposer, ScriptedTarget, continuing
from tests.engine.support import ask, assert_idle, make_engine, run, run_streams

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def letters(text: str) -> list[int]:
    """Return the ids of a lower-case text."""
    return [ALPHABET.index(c) for c in text]


def request(*, text: Letters | None = None, eos: tuple[int, ...] = (), **params: Any) -> Request:
    return ask("a", [1], text=text or Letters(), eos=eos, **params)


def feed(asked: Request, *blocks: list[int]) -> list[Emission]:
    """Emit block after block until the request ends."""
    emissions = []
    for block in blocks:
        emissions.append(emit(asked, block))
        if asked.finish_reason is not None:
            break
    return emissions


def test_ST_02_a_stop_within_the_limit_comes_before_it():
    block = [31, 32, 33, 2, 40, 41, 42]
    asked = request(eos=(2,), max_new_tokens=6)
    assert feed(asked, block)[0].token_ids == [31, 32, 33, 2]
    assert asked.finish_reason == "stop"
    beyond = request(eos=(42,), max_new_tokens=6)
    assert feed(beyond, block)[0].token_ids == block[:6]
    assert beyond.finish_reason == "length"
    at_once = request(eos=(41,), max_new_tokens=6)
    feed(at_once, block)
    assert (at_once.finish_reason, at_once.num_emitted) == ("stop", 6)


@pytest.mark.parametrize("blocks", [["xyabcdefghij"], ["x", "yabcdefghij"], list("xyab"), ["xya", "bcd"]])
@pytest.mark.parametrize(("stop", "text"), [("y", "x"), ("ya", "x"), ("xy", ""), ("yab", "x")])
def test_ST_03_a_stop_early_in_a_long_block_or_across_blocks(blocks, stop, text):
    asked = request(stop=stop)
    emissions = feed(asked, *map(letters, blocks))
    assert asked.text == "".join(e.text for e in emissions) == text
    assert asked.finish_reason == "stop"
    assert asked.output_ids == letters(("x" if stop[0] == "y" else "") + stop)


def test_ST_03_a_stop_inside_one_token():
    asked = request(text=Letters({5: "one. two"}), stop=". ")
    feed(asked, [5, 6, 7])
    assert (asked.text, asked.output_ids, asked.finish_reason) == ("one", [5], "stop")


@pytest.mark.parametrize("ends_by", ["eos", "length"])
def test_ST_06_text_that_was_held_back_comes_out_at_the_end(ends_by):
    words = Letters({1: "red ", 2: "green ", 3: "bl", 4: "ue"}, held=[2])
    asked = request(text=words, stop="blue\n####", eos=(9,), max_new_tokens=4 if ends_by == "length" else 50)
    emissions = feed(asked, [1], [2], [3, 4], [9])
    assert "".join(e.text for e in emissions) == asked.text == "red green blue"
    assert asked.finish_reason == ("length" if ends_by == "length" else "stop")


@pytest.mark.parametrize(("eos", "limit", "held"), [((9,), 50, ()), ((), 2, (4,)), ((9,), 50, (4,))])
def test_a_stop_that_only_the_flush_completes_still_counts(eos, limit, held):
    asked = request(text=Letters({3: "good", 4: "bye"}, held=held), stop="dby", eos=eos, max_new_tokens=limit)
    feed(asked, [3, 4], [9])
    assert (asked.text, asked.finish_reason) == ("goo", "stop")


def test_ST_07_text_before_a_stop_in_the_last_token():
    asked = request(text=Letters({5: "!\n"}), stop="\n")
    assert feed(asked, [5])[0].text == asked.text == "!"


def test_ST_08_a_false_partial_match_is_sent_once():
    pieces = {1: " Nora", 2: "! ", 3: "Nora", 4: " said"}
    asked = request(text=Letters(pieces), stop=("\n", "Nora:"), max_new_tokens=4)
    deltas = [e.text for e in feed(asked, [1], [2], [3], [4])]
    assert "".join(deltas) == asked.text == " Nora! Nora said"
    assert deltas == [" ", "Nora! ", "", "Nora said"]


def test_ST_10_a_bare_string_is_a_list_of_one_and_too_many_are_refused():
    spaced = {i: f"{c} " for i, c in enumerate(ALPHABET)}
    for stop in ("g", ["g"], ["q", "g"]):
        asked = request(text=Letters(spaced), stop=stop)
        feed(asked, letters("abcdefgh"))
        assert asked.text == "a b c d e f "
    with pytest.raises(ParameterError, match="at most 16 stop strings") as caught:
        SamplingParams(stop=["x"] * (MAX_STOP_STRINGS + 1))
    assert caught.value.param == "stop"
    with pytest.raises(ParameterError, match="none of them empty"):
        SamplingParams(stop=["x", ""])


@pytest.mark.parametrize("stop", ["q", "\u4f60\u597d", ["abd", "bcc"]])
def test_ST_12_a_stop_that_never_comes(stop):
    asked = request(stop=stop, max_new_tokens=4)
    feed(asked, letters("abcdef"))
    assert (asked.text, asked.finish_reason) == ("abcd", "length")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_ST_13_any_of_several_end_of_text_tokens(ignore_eos):
    asked = request(eos=(2, 7), max_new_tokens=6, ignore_eos=ignore_eos)
    emissions = feed(asked, [3], [4, 5, 7, 8], [9, 10, 11])
    if ignore_eos:
        assert (asked.output_ids, asked.finish_reason) == ([3, 4, 5, 7, 8, 9], "length")
        assert asked.text == "".join(ALPHABET[t] for t in asked.output_ids)
    else:
        assert (asked.output_ids, asked.finish_reason, asked.text) == ([3, 4, 5, 7], "stop", "def")
        assert [e.token_ids for e in emissions] == [[3], [4, 5, 7]]


def test_without_a_detokeniser_there_is_no_text_and_no_stop():
    asked = ask("a", [1], stop="c", max_new_tokens=4, eos=(9,))
    assert [e.text for e in feed(asked, [2, 3, 4, 5])] == [""]
    assert (asked.text, asked.finish_reason, asked.num_emitted) == ("", "length", 4)
    ended = ask("b", [1], eos=(9,))
    feed(ended, [2, 9, 3])
    assert (ended.text, ended.finish_reason, ended.num_emitted) == ("", "stop", 2)


def test_ending_early_brings_what_a_stop_string_held_back():
    asked = request(stop="cde")
    assert emit(asked, letters("abc")).text == "ab"
    last = end_early(asked, "timeout", error="took too long")
    assert (last.text, last.token_ids) == ("c", [])
    assert last.completion is not None
    assert (last.completion.text, last.completion.finish_reason, last.completion.error) == (
        "abc",
        "timeout",
        "took too long",
    )
    assert last.completion.token_ids == letters("abc")


def test_the_cut_into_blocks_changes_nothing():
    """Every cut of one text into blocks gives the same tokens, text and reason."""
    output = [*letters("abcab"), 26, *letters("cdx")]
    for stop, limit in ((("cabz", "ac"), 50), (("bca",), 50), ((), 4), (("cd",), 8)):
        outcomes = set()
        for cuts in itertools.product((False, True), repeat=len(output) - 1):
            bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(output)]
            asked = request(text=Letters({26: ""}, held=[2]), stop=stop, max_new_tokens=limit, eos=(letters("x")[0],))
            emissions = feed(asked, *(output[a:b] for a, b in itertools.pairwise(bounds)))
            text = "".join(e.text for e in emissions)
            outcomes.add((text, asked.text, tuple(asked.output_ids), asked.finish_reason))
        assert len(outcomes) == 1


# Through the engine: blocks are what a round accepts.

SCRIPT = {(1,): letters("thequickbrownfoxjumps"), (2,): letters("thequickbrownfoxjumps"), (3,): letters("axbyyaxb")}


def guesses(right: int, *, drafted: int = 5) -> ScriptedProposer:
    return ScriptedProposer(continuing(SCRIPT, otherwise=25), lambda name, step, limit: (drafted, right))


@pytest.mark.parametrize("num_right", [0, 1, 3, 5])
def test_ST_11_each_row_stops_by_its_own_list(num_right):
    engine = make_engine(ScriptedTarget(continuing(SCRIPT, otherwise=25)), draft=guesses(num_right), num_draft_tokens=5)
    rows = [
        ask("a", [1], text=Letters(), stop="q", max_new_tokens=18),
        ask("b", [2], text=Letters(), stop=["zz", "kbr"], max_new_tokens=18),
        ask("c", [2], text=Letters(), max_new_tokens=18),
        ask("d", [3], text=Letters(), stop="yy", max_new_tokens=18),
        ask("e", [1], text=Letters(), eos=letters("x"), max_new_tokens=18),
    ]
    completions = run(engine, rows)
    assert [c.text for c in completions] == ["the", "thequic", "thequickbrownfoxju", "axb", "thequickbrownfo"]
    assert [c.finish_reason for c in completions] == ["stop", "stop", "length", "stop", "stop"]
    assert_idle(engine)


@pytest.mark.parametrize("draft", ["none", NgramProposer(min_n=1, max_n=3)])
def test_ST_04_the_stop_check_of_the_ngram_path(draft):
    """The target copies its prompt, and the prompt holds the stop string behind the part that is copied."""
    prompt = [*letters("abcdefgh"), 30, 31, 32, *letters("xyz"), 0, 1]
    texts = {30: "<e", 31: "nd", 32: ">"}
    copy = [*letters("cdefgh"), 30, 31, 32, *letters("xyz")]
    target = ScriptedTarget(continuing({tuple(prompt): copy}, otherwise=63))
    engine = make_engine(target, draft=draft, num_draft_tokens=4)
    emissions, last = run_streams(engine, [ask("a", prompt, text=Letters(texts), stop="<end>", max_new_tokens=40)])[0]
    assert last.completion.text == "".join(e.text for e in emissions) == "cdefgh"
    assert last.completion.token_ids == copy[:9]
    if draft != "none":
        assert last.completion.stats.accepted > 3


@pytest.mark.parametrize("num_right", [0, 2, 5])
def test_ST_13_and_MT_09_usage_counts_what_is_emitted_and_nothing_else(num_right):
    """A stop string in mid block, an end of text in mid block, a limit in mid block: the same usage at any draft."""
    engine = make_engine(ScriptedTarget(continuing(SCRIPT)), draft=guesses(num_right), num_draft_tokens=5)
    rows = [
        ask("stop", [1], text=Letters(), stop="ckb"),
        ask("eos", [2], text=Letters(), eos=[2, letters("w")[0]]),
        ask("length", [1], text=Letters(), max_new_tokens=10),
    ]
    completions = run(engine, rows)
    assert [c.completion_tokens for c in completions] == [9, 7, 10]
    assert [c.text for c in completions] == ["thequi", "thequi", "thequickbr"]
    for c in completions:
        assert c.completion_tokens == len(c.token_ids) == c.stats.emitted == c.stats.emitted_by_rounds + 1
        assert c.stats.emitted_by_rounds - c.stats.rounds <= c.stats.accepted <= c.stats.emitted_by_rounds
        assert c.stats.accepted <= c.stats.drafted
    accepted = [c.stats.accepted for c in completions]
    assert accepted == {0: [0, 0, 0], 2: [6, 4, 6], 5: [7, 5, 7]}[num_right]
