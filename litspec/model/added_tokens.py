"""AddedTokens: tokens that are found in a text before the vocabulary proper sees the rest.

The longest match at the leftmost place wins, as in the tokenizers library, which does the same for tokenizer.json and
GGUF; this is for the formats that come without it (tokenizer.model, bytes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class AddedToken:
    """A token outside the trained vocabulary.

    Args:
        content: its spelling in a text.
        id: its token id.
        special: it is no text (a control token), and is not shown by default.
        lstrip: it takes the blanks before it.
        rstrip: it takes the blanks after it.
    """

    content: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False


class AddedTokens:
    """Splits a text at its added tokens."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.content: token for token in tokens if token.content}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the parts of `text` in order: an id for each added token, the text between them where there is any."""
        start = 0
        takes_blanks = False
        for match in self._pattern.finditer(text) if self._pattern else ():
            token = self._tokens[match.group()]
            part = text[start : match.start()]
            part = part.lstrip() if takes_blanks else part
            part = part.rstrip() if token.lstrip else part
            if part:
                yield part
            yield token.id
            start = match.end()
            takes_blanks = token.rstrip
        part = text[start:].lstrip() if takes_blanks else text[start:]
        if part:
            yield part
