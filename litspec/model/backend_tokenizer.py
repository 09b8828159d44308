"""BackendTokenizer: a tokenizer on top of the tokenizers library.

The library encodes; decoding goes through our own bytes, so that it can be streamed. The library object is never
changed after construction: its encode may then be called from several threads at once.
"""

from __future__ import annotations

import tokenizers

from litspec.model.piece_bytes import PieceBytes
from litspec.model.tokenizer import Tokenizer

# Begins an entry that only fills a gap in a vocabulary: a noncharacter, which no text holds.
FILLER = "\ufdd0"


class BackendTokenizer(Tokenizer):
    """A tokenizer whose encoder is a `tokenizers.Tokenizer`.

    Args:
        backend: the encoder; truncation and padding are switched off.
        spelling: how its pieces spell bytes.
        literal_ids: tokens that stand for their own spelling, whatever `spelling` says (added tokens).
        more_eos_token_ids: what ends a text besides `eos_token_id`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        spelling: PieceBytes,
        *,
        literal_ids: frozenset[int],
        special_ids: frozenset[int],
        bos_token_id: int | None,
        eos_token_id: int | None,
        more_eos_token_ids: frozenset[int] = frozenset(),
        prefix_ids: tuple[int, ...],
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._spelling = spelling
        self._literal_ids = literal_ids
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.special_ids = special_ids
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.eos_token_ids = more_eos_token_ids | ({eos_token_id} if eos_token_id is not None else set())
        self.prefix_ids = prefix_ids

    def id_to_piece(self, token_id: int) -> str | None:
        """Return the vocabulary's own spelling of an id, None where it has none."""
        piece = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        return None if piece is not None and piece.startswith(FILLER) else piece

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id within a text."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self.id_to_piece(token_id)
            if piece is None:
                known = b""
            elif token_id in self._literal_ids:
                known = (self._spelling.joint + piece).encode()
            else:
                known = self._spelling.of(piece)
            self._bytes[token_id] = known
        return known

    def first_token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id as the first token of a text."""
        piece = self.id_to_piece(token_id)
        if piece is None:
            return b""
        return piece.encode() if token_id in self._literal_ids else self._spelling.of_first(piece)

    def _encode_text(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids
