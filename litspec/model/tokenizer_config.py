"""TokenizerConfig: what the small JSON files beside a Hugging Face tokenizer say about its tokens.

tokenizer_config.json comes first, special_tokens_map.json and added_tokens.json (older repositories) fill its gaps.
Only what changes ids or text is read: bos, eos, added tokens, which tokens are special, whether BOS is added.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litspec.model.added_tokens import AddedToken
from litspec.model.tokenizer import TokenizerError

# Other named tokens (padding above all) are special only where they are declared so: some models pad with plain text.
_NAMED = ("bos_token", "eos_token")


@dataclass(frozen=True)
class TokenizerConfig:
    """What a model's files declare about its tokens.

    Args:
        bos_token: the begin-of-text token's spelling, None where none is declared.
        eos_token: the end-of-text token's.
        added_tokens: tokens with an id of their own.
        special_contents: spellings of all tokens that are declared special.
        adds_bos: whether BOS goes before a text; None where the files do not say.
        is_legacy: a dummy blank goes before each part of a text and not only before the first (sentencepiece).
    """

    bos_token: str | None = None
    eos_token: str | None = None
    added_tokens: tuple[AddedToken, ...] = ()
    special_contents: frozenset[str] = field(default_factory=frozenset)
    adds_bos: bool | None = None
    is_legacy: bool = True


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Return what the files in `folder` declare; with no such file, nothing.

    Raises:
        TokenizerError: a file is not JSON, or holds something of the wrong kind.
    """
    config = {**_read_object(folder / "special_tokens_map.json"), **_read_object(folder / "tokenizer_config.json")}
    try:
        named = {name: _content(config.get(name)) for name in _NAMED}
        more = [*_as_list(config.get("additional_special_tokens")), *_as_list(config.get("extra_special_tokens"))]
        special = {content for content in [*named.values(), *map(_content, more)] if content}
        tokens = {
            token["content"]: AddedToken(
                content=token["content"],
                id=int(token_id),
                special=bool(token.get("special", False)) or token["content"] in special,
                lstrip=bool(token.get("lstrip", False)),
                rstrip=bool(token.get("rstrip", False)),
            )
            for token_id, token in (config.get("added_tokens_decoder") or {}).items()
        }
        for content, token_id in _read_object(folder / "added_tokens.json").items():
            tokens.setdefault(content, AddedToken(content=content, id=int(token_id), special=content in special))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise TokenizerError(f"the token declarations in {folder} are not as expected ({error!r})") from None
    return TokenizerConfig(
        bos_token=named["bos_token"],
        eos_token=named["eos_token"],
        added_tokens=tuple(sorted(tokens.values(), key=lambda token: token.id)),
        special_contents=frozenset(special | {content for content, token in tokens.items() if token.special}),
        adds_bos=config.get("add_bos_token"),
        is_legacy=config.get("legacy") is not False,
    )


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON ({error}); take it anew") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds a {type(value).__name__}; allowed: a JSON object")
    return value


def _as_list(value: Any) -> list[Any]:
    """Return the tokens of a list, or of a mapping from a name to a token."""
    return list(value.values()) if isinstance(value, dict) else list(value or ())


def _content(token: Any) -> str | None:
    return token["content"] if isinstance(token, dict) else token
