"""Stop strings and ends through the engine: kept or cut, in any block, in any way to draft.

Cases: ST-02, ST-03, ST-04 (both halves), ST-06, ST-07, ST-08, ST-10, ST-11, ST-12, ST-13, ST-17. What a block becomes
is in test_emission.py, the search alone in test_stop_matcher.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litspec.draft import NgramProposer
from litspec.engine.request import Request
from litspec.engine.stop import StopMatcher
from tests.engine.scripted import Letters, ScriptedProposer, ScriptedTarget, continuing
from tests.engine.support import ask, assert_idle, make_engine, run_streams

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
KEPT = {"include_stop_str_in_output": True}
BLOCKS = [0, 1, 3, 11]


def letters(text: str) -> list[int]:
    return [ALPHABET.index(c) for c in text]


def stream(output: list[int], row: Request, *, num_right: int = 0, drafted: int = 11) -> tuple[list[str], Any]:
    """Run a request whose target says `output` and then token 63 for ever; return its deltas and its completion."""
    script = continuing({tuple(row.prompt_ids): output}, otherwise=63)
    proposer = ScriptedProposer(script, lambda name, step, limit: (drafted, num_right))
    engine = make_engine(ScriptedTarget(script), draft=proposer, num_draft_tokens=drafted)
    emissions, last = run_streams(engine, [row])[0]
    assert "".join(e.text for e in emissions) == last.completion.text
    assert [t for e in emissions for t in e.token_ids] == last.completion.token_ids
    assert_idle(engine)
    return [e.text for e in emissions], last.completion


@given(
    pieces=st.lists(st.text(alphabet="ab\n", max_size=6), max_size=8),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3),
)
def test_a_match_that_is_kept_is_what_cutting_leaves_and_the_match(pieces, stops):
    cuts, keeps = StopMatcher(stops), StopMatcher(stops, keeps_match=True)
    cut = kept = fed = ""
    for piece in pieces:
        cut, kept, fed = cut + cuts.push(piece), kept + keeps.push(piece), fed + piece
        assert cuts.is_matched == keeps.is_matched
        assert fed.startswith(kept) and kept.startswith(cut)
        if cuts.is_matched:
            assert kept[len(cut) :] in stops
            return
        assert cut == kept
    assert kept + keeps.flush() == fed


def test_of_two_matches_that_are_complete_together_the_longer_is_kept():
    matcher = StopMatcher(["ab", "xab", "b"], keeps_match=True)
    assert matcher.push("1xab2") == "1xab"
    assert StopMatcher(["2", "ab"], keeps_match=True).push("1ab2") == "1ab", "and of two in a row the first"


@pytest.mark.parametrize("num_right", BLOCKS)
@pytest.mark.parametrize("limit", [3, 4, 5, 6])
@pytest.mark.parametrize("end", ["eos", "stop", "stop_token_ids"])
def test_ST_02_the_first_of_stop_and_limit_decides(num_right, limit, end):
    texts = {31: "1", 32: "2", 33: "3", 34: "#", 40: "4", 41: "5", 42: "6"}
    how = {"eos": {"eos": [34]}, "stop": {"stop": "#"}, "stop_token_ids": {"stop_token_ids": [34]}}[end]
    row = ask("a", [1], text=Letters(texts), max_new_tokens=limit, **how)
    _, completion = stream([31, 32, 33, 34, 40, 41, 42], row, num_right=num_right)
    stopped = limit >= 4
    assert (len(completion.token_ids), completion.finish_reason) == (min(limit, 4), "stop" if stopped else "length")
    assert completion.text == "123"


@pytest.mark.parametrize("num_right", BLOCKS)
@pytest.mark.parametrize("kept", [False, True])
def test_ST_03_a_stop_early_in_a_block_of_twelve_and_over_the_border_of_two(num_right, kept):
    texts = {0: "x. y", 41: "so", 42: " o."}
    given = {**(KEPT if kept else {}), "text": None}
    cases = [
        ([0, *letters("bcdefghijklm")], ". ", "x", ". ", 1),
        ([7, *letters("bcdefghijklm")], "d", "hbc", "d", 4),
        ([7, 41, 42, *letters("bcdefghij")], "so o", "h", "so o", 3),
        (letters("bcdeghijklbcdmm"), "lb", "bcdeghijk", "lb", 11),
    ]
    for output, stop, text, match, count in cases:
        row = ask("a", [1], stop=stop, max_new_tokens=14, **{**given, "text": Letters(texts)})
        deltas, completion = stream(output, row, num_right=num_right)
        assert completion.text == text + (match if kept else "")
        assert (completion.token_ids, completion.finish_reason) == (output[:count], "stop")
        assert len(deltas) <= count


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("draft", ["none", NgramProposer(min_n=1, max_n=3), "model"])
def test_ST_04_the_stop_string_alone_is_kept_and_nothing_after_it(draft, kept):
    """The target copies its prompt; the last token of the stop string has more text behind it."""
    prompt = [*letters("abcdefgh"), 30, 31, 32, *letters("xyz"), 0, 1]
    copy = [*letters("cdefgh"), 30, 31, 32, *letters("xyz")]
    script = continuing({tuple(prompt): copy}, otherwise=63)
    engine = make_engine(ScriptedTarget(script), draft=ScriptedTarget(script) if draft == "model" else draft)
    texts = Letters({30: "<e", 31: "nd", 32: "> and more"})
    row = ask("a", prompt, text=texts, stop="<end>", max_new_tokens=40, **(KEPT if kept else {}))
    emissions, last = run_streams(engine, [row])[0]
    assert last.completion.text == "".join(e.text for e in emissions) == ("cdefgh<end>" if kept else "cdefgh")
    assert last.completion.token_ids == copy[:9]
    assert draft == "none" or last.completion.stats.accepted > 3


@pytest.mark.parametrize("num_right", BLOCKS)
@pytest.mark.parametrize("end", ["eos", "length"])
def test_ST_06_held_text_comes_with_the_end(num_right, end):
    words = {1: "red ", 2: "green ", 3: "bl", 4: "ue"}
    limit = 4 if end == "length" else 50
    row = ask("a", [9], text=Letters(words), stop="blue\n####", eos=[10], max_new_tokens=limit)
    deltas, completion = stream([1, 2, 3, 4, 10], row, num_right=num_right)
    assert "".join(deltas) == completion.text == "red green blue"
    assert completion.finish_reason == ("length" if end == "length" else "stop")
    assert completion.completion_tokens == (4 if end == "length" else 5)


@pytest.mark.parametrize("num_right", BLOCKS)
def test_ST_07_the_text_before_a_stop_in_the_last_token(num_right):
    for more, text in (({}, "hi!"), (KEPT, "hi!\n")):
        row = ask("a", [9], text=Letters({5: "hi", 6: "!\nmore"}), stop="\n", **more)
        assert stream([5, 6, 7], row, num_right=num_right)[1].text == text


@pytest.mark.parametrize("num_right", BLOCKS)
def test_ST_08_a_false_partial_match_is_sent_once(num_right):
    pieces = {1: " Nora", 2: "! ", 3: "Nora", 4: " said"}
    row = ask("a", [9], text=Letters(pieces), stop=["\n", "Nora:"], max_new_tokens=4)
    deltas, completion = stream([1, 2, 3, 4], row, num_right=num_right)
    assert "".join(deltas) == completion.text == " Nora! Nora said"


@pytest.mark.parametrize("num_right", [0, 3])
@pytest.mark.parametrize(("stop", "kept", "text"), [("g", {}, "a b c d e f "), (["q", "g"], KEPT, "a b c d e f g")])
def test_ST_10_the_stop_is_not_in_the_text_unless_asked_for(num_right, stop, kept, text):
    spaced = Letters({i: f"{c} " for i, c in enumerate(ALPHABET)})
    assert (
        stream(letters("abcdefgh"), ask("a", [9], text=spaced, stop=stop, **kept), num_right=num_right)[1].text == text
    )


def test_ST_11_rows_with_stops_of_their_own_that_are_kept_or_not():
    texts = ["axbyyc", "byyaxc", "xyyxab"]
    script = continuing({(30 + i,): letters(text) for i, text in enumerate(texts)}, otherwise=25)
    for num_right in (0, 2, 5):
        proposer = ScriptedProposer(script, lambda name, step, limit, n=num_right: (5, n))
        engine = make_engine(ScriptedTarget(script), draft=proposer, num_draft_tokens=5)
        rows = [
            ask(f"{i}{stop}{kept}", [30 + i], text=Letters(), stop=stop, max_new_tokens=6, **(KEPT if kept else {}))
            for i, stop, kept in itertools.product(range(3), ("x", "yy", ()), (False, True))
        ]
        wanted = []
        for text, stop, kept in itertools.product(texts, ("x", "yy", ""), (False, True)):
            at = text.find(stop) if stop else len(text)
            wanted.append(text[: at + len(stop)] if kept else text[:at])
        assert [last.completion.text for _, last in run_streams(engine, rows)] == wanted


@pytest.mark.parametrize("num_right", [0, 4])
@pytest.mark.parametrize("stop", ["q", "\u4f60\u597d", ["abd", "bcc"]])
@pytest.mark.parametrize("kept", [{}, KEPT])
def test_ST_12_a_stop_that_never_comes(num_right, stop, kept):
    row = ask("a", [9], text=Letters(), stop=stop, max_new_tokens=4, **kept)
    completion = stream(letters("abcdef"), row, num_right=num_right)[1]
    assert (completion.text, completion.finish_reason) == ("abcd", "length")


@pytest.mark.parametrize("num_right", BLOCKS)
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_ST_13_a_second_end_of_text_token_inside_a_block(num_right, ignore_eos):
    row = ask("a", [9], text=Letters(), eos=[2, 7], ignore_eos=ignore_eos, max_new_tokens=8, **KEPT)
    completion = stream([3, 4, 5, 7, 8, 2, 9, 10, 11], row, num_right=num_right)[1]
    count, text = (8, "defhicjk") if ignore_eos else (4, "def")
    assert (len(completion.token_ids), completion.text) == (count, text), "no special token in the text, kept or not"
    assert completion.finish_reason == ("length" if ignore_eos else "stop")


@pytest.mark.parametrize("num_right", [0, 2])
@pytest.mark.parametrize("stop", ['"}', "\n\n", " ", "</s>", "🙂"])
def test_ST_17_stops_are_matched_on_text_however_it_is_cut_into_tokens(num_right, stop):
    text = f"ok{stop}no"
    for cut in range(1, len(text)):
        row = ask("a", [9], text=Letters({1: text[:cut], 2: text[cut:]}), stop=stop, max_new_tokens=3)
        completion = stream([1, 2, 3], row, num_right=num_right)[1]
        assert (completion.text, completion.finish_reason) == ("ok", "stop")
