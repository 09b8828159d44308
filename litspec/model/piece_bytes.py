"""PieceBytes: from the spelling of a token in a vocabulary to the bytes that it stands for.

Vocabularies spell bytes in a few ways: byte-level (each byte a printable character), metaspace (a blank is U+2581) with
byte fallback (`<0x0A>`), or plain words joined by blanks. `from_decoder` reads which one from the decoder of a
tokenizer.json. Only decoders under which text never changes as tokens come are accepted; others are refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _printable_bytes() -> dict[str, int]:
    """Return GPT-2's spelling: the printable Latin-1 characters are themselves, the other bytes follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_PRINTABLE_BYTES = _printable_bytes()


@dataclass(frozen=True)
class PieceBytes:
    """How the pieces of one vocabulary spell bytes.

    Args:
        replacements: (from, to) pairs, applied in order.
        is_byte_level: each character stands for a byte.
        has_byte_fallback: `<0x0A>` stands for a byte.
        joint: what stands between two tokens.
        num_stripped: at most so many `stripped` go from the start of a text.
        stripped: the character that goes.
        drops_first_blanks: the first token loses every blank that a replacement made.
    """

    replacements: tuple[tuple[str, str], ...] = ()
    is_byte_level: bool = False
    has_byte_fallback: bool = False
    joint: str = ""
    num_stripped: int = 0
    stripped: str = " "
    drops_first_blanks: bool = False

    def of(self, piece: str) -> bytes:
        """Return the bytes of a piece within a text."""
        return self.joint.encode() + self._spelled(piece, self.replacements)

    def of_first(self, piece: str) -> bytes:
        """Return the bytes of a piece that begins a text."""
        if self.drops_first_blanks:
            return self._spelled(piece, tuple((old, "") for old, _ in self.replacements))
        data = self._spelled(piece, self.replacements)
        for _ in range(self.num_stripped):
            data = data.removeprefix(self.stripped.encode())
        return data

    def _spelled(self, piece: str, replacements: tuple[tuple[str, str], ...]) -> bytes:
        for old, new in replacements:
            piece = piece.replace(old, new)
        if self.has_byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(match[1])
        if self.is_byte_level and all(character in _PRINTABLE_BYTES for character in piece):
            return bytes(_PRINTABLE_BYTES[character] for character in piece)
        return piece.encode()


def from_decoder(decoder: dict[str, Any] | None) -> PieceBytes:
    """Return the spelling that the `decoder` of a tokenizer.json undoes.

    Raises:
        ValueError: a decoder that is not supported, by name.
    """
    if decoder is None:
        return PieceBytes(joint=" ")
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    spelling = PieceBytes()
    for step in steps:
        spelling = _with_step(spelling, step)
    return spelling


def _with_step(spelling: PieceBytes, step: dict[str, Any]) -> PieceBytes:
    kind = step.get("type")
    if kind == "Fuse":
        return spelling
    if kind == "ByteLevel":
        return replace(spelling, is_byte_level=True)
    if kind == "ByteFallback":
        return replace(spelling, has_byte_fallback=True)
    if kind == "Metaspace":
        default = "always" if step.get("add_prefix_space", True) else "never"  # the older spelling of the same
        drops = step.get("prepend_scheme", default) != "never"
        return replace(spelling, replacements=((step["replacement"], " "),), drops_first_blanks=drops)
    if kind == "Replace" and "String" in step["pattern"]:
        pair = (step["pattern"]["String"], step["content"])
        return replace(spelling, replacements=(*spelling.replacements, pair))
    if kind == "Strip" and step.get("stop", 0) == 0:
        return replace(spelling, num_stripped=step["start"], stripped=step["content"])
    raise ValueError(
        f"decoder step {step!r}; allowed: ByteLevel, Metaspace, ByteFallback, Fuse, Replace of a plain string, "
        "Strip at the start"
    )
