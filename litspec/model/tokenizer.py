"""Tokenizer: text to token ids and back, one interface for every format.

A tokenizer reduces each id to bytes: `decode` is those bytes in a row, read as UTF-8 by the Unicode standard's rule for
broken input (each maximal broken part becomes one U+FFFD), less the blank that some formats put before the first token.
That makes text extend and never change as tokens come, so `IncrementalDetokenizer` streams at a fixed cost per token.
Formats live beside this file and are imported when a model needs them; all of them may be used from several threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from litspec.model.added_tokens import AddedToken, AddedTokens
from litspec.model.detokenizer import IncrementalDetokenizer

__all__ = [
    "ByteTokenizer",
    "IncrementalDetokenizer",
    "Tokenizer",
    "TokenizerError",
    "check_vocabulary",
    "first_difference",
    "load_tokenizer",
]


class TokenizerError(ValueError):
    """A tokenizer that cannot be loaded, or a text that cannot be tokenised."""


class Tokenizer(ABC):
    """Text to ids and back.

    Attributes:
        vocab_size: ids in [0, vocab_size) may have a piece; a model's embedding may have more rows (padding).
        bos_token_id: the begin-of-text id, None where the model has none.
        eos_token_id: the id that templates call `eos_token`, None where the model has none.
        eos_token_ids: all ids that end a text, as the tokenizer's own files declare them.
        special_ids: ids that are no text: control tokens, not shown by default.
        prefix_ids: what `encode` puts before a text: BOS where the model's own tokenizer adds it, else nothing.
    """

    vocab_size: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    prefix_ids: tuple[int, ...] = ()

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens written in it are recognised.

        Args:
            text: what to tokenise.
            add_bos: put the model's own prefix (BOS, if its tokenizer adds one) before it.

        Raises:
            TokenizerError: the text is not valid Unicode (it holds half of a surrogate pair).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text holds {text[error.start]!r} at position {error.start}, half of a surrogate pair; "
                "allowed: valid Unicode text"
            ) from None
        return [*(self.prefix_ids if add_bos else ()), *self._encode_text(text)]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids without a piece (padding rows) have none."""
        detokenizer = IncrementalDetokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.extend(ids) + detokenizer.flush()

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a text has at least its bytes over this many tokens."""
        return max(len(self.token_bytes(token_id)) for token_id in range(self.vocab_size))

    @abstractmethod
    def id_to_piece(self, token_id: int) -> str | None:
        """Return the vocabulary's own spelling of an id, None where it has none."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id within a text; a special token's are its spelling, an unknown id has none."""

    def first_token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id as the first token of a text, where some formats drop a blank."""
        return self.token_bytes(token_id)

    @abstractmethod
    def _encode_text(self, text: str) -> list[int]: ...


class ByteTokenizer(Tokenizer):
    """One id for each byte, then BOS 256, EOS 257 and PAD 258: the `debug` model's."""

    vocab_size = 259
    bos_token_id = 256
    eos_token_id = 257
    eos_token_ids = frozenset({257})
    special_ids = frozenset({256, 257, 258})
    prefix_ids = (256,)

    def __init__(self) -> None:
        self._specials = {256: "<|bos|>", 257: "<|eos|>", 258: "<|pad|>"}
        self._added = AddedTokens(AddedToken(piece, token_id) for token_id, piece in self._specials.items())

    def id_to_piece(self, token_id: int) -> str | None:
        """Return `<0x41>` for a byte, the name of a special token, or None."""
        return f"<0x{token_id:02X}>" if 0 <= token_id < 256 else self._specials.get(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte itself."""
        return bytes((token_id,)) if 0 <= token_id < 256 else self._specials.get(token_id, "").encode()

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._added.split(text):
            ids += part.encode() if isinstance(part, str) else (part,)
        return ids


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a model: a .gguf file, a tokenizer.json or tokenizer.model, or a folder with one.

    Raises:
        TokenizerError: there is none, it is broken, or it is of a kind that is not supported (which is named).
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".gguf":
        from litspec.model.gguf_tokenizer import load_gguf_tokenizer

        return load_gguf_tokenizer(path)
    if path.is_file() and path.name in ("tokenizer.json", "tokenizer.model"):
        path = path.parent
    if (path / "tokenizer.json").is_file():
        from litspec.model.json_tokenizer import load_json_tokenizer

        return load_json_tokenizer(path)
    if (path / "tokenizer.model").is_file():
        from litspec.model.sentencepiece_tokenizer import load_sentencepiece_tokenizer

        return load_sentencepiece_tokenizer(path)
    raise TokenizerError(f"no tokenizer in {path}; allowed: a .gguf file, or a folder with tokenizer.json or .model")


def first_difference(a: Tokenizer, b: Tokenizer) -> int | None:
    """Return the first id whose piece differs, None where the two agree on every id that has one."""
    for token_id in range(max(a.vocab_size, b.vocab_size)):
        if a.id_to_piece(token_id) != b.id_to_piece(token_id):
            return token_id
    return None


def check_vocabulary(tokenizer: Tokenizer, num_rows: int) -> None:
    """Raise TokenizerError naming the first token that lies beyond a model's embedding of `num_rows` rows."""
    for token_id in range(num_rows, tokenizer.vocab_size):
        piece = tokenizer.id_to_piece(token_id)
        if piece is not None:
            raise TokenizerError(
                f"the tokenizer has token {token_id} ({piece!r}), but the model's embedding has {num_rows} rows; "
                "allowed: ids below that; take the tokenizer that belongs to this checkpoint"
            )
