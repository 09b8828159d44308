"""config.json to Config: defaults of the four architectures, and refusals by name: CK-07, CK-11, CK-12, CK-21.

CK-07 (dynamic NTK), CK-11 (partial rotary) and CK-12 (sliding windows) hold as load errors. CK-21's shapes are here,
its disagreement with stored tensors is in test_checkpoint_hf.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from litspec.model.config import Config
from litspec.model.hf_config import ARCHITECTURES, config_from_hf


def values_of(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    values = {
        "model_type": model_type,
        "architectures": [ARCHITECTURES[model_type]],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 96,
        "sliding_window": None,
        "head_dim": None,
    }
    return {key: value for key, value in {**values, **changes}.items() if value is not ...}


def config_of(model_type: str = "llama", **changes: Any) -> Config:
    return config_from_hf(values_of(model_type, **changes), name="tiny")


def test_head_dim_is_taken_from_the_config():
    config = config_of(head_dim=16)
    shapes = config.parameter_shapes()
    assert shapes["layers.0.q"] == (128, 64)
    assert shapes["layers.1.o"] == (64, 128)
    assert shapes["layers.1.k"] == (64, 64)
    assert config.head_size == 16


@pytest.mark.parametrize(
    ("model_type", "head_dim", "expected"),
    [
        ("llama", None, 8),
        ("llama", ..., 8),
        ("mistral", ..., 8),
        ("qwen2", ..., 8),
        ("qwen3", ..., 128),
        ("qwen3", 8, 8),
    ],
)
def test_a_missing_head_dim_means_what_the_reference_makes_of_it(model_type, head_dim, expected):
    assert config_of(model_type, head_dim=head_dim).head_size == expected


@pytest.mark.parametrize(
    ("model_type", "groups", "context"),
    [("llama", 32, 2048), ("mistral", 8, 131072), ("qwen2", 32, 32768), ("qwen3", 32, 32768)],
)
def test_missing_keys_mean_the_reference_defaults(model_type, groups, context):
    config = config_of(model_type, num_attention_heads=32, num_key_value_heads=...)
    assert (config.n_query_groups, config.block_size, config.norm_eps) == (groups, context, 1e-6)
    assert not config.tie_embeddings
    assert config.rope.theta == 10000.0
    assert config_of(model_type, num_key_value_heads=None).n_query_groups == 8


def test_defaults_equal_the_installed_transformers():
    transformers = pytest.importorskip("transformers")
    for model_type in ARCHITECTURES:
        theirs = transformers.AutoConfig.for_model(model_type)
        values = {"model_type": model_type, "hidden_size": 4096, "num_attention_heads": 32, "sliding_window": None}
        values |= {"vocab_size": 1, "num_hidden_layers": 1, "intermediate_size": 1}
        ours = config_from_hf(values, name=model_type)
        assert ours.n_query_groups == theirs.num_key_value_heads
        assert ours.head_size == getattr(theirs, "head_dim", 128)
        assert ours.block_size == theirs.max_position_embeddings
        assert ours.norm_eps == theirs.rms_norm_eps
        assert ours.tie_embeddings == theirs.tie_word_embeddings
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize("model_type", list(ARCHITECTURES))
def test_biases_and_norms_of_each_architecture(model_type):
    config = config_of(model_type, attention_bias=True, mlp_bias=True)
    assert config.has_qkv_bias == (model_type != "mistral")
    assert config.has_output_bias == (model_type in ("llama", "qwen3"))
    assert config.has_mlp_bias == (model_type == "llama")
    assert config.has_qk_norm == (model_type == "qwen3")
    assert config_of(model_type).has_qkv_bias == (model_type == "qwen2")


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act was 'gelu'; allowed: 'silu' or"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor was 0.5; allowed: 1.0 or null"),  # CK-11
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config was {'bits': 4}; allowed: null; use the"),
        ("llama", {"logits_scaling": 8.0}, "logits_scaling was 8.0; allowed: 1.0"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping was 30.0; allowed: null"),
        ("llama", {"is_causal": False}, "is_causal was False; allowed: True"),
        ("mistral", {"sliding_window": 8}, "sliding_window was 8; allowed: null"),  # CK-12
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window was True; allowed: False"),  # CK-12
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types holds 'sliding_attention'"),
        ("qwen3", {"layer_types": ["linear_attention"]}, "layer_types holds 'linear_attention'; allowed: 'full_att"),
        (
            "llama",
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "rope_type was 'dynamic' (in rope_sca",
        ),  # CK-07
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type was 'longrope' (in rope_scaling); allowed:"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor was 0.25"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "rope_parameters was {'full_attention': {}}; allowed:"),
    ],
)
def test_what_changes_the_result_is_refused_by_name_and_value(model_type, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config_of(model_type, **changes)


def test_mistral_without_the_key_has_the_window_of_its_reference():
    with pytest.raises(ValueError, match=r"sliding_window was 4096 \(what Mistral's config means by default\)"):
        config_of("mistral", sliding_window=..., max_position_embeddings=32768)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 4096, "max_position_embeddings": 4096}),  # never reached
        ("qwen2", {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}),  # CK-12's second half
        ("qwen3", {"layer_types": ["full_attention", "full_attention"]}),
        ("llama", {"hidden_act": None, "partial_rotary_factor": 1.0, "quantization_config": None}),
        ("llama", {"rope_scaling": None, "pretraining_tp": 2, "attention_dropout": 0.1}),
    ],
)
def test_what_does_not_change_the_result_is_accepted(model_type, changes):
    assert config_of(model_type, **changes).n_layer == 2


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"model_type": "gemma2"}, "model_type was 'gemma2'"),
        ({"model_type": ...}, "model_type was None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": ["SomeRemoteModel"]}, "SomeRemoteModel"),
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers was 0"),
        ({"vocab_size": "96"}, "vocab_size was '96'"),
        ({"hidden_size": True}, "hidden_size was True"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps was 'tiny'"),
        ({"rms_norm_eps": -1.0}, "norm_eps was -1.0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings was 'yes'"),
        ({"num_key_value_heads": 3}, "n_query_groups 3"),
        ({"head_dim": 7}, "head_size was 7"),
        ({"rope_theta": None, "rope_scaling": [1]}, "rope_scaling"),
        ({"rope_theta": float("nan")}, "rope_theta was nan"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing in rope_scaling"),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, "low_freq_factor is missing in rope_scaling"),
    ],
)
def test_malformed_configs_give_one_clear_error(changes, found):
    with pytest.raises(ValueError, match="allowed") as error:
        config_from_hf({key: value for key, value in (values_of() | changes).items() if value is not ...}, name="tiny")
    assert found in str(error.value)


@pytest.mark.parametrize("model_type", list(ARCHITECTURES))
def test_any_value_of_any_key_gives_a_config_or_a_clear_error(model_type):
    keys = [*values_of(), "rope_scaling", "rope_parameters", "layer_types", "original_max_position_embeddings"]
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "beta_fast": 32}
    odd = (None, True, "x", [], [1], {}, {"a": 1}, -1, 0, 10**400, 1.5, float("inf"))
    cases = [{key: value} for key in keys for value in odd]
    cases += [{"rope_scaling": {**rope, key: value}} for key in rope for value in odd]
    for changes in cases:
        try:
            config_from_hf({**values_of(model_type), **changes}, name="tiny")
        except ValueError as error:  # any other exception would be a trace in a user's face
            message = str(error)
        else:
            message = "allowed"
        assert "allowed" in message, changes


def test_parameter_shapes_lists_every_variant_once():
    plain, full = config_of("llama"), config_of("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    assert len(plain.parameter_shapes()) == 2 * 9 + 3
    assert set(full.parameter_shapes()) - set(plain.parameter_shapes()) == {
        f"layers.{layer}.{name}_bias" for layer in (0, 1) for name in ("q", "k", "v", "o", "gate", "up", "down")
    }
    assert "head" in plain.parameter_shapes()
    assert "head" not in full.parameter_shapes()
