from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from litspec.model.added_tokens import AddedToken, AddedTokens
from litspec.model.tokenizer import (
    ByteTokenizer,
    TokenizerError,
    check_vocabulary,
    first_difference,
    load_tokenizer,
)
from tests.model import tiny_tokenizers as tiny

REFERENCE = Path(__file__).parents[1] / "reference" / "llamacpp_tokens.json"
TEXTS = [case["text"] for case in json.loads(REFERENCE.read_text())]
BACKENDS = {
    "byte-level": tiny.byte_level,
    "llama2-like": tiny.llama2_like,
    "metaspace": tiny.metaspace,
    "words": tiny.words,
}


@pytest.fixture(params=BACKENDS)
def backend(request) -> Tokenizer:
    return BACKENDS[request.param]()


def test_a_tokenizer_json_encodes_and_decodes_as_the_library_does(backend, tmp_path):
    tokenizer = load_tokenizer(tiny.save(tmp_path, backend))
    for text in [*tiny.LINES, "Rain<|part|> on</s> roof"]:
        ids = tokenizer.encode(text)
        assert ids == backend.encode(text).ids
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == backend.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_ids_decode_as_the_library_does(data):
    backend, tokenizer = _byte_level_pair()
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    assert tokenizer.decode(ids) == backend.decode(ids)


_PAIR: list = []


def _byte_level_pair():
    if not _PAIR:
        import tempfile

        backend = tiny.byte_level()
        with tempfile.TemporaryDirectory() as folder:
            _PAIR.extend((backend, load_tokenizer(tiny.save(Path(folder), backend))))
    return _PAIR


def test_a_sentencepiece_model_encodes_and_decodes_as_the_library_does(tmp_path):
    folder = tiny.save_sentencepiece(tmp_path)
    tokenizer = load_tokenizer(folder)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}
    for text in [*tiny.LINES, "  two blanks", "unseen: ☃ 🦊 ß"]:
        ids = tokenizer.encode(text)
        assert ids == [1, *model.encode(text)]
        assert tokenizer.decode(ids) == model.decode(ids) == text


def test_sentencepiece_with_its_default_options_decodes_as_the_library_does(tmp_path):
    defaults = {"remove_extra_whitespaces": True, "byte_fallback": False, "normalization_rule_name": "nmt_nfkc"}
    folder = tiny.save_sentencepiece(tmp_path, model_type="unigram", vocab_size=150, **defaults)
    tokenizer = load_tokenizer(folder)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for text in tiny.LINES:
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == model.encode(text)
        assert tokenizer.decode(ids) == model.decode(ids).replace(" ⁇ ", "")


def test_sentencepiece_without_a_dummy_blank_keeps_the_first_blank(tmp_path):
    tokenizer = load_tokenizer(tiny.save_sentencepiece(tmp_path, add_dummy_prefix=False))
    assert tokenizer.decode(tokenizer.encode(" Hello")) == " Hello"
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"


@pytest.mark.parametrize(("legacy", "expected"), [(True, "<|part|> notes"), (False, "<|part|>notes")])
def test_sentencepiece_puts_the_dummy_blank_where_the_config_says(tmp_path, legacy, expected):
    config = {"legacy": legacy, "added_tokens_decoder": {"400": {"content": "<|part|>", "special": True}}}
    tokenizer = load_tokenizer(tiny.save_sentencepiece(tmp_path, config))
    ids = tokenizer.encode("<|part|>notes", add_bos=False)
    if not legacy:  # the first part of a text has its dummy blank either way
        ids = tokenizer.encode("x<|part|>notes", add_bos=False)[len(tokenizer.encode("x", add_bos=False)) :]
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected


# TK-03
@pytest.mark.parametrize("kind", ["byte-level", "llama2-like", "metaspace"])
def test_no_blanks_appear_around_added_tokens(kind, tmp_path):
    backend = BACKENDS[kind]()
    backend.add_tokens([tiny.new_token("<plan>"), tiny.new_token("</plan>")])
    tokenizer = load_tokenizer(tiny.save(tmp_path, backend))
    text = "<plan>go</plan>7"
    ids = [i for i in tokenizer.encode(text, add_bos=False) if tokenizer.id_to_piece(i) not in ("▁", "<unk>")]
    assert tokenizer.decode(ids) == backend.decode(ids)
    if kind == "byte-level":
        assert tokenizer.decode(ids) == text


