"""From a GGUF file's keys to Config, with llama.cpp as the reference for what a key or its absence means.

Three architectures are known. A key that changes the result and that litspec does not follow is refused by name. What
GGUF does not say in keys (tied embeddings, biases, Llama 3's RoPE factors) is read off the tensors that there are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Container, Mapping
from typing import Any

from litspec.model.config import Config, RopeConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_ROPE_SCALINGS = ("none", "linear", "yarn")

# keys (after "ARCH.") that change the result, with the values that leave it as litspec computes it
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "use_parallel_residual": (False,),
    "tensor_data_layout": (),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "rope.dimension_sections": (),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_attn_factor": (1.0, -1.0),
}


def config_from_gguf(
    metadata: Mapping[str, Any],
    *,
    name: str,
    tensors: Container[str],
    vocab_size: int | None,
    freq_factors: tuple[float, ...] | None,
) -> Config:
    """Return the Config that a GGUF file describes.

    Args:
        metadata: the file's keys.
        name: the model's name, for people, where the file has none.
        tensors: the names of the file's tensors.
        vocab_size: rows of the embedding as stored; None where there is none, and the key must say it.
        freq_factors: the tensor rope_freqs, None where there is none.

    Raises:
        ValueError: an unknown architecture, or a key that is missing, malformed or not supported.
    """
    arch = metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ValueError(
            f"general.architecture was {arch!r}; allowed: {', '.join(ARCHITECTURES)}; choose a model of one of these"
        )
    if metadata.get("split.count", 1) not in (0, 1):
        raise ValueError(
            f"split.count was {metadata['split.count']}; allowed: a model in one file; "
            "join the parts with llama-gguf-split --merge"
        )
    keys = {key.removeprefix(f"{arch}."): value for key, value in metadata.items() if key.startswith(f"{arch}.")}
    for key, neutral in _NEUTRAL.items():
        value = keys.get(key)
        if value is not None and value not in neutral:
            allowed = " or ".join(map(repr, neutral)) + (", or no such key" if neutral else "no such key")
            raise ValueError(
                f"{arch}.{key} was {value!r}; allowed: {allowed}; litspec does not compute this: choose another model"
            )

    n_embd, n_head = _count(keys, arch, "embedding_length"), _count(keys, arch, "attention.head_count")
    block_size = _count(keys, arch, "context_length")
    head_size = _count(keys, arch, "attention.key_length", default=n_embd // n_head)
    for key in ("attention.value_length", "rope.dimension_count"):
        if _count(keys, arch, key, default=head_size) != head_size:
            raise ValueError(
                f"{arch}.{key} was {keys[key]}; allowed: the head size, {head_size}; "
                "litspec turns whole heads and has keys and values of one size: choose another model"
            )
    window = keys.get("attention.sliding_window", 0)
    if window != 0 and _count(keys, arch, "attention.sliding_window") < block_size:
        raise ValueError(
            f"{arch}.attention.sliding_window was {window}; allowed: none, or one that context_length ({block_size}) "
            "never leaves; litspec has no sliding window yet: choose a model without one"
        )
    return Config(
        name=str(metadata.get("general.name") or name),
        n_layer=_count(keys, arch, "block_count"),
        n_head=n_head,
        n_query_groups=_count(keys, arch, "attention.head_count_kv", default=n_head),
        head_size=head_size,
        n_embd=n_embd,
        intermediate_size=_count(keys, arch, "feed_forward_length"),
        vocab_size=vocab_size or _count(keys, arch, "vocab_size"),
        block_size=block_size,
        norm_eps=_number(keys, arch, "attention.layer_norm_rms_epsilon"),
        rope=_rope(keys, arch, block_size, freq_factors),
        tie_embeddings="output.weight" not in tensors,
        has_qkv_bias=arch == "qwen2" or "blk.0.attn_q.bias" in tensors,
        has_output_bias="blk.0.attn_output.bias" in tensors,
        has_mlp_bias="blk.0.ffn_down.bias" in tensors,
        has_qk_norm=arch == "qwen3",
    )


def _rope(keys: Mapping[str, Any], arch: str, block_size: int, freq_factors: tuple[float, ...] | None) -> RopeConfig:
    theta = _number(keys, arch, "rope.freq_base", default=10000.0)
    # files from before 2024 have only rope.scale_linear, which means linear scaling
    legacy = _number(keys, arch, "rope.scale_linear", default=0.0)
    scaling = keys.get("rope.scaling.type") or ("linear" if legacy not in (0.0, 1.0) else "none")
    if scaling not in _ROPE_SCALINGS:
        raise ValueError(
            f"{arch}.rope.scaling.type was {scaling!r}; allowed: {', '.join(_ROPE_SCALINGS)}; choose another model"
        )
    if scaling == "none":
        return RopeConfig(theta=theta, freq_factors=freq_factors)
    factor = _number(keys, arch, "rope.scaling.factor", default=legacy or None)
    if scaling == "linear":
        return RopeConfig(theta=theta, scaling=scaling, factor=factor, freq_factors=freq_factors)
    return RopeConfig(
        theta=theta,
        scaling=scaling,
        factor=factor,
        original_max_position=_count(keys, arch, "rope.scaling.original_context_length", default=block_size),
        beta_fast=_number(keys, arch, "rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=_number(keys, arch, "rope.scaling.yarn_beta_slow", default=1.0),
        freq_factors=freq_factors,
    )


def _count(keys: Mapping[str, Any], arch: str, key: str, *, default: int | None = None) -> int:
    value = keys.get(key, default)
    if isinstance(value, list) and value and value.count(value[0]) == len(value):  # one number a layer, all equal
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = f"{arch}.{key} is missing" if value is None else f"{arch}.{key} was {value!r}"
        raise ValueError(f"{found}; allowed: an integer from 1, the same for all layers; convert the model again")
    return value


def _number(keys: Mapping[str, Any], arch: str, key: str, *, default: float | None = None) -> float:
    value = keys.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        found = f"{arch}.{key} is missing" if value is None else f"{arch}.{key} was {value!r}"
        raise ValueError(f"{found}; allowed: a number; convert the model again")
    return _as_written(float(value))


def _as_written(value: float) -> float:
    """Return the shortest decimal that is this float32: GGUF's 9.99999975e-06 was meant as 1e-05."""
    for digits in range(1, 10):
        shorter = float(f"{value:.{digits}g}")
        if struct.pack("<f", shorter) == struct.pack("<f", value):
            return shorter
    return value
