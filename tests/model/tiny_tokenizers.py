"""Tiny tokenizers of every kind, trained on a few lines, for the tests beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = [
    "Rain falls on the roof of the house",
    "one.It is. Two",
    "Hello there, world! Notes go on and on.",
    "the quick brown fox jumps over the lazy dog",
    "def f(x):\n    return x + 1\n\n\nprint(f(2024))",
    "řeka a most přes řeku",
    "바다가 보여요",
    "你好,世界",
] * 4
SPECIALS = ["<s>", "</s>", "<|part|>"]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def save(folder: Path, backend: Tokenizer, config: dict[str, Any] | None = None) -> Path:
    """Write tokenizer.json, and tokenizer_config.json where given."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def byte_level(*, split: str | None = None, vocab_size: int = 360, specials: list[str] = SPECIALS) -> Tokenizer:
    """Return a GPT-2-like BPE; with `split`, the words are those of that pattern."""
    backend = Tokenizer(models.BPE(ignore_merges=split == LLAMA3_SPLIT))
    use_regex = split is None
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    if split is None:
        backend.pre_tokenizer = byte_level
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


def llama2_like() -> Tokenizer:
    """Return a BPE with byte fallback and the normalizer, decoder and template of Llama 2's tokenizer.json."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(LINES[:5], trainer)
    description = json.loads(backend.to_str())
    description["added_tokens"] = [t for t in description["added_tokens"] if not t["content"].startswith("<0x")]
    backend = Tokenizer.from_str(json.dumps(description))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def metaspace() -> Tokenizer:
    """Return a unigram tokenizer with the Metaspace pre-tokenizer and decoder."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=["<unk>", *SPECIALS], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


def words() -> Tokenizer:
    """Return a word-level tokenizer without a decoder: the library joins its tokens with blanks."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(
        LINES, trainers.WordLevelTrainer(special_tokens=["<unk>", *SPECIALS], show_progress=False)
    )
    return backend


def save_sentencepiece(folder: Path, config: dict[str, Any] | None = None, **options: Any) -> Path:
    """Train and write a tokenizer.model as Llama 2's is: BPE, byte fallback, dummy blank."""
    folder.mkdir(parents=True, exist_ok=True)
    defaults = {
        "vocab_size": 400,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "hard_vocab_limit": False,
        "character_coverage": 0.98,
        "minloglevel": 2,
    }
    with (folder / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(LINES), model_writer=file, **{**defaults, **options}
        )
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def save_gguf(path: Path, backend: Tokenizer, *, pre: str, model: str = "gpt2", **keys: Any) -> Path:
    """Write the vocabulary of a byte-level BPE as a GGUF file without tensors.

    `types` among the keys maps ids to token types; the others are keys under `tokenizer.ggml.`.
    """
    description = json.loads(backend.to_str())
    pieces = [backend.id_to_token(i) for i in range(backend.get_vocab_size(with_added_tokens=True))]
    special = {token["id"]: 3 if token["special"] else 4 for token in description["added_tokens"]}
    types = {**special, **keys.pop("types", {})}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces)
    writer.add_token_types([types.get(i, 1) for i in range(len(pieces))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in description["model"]["merges"]])
    for name, value in keys.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def new_token(content: str, **flags: Any) -> AddedToken:
    """Return an added token that is no control token."""
    return AddedToken(content, **{"special": False, "normalized": False, **flags})