# TK-04
def test_a_special_token_shown_keeps_the_blank_of_the_next(tmp_path):
    backend = tiny.llama2_like()
    tokenizer = load_tokenizer(tiny.save(tmp_path, backend))
    (part,) = (backend.token_to_id("<|part|>"),)
    hello = next(i for i in range(tokenizer.vocab_size) if (tokenizer.id_to_piece(i) or "").startswith("▁R"))
    for ids in ([hello], [part, hello], [hello, part, hello], [0, hello]):
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == backend.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode([part, hello], skip_special_tokens=False).startswith("<|part|> R")
    assert tokenizer.decode([part, hello]).startswith("R")


def test_a_gguf_may_have_several_ends(tmp_path):
    path = tiny.save_gguf(tmp_path / "m.gguf", tiny.byte_level(), pre="gpt-2", eos_token_id=1, eot_token_id=2)
    tokenizer = load_tokenizer(path)
    assert tokenizer.eos_token_id == 1
    assert tokenizer.eos_token_ids == {1, 2}


# TK-05
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_a_gguf_gives_the_ids_of_the_original_tokenizer_json(pre, tmp_path):
    backend = tiny.byte_level(split=tiny.LLAMA3_SPLIT if pre == "llama-bpe" else None)
    backend.add_tokens([tiny.new_token("<plan>")])
    backend.add_special_tokens(["<|eot_id|>"])
    original = load_tokenizer(tiny.save(tmp_path, backend))
    tokenizer = load_tokenizer(tiny.save_gguf(tmp_path / "m.gguf", backend, pre=pre, bos_token_id=0, eos_token_id=1))
    assert first_difference(original, tokenizer) is None
    assert tokenizer.special_ids == original.special_ids
    for text in [*TEXTS, "a<|eot_id|>\n\n\nb<plan>12345 你好"]:
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == backend.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_llama3s_numbers_go_in_threes_and_qwens_and_smollms_one_by_one(tmp_path):
    # A vocabulary whose only merges are of digits shows where the words were cut.
    backend = tiny.byte_level()
    description = json.loads(backend.to_str())
    pieces = ["<s>", "</s>", *sorted(set(map(chr, range(0x21, 0x7F))) | {"Ġ"}), "12", "123", "1234"]
    description["model"]["vocab"] = {piece: i for i, piece in enumerate(pieces)}
    description["model"]["merges"] = [["1", "2"], ["12", "3"], ["123", "4"]]
    description["added_tokens"] = description["added_tokens"][:2]
    backend = Tokenizer.from_str(json.dumps(description))
    cuts = {}
    for pre in ("gpt-2", "llama-bpe", "qwen2", "smollm"):
        tokenizer = load_tokenizer(tiny.save_gguf(tmp_path / f"{pre}.gguf", backend, pre=pre))
        cuts[pre] = [tokenizer.id_to_piece(i) for i in tokenizer.encode("a 1234")]
    assert cuts == {
        "gpt-2": ["a", "Ġ", "1234"],
        "llama-bpe": ["a", "Ġ", "123", "4"],
        "qwen2": ["a", "Ġ", "1", "2", "3", "4"],
        "smollm": ["a", "Ġ", "1", "2", "3", "4"],
    }


def test_llama3_takes_a_word_of_the_vocabulary_whole_though_no_merge_makes_it(tmp_path):
    backend = tiny.byte_level()
    description = json.loads(backend.to_str())
    description["model"]["vocab"]["zqzq"] = word = backend.get_vocab_size()
    backend = Tokenizer.from_str(json.dumps(description))
    llama3, gpt2 = (
        load_tokenizer(tiny.save_gguf(tmp_path / "m.gguf", backend, pre=pre)) for pre in ("llama-bpe", "gpt-2")
    )
    assert llama3.encode("zqzq") == [word]
    assert word not in gpt2.encode("zqzq")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"pre": "viking"}, ["'viking'", "tokenizer.ggml.pre", "'smollm'"]),
        ({"pre": "default", "model": "llama"}, ["'llama'", "tokenizer.ggml.model", "'gpt2'"]),
        ({"pre": "gpt-2", "bos_token_id": 4000}, ["bos_token_id", "4000"]),
    ],
)
def test_a_gguf_that_is_not_supported_is_refused_by_name(options, names, tmp_path):
    path = tiny.save_gguf(tmp_path / "m.gguf", tiny.byte_level(), **options)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(path)
    assert all(name in str(caught.value) for name in [*names, str(path)])


