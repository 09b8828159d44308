"""Checkpoints in one GGUF file, as llama.cpp writes and quantises them.

Only the header is read when a file is opened; each tensor is fetched when it is asked for, dequantised to float32 or
packed as it is. GGUF stores a Llama's q and k with the two halves of each head interleaved (llama.cpp turns neighbours,
litspec turns halves); that is undone here, so that nothing else has to know of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from litspec.model.checkpoint import Checkpoint, CheckpointError, StoredTensor, checked_generation_config, match_tensors
from litspec.model.config import Config
from litspec.model.gguf_config import config_from_gguf
from litspec.model.gguf_metadata import GgufError, GgufTensor, read_header
from litspec.model.gguf_types import TYPES, Type, parts_of
from litspec.ops.packed import BLOCK_ROWS, GROUP, PACKED, filled_up, pack

_EMBEDDING, _ROPE_FREQS = "token_embd.weight", "rope_freqs.weight"
_TOP_NAMES = {"embedding": _EMBEDDING, "norm": "output_norm.weight", "head": "output.weight"}
_LAYER_NAMES = {
    "attention_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
}
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file.

    Raises:
        CheckpointError: the file is broken, or holds a model, key, tensor or type that litspec does not support.
    """
    try:
        metadata, tensors = read_header(path)
    except GgufError as error:
        raise CheckpointError(str(error)) from None
    stored = {tensor.name: _stored(path, tensor) for tensor in tensors}
    freqs = stored.pop(_ROPE_FREQS, None)
    embedding = stored.get(_EMBEDDING)
    try:
        config = config_from_gguf(
            metadata,
            name=path.stem,
            tensors=stored,
            vocab_size=embedding.shape[0] if embedding is not None else None,
            freq_factors=None if freqs is None else tuple(freqs.read().flatten().tolist()),
        )
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    matched = match_tensors(
        config,
        stored,
        top_names=_TOP_NAMES,
        layer_names=_LAYER_NAMES,
        layer_prefix="blk.{}.",
        path=path,
        source="the file's header",
    )
    if metadata["general.architecture"] == "llama":
        matched = {name: _in_halves(config, name, tensor) for name, tensor in matched.items()}
    template = metadata.get("tokenizer.chat_template")
    return Checkpoint(
        path=path,
        config=config,
        generation_config=_generation_config(metadata, path),
        eos_token_ids=frozenset(metadata[key] for key in _EOS_KEYS if isinstance(metadata.get(key), int)),
        chat_template=template if isinstance(template, str) else None,
        stored=matched,
    )


def _generation_config(metadata: Mapping[str, Any], path: Path) -> dict[str, Any]:
    values = {ours: metadata.get(theirs) for ours, theirs in _SAMPLING_KEYS.items()}
    return checked_generation_config(values, source=f"{path} (general.sampling)")


def _in_halves(config: Config, name: str, tensor: StoredTensor) -> StoredTensor:
    heads = {"q": config.n_head, "k": config.n_query_groups}.get(name.split(".")[-1].removesuffix("_bias"))
    if heads is None:
        return tensor
    read_packed = None
    if tensor.read_packed is not None:
        order = torch.arange(tensor.shape[0]).view(heads, -1, 2).transpose(1, 2).flatten()
        read_packed = partial(tensor.read_packed, order)
    return StoredTensor(
        tensor.name,
        tensor.file,
        tensor.shape,
        partial(_read_in_halves, tensor.read, heads),
        read_packed,
        tensor.packed_bytes,
    )


def _read_in_halves(read: Callable[[], Tensor], heads: int) -> Tensor:
    """Undo llama.cpp's row order: within a head, rows 0, 2, 4, … are the first half and 1, 3, 5, … the second."""
    tensor = read()
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(tensor.shape)


