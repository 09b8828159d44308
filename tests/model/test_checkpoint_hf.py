"""Hugging Face folders: logits against transformers, and everything that can be wrong with a folder.

Cases: CK-14 (tied heads), CK-21 (head_dim against tensors), CK-22's Qwen3 half, and the logits of Llama, Mistral, Qwen2
and Qwen3 to 1e-4 over the RoPE scalings, biases, grouped heads and explicit head_dim.
"""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from litspec.model.checkpoint import CheckpointError, open_checkpoint
from tests.model.tiny_checkpoints import edit_json, our_logits, saved, some_tokens, their_logits, tiny_model

ROPES = {
    "none": {"rope_type": "default", "rope_theta": 5e4},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32},
}
LLAMAS = {
    "grouped": {"tie_word_embeddings": False},
    "tied": {"tie_word_embeddings": True},
    "one group": {"num_key_value_heads": 1},
    "ungrouped": {"num_key_value_heads": 8},
    "explicit head_dim": {"head_dim": 16, "num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    **{name: {"rope_parameters": rope} for name, rope in ROPES.items()},
}
MODELS = {
    **{f"llama {name}": ("llama", changes) for name, changes in LLAMAS.items()},
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": ROPES["yarn"]}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 tied": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
}


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


@pytest.fixture
def folder(llama, tmp_path):
    return saved(llama, tmp_path / "tiny")


@pytest.fixture
def shards(llama, tmp_path):
    folder = saved(llama, tmp_path / "shards", max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


@pytest.fixture
def tied(tmp_path):
    return saved(tiny_model("llama", tie_word_embeddings=True), tmp_path / "tied")


def change_tensors(folder, change, file="model.safetensors"):
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(name, tmp_path):
    kind, changes = MODELS[name]
    model = tiny_model(kind, **changes)
    idx = some_tokens(50)
    theirs = their_logits(model, idx)
    assert float(theirs.std()) > 0.5  # so that 1e-4 means something
    ours = our_logits(open_checkpoint(saved(model, tmp_path)), idx)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn"])
def test_the_scaling_shows_in_the_logits_and_the_old_spelling_is_read(name, tmp_path):
    model = tiny_model("llama", rope_parameters=ROPES[name])
    folder, idx = saved(model, tmp_path), some_tokens(50)
    old = {key: value for key, value in ROPES[name].items() if key not in ("rope_type", "rope_theta")}
    edit_json(folder / "config.json", rope_parameters=..., rope_theta=1e4, rope_scaling={"type": name, **old})
    torch.testing.assert_close(our_logits(open_checkpoint(folder), idx), their_logits(model, idx), rtol=0, atol=1e-4)
    edit_json(folder / "config.json", rope_scaling=None)
    assert float((our_logits(open_checkpoint(folder), idx) - their_logits(model, idx)).abs().max()) > 1e-2


def test_shards_equal_the_single_file(folder, shards):
    single, several = dict(open_checkpoint(folder).tensors()), dict(open_checkpoint(shards).tensors())
    assert single.keys() == several.keys() == open_checkpoint(folder).config.parameter_shapes().keys()
    for name, tensor in single.items():
        assert torch.equal(tensor, several[name]), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_keep_the_dtype_they_are_stored_in(dtype, folder):
    change_tensors(folder, lambda tensors: tensors.update({k: t.to(dtype) for k, t in tensors.items()}))
    assert {tensor.dtype for _, tensor in open_checkpoint(folder).tensors()} == {dtype}


def test_opening_reads_no_tensor(folder, monkeypatch):
    import litspec.model.hf as hf

    monkeypatch.setattr(hf, "_read_tensor", lambda file, name: pytest.fail(f"read {name}"))
    tensors = open_checkpoint(folder).tensors()
    with pytest.raises(pytest.fail.Exception, match="embed_tokens"):
        next(tensors)


def test_buffers_of_old_checkpoints_are_ignored(folder):
    change_tensors(
        folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    )
    assert len(dict(open_checkpoint(folder).tensors())) == 21


# CK-14


def test_tied_without_a_head_uses_the_embedding(tied):
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    checkpoint = open_checkpoint(tied)
    assert checkpoint.config.tie_embeddings
    assert "head" not in dict(checkpoint.tensors())


def test_untied_without_a_head_is_refused(tied):
    edit_json(tied / "config.json", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lacks tensor lm_head\.weight.*set tie_word_embeddings to true"):
        open_checkpoint(tied)


def drop_from_its_shard(folder, name):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    file = index["weight_map"][name]
    change_tensors(folder, lambda tensors: tensors.pop(name), file)
    return file


def test_a_shard_that_lacks_its_tensor_is_named(shards):
    file = drop_from_its_shard(shards, "lm_head.weight")
    with pytest.raises(CheckpointError, match=rf"{file} lacks lm_head\.weight, which model\.safetensors\.index\.json"):
        open_checkpoint(shards)
    edit_json(shards / "config.json", tie_word_embeddings=True)  # then the index may name a head that nobody needs
    assert "head" not in dict(open_checkpoint(shards).tensors())


def test_a_tied_config_wins_over_another_head_and_says_so(folder, llama):
    edit_json(folder / "config.json", tie_word_embeddings=True)
    with pytest.warns(UserWarning, match=r"lm_head\.weight differs from the embedding; the embedding is used"):
        tensors = dict(open_checkpoint(folder).tensors())
    assert "head" not in tensors
    assert torch.equal(tensors["embedding"], llama.model.embed_tokens.weight)


def test_a_tied_config_with_the_same_head_is_silent(tied):
    def add_head(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    change_tensors(tied, add_head)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "head" not in dict(open_checkpoint(tied).tensors())


# Tensors that do not fit the config


def test_a_head_dim_that_the_tensors_contradict_names_both_shapes(folder):
    edit_json(folder / "config.json", head_dim=16)
    with pytest.raises(
        CheckpointError, match=r"q_proj\.weight has shape \(64, 64\), but config\.json makes it \(128, 64\)"
    ):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"lacks tensor model\.layers\.1\.mlp\.up_proj\.weight"),
        (lambda t: [t.pop(k) for k in list(t) if "layers.1" in k], r"lacks 9 tensors \(model\.layers\.1"),
        (lambda t: t.update({"score.weight": torch.ones(2)}), r"has tensor score\.weight, which config\.json does not"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}), r"q_proj\.bias"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            r"model\.norm\.weight.* I8; allowed",
        ),
        (lambda t: t.update({"model.norm.weight": torch.ones(63)}), r"\(63,\).*\(64,\)"),
    ],
)
def test_missing_unexpected_and_wrong_tensors_are_named(folder, change, found):
    change_tensors(folder, change)
    with pytest.raises(CheckpointError, match=found):
        open_checkpoint(folder)