def test_a_gguf_says_whether_bos_is_added(tmp_path):
    backend = tiny.byte_level()
    for pre, keys, expected in (
        ("gpt-2", {}, ()),
        ("llama-bpe", {}, (0,)),
        ("gpt-2", {"add_bos_token": True}, (0,)),
        ("llama-bpe", {"add_bos_token": False}, ()),
    ):
        path = tiny.save_gguf(tmp_path / "m.gguf", backend, pre=pre, bos_token_id=0, **keys)
        tokenizer = load_tokenizer(path)
        assert tuple(tokenizer.encode("")) == expected
        assert tokenizer.encode("", add_bos=False) == []


def test_padding_tokens_of_a_gguf_are_no_pieces(tmp_path):
    backend = tiny.byte_level()
    plain = load_tokenizer(tiny.save_gguf(tmp_path / "plain.gguf", backend, pre="gpt-2"))
    backend.add_tokens([tiny.new_token(f"[PAD{i}]") for i in range(3)])
    types = dict.fromkeys(range(plain.vocab_size, plain.vocab_size + 3), 5)
    padded = load_tokenizer(tiny.save_gguf(tmp_path / "padded.gguf", backend, pre="gpt-2", types=types))
    assert first_difference(plain, padded) is None
    assert padded.decode([plain.vocab_size]) == ""
    assert plain.encode("[PAD1]") == padded.encode("[PAD1]")


