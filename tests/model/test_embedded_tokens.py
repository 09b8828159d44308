"""The embedded model's tokenizer against llama.cpp's, on the texts that tests/reference stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from litspec.model.chat_template import ChatTemplate, encode_chat
from litspec.model.gguf_metadata import read_metadata
from litspec.model.source import resolve_model
from litspec.model.tokenizer import IncrementalDetokenizer, Tokenizer, load_tokenizer

pytestmark = pytest.mark.embedded
CASES = json.loads((Path(__file__).parents[1] / "reference" / "llamacpp_tokens.json").read_text())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2-135m-instruct", progress=False))


def test_two_hundred_texts_have_llamacpps_ids(tokenizer):
    assert len(CASES) == 200
    different = [case["text"] for case in CASES if tokenizer.encode(case["text"]) != case["ids"]]
    assert different == []


def test_the_ids_decode_and_stream_to_the_texts(tokenizer):
    for case in CASES:
        assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"]
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
        deltas = [detokenizer.push(i) for i in case["ids"]]
        assert "".join(deltas) + detokenizer.flush() == case["text"]
        assert "".join(deltas).count("\ufffd") == case["text"].count("\ufffd")


def test_its_special_tokens(tokenizer):
    assert tokenizer.vocab_size == 49152
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.encode("a", add_bos=True) == tokenizer.encode("a", add_bos=False)


def test_its_chat_template_gives_the_ids_that_llamacpp_gives(tokenizer):
    source = read_metadata(resolve_model("smollm2-135m-instruct", progress=False))["tokenizer.chat_template"]
    template = ChatTemplate.for_tokenizer(source, tokenizer)
    assert (template.bos_token, template.eos_token) == ("<|im_start|>", "<|im_end|>")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    stored = {case["text"]: case["ids"] for case in CASES}
    assert encode_chat(tokenizer, template, messages) == stored[template.render(messages)]