def test_a_broken_count_of_layers_is_refused_at_once(folder):
    edit_json(folder / "config.json", num_hidden_layers=10**9)
    with pytest.raises(CheckpointError, match="has 21 tensors, too few for the 1000000000 layers"):
        open_checkpoint(folder)


# Folders that are no whole checkpoint


def keep(folder, *names):
    for file in folder.iterdir():
        if file.name not in names:
            file.unlink()


@pytest.mark.parametrize(
    ("kept", "added", "found"),
    [
        ([], {}, "is an empty folder"),
        ([], {"model.gguf": b""}, r"give the path of the \.gguf file"),
        ([], {"pytorch_model.bin": b""}, r"no config\.json and only pickled weights \(pytorch_model\.bin\)"),
        ([], {"notes.txt": b""}, r"has no config\.json \(it has notes\.txt\)"),
        (["config.json"], {}, r"has a config\.json but no weights"),
        (
            ["config.json"],
            {"pytorch_model.bin": b""},
            r"only pickled weights \(pytorch_model\.bin\).*safe_serialization",
        ),
        (["config.json"], {"model.safetensors": b""}, r"model\.safetensors is not a whole safetensors file"),
        (["config.json"], {"model.safetensors": b"\xff" * 64}, r"model\.safetensors is not a whole safetensors file"),
        (["config.json"], {"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "git lfs pull"),
        (["model.safetensors"], {"config.json": b"{"}, r"config\.json is not readable as JSON"),
        (["model.safetensors"], {"config.json": b"[]"}, r"config\.json holds list, not an object"),
        (["model.safetensors"], {"config.json": b"\xff\xfe"}, r"config\.json is not readable as JSON"),
        (["model.safetensors"], {"config.json": b'{"model_type": "gpt2"}'}, r"config\.json: model_type was 'gpt2'"),
    ],
)
def test_what_is_no_checkpoint_gives_one_clear_error(folder, kept, added, found):
    keep(folder, *kept)
    for name, content in added.items():
        (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=found):
        open_checkpoint(folder)


def test_a_path_that_is_not_there_and_a_file_of_another_kind(folder):
    with pytest.raises(CheckpointError, match=r"nowhere does not exist; allowed: a \.gguf file or a folder"):
        open_checkpoint(folder / "nowhere")
    with pytest.raises(CheckpointError, match=r"is not a GGUF file; allowed: .*the folder that holds"):
        open_checkpoint(folder / "model.safetensors")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_named(folder, part):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file"):
        open_checkpoint(folder)


def test_a_missing_and_a_truncated_shard_are_named(shards):
    shard = sorted(shards.glob("model-*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=f"{shard.name} is not a whole safetensors file"):
        open_checkpoint(shards)
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name} is missing, which .* names for model\."):
        open_checkpoint(shards)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"lm_head.weight": "../tiny.safetensors"}, {"lm_head.weight": 3}])
