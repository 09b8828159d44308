"""Makes tiny random checkpoints for the tests of this folder: transformers models on disk, and GGUF files of them.

The weights are far larger than an initialiser's, so that logits are of order one and a wrong angle, bias or row order
shows far above the tolerance of 1e-4.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import quantize

from litspec.model.checkpoint import Checkpoint
from litspec.model.gpt import GPT

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PLAIN = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
_CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def tiny_model(kind: str, **changes) -> transformers.PreTrainedModel:
    """Return a random transformers model of this architecture."""
    config_class, model_class = _CLASSES[kind]
    model = model_class(config_class(**{**SIZES, **changes})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.5 * noise if parameter.dim() == 1 else 0.2 * noise)
    return model


def saved(model: transformers.PreTrainedModel, folder: Path, **options) -> Path:
    """Save as safetensors."""
    model.save_pretrained(folder, **options)
    return folder


def edit_json(file: Path, /, **changes) -> None:
    """Change keys of a JSON file; None stays null, and `...` removes the key."""
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def our_logits(checkpoint: Checkpoint, idx: torch.Tensor) -> torch.Tensor:
    """Return the logits of litspec's GPT with a checkpoint's tensors."""
    model = GPT(checkpoint.config)
    model.load(checkpoint.tensors())
    return model(idx)


def their_logits(model: transformers.PreTrainedModel, idx: torch.Tensor) -> torch.Tensor:
    """Return the logits of transformers."""
    with torch.no_grad():
        return model(idx).logits


def some_tokens(length: int, vocab_size: int = SIZES["vocab_size"]) -> torch.Tensor:
    """Return two rows of random tokens."""
    return torch.randint(0, vocab_size, (2, length), generator=torch.Generator().manual_seed(2))


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a transformers tensor."""
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top or name == "lm_head.weight":
        return top.get(name, "output.weight")
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[stem]}.{kind}"


def llama_cpp_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order rows as llama.cpp's converter does for arch llama (`LlamaModel.permute`)."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    file: Path,
    model: transformers.PreTrainedModel,
    *,
    arch: str,
    types: dict[str, gguf.GGMLQuantizationType] | None = None,
    keys: dict[str, object] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """Write a transformers model as GGUF.

    Args:
        file: where to.
        model: the model.
        arch: general.architecture; "llama" permutes q and k.
        types: storage type of tensors by GGUF name; float32 otherwise.
        keys: further keys, after "ARCH." unless they hold "general." or "tokenizer.".
        extra: further tensors, or others in their place; uint8 is taken as the stored bytes.
        without: GGUF names of tensors to leave out.
    """
    config = model.config
    writer = gguf.GGUFWriter(file, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    for key, value in (keys or {}).items():
        name = key if key.startswith(("general.", "tokenizer.", "split.")) else f"{arch}.{key}"
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(name, value)
    tensors = {gguf_name(name): tensor.numpy() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("output.weight", None)
    if arch == "llama":
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        for name in tensors:
            if len(parts := name.split(".")) == 4 and parts[2] in heads:
                tensors[name] = llama_cpp_rows(tensors[name], heads[parts[2]])
    for name, tensor in {**tensors, **(extra or {})}.items():
        if name in without:
            continue
        kind = (types or {}).get(name, gguf.GGMLQuantizationType.F32)
        raw = tensor if tensor.dtype == np.uint8 else quantize(np.ascontiguousarray(tensor), kind)
        if raw.dtype == np.uint8 and kind in _PLAIN:  # the writer knows these by their numpy type alone
            raw = raw.view(_PLAIN[kind])
        writer.add_tensor(name, raw, raw_dtype=None if kind in _PLAIN else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def patch_type(file: Path, tensor: str, kind: int) -> None:
    """Write another storage type into a tensor's header entry."""
    data = bytearray(file.read_bytes())
    at = data.index(len(tensor).to_bytes(8, "little") + tensor.encode()) + 8 + len(tensor)
    num_dims = int.from_bytes(data[at : at + 4], "little")
    at += 4 + 8 * num_dims
    data[at : at + 4] = kind.to_bytes(4, "little")
    file.write_bytes(data)