def _stored(path: Path, tensor: GgufTensor) -> StoredTensor:
    """Check one tensor's type and extent, and return it."""
    kind = TYPES.get(tensor.kind)
    if kind is None:
        raise CheckpointError(
            f"{path}: {tensor.name} is stored as {_type_name(tensor.kind)}; allowed: "
            f"{', '.join(known.name for known in TYPES.values())}; take the model in one of these, such as Q8_0"
        )
    count = 1
    for size in tensor.shape:
        count *= size
    if tensor.shape and tensor.shape[-1] % kind.block_size:
        raise CheckpointError(
            f"{path}: {tensor.name} has rows of {tensor.shape[-1]} numbers in {kind.name}; "
            f"allowed: a multiple of {kind.block_size}; the file is broken: fetch it again"
        )
    num_bytes = count // kind.block_size * kind.block_bytes
    if tensor.offset + num_bytes > path.stat().st_size:
        raise CheckpointError(
            f"{path} is cut short: {tensor.name} ends at byte {tensor.offset + num_bytes:,}, the file has "
            f"{path.stat().st_size:,}; fetch it again"
        )
    read = partial(_read_tensor, path, tensor, kind, num_bytes)
    if kind.name not in PACKED or len(tensor.shape) != 2:
        return StoredTensor(name=tensor.name, file=path, shape=tensor.shape, read=read)
    return StoredTensor(
        name=tensor.name,
        file=path,
        shape=tensor.shape,
        read=read,
        read_packed=partial(_read_packed, path, tensor, kind, num_bytes),
        packed_bytes=math.prod(filled_up(tensor.shape)) // (BLOCK_ROWS * GROUP) * PACKED[kind.name],
    )


def _read_tensor(path: Path, tensor: GgufTensor, kind: Type, num_bytes: int) -> Tensor:
    raw = _read_bytes(path, tensor.offset, num_bytes)
    decoded = torch.from_numpy(kind.decode(raw.reshape(-1, kind.block_bytes))).reshape(tensor.shape)
    return decoded.view(torch.bfloat16) if kind.name == "BF16" else decoded


def _read_packed(path: Path, tensor: GgufTensor, kind: Type, num_bytes: int, order: Tensor | None = None) -> Tensor:
    """Return a tensor packed, its rows in another order if one is given; the numbers and scales stay what they are."""
    num_rows, num_inputs = tensor.shape
    raw = torch.from_numpy(_read_bytes(path, tensor.offset, num_bytes)).view(num_rows, -1, kind.block_bytes)
    raw = raw if order is None else raw[order]
    if kind.block_size > GROUP:
        parts = parts_of(kind.name, raw.numpy().reshape(-1, kind.block_bytes))
        return pack(
            torch.from_numpy(parts.numbers).reshape(num_rows, num_inputs),
            torch.from_numpy(parts.scales).reshape(num_rows, -1),
            None if parts.minima is None else torch.from_numpy(parts.minima).reshape(num_rows, -1),
            bits=4 if kind.name == "Q4_K" else 8,
        )
    scales = raw[..., 0:2].contiguous().view(torch.float16)[..., 0]
    if kind.name == "Q8_0":
        return pack(raw[..., 2:].view(torch.int8).reshape(num_rows, num_inputs), scales, bits=8)
    minima = raw[..., 2:4].contiguous().view(torch.float16)[..., 0] if kind.name == "Q4_1" else None
    pairs = raw[..., -16:]  # input i in the low half of byte i, input 16 + i in the high half
    numbers = torch.cat((pairs & 15, pairs >> 4), dim=-1).view(num_rows, num_inputs)
    return pack(numbers, scales, minima, bits=4)


def _read_bytes(path: Path, offset: int, num_bytes: int) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(offset)
        raw = np.fromfile(file, dtype=np.uint8, count=num_bytes)
    if raw.size != num_bytes:
        raise CheckpointError(f"{path} was cut short while it was read; fetch it again")
    return raw


def _type_name(kind: int) -> str:
    from gguf import GGMLQuantizationType  # half a second to import, and only needed to say what is not supported

    try:
        return GGMLQuantizationType(kind).name
    except ValueError:
        return f"the unknown type {kind}"
