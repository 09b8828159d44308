"""IncrementalDetokenizer: the text of one request, as it becomes certain.

Invariant: everything pushed and flushed, joined, equals decode(prompt + tokens)[len(decode(prompt)):]. A character that
is still incomplete is held back, and only `flush` turns it into U+FFFD; a U+FFFD that the model wrote is text like any
other. It holds a few bytes, never the text so far, so a token costs the same at any length. Stop strings are not its
job.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class _Vocabulary(Protocol):
    special_ids: frozenset[int]

    def token_bytes(self, token_id: int) -> bytes: ...

    def first_token_bytes(self, token_id: int) -> bytes: ...


class IncrementalDetokenizer:
    """Turns tokens into text, one by one.

    Args:
        tokenizer: where the bytes of a token come from.
        prompt_ids: what stands before the first pushed token. It yields no text, but decides whether that token is the
            first of a text, and owns a character that it began.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(
        self, tokenizer: _Vocabulary, prompt_ids: Iterable[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True
        self._num_owed = 0
        self.extend(prompt_ids)
        # decode(prompt) shows a character that the prompt leaves unfinished as one U+FFFD: it is not ours.
        self._num_owed = 1 if self._utf8.getstate()[0] else 0

    def push(self, token_id: int) -> str:
        """Take one more token; return the text that has become certain with it, which may be none."""
        return self._text(self._bytes(token_id))

    def extend(self, token_ids: Iterable[int]) -> str:
        """Take several tokens; return the text that has become certain with them."""
        return self._text(b"".join(map(self._bytes, token_ids)))

    def flush(self) -> str:
        """Return what is still held back: an unfinished character, as U+FFFD. No token comes after it."""
        return self._own(self._utf8.decode(b"", final=True))

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._skipped_ids:
            return b""
        if not self._at_start:
            return self._tokenizer.token_bytes(token_id)
        self._at_start = not self._tokenizer.token_bytes(token_id)
        return self._tokenizer.first_token_bytes(token_id)

    def _text(self, data: bytes) -> str:
        return self._own(self._utf8.decode(data))

    def _own(self, text: str) -> str:
        if self._num_owed and text:
            text, self._num_owed = text[self._num_owed :], 0
        return text
