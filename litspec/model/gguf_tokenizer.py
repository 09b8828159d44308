"""The tokenizer that a GGUF file carries, for `tokenizer.ggml.model` = "gpt2" (byte-level BPE).

GGUF names the pre-tokenizer instead of describing it, so the splits below are spelled as in the original models'
tokenizer.json; a name that is not among them is refused, since a wrong split gives other ids without any error.
The token types say which tokens are control tokens and which are padding of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from litspec.model.backend_tokenizer import BackendTokenizer
from litspec.model.gguf_metadata import GgufError, read_metadata
from litspec.model.piece_bytes import PieceBytes
from litspec.model.tokenizer import TokenizerError

# GGUF's token types (tokenizer.ggml.token_type).
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = rf"{_WORDS}|\p{{N}}{{1,3}}|{_OTHERS}"
_QWEN2_SPLIT = rf"{_WORDS}|\p{{N}}|{_OTHERS}"


@dataclass(frozen=True)
class _Scheme:
    """How one family splits text before BPE.

    Args:
        splits: the pre-tokenizers, in order; byte-level mapping included.
        ignore_merges: a whole word that is in the vocabulary is taken as it is.
        adds_bos: BOS goes before a text where the file does not say.
        normalizer: what happens to the text first.
    """

    splits: tuple[pre_tokenizers.PreTokenizer, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    normalizer: normalizers.Normalizer | None = None


def _byte_level(pattern: str | None = None) -> tuple[pre_tokenizers.PreTokenizer, ...]:
    if pattern is None:  # the GPT-2 pattern, which the library knows
        return (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    return (split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


_LLAMA3 = _Scheme(_byte_level(_LLAMA3_SPLIT), ignore_merges=True, adds_bos=True)
_SCHEMES = {
    "gpt-2": _Scheme(_byte_level()),
    "smollm": _Scheme((pre_tokenizers.Digits(individual_digits=True), *_byte_level())),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Scheme(_byte_level(_QWEN2_SPLIT), normalizer=normalizers.NFC()),
}


def load_gguf_tokenizer(path: Path) -> BackendTokenizer:
    """Return the tokenizer of a GGUF file.

    Raises:
        TokenizerError: the file cannot be read, lacks a key, or names a model or pre-tokenizer that is not supported.
    """
    try:
        metadata = read_metadata(path)
    except GgufError as error:
        raise TokenizerError(str(error)) from None
    keys = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    scheme = _find_scheme(keys, path)
    pieces, merges = _require(keys, "tokens", path), _require(keys, "merges", path)
    types = keys.get("token_type") or [1] * len(pieces)
    if len(types) != len(pieces):
        raise TokenizerError(f"{path} has {len(pieces)} tokens but {len(types)} token types; take it anew")
    while pieces and types[len(pieces) - 1] == _UNUSED:  # rows that fill the embedding up to a round number
        pieces = pieces[:-1]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    try:
        model = BPE(vocabulary, [_merge(merge) for merge in merges], ignore_merges=scheme.ignore_merges)
    except Exception as error:  # the library raises bare Exception for a merge that the vocabulary lacks
        raise TokenizerError(f"the merges of {path} do not fit its tokens ({error}); take it anew") from None
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(scheme.splits))
    if scheme.normalizer is not None:
        backend.normalizer = scheme.normalizer
    added = [token_id for token_id in range(len(pieces)) if types[token_id] in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    special_ids = frozenset(token_id for token_id in added if types[token_id] != _USER_DEFINED)
    backend.add_tokens([AddedToken(pieces[i], special=i in special_ids, normalized=False) for i in added])
    bos = _token_id(keys, "bos_token_id", pieces, path)
    adds_bos = keys.get("add_bos_token", scheme.adds_bos)
    turn_ends = {_token_id(keys, key, pieces, path) for key in ("eot_token_id", "eom_token_id")}
    return BackendTokenizer(
        backend,
        PieceBytes(is_byte_level=True),
        literal_ids=frozenset(added),
        special_ids=special_ids,
        bos_token_id=bos,
        eos_token_id=_token_id(keys, "eos_token_id", pieces, path),
        more_eos_token_ids=frozenset(token_id for token_id in turn_ends if token_id is not None),
        prefix_ids=(bos,) if adds_bos and bos is not None else (),
    )


def _find_scheme(keys: dict[str, Any], path: Path) -> _Scheme:
    model = keys.get("model")
    if model != "gpt2":
        raise TokenizerError(
            f"{path} has a tokenizer of kind {model!r} (tokenizer.ggml.model); allowed: 'gpt2'; "
            "use the model's original folder, with tokenizer.json or tokenizer.model, instead"
        )
    pre = keys.get("pre")
    if pre not in _SCHEMES:
        raise TokenizerError(
            f"{path} splits text by {pre!r} (tokenizer.ggml.pre); allowed: {', '.join(map(repr, _SCHEMES))}; "
            "use the model's original folder, with tokenizer.json, instead"
        )
    return _SCHEMES[pre]


def _require(keys: dict[str, Any], name: str, path: Path) -> list[str]:
    if not isinstance(keys.get(name), list):
        raise TokenizerError(f"{path} lacks tokenizer.ggml.{name}: it holds no whole tokenizer; take another file")
    return keys[name]


def _merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _token_id(keys: dict[str, Any], name: str, pieces: list[str], path: Path) -> int | None:
    token_id = keys.get(name)
    if token_id is not None and not 0 <= token_id < len(pieces):
        raise TokenizerError(f"{path} has tokenizer.ggml.{name} {token_id}; allowed: ids below {len(pieces)}")
    return token_id