def test_a_truncated_gguf_is_refused(tmp_path):
    path = tiny.save_gguf(tmp_path / "m.gguf", tiny.byte_level(), pre="gpt-2")
    data = path.read_bytes()
    for length in (0, 3, 20, len(data) // 2, len(data) - 5):
        path.write_bytes(data[:length])
        with pytest.raises(TokenizerError, match=r"m\.gguf"):
            load_tokenizer(path)


# TK-06
def test_special_tokens_are_not_text_unless_asked(tmp_path):
    tokenizer = load_tokenizer(tiny.save(tmp_path, tiny.byte_level(), {"bos_token": "<s>", "eos_token": "</s>"}))
    ids = [tokenizer.bos_token_id, *tokenizer.encode("Rain<|part|>falls"), *tokenizer.eos_token_ids]
    assert tokenizer.decode(ids) == "Rainfalls"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>Rain<|part|>falls</s>"


# TK-07
@pytest.mark.parametrize("make", [tiny.byte_level, tiny.metaspace, tiny.llama2_like])
def test_tokens_added_after_training_have_the_id_that_the_config_gives(make, tmp_path):
    config = {"added_tokens_decoder": {"600": {"content": "<new>", "special": False}}}
    tokenizer = load_tokenizer(tiny.save(tmp_path, make(), config))
    ids = tokenizer.encode("a<new>b", add_bos=False)
    assert ids.count(600) == 1
    assert tokenizer.decode([600]) == "<new>"
    assert tokenizer.decode(tokenizer.encode("Rain<new>falls")) in ("Rain<new>falls", "Rain<new> falls")
    assert tokenizer.vocab_size == 601
    check_vocabulary(tokenizer, 601)
    with pytest.raises(TokenizerError, match=r"token 600 \('<new>'\).*512 rows"):
        check_vocabulary(tokenizer, 512)


def test_added_tokens_json_is_read_for_sentencepiece(tmp_path):
    folder = tiny.save_sentencepiece(tmp_path)
    (folder / "added_tokens.json").write_text('{"<new>": 600}')
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a<new>").count(600) == 1
    assert tokenizer.decode([600]) == "<new>"
    assert tokenizer.id_to_piece(500) is None
    assert tokenizer.vocab_size == 601


def test_a_declared_token_that_contradicts_the_vocabulary_is_refused(tmp_path):
    config = {"added_tokens_decoder": {"40": {"content": "<new>", "special": False}}}
    folder = tiny.save(tmp_path / "json", tiny.byte_level(), config)
    with pytest.raises(TokenizerError, match=r"<new>.*40"):
        load_tokenizer(folder)
    folder = tiny.save_sentencepiece(tmp_path / "model", config)
    with pytest.raises(TokenizerError, match=r"<new>.*40"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("make", "config", "prefix"),
    [
        (tiny.llama2_like, {}, [1]),
        (tiny.llama2_like, {"bos_token": "<s>", "add_bos_token": True}, [1]),
        (tiny.llama2_like, {"bos_token": {"content": "<s>"}, "add_bos_token": False}, []),
        (tiny.byte_level, {"bos_token": "<s>"}, []),
        (tiny.byte_level, {"bos_token": "<s>", "add_bos_token": True}, [0]),
    ],
)
def test_bos_is_added_where_the_models_own_tokenizer_adds_it(make, config, prefix, tmp_path):
    tokenizer = load_tokenizer(tiny.save(tmp_path, make(), config))
    assert tokenizer.encode("Rain")[: len(prefix)] == prefix
    assert len(tokenizer.encode("Rain")) - len(tokenizer.encode("Rain", add_bos=False)) == len(prefix)


def test_truncation_and_padding_of_a_tokenizer_json_are_off(tmp_path):
    backend = tiny.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    tokenizer = load_tokenizer(tiny.save(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode(tiny.LINES[3])) == tiny.LINES[3]
    assert len(tokenizer.encode("a")) == 1


def test_a_decoder_that_would_change_earlier_text_is_refused_by_name(tmp_path):
    backend = tiny.byte_level()
    backend.decoder = decoders.BPEDecoder()
    with pytest.raises(TokenizerError, match="BPEDecoder"):
        load_tokenizer(tiny.save(tmp_path, backend))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Magic", "vocab": {}}}'])
def test_a_broken_tokenizer_json_is_refused(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_model_is_refused(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(TokenizerError, match="not a sentencepiece model"):
        load_tokenizer(tmp_path)


def test_the_file_itself_may_be_given(tmp_path):
    folder = tiny.save(tmp_path, tiny.byte_level())
    assert first_difference(load_tokenizer(folder / "tokenizer.json"), load_tokenizer(folder)) is None


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(TokenizerError, match=r"allowed.*tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_half_a_surrogate_pair_is_refused(tmp_path):
    for tokenizer in (ByteTokenizer(), load_tokenizer(tiny.save(tmp_path, tiny.byte_level()))):
        with pytest.raises(TokenizerError, match="position 1"):
            tokenizer.encode("a\ud83d")


def test_the_longest_added_token_wins_and_takes_its_blanks():
    tokens = [AddedToken("<a>", 1), AddedToken("<a>b", 2), AddedToken("<l>", 3, lstrip=True, rstrip=True)]
    assert list(AddedTokens(tokens).split("x <a>by<a> c <l>  d")) == ["x ", 2, "y", 1, " c", 3, "d"]
    assert list(AddedTokens(tokens).split("<l> <l>")) == [3, 3]
    assert list(AddedTokens([]).split("<a>")) == ["<a>"]


def test_the_byte_tokenizer():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("hé") == [256, 0x68, 0xC3, 0xA9]
    assert tokenizer.encode("a<|eos|>b", add_bos=False) == [97, 257, 98]
    assert tokenizer.decode([256, 0x68, 0xC3, 0xA9, 257, 300]) == "hé"
    assert tokenizer.decode([256, 104], skip_special_tokens=False) == "<|bos|>h"


def test_first_difference_names_the_id(tmp_path):
    a = load_tokenizer(tiny.save(tmp_path / "a", tiny.byte_level()))
    longer = tiny.byte_level()
    longer.add_tokens([tiny.new_token("<plan>")])
    b = load_tokenizer(tiny.save(tmp_path / "b", longer))
    assert first_difference(a, a) is None
    assert first_difference(a, b) == first_difference(b, a) == a.vocab_size
    assert first_difference(a, ByteTokenizer()) == 0


def test_several_threads_get_the_same_ids(tmp_path):
    tokenizers = [
        load_tokenizer(tiny.save(tmp_path / "json", tiny.byte_level())),
        load_tokenizer(tiny.save_sentencepiece(tmp_path / "model")),
    ]
    for tokenizer in tokenizers:
        expected = [tokenizer.encode(text) for text in TEXTS[:60]]
        barrier = threading.Barrier(4)

        def work(_, tokenizer=tokenizer, barrier=barrier):
            barrier.wait()
            ids = [tokenizer.encode(text) for text in TEXTS[:60]]
            return ids, [tokenizer.decode(i) for i in ids]

        with ThreadPoolExecutor(4) as pool:
            for ids, texts in pool.map(work, range(4)):
                assert ids == expected
                assert texts == [tokenizer.decode(i) for i in expected]