def test_an_index_that_cannot_be_followed_is_refused(shards, weight_map):
    edit_json(shards / "model.safetensors.index.json", weight_map=weight_map)
    with pytest.raises(CheckpointError, match=r"index\.json .*allowed"):
        open_checkpoint(shards)


def test_a_file_that_breaks_after_opening_is_one_error(folder):
    checkpoint = open_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        dict(checkpoint.tensors())


# What the folder says of generation


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, {}),
        ({"temperature": 0.6, "top_p": 0.9, "do_sample": True}, {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 0.6, "top_k": 20, "do_sample": False}, {"temperature": 0.0, "top_k": 20}),
        (
            {"top_k": 0, "repetition_penalty": 1.1, "max_new_tokens": 7},
            {"repetition_penalty": 1.1, "max_new_tokens": 7},
        ),
        ({"temperature": None, "max_length": 20, "num_beams": 1}, {}),
    ],
)
def test_sampling_defaults(folder, generation, expected):
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert open_checkpoint(folder).generation_config == expected


@pytest.mark.parametrize(("key", "value"), [("temperature", "hot"), ("top_p", 2.0), ("top_k", -1), ("top_k", 1.5)])
def test_a_sampling_default_that_cannot_be_meant_is_refused(folder, key, value):
    (folder / "generation_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {key} was {value!r}; allowed"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(None, 2, {2}), ([5, 6], 2, {2, 5, 6}), (7, None, {7}), (None, [3, 4], {3, 4}), (None, None, set())],
)
def test_every_end_of_text_id_counts(folder, generation, config, expected):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    edit_json(folder / "config.json", eos_token_id=config)
    assert open_checkpoint(folder).eos_token_ids == expected


def test_an_end_of_text_id_that_is_none_is_refused(folder):
    edit_json(folder / "config.json", eos_token_id="</s>")
    with pytest.raises(CheckpointError, match=r"config\.json: eos_token_id was '</s>'"):
        open_checkpoint(folder)


def test_the_chat_template_is_found_in_each_of_its_places(folder):
    assert open_checkpoint(folder).chat_template is None
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert open_checkpoint(folder).chat_template == "processor"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "listed"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert open_checkpoint(folder).chat_template == "listed"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "plain"}))
    assert open_checkpoint(folder).chat_template == "plain"
    (folder / "chat_template.jinja").write_text("jinja")
    assert open_checkpoint(folder).chat_template == "jinja"


def test_links_as_the_hub_cache_has_them_are_followed(folder, tmp_path):
    blobs = tmp_path / "blobs"
    shutil.move(folder, blobs)
    folder.mkdir()
    for file in blobs.iterdir():
        (folder / file.name).symlink_to(file)
    assert open_checkpoint(folder).config.n_layer == 2
