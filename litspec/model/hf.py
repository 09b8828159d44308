"""Checkpoints in the Hugging Face layout: config.json beside safetensors, one file or several with an index.

Only headers are read when such a folder is opened; each tensor is fetched when it is asked for. Pickled weights
(.bin, .pt) are never opened, since unpickling runs code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from litspec.model.checkpoint import Checkpoint, CheckpointError, StoredTensor, checked_generation_config, match_tensors
from litspec.model.hf_config import config_from_hf

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LFS = b"version https://git-lfs"
_DTYPES = ("F64", "F32", "F16", "BF16")
_IGNORED_SUFFIX = "rotary_emb.inv_freq"  # a buffer that old checkpoints carry; the config decides

_TOP_NAMES = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
_LAYER_NAMES = {
    "attention_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}


def open_hf(folder: Path) -> Checkpoint:
    """Open a folder with config.json and safetensors.

    Raises:
        CheckpointError: something is missing, broken or not supported; the message names file, tensor or key.
    """
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise CheckpointError(f"{folder} {_what_it_holds(folder)}")
    values = _read_json(config_file)
    try:
        config = config_from_hf(values, name=folder.resolve().name)
    except ValueError as error:
        raise CheckpointError(f"{config_file}: {error}") from None

    stored = _stored_tensors(folder, is_tied=config.tie_embeddings)
    replaced_head = stored.pop(_TOP_NAMES["head"], None) if config.tie_embeddings else None
    generation_file = folder / "generation_config.json"
    generation = _read_json(generation_file) if generation_file.is_file() else {}
    return Checkpoint(
        path=folder,
        config=config,
        generation_config=checked_generation_config(generation, source=str(generation_file)),
        eos_token_ids=_eos_ids(generation, generation_file) | _eos_ids(values, config_file),
        chat_template=_chat_template(folder),
        stored=match_tensors(
            config,
            stored,
            top_names=_TOP_NAMES,
            layer_names=_LAYER_NAMES,
            layer_prefix="model.layers.{}.",
            path=folder,
            source="config.json",
        ),
        replaced_head=replaced_head,
    )


def _what_it_holds(folder: Path) -> str:
    files = sorted(file.name for file in folder.iterdir())
    allowed = f"allowed: a folder with config.json and {_SINGLE}, or a .gguf file"
    if not files:
        return f"is an empty folder; {allowed}; fetch the model again"
    if gguf_files := [name for name in files if name.endswith(".gguf")]:
        return f"has no config.json, but {gguf_files[0]}; {allowed}; give the path of the .gguf file itself"
    if pickled := _pickled(folder):
        return f"has no config.json and only pickled weights ({pickled}), which litspec does not open; {allowed}"
    return f"has no config.json (it has {', '.join(files[:5])}); {allowed}"


def _pickled(folder: Path) -> str | None:
    files = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    return files[0] if files else None


def _stored_tensors(folder: Path, *, is_tied: bool) -> dict[str, StoredTensor]:
    """Return every tensor of the folder by its own name, from headers alone."""
    if (folder / _SINGLE).is_file():
        found = _read_header(folder / _SINGLE)
    elif (folder / _INDEX).is_file():
        found = _read_shards(folder, is_tied=is_tied)
    elif pickled := _pickled(folder):
        raise CheckpointError(
            f"{folder} has only pickled weights ({pickled}), which litspec does not open, since unpickling runs code; "
            f"allowed: {_SINGLE}, or shards with {_INDEX}; save the model again with safe_serialization=True"
        )
    else:
        raise CheckpointError(
            f"{folder} has a config.json but no weights; allowed: {_SINGLE}, or shards with {_INDEX}; "
            "fetch the model again"
        )
    return {name: tensor for name, tensor in found.items() if not name.endswith(_IGNORED_SUFFIX)}


def _read_shards(folder: Path, *, is_tied: bool) -> dict[str, StoredTensor]:
    index = folder / _INDEX
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CheckpointError(
            f"{index} has no weight_map; allowed: an object of tensor names and files; fetch it again"
        )
    shards: dict[str, dict[str, StoredTensor]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or PurePosixPath(shard).is_absolute() or ".." in PurePosixPath(shard).parts:
            raise CheckpointError(f"{index} puts {tensor} into {shard!r}; allowed: a file inside {folder}")
        if shard not in shards:
            if not (folder / shard).is_file():
                raise CheckpointError(
                    f"{folder / shard} is missing, which {_INDEX} names for {tensor}; fetch this file again"
                )
            shards[shard] = _read_header(folder / shard)
    found: dict[str, StoredTensor] = {}
    for tensor, shard in weight_map.items():
        if tensor in shards[shard]:
            found[tensor] = shards[shard][tensor]
        elif not (is_tied and tensor == _TOP_NAMES["head"]):
            raise CheckpointError(f"{folder / shard} lacks {tensor}, which {_INDEX} puts there; fetch both files again")
    for tensors in shards.values():  # what the index does not list is no less part of the model
        for tensor in tensors.values():
            found.setdefault(tensor.name, tensor)
    return found


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(file, framework="pt") as handle:
            slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
            shapes = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise _broken(file, error) from None
    for name, (_, dtype) in shapes.items():
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"{file}: {name} is stored as {dtype}; allowed: {', '.join(_DTYPES)}; "
                "use the unquantised checkpoint, or a GGUF file of it"
            )
    return {
        name: StoredTensor(name=name, file=file, shape=shape, read=partial(_read_tensor, file, name))
        for name, (shape, _) in shapes.items()
    }


def _read_tensor(file: Path, name: str) -> Tensor:
    try:
        with safe_open(file, framework="pt") as handle:
            return handle.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _broken(file, error) from None


def _broken(file: Path, error: Exception) -> CheckpointError:
    if isinstance(error, OSError):
        return CheckpointError(f"{file} cannot be read ({error}); fetch this file again")
    with file.open("rb") as handle:
        if handle.read(len(_LFS)) == _LFS:
            return CheckpointError(f"{file} is only a git-lfs pointer, no weights; run `git lfs pull` in its folder")
    return CheckpointError(f"{file} is not a whole safetensors file ({error}); fetch this file again")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is not readable as JSON ({error}); fetch this file again") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds {type(values).__name__}, not an object; fetch this file again")
    return values


def _eos_ids(values: Mapping[str, Any], file: Path) -> frozenset[int]:
    given = values.get("eos_token_id")
    ids = [] if given is None else given if isinstance(given, list) else [given]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise CheckpointError(f"{file}: eos_token_id was {given!r}; allowed: an id or a list of ids; mend it there")
    return frozenset(ids)


def _chat_template(folder: Path) -> str | None:
    """Return the template of the first of the places where Hugging Face keeps it."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{jinja} is not readable as text ({error}); fetch this file again") from None
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = _read_json(folder / name).get("chat_template") if (folder / name).is_file() else None
        if isinstance(template, list):  # several by name: [{"name": "default", "template": …}, …]
            named = [entry for entry in template if isinstance(entry, Mapping) and entry.get("name") == "default"]
            template = named[0].get("template") if named else None
        if isinstance(template, str):
            return template
    return None
