"""From Hugging Face's config.json to Config.

Four architectures are known. For each, what a missing key means is what its reference implementation (transformers)
makes of it, and a key which that implementation reads, which changes the result and which litspec does not follow is
refused by name: a model either runs exactly or not at all. Both spellings of the RoPE settings are read: `rope_theta`
with `rope_scaling`, and the `rope_parameters` of transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litspec.model.config import ROPE_SCALINGS, Config, RopeConfig

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_ORIGINAL = "original_max_position_embeddings"

# what a missing key means: the defaults of the reference classes, where they differ or matter
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}

# keys that change the result, with the values that leave it as litspec computes it (null always does)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "use_sliding_window": (False,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "partial_rotary_factor": (1.0,),
    "quantization_config": (),
    "compression_config": (),
    "logit_scale": (1.0,),
    "logits_scaling": (1.0,),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "attention_multiplier": (),
    "final_logit_softcapping": (),
    "attn_logit_softcapping": (),
    "query_pre_attn_scalar": (),
}

_ADVICE = {
    "quantization_config": "use the unquantised checkpoint, or a GGUF file of it",
    "use_sliding_window": "litspec has no sliding window yet: set it to false only if the window is never reached",
}


def config_from_hf(values: Mapping[str, Any], *, name: str) -> Config:
    """Return the Config that a config.json describes.

    Args:
        values: config.json's object.
        name: the model's name, for people.

    Raises:
        ValueError: an unknown architecture, or a key that is missing, malformed or not supported.
    """
    model_type = _architecture(values)
    known = {**_DEFAULTS[model_type], **values}
    for key, neutral in _NEUTRAL.items():
        _refuse_unless_neutral(known, key, neutral)
    _refuse_windows(known, model_type)

    n_embd, n_head = _count(known, "hidden_size"), _count(known, "num_attention_heads")
    head_size = _count(known, "head_dim", default=n_embd // n_head)
    has_bias = model_type in ("llama", "qwen3") and _flag(known, "attention_bias")
    block_size = _count(known, "max_position_embeddings")
    return Config(
        name=name,
        n_layer=_count(known, "num_hidden_layers"),
        n_head=n_head,
        n_query_groups=_count(known, "num_key_value_heads", default=n_head),
        head_size=head_size,
        n_embd=n_embd,
        intermediate_size=_count(known, "intermediate_size"),
        vocab_size=_count(known, "vocab_size"),
        block_size=block_size,
        norm_eps=_number(known, "rms_norm_eps", default=1e-6),
        rope=_rope(known, block_size),
        tie_embeddings=_flag(known, "tie_word_embeddings"),
        has_qkv_bias=has_bias or model_type == "qwen2",
        has_output_bias=has_bias,
        has_mlp_bias=model_type == "llama" and _flag(known, "mlp_bias"),
        has_qk_norm=model_type == "qwen3",
    )


def _architecture(values: Mapping[str, Any]) -> str:
    model_type, architectures = values.get("model_type"), values.get("architectures")
    allowed = f"allowed: {', '.join(ARCHITECTURES.values())} (model_type {', '.join(ARCHITECTURES)})"
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise ValueError(
            f"model_type was {model_type!r} (architectures {architectures!r}); {allowed}; choose one of these"
        )
    if architectures is not None and architectures != [ARCHITECTURES[model_type]]:
        raise ValueError(
            f"architectures was {architectures!r} with model_type {model_type!r}; {allowed}; "
            "a model with another head or forward pass cannot run here"
        )
    return model_type


def _refuse_unless_neutral(values: Mapping[str, Any], key: str, neutral: tuple[Any, ...]) -> None:
    value = values.get(key)
    if value is None or value in neutral:
        return
    allowed = " or ".join([*map(repr, neutral), "null"])
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    advice = _ADVICE.get(key, "litspec does not compute this: choose a model without it")
    raise ValueError(f"{key} was {shown}; allowed: {allowed}; {advice}")


def _refuse_windows(values: Mapping[str, Any], model_type: str) -> None:
    layer_types = values.get("layer_types")
    if layer_types is not None:
        kinds = layer_types if isinstance(layer_types, list) else [layer_types]
        others = sorted({str(kind) for kind in kinds} - {"full_attention"})
        if others:
            raise ValueError(
                f"layer_types holds {', '.join(map(repr, others))}; allowed: 'full_attention' for every layer; "
                "litspec does not compute other kinds of attention: choose a model without them"
            )
    if model_type != "mistral":  # Qwen's reference reads sliding_window only under use_sliding_window, Llama's never
        return
    window = None if values.get("sliding_window") is None else _count(values, "sliding_window")
    if window is not None and window < _count(values, "max_position_embeddings"):
        given = "" if window != _DEFAULTS["mistral"]["sliding_window"] else " (what Mistral's config means by default)"
        raise ValueError(
            f"sliding_window was {window!r}{given}; allowed: null, or a window that max_position_embeddings "
            f"({values['max_position_embeddings']}) never leaves; litspec has no sliding window yet: choose a model "
            "without one, such as Mistral from v0.2 on"
        )


def _rope(values: Mapping[str, Any], block_size: int) -> RopeConfig:
    place = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    given = values.get(place) or {}
    if not isinstance(given, Mapping) or any(isinstance(value, Mapping) for value in given.values()):
        raise ValueError(f"{place} was {given!r}; allowed: one flat object for all layers; choose a model with one")
    scaling = given.get("rope_type") or given.get("type") or "default"
    scaling = "none" if scaling == "default" else scaling
    if scaling not in ROPE_SCALINGS:
        allowed = ", ".join(["default", *ROPE_SCALINGS[1:]])
        raise ValueError(
            f"rope_type was {scaling!r} (in {place}); allowed: {allowed}; litspec does not compute others: "
            "choose a model without it"
        )
    _refuse_unless_neutral(given, "partial_rotary_factor", _NEUTRAL["partial_rotary_factor"])
    theta = _number({"rope_theta": values.get("rope_theta"), **given}, "rope_theta", default=10000.0)
    if scaling == "none":
        return RopeConfig(theta=theta)
    if scaling == "linear":
        return RopeConfig(theta=theta, scaling=scaling, factor=_number(given, "factor", place=place))

    # as the reference does: a value beside the RoPE settings goes before one inside them
    original = _count({_ORIGINAL: values.get(_ORIGINAL) or given.get(_ORIGINAL) or block_size}, _ORIGINAL)
    if scaling == "llama3":
        return RopeConfig(
            theta=theta,
            scaling=scaling,
            factor=_number(given, "factor", place=place),
            original_max_position=original,
            low_freq_factor=_number(given, "low_freq_factor", place=place),
            high_freq_factor=_number(given, "high_freq_factor", place=place),
        )
    return RopeConfig(
        theta=theta,
        scaling=scaling,
        factor=_number(given, "factor", default=block_size / original, place=place),
        original_max_position=original,
        beta_fast=_number(given, "beta_fast", place=place, default=32.0) or 32.0,
        beta_slow=_number(given, "beta_slow", place=place, default=1.0) or 1.0,
        truncate=_flag({"truncate": True, **given}, "truncate"),
        attention_factor=_optional_number(given, "attention_factor", place=place),
        mscale=_optional_number(given, "mscale", place=place),
        mscale_all_dim=_optional_number(given, "mscale_all_dim", place=place),
    )


def _count(values: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    value = values.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
        found = f"{key} is missing" if value is None else f"{key} was {value!r}"
        raise ValueError(f"{found}; allowed: an integer from 1; mend config.json or fetch it again")
    return value


def _number(values: Mapping[str, Any], key: str, *, default: float | None = None, place: str = "") -> float:
    value = values.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        found = f"{key} is missing" if value is None else f"{key} was {value!r}"
        where = f" in {place}" if place else ""
        raise ValueError(f"{found}{where}; allowed: a number; mend config.json or fetch it again")
    return float(value)


def _optional_number(values: Mapping[str, Any], key: str, *, place: str) -> float | None:
    return None if values.get(key) is None else _number(values, key, place=place)


def _flag(values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} was {value!r}; allowed: true or false; mend config.json or fetch it again")
    return bool(value)
