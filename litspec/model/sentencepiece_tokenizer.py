"""Loads the tokenizer of a folder that has a tokenizer.model (sentencepiece) and no tokenizer.json.

sentencepiece encodes the text between added tokens; those, bos and eos come from the files beside it, and without such
files from the model's own control pieces. Decoding goes through our own bytes, so that it can be streamed.
"""

from __future__ import annotations

from pathlib import Path

import sentencepiece

from litspec.model.added_tokens import AddedToken, AddedTokens
from litspec.model.piece_bytes import PieceBytes
from litspec.model.tokenizer import Tokenizer, TokenizerError
from litspec.model.tokenizer_config import TokenizerConfig, read_tokenizer_config

_BLANK = "\u2581"
# Stands before a part that must not get the dummy blank, and is cut off again: no piece holds it.
_GUARD = "\0"


def load_sentencepiece_tokenizer(folder: Path) -> SentencePieceTokenizer:
    """Return the tokenizer of a folder with tokenizer.model.

    Raises:
        TokenizerError: the file is no sentencepiece model, or the files beside it contradict it.
    """
    path = folder / "tokenizer.model"
    config = read_tokenizer_config(folder)
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise TokenizerError(
            f"{path} is not a sentencepiece model ({error}); allowed: one, or a tokenizer.json"
        ) from None
    return SentencePieceTokenizer(model, config, folder)


class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model with its added tokens.

    Args:
        model: the loaded model.
        config: what the files beside it declare.
        folder: where it comes from, for messages.
    """

    def __init__(self, model: sentencepiece.SentencePieceProcessor, config: TokenizerConfig, folder: Path) -> None:
        self._model = model
        size = model.get_piece_size()
        self._added = {token.id: token for token in config.added_tokens}
        for token_id in range(size):
            piece = model.id_to_piece(token_id)
            if model.is_control(token_id) or model.is_unknown(token_id) or piece in config.special_contents:
                self._added.setdefault(token_id, AddedToken(piece, token_id))
        for token in config.added_tokens:
            if token.id < size and model.id_to_piece(token.id) != token.content:
                raise TokenizerError(
                    f"{folder} declares token {token.content!r} as id {token.id}, which is "
                    f"{model.id_to_piece(token.id)!r} in tokenizer.model; take both from the same model"
                )
        self._splitter = AddedTokens(self._added.values())
        self._is_legacy = config.is_legacy
        self._guard_ids = model.encode(_GUARD)
        self._spelling = PieceBytes(
            replacements=((_BLANK, " "),), has_byte_fallback=True, num_stripped=int(_adds_dummy_blank(model))
        )
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = max([size - 1, *self._added]) + 1
        self.special_ids = frozenset(token.id for token in self._added.values() if token.special)
        self.bos_token_id = self._find(config.bos_token, model.bos_id(), folder)
        self.eos_token_id = self._find(config.eos_token, model.eos_id(), folder)
        self.eos_token_ids = frozenset() if self.eos_token_id is None else frozenset({self.eos_token_id})
        adds_bos = config.adds_bos is not False and self.bos_token_id is not None
        self.prefix_ids = (self.bos_token_id,) if adds_bos and self.bos_token_id is not None else ()

    def id_to_piece(self, token_id: int) -> str | None:
        """Return the vocabulary's own spelling of an id, None where it has none."""
        if token_id in self._added:
            return self._added[token_id].content
        return self._model.id_to_piece(token_id) if 0 <= token_id < self._model.get_piece_size() else None

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id within a text."""
        if token_id not in self._bytes:
            piece = self.id_to_piece(token_id) or ""
            self._bytes[token_id] = piece.encode() if token_id in self._added else self._spelling.of(piece)
        return self._bytes[token_id]

    def first_token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id as the first token of a text: without the dummy blank."""
        piece = self.id_to_piece(token_id) or ""
        return piece.encode() if token_id in self._added else self._spelling.of_first(piece)

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._splitter.split(text):
            if isinstance(part, int):
                ids.append(part)
            elif ids and not self._is_legacy:
                ids += self._model.encode(_GUARD + part)[len(self._guard_ids) :]
            else:
                ids += self._model.encode(part)
        return ids

    def _find(self, content: str | None, default: int, folder: Path) -> int | None:
        if content is None:
            return default if default >= 0 else None
        for token in self._added.values():
            if token.content == content:
                return token.id
        raise TokenizerError(f"{folder} declares the token {content!r}, which tokenizer.model does not have")


def _adds_dummy_blank(model: sentencepiece.SentencePieceProcessor) -> bool:
    """Return whether the model puts a blank before a text, as its own decoder shows by taking one away."""
    for token_id in range(model.get_piece_size()):
        if model.id_to_piece(token_id).startswith(_BLANK) and len(model.id_to_piece(token_id)) > 1:
            return not model.decode([token_id]).startswith(" ")
    return False
