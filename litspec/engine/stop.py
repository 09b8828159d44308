"""StopMatcher: finds stop strings in text that arrives in pieces, and holds back what may yet become one.

Matching is on text, never on tokens, and does not depend on how the text is cut into pieces: of all matches the one
that is complete first ends the text, and of those that are complete together the longest. Text that it has returned
is certain.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches one request's text.

    Args:
        stops: strings that end the text, none of them empty.
        keeps_match: the string that ends the text is part of it.

    Attributes:
        is_matched: whether one was found; nothing may be pushed after that.
    """

    def __init__(self, stops: Sequence[str], *, keeps_match: bool = False) -> None:
        assert all(stops), "an empty stop string"
        self._keeps_match = keeps_match
        self._stops = tuple(stops)
        self._held = ""
        self.is_matched = False

    def push(self, text: str) -> str:
        """Take more text; return what is certain: what a match leaves of it, or all that cannot become one."""
        assert not self.is_matched
        if not self._stops:
            return text
        held = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if matches:
            self.is_matched = True
            self._held = ""
            end, start = min(matches)
            return held[: end if self._keeps_match else start]
        num_held = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - num_held :]
        return held[: len(held) - num_held]

    def flush(self) -> str:
        """Return what is held back; no text comes after it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
