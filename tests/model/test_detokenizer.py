from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.model.tokenizer import ByteTokenizer, IncrementalDetokenizer, Tokenizer, load_tokenizer
from tests.model import tiny_tokenizers as tiny

KINDS = ("bytes", "byte-level", "llama2-like", "metaspace", "words", "sentencepiece", "gguf")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, Tokenizer]:
    folder: Path = tmp_path_factory.mktemp("tokenizers")
    return {
        "bytes": ByteTokenizer(),
        "byte-level": load_tokenizer(tiny.save(folder / "byte-level", tiny.byte_level())),
        "llama2-like": load_tokenizer(tiny.save(folder / "llama2-like", tiny.llama2_like())),
        "metaspace": load_tokenizer(tiny.save(folder / "metaspace", tiny.metaspace())),
        "words": load_tokenizer(tiny.save(folder / "words", tiny.words())),
        "sentencepiece": load_tokenizer(tiny.save_sentencepiece(folder / "sentencepiece")),
        "gguf": load_tokenizer(tiny.save_gguf(folder / "m.gguf", tiny.byte_level(), pre="gpt-2")),
    }


def stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, **options) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt or [], **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_stream_is_the_text_behind_the_prompt(tokenizers, kind, data):
    tokenizer = tokenizers[kind]
    some_ids = st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=10)
    prompt, ids, skip = data.draw(some_ids), data.draw(some_ids), data.draw(st.booleans())
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    after = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    deltas = stream(tokenizer, ids, prompt, skip_special_tokens=skip)
    assert after.startswith(before[:-1])
    assert "".join(deltas) == after[len(before) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["Rain falls on the roof", "one.It is. Two", "řeka a most", "바다가 보여요"])
def test_text_streams_whole(tokenizers, kind, text):
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text)
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == tokenizer.decode(ids)
    if kind != "words":  # whose blanks are lost when it encodes
        assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


# UT-01, UT-11
@pytest.mark.parametrize("text", ["řeka", "바다가 보여요", "a🦊b"])
def test_one_byte_a_token_never_shows_half_a_character(text):
    tokenizer = ByteTokenizer()
    deltas = stream(tokenizer, list(text.encode()), [256])
    assert "".join(deltas) == text
    assert [delta for delta in deltas if delta] == list(text)


# UT-05
def test_a_replacement_character_that_the_model_wrote_is_kept():
    assert [d for d in stream(ByteTokenizer(), list("x\ufffd🦊".encode())) if d] == ["x", "\ufffd", "🦊"]


def test_an_unfinished_character_is_flushed_as_one_replacement():
    assert stream(ByteTokenizer(), [0x61, 0xF0, 0x9F, 0xA6]) == ["a", "", "", "", "\ufffd"]
    assert stream(ByteTokenizer(), [0xF0, 0x9F, 0x61]) == ["", "", "\ufffda", ""]


def test_the_end_of_a_character_that_the_prompt_began_is_the_prompts():
    assert "".join(stream(ByteTokenizer(), [0x99, 0x65], [0xC5])) == "e"
    assert "".join(stream(ByteTokenizer(), [0x65], [0xC5])) == "e"


# UT-06, any number of tokens a step
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_tokens_may_come_several_at_once(tokenizers, step):
    tokenizer = tokenizers["sentencepiece"]
    ids = tokenizer.encode("one.It is. Two", add_bos=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    parts = [detokenizer.extend(ids[start : start + step]) for start in range(0, len(ids), step)]
    assert "".join(parts) + detokenizer.flush() == "one.It is. Two"


# UT-08
@pytest.mark.parametrize("kind", ["metaspace", "llama2-like", "sentencepiece"])
def test_the_first_blank_is_kept_behind_a_prompt_only(tokenizers, kind):
    tokenizer = tokenizers[kind]
    word = next(
        i for i in range(tokenizer.vocab_size) if (p := tokenizer.id_to_piece(i)) and len(p) > 1 and p[0] == "▁"
    )
    shown = (tokenizer.id_to_piece(word) or "").replace("▁", " ")
    prompt = tokenizer.encode("Rain")
    assert "".join(stream(tokenizer, [word], prompt)) == shown
    assert "".join(stream(tokenizer, [word], [*prompt, *tokenizer.encode(" ", add_bos=False)])) == shown
    assert "".join(stream(tokenizer, [word])) == shown.removeprefix(" ")
    # BOS is not shown, so the text still begins behind it.
    assert "".join(stream(tokenizer, [word], list(tokenizer.prefix_ids))) == shown.removeprefix(" ")


def test_ids_without_a_piece_do_not_begin_a_text(tokenizers):
    tokenizer = tokenizers["sentencepiece"]
    padding = tokenizer.vocab_size + 5
    ids = [padding, *tokenizer.encode("Rain"), padding]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == "Rain"


# TK-06
def test_special_tokens_stream_as_they_decode(tokenizers):
    tokenizer = tokenizers["byte-level"]
    ids = tokenizer.encode("Rain<|part|>falls</s>")
    assert "".join(stream(tokenizer, ids)) == "Rainfalls"
    assert "".join(stream(tokenizer, ids, skip_special_tokens=False)) == "Rain<|part|>falls</s>"


def test_a_token_costs_the_same_at_any_length():
    class Counting(ByteTokenizer):
        calls = 0

        def token_bytes(self, token_id: int) -> bytes:
            Counting.calls += 1
            return super().token_bytes(token_id)

    detokenizer = IncrementalDetokenizer(Counting(), list(b"prompt"))
    costs = []
    for _ in range(3000):
        before = Counting.calls
        detokenizer.push(0x61)
        costs.append(Counting.calls - before)
    assert set(costs) == {1}
    held = [value for value in vars(detokenizer).values() if isinstance(value, (str, bytes, list))]
    assert sum(map(len, held)) == 0
