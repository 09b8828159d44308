"""Every file of config_hub: parsed, of a known architecture, and true to what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from litspec.api.config import ServeConfig
from litspec.api.config_sources import config_folder, find_config, load_config
from litspec.model.embedded import EMBEDDED_MODELS
from litspec.model.hf_config import ARCHITECTURES

FILES = sorted(config_folder().rglob("*.yaml"))
# What the hub says of each model that a file names, and its vocabulary: a draft shares its target's.
HUB = {
    "meta-llama/Llama-3.1-8B-Instruct": ("LlamaForCausalLM", "llama 3"),
    "meta-llama/Llama-3.2-1B-Instruct": ("LlamaForCausalLM", "llama 3"),
    "Qwen/Qwen3-8B": ("Qwen3ForCausalLM", "qwen 3"),
    "Qwen/Qwen3-0.6B": ("Qwen3ForCausalLM", "qwen 3"),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": ("LlamaForCausalLM", "smollm2"),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("LlamaForCausalLM", "smollm2"),
}


def test_the_pairs_that_are_promised_are_there():
    names = {path.relative_to(config_folder()).as_posix() for path in FILES}
    assert names >= {
        f"serve/{name}.yaml" for name in ("smollm2-135m", "debug", "llama-3.1-8b", "qwen3-8b", "smollm2-1.7b")
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_parsed_and_names_models_that_load(path: Path):
    name = path.relative_to(config_folder()).with_suffix("").as_posix()
    config = load_config(name, ServeConfig, environ={})
    assert find_config(name) == path
    assert path.read_text().startswith("# "), "a file says what it serves"
    models = [model for model in (config.model, config.draft) if model not in ("ngram", "none", None, "debug")]
    assert all(model in EMBEDDED_MODELS or HUB[model][0] in ARCHITECTURES.values() for model in models)
    if config.model in HUB and config.draft in HUB:
        assert HUB[config.model][1] == HUB[config.draft][1], "target and draft share a tokenizer"
    assert config.num_draft_tokens == "auto"
    if config.model == "debug":
        assert config.draft == "debug"
