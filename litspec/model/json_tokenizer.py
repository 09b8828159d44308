"""Loads the tokenizer of a Hugging Face folder that has a tokenizer.json.

tokenizer.json decides how text is split and what the ids are; the files beside it add tokens that came after training
(each at the id that they declare), and say which tokens are special and whether BOS is put before a text.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import tokenizers

from litspec.model.backend_tokenizer import FILLER, BackendTokenizer
from litspec.model.piece_bytes import from_decoder
from litspec.model.tokenizer import TokenizerError
from litspec.model.tokenizer_config import TokenizerConfig, read_tokenizer_config


def load_json_tokenizer(folder: Path) -> BackendTokenizer:
    """Return the tokenizer of a folder with tokenizer.json.

    Raises:
        TokenizerError: a file is broken, a declared token has no id, or the decoder is not supported (by name).
    """
    path = folder / "tokenizer.json"
    config = read_tokenizer_config(folder)
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        spelling = from_decoder(description.get("decoder"))
        _add_tokens(description, config, path)
        backend = tokenizers.Tokenizer.from_str(json.dumps(description))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} is not a usable tokenizer.json: {error}") from None
    special = {token["content"] for token in description["added_tokens"] if token["special"]} | config.special_contents
    special_ids = {backend.token_to_id(content) for content in special}
    bos, eos = (_find(backend, name, config, path) for name in ("bos_token", "eos_token"))
    return BackendTokenizer(
        backend,
        spelling,
        literal_ids=frozenset(token["id"] for token in description["added_tokens"]),
        special_ids=frozenset(i for i in special_ids if i is not None),
        bos_token_id=bos,
        eos_token_id=eos,
        prefix_ids=_prefix_ids(backend, bos, config),
    )


def _add_tokens(description: dict[str, Any], config: TokenizerConfig, path: Path) -> None:
    """Put the tokens that only the files beside tokenizer.json declare into its description.

    The library numbers added tokens by their order; one that stands in the model's vocabulary too keeps its own id.
    """
    added: list[dict[str, Any]] = list(description.get("added_tokens") or ())
    description["added_tokens"] = added
    vocabulary = description["model"]["vocab"]
    pieces = vocabulary if isinstance(vocabulary, dict) else {entry[0]: i for i, entry in enumerate(vocabulary)}
    known = {**pieces, **{token["content"]: token["id"] for token in added}}
    by_id = {token_id: content for content, token_id in known.items()}
    declared = {token.content: token for token in config.added_tokens}
    have = {token["content"] for token in added}
    for content in sorted(config.special_contents - declared.keys() - have):
        if content in known:  # a plain piece that the files call special: text that spells it means it
            added.append(_added_token(content, known[content], special=True))
    for token in config.added_tokens:
        if token.content in have:
            if known[token.content] != token.id:
                warnings.warn(
                    f"{path.parent}: token {token.content!r} is {known[token.content]} in tokenizer.json and "
                    f"{token.id} in the files beside it; tokenizer.json is taken",
                    stacklevel=2,
                )
            continue
        if by_id.get(token.id, token.content) != token.content or known.get(token.content, token.id) != token.id:
            raise TokenizerError(
                f"{path.parent} declares token {token.content!r} as id {token.id}, which tokenizer.json contradicts; "
                "take both from the same model"
            )
        if token.content not in known:
            _place(vocabulary, token.content, token.id)
        added.append(
            _added_token(token.content, token.id, special=token.special, lstrip=token.lstrip, rstrip=token.rstrip)
        )


def _added_token(
    content: str, token_id: int, *, special: bool, lstrip: bool = False, rstrip: bool = False
) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": lstrip, "rstrip": rstrip, "normalized": False, "special": special}
    return {"id": token_id, "content": content, **flags}


def _place(vocabulary: dict[str, int] | list[list[Any]], content: str, token_id: int) -> None:
    if isinstance(vocabulary, dict):
        vocabulary[content] = token_id
        return
    # A unigram vocabulary is a list, an entry's id its place: fill the gap.
    while len(vocabulary) < token_id:
        vocabulary.append([f"{FILLER}{len(vocabulary)}", -1e9])
    vocabulary.append([content, -1e9])


def _find(backend: tokenizers.Tokenizer, name: str, config: TokenizerConfig, path: Path) -> int | None:
    content = getattr(config, name)
    if content is None:
        return None
    token_id = backend.token_to_id(content)
    if token_id is None:
        raise TokenizerError(f"{path.parent} declares {name} {content!r}, which tokenizer.json does not have")
    return token_id


def _prefix_ids(backend: tokenizers.Tokenizer, bos: int | None, config: TokenizerConfig) -> tuple[int, ...]:
    """Return what the tokenizer's own template puts before a text, corrected by an explicit add_bos_token."""
    plain = backend.encode("a", add_special_tokens=False).ids
    templated = backend.encode("a", add_special_tokens=True).ids
    prefix = ()
    for start in range(len(templated) - len(plain) + 1):
        if templated[start : start + len(plain)] == plain:
            prefix = tuple(templated[:start])
            break
    if bos is None or config.adds_bos is None:
        return prefix
    rest = prefix[1:] if prefix[:1] == (bos,) else prefix
    return (bos, *rest) if config.adds_bos else rest
