"""StopMatcher against a search that looks at the text one character at a time (cases ST-03, ST-06, ST-08, ST-17)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from litspec.engine.stop import StopMatcher

LETTERS = st.text(alphabet="ab\n", max_size=24)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=0, max_size=4)


def slow_cut(text: str, stops: list[str]) -> int | None:
    """Return where the text ends: at the beginning of the longest stop string that is complete first."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end - max(map(len, complete))
    return None


def slow_certain(text: str, stops: list[str]) -> int:
    """Return how much of a text without a match cannot become part of one."""
    return min(
        start
        for start in range(len(text) + 1)
        if start == len(text) or any(len(stop) > len(text) - start and stop.startswith(text[start:]) for stop in stops)
    )


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS)
@example(pieces=["a", "ab"], stops=["aab", "b"])
@example(pieces=["xab"], stops=["ab", "xab"])
@example(pieces=["aabaab"], stops=["aabaaa", "baa"])
def test_any_cut_of_the_text_gives_what_a_slow_search_gives(pieces, stops):
    matcher = StopMatcher(stops)
    text = out = ""
    for piece in pieces:
        text += piece
        out += matcher.push(piece)
        cut = slow_cut(text, stops)
        assert matcher.is_matched == (cut is not None)
        assert out == text[: slow_certain(text, stops) if cut is None else cut]
        if matcher.is_matched:
            return
    assert out + matcher.flush() == text
    assert matcher.flush() == ""


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6))
def test_pieces_do_not_matter(text, stops, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    results = []
    for pieces in ([text], list(text), [text[a:b] for a, b in itertools.pairwise(bounds)]):
        matcher = StopMatcher(stops)
        out = ""
        for piece in pieces:
            out += matcher.push(piece)
            if matcher.is_matched:
                break
        results.append((out + matcher.flush(), matcher.is_matched))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("stop", ['"}', "\n\n", " ", "</s>", "🙂", "\u4f60\u597d"])
def test_ST_17_stop_strings_of_any_kind(stop):
    matcher = StopMatcher([stop])
    out = "".join(matcher.push(c) for c in f"say {stop[0]}"[:3] + "-" + stop)
    assert (out, matcher.is_matched) == ("say-", True)


def test_ST_06_held_text_comes_out_at_the_end():
    matcher = StopMatcher(["blue\n####"])
    assert [matcher.push("red green "), matcher.push("bl"), matcher.push("ue")] == ["red green ", "", ""]
    assert matcher.flush() == "blue"


def test_ST_08_a_false_partial_match_is_sent_once():
    matcher = StopMatcher(["\n", "Nora:"])
    deltas = [matcher.push(piece) for piece in (" No", "ra!", " Nora", " said")]
    assert deltas == [" ", "Nora!", " ", "Nora said"]


def test_an_empty_stop_string_and_text_after_a_match_are_faults_of_ours():
    with pytest.raises(AssertionError):
        StopMatcher(["a", ""])
    matcher = StopMatcher(["a"])
    matcher.push("ba")
    with pytest.raises(AssertionError):
        matcher.push("c")
