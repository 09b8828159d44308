"""LLM.load: what loads, what `describe` says of it, and what is refused with which words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import pytest
import torch

from litspec import LLM
from litspec.api.config import EngineConfig, ServeConfig
from litspec.api.description import one_line
from litspec.draft import ModelProposer
from litspec.engine.options import EngineOptions
from litspec.model.compile import CompiledGPT
from tests.api.small_models import answers, load_checkpoint, load_debug, save_checkpoint
from tests.model.tiny_checkpoints import tiny_model, write_gguf
from tests.model.tiny_tokenizers import SPECIALS, byte_level

GREEDY = {"temperature": 0.0, "max_new_tokens": 20, "ignore_eos": True}


def save_gguf_model(path: Path) -> Path:
    """Write a tiny Llama with its tokenizer as one GGUF file."""
    description = json.loads(byte_level().to_str())
    pieces = [byte_level().id_to_token(i) for i in range(360)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in description["model"]["merges"]]
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * 357,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 1,
    }
    types = {"blk.0.ffn_down.weight": gguf.GGMLQuantizationType.Q8_0}
    model = tiny_model("llama", vocab_size=384, bos_token_id=0, eos_token_id=1)
    return write_gguf(path, model, arch="llama", keys=keys, types=types)


def load_drafting(target: Path, draft: Path) -> LLM:
    """Load a pair that drafts in every round: the engine would see that such a draft is not worth its time."""
    return load_checkpoint(target, draft=str(draft), num_draft_tokens=4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_dtype_loads_and_runs(dtype):
    with load_debug(dtype=dtype, draft="debug", num_draft_tokens=4) as llm:
        assert llm.describe()["dtype"] == dtype
        completion = llm.generate("abc", **GREEDY)
        assert completion.completion_tokens == 20
        assert completion.stats.drafted > 0


def test_describe_says_what_is_loaded():
    with LLM.load("debug", draft="early-exit:2", num_draft_tokens=2, max_batch_size=2, max_seq_length=64) as llm:
        about = llm.describe()
        json.dumps(about)
        assert about["model"] == "debug"
        assert (about["draft"], about["num_draft_tokens"]) == ("early-exit:2", 2)
        assert (about["slots"], about["max_seq_length"]) == (2, 64)
        assert (about["device"], about["compile"]) == ("cpu" if not torch.cuda.is_available() else "cuda:0", "thunder")
        assert about["row_buckets"] == [1, 2]
        assert about["widths"] == [1, 2, 3, 16, 64, 256]
        assert about["compiled_shapes"] == 2 * 6
        size = torch.empty((), dtype=getattr(torch, about["dtype"])).element_size()
        assert about["cache_bytes"] == 4 * 2 * (2 + 1) * 2 * 64 * 16 * size
        assert (about["draft_weight_bytes"], about["draft_cache_bytes"]) == (0, 0)
        assert (about["batching"], about["prefix_reuse"]) == ("continuous", True)
        llm.generate(["abc", "x"], **GREEDY)
        assert llm.describe()["compiled_shapes"] == 2 * 6, "nothing is compiled while it runs"


def test_thunder_and_eager_give_the_same():
    with load_debug(draft="debug", max_batch_size=2, num_draft_tokens=1) as eager:
        expected = eager.generate(["abc", "xyz"], **GREEDY)
    with load_debug(draft="debug", max_batch_size=2, num_draft_tokens=1, compile="thunder") as compiled:
        assert answers(compiled.generate(["abc", "xyz"], **GREEDY)) == answers(expected)


def test_describe_counts_what_target_and_draft_have_taken():
    with load_debug(draft="debug", max_batch_size=3, max_seq_length=128) as llm:
        about = llm.describe()
        draft = llm.engine.proposer
        assert isinstance(draft, ModelProposer)
        assert about["cache_bytes"] == llm.engine.cache.num_bytes
        assert about["draft_cache_bytes"] == draft.cache.num_bytes
        for model, name in ((llm.engine.target, "weight_bytes"), (draft.model, "draft_weight_bytes")):
            assert isinstance(model, CompiledGPT)
            tensors = [*model.gpt.parameters(), *model.gpt.buffers()]
            assert about[name] == sum(t.numel() * t.element_size() for t in tensors)
        line = one_line(about)
        assert "memory target 1.4 MiB weights and 1.0 MiB cache + draft 0.9 MiB weights and 0.5 MiB cache, of " in line
        assert "_bytes" not in line and " bytes" not in line


def test_settings_reach_the_engine():
    with load_debug() as llm:
        assert llm.describe()["num_draft_tokens"] == "auto"
        assert llm.describe()["widths"][:6] == [1, 2, 3, 4, 6, 8]
        assert llm.engine.options == EngineOptions()
    with load_debug(num_draft_tokens=3, prefix_reuse=False, batching="fixed") as llm:
        about = llm.describe()
        assert (about["num_draft_tokens"], about["prefix_reuse"], about["batching"]) == (3, False, "fixed")
        assert llm.engine.options == EngineOptions(prefix_reuse=False, batching="fixed")
        assert llm.engine.num_draft_tokens == 3


def test_a_servers_time_limit_reaches_the_engine():
    config = ServeConfig(model="debug", compile="none", generate_timeout=2.5)
    with LLM.load_cold(config) as llm:
        assert llm.engine.options == EngineOptions(generate_timeout_s=2.5)


def test_auto_and_a_number_give_the_same_text():
    given = {"temperature": 0.8, "seed": 3, "max_new_tokens": 40, "ignore_eos": True}
    with load_debug(draft=None) as plain:
        expected = plain.generate("abcabcabc", **given)
    for number in ("auto", 1, 7):
        with load_debug(draft="debug", num_draft_tokens=number) as llm:
            assert answers([llm.generate("abcabcabc", **given)]) == answers([expected])


@pytest.mark.parametrize("draft", [None, "none"])
def test_no_draft_drafts_nothing(draft):
    with load_debug(draft=draft) as llm:
        assert (llm.describe()["draft"], llm.describe()["num_draft_tokens"]) == ("none", 0)
        stats = llm.generate("abcabcabc", **GREEDY).stats
        assert (stats.drafted, stats.acceptance_rate, stats.acceptance_length) == (0, None, 1.0)


def test_context_is_2048_or_the_models_own(tmp_path):
    with load_debug() as llm:
        assert llm.max_seq_length == 2048
    with load_checkpoint(save_checkpoint(tmp_path)) as llm:
        assert llm.max_seq_length == 256
    with load_debug(max_seq_length=4096) as llm:
        assert llm.max_seq_length == 4096


def test_folder_path_and_gguf_load(tmp_path):
    folder = save_checkpoint(tmp_path / "model")
    with load_checkpoint(folder) as by_text, LLM.load(folder, compile="none", dtype="float64") as by_path:
        assert answers([by_text.generate("Hello", **GREEDY)]) == answers([by_path.generate("Hello", **GREEDY)])
    with load_checkpoint(save_gguf_model(tmp_path / "model.gguf")) as llm:
        assert llm.generate("Hello", **GREEDY).completion_tokens == 20


@pytest.mark.parametrize("rows", [360, 368, 384])
def test_padded_draft_works(tmp_path, rows):
    """The target has 384 rows for 360 tokens; random weights choose padding ids too, which a smaller draft lacks."""
    target = save_checkpoint(tmp_path / "target")
    draft = save_checkpoint(tmp_path / "draft", rows=rows, num_hidden_layers=1)
    with (
        load_checkpoint(target, draft=None) as plain,
        load_checkpoint(target, draft=str(draft), num_draft_tokens=4) as drafting,
    ):
        expected = plain.generate(["Hello", [5, 383, 370]], **GREEDY)
        found = drafting.generate(["Hello", [5, 383, 370]], **GREEDY)
        assert answers(found) == answers(expected)
        assert sum(c.stats.drafted for c in found) > 0


def test_same_weights_as_draft_are_always_right(tmp_path):
    target = save_checkpoint(tmp_path)
    with load_checkpoint(target, draft=str(target), num_draft_tokens=3) as llm:
        stats = llm.generate("Hello", **GREEDY).stats
        assert stats.drafted == stats.accepted > 10


def test_draft_with_a_shorter_context_stops_drafting(tmp_path):  # KV-05 through LLM
    target = save_checkpoint(tmp_path / "target")
    draft = save_checkpoint(tmp_path / "draft", max_position_embeddings=64)
    given = {"temperature": 0.0, "max_new_tokens": 60, "ignore_eos": True}
    prompts = [[5] * 60, [6] * 100, [7, 8]]
    with (
        load_checkpoint(target, draft=None) as plain,
        load_checkpoint(target, draft=str(draft), num_draft_tokens=4) as drafting,
    ):
        found = drafting.generate(prompts, **given)
        assert answers(found) == answers(plain.generate(prompts, **given))
        assert found[1].stats.drafted == 0 < found[2].stats.drafted


def test_draft_with_another_tokenizer_is_refused_naming_the_first_id(tmp_path):
    target = save_checkpoint(tmp_path / "target")
    draft = save_checkpoint(tmp_path / "draft", specials=[*SPECIALS[:2], "<|other|>"])
    with pytest.raises(ValueError, match=re.escape("token 2 is '<|other|>' there and '<|part|>' here")) as caught:
        load_checkpoint(target, draft=str(draft))
    assert 'use a draft of the same family, or draft="ngram"' in str(caught.value)
    with pytest.raises(ValueError, match=r"draft debug has another tokenizer than .*: token 0 is '<0x00>' there"):
        load_checkpoint(target, draft="debug")


def test_tokenizer_of_another_place(tmp_path):
    folder = save_checkpoint(tmp_path / "model")
    with load_checkpoint(folder) as llm:
        expected = llm.generate("Hello", **GREEDY)
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"no tokenizer in .*; allowed: a .gguf file, or a folder with tokenizer.json"):
        load_checkpoint(folder)
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        with load_checkpoint(folder, tokenizer=place) as llm:
            assert answers([llm.generate("Hello", **GREEDY)]) == answers([expected])
    with pytest.raises(ValueError, match=r"no tokenizer in .*nowhere"):
        load_checkpoint(folder, tokenizer=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"draft": "early-exit:0"},
            "draft was 'early-exit:0'; allowed: ngram, early-exit:N with N from 1, none, or",
        ),
        ({"draft": "early-exit:x"}, "draft was 'early-exit:x'; allowed"),
        ({"draft": "early-exit:-1"}, "draft was 'early-exit:-1'; allowed"),
        ({"draft": "early-exit"}, "draft was 'early-exit'; allowed"),
        ({"draft": 5}, "draft was 5; allowed: ngram, early-exit:N"),
        ({"draft": ""}, "draft was ''; allowed"),
        ({"num_draft_tokens": 0}, "num_draft_tokens was 0; allowed: auto, or an integer from 1 to 64"),
        ({"num_draft_tokens": 65}, "num_draft_tokens was 65; allowed"),
        ({"num_draft_tokens": True}, "num_draft_tokens was True; allowed"),
        ({"num_draft_tokens": "Auto"}, "num_draft_tokens was 'Auto'; allowed: auto, or"),
        ({"num_draft_tokens": None}, "num_draft_tokens was None; allowed: auto, or"),
        ({"max_batch_size": 0}, "max_batch_size was 0; allowed: an integer from 1"),
        ({"max_batch_size": 2.0}, "max_batch_size was 2.0; allowed: an integer from 1"),
        ({"max_batch_size": "auto"}, "max_batch_size was 'auto'; allowed: an integer from 1"),
        ({"max_seq_length": 1}, "max_seq_length was 1; allowed: an integer from 2"),
        ({"max_seq_length": "64"}, "max_seq_length was '64'; allowed"),
        ({"prefix_reuse": "yes"}, "prefix_reuse was 'yes'; allowed: true or false"),
        ({"prefix_reuse": 1}, "prefix_reuse was 1; allowed: true or false"),
        ({"batching": "dynamic"}, "batching was 'dynamic'; allowed: continuous, fixed"),
        ({"batching": None}, "batching was None; allowed: continuous, fixed"),
        ({"dtype": "int7"}, "dtype was 'int7'; allowed: auto, float64, float32, bfloat16, float16"),
        ({"dtype": None}, "dtype was None; allowed"),
        ({"device": "tpu9"}, "device was 'tpu9'; allowed: auto, cpu"),
        ({"device": "meta"}, "device was 'meta'; allowed"),
        ({"device": "cuda:99"}, "device was 'cuda:99'; this machine has"),
        ({"compile": "inductor"}, "compile was 'inductor'; allowed: thunder, none"),
        ({"compile": None}, "compile was None; allowed"),
        ({"quantize": "int3"}, "quantize was 'int3'; allowed: none"),
    ],
)
def test_bad_setting_is_refused_before_the_model_is_looked_for(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        LLM.load("no-such-model", **given)
    if "this machine has" not in message:
        with pytest.raises(ValueError, match=re.escape(message)):
            EngineConfig(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"draft": "early-exit:5"}, "draft was early-exit:5; debug allows early-exit:1 to early-exit:4"),
        ({"draft": "early-exit:99"}, "draft was early-exit:99; debug allows early-exit:1 to early-exit:4"),
        ({"max_seq_length": 4097}, "max_seq_length was 4097; debug was trained for 4096 positions, so allowed: 2 to"),
        ({"draft": "smollm2-135m-instrukt"}, "unknown model 'smollm2-135m-instrukt'; did you mean 'smollm2-135m-instr"),
        ({"draft": "./no/such"}, "there is no file or folder ./no/such"),
    ],
)
def test_setting_that_does_not_fit_the_model_is_refused_before_its_weights_are_read(monkeypatch, given, message):
    monkeypatch.setattr("litspec.model.gpt.GPT.load", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=re.escape(message)):
        load_debug(**given)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("smollm2-135m-instrukt", "unknown model 'smollm2-135m-instrukt'; did you mean 'smollm2-135m-instruct'?"),
        ("debgu", "unknown model 'debgu'; did you mean 'debug'?"),
        ("zzzz", "unknown model 'zzzz'; known names: smollm2-135m-instruct, debug; allowed too: a Hugging Face id"),
        (
            "./no/such/folder",
            "there is no file or folder ./no/such/folder; give a folder with a checkpoint, or a .gguf",
        ),
        ("missing.gguf", "there is no file or folder missing.gguf"),
        (None, "model was None; allowed: a name, a hub id (org/name), a folder or a .gguf file"),
        ("", "model was ''; allowed: a name, a hub id"),
        (7, "model was 7; allowed"),
        (Path("no/such"), "no/such"),
    ],
)
def test_model_that_is_nowhere(model, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        LLM.load(model)


def test_empty_folder_and_file_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match=r"is an empty folder; allowed: a folder with config.json"):
        LLM.load(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"is no \.gguf file; allowed"):
        LLM.load(str(tmp_path / "model.bin"))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda data: data[: len(data) // 2], "cut short"),
        (lambda data: data[:40], "fetch it again|cut short|ends"),
        (lambda data: b"", "fetch it again|not a GGUF|cut short|empty"),
        (lambda data: b"JUNK" + data[4:], "GGUF"),
        (lambda data: data[:8] + b"\xff" * 16 + data[24:], "fetch it again|broken|cut short"),
    ],
)
def test_broken_gguf_is_one_clear_error(tmp_path, break_it, message):
    file = save_gguf_model(tmp_path / "model.gguf")
    file.write_bytes(break_it(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        LLM.load(str(file))
    assert "model.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda data: data[: len(data) // 2], "is not a whole safetensors file"),
        (lambda data: data[:4], "is not a whole safetensors file"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "only a git-lfs pointer"),
        (lambda data: b"\xff" * 8 + data[8:], "is not a whole safetensors file"),
    ],
)
def test_broken_safetensors_is_one_clear_error(tmp_path, break_it, message):
    file = save_checkpoint(tmp_path) / "model.safetensors"
    file.write_bytes(break_it(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        load_checkpoint(tmp_path)
    assert str(file) in str(caught.value)


def test_broken_draft_is_refused_like_a_broken_target(tmp_path):
    target, draft = save_checkpoint(tmp_path / "target"), save_checkpoint(tmp_path / "draft")
    (draft / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match=r"draft/model.safetensors is not a whole safetensors file"):
        load_checkpoint(target, draft=str(draft))


def test_tokenizer_beyond_the_embedding_is_refused(tmp_path):  # TK-07's last half
    folder = save_checkpoint(tmp_path, rows=350)
    with pytest.raises(ValueError, match=r"the tokenizer has token 350 .* but the model's embedding has 350 rows"):
        load_checkpoint(folder)


def test_debug_takes_no_other_tokenizer(tmp_path):
    with pytest.raises(ValueError, match='allowed with model "debug": None'):
        load_debug(tokenizer=tmp_path)
