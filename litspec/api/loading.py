"""From the words of `LLM.load` to a running engine: find, open, check, plan, fill.

Whatever is wrong with what the user gave is a ValueError before memory is taken. A target and its draft must share a
tokenizer; ids that only padding has may differ in number.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from litspec.api.config import EngineConfig, ServeConfig
from litspec.api.memory import MemoryPlan, usual_max_seq_length
from litspec.draft import EarlyExitProposer, ModelProposer, NgramProposer, Proposer
from litspec.draft.early_exit import check_num_layers
from litspec.engine.engine import Engine
from litspec.engine.options import EngineOptions
from litspec.engine.params import ParameterError, SamplingParams
from litspec.model.chat_template import ChatTemplate
from litspec.model.checkpoint import Checkpoint, PackedSize, open_checkpoint
from litspec.model.compile import CompiledGPT, CompileMode, import_ahead
from litspec.model.config import Config
from litspec.model.debug import DEBUG_DRAFT, DEBUG_TARGET, random_tensors
from litspec.model.gpt import GPT
from litspec.model.placement import available_bytes, empty_modules, resolve_device, resolve_dtype
from litspec.model.source import resolve_model
from litspec.model.tokenizer import ByteTokenizer, Tokenizer, check_vocabulary, first_difference, load_tokenizer
from litspec.model.window import Shapes
from litspec.ops.kernels import load_kernels


@dataclass(frozen=True)
class OpenedModel:
    """A model that was found and checked, whose weights are still to be read.

    Attributes:
        name: as the user gave it.
        tensors: yields the weights when they are wanted.
        generation_config: sampling defaults that it brings.
        checkpoint: the file or folder that it lies in; None for `debug`.
    """

    name: str
    config: Config
    tensors: Iterable[tuple[str, Tensor]]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    generation_config: Mapping[str, Any]
    eos_token_ids: frozenset[int]
    checkpoint: Checkpoint | None = None

    @property
    def packed_size(self) -> PackedSize:
        """What of it can stay packed."""
        return PackedSize() if self.checkpoint is None else self.checkpoint.packed_size


def open_model(
    name: str | os.PathLike[str], *, role: str = "target", tokenizer: str | os.PathLike[str] | None = None
) -> OpenedModel:
    """Find a model and read its headers.

    Args:
        name: a known name, a hub id, a folder, a `.gguf` file, or "debug" (whose draft is another model).
        role: "target" or "draft".
        tokenizer: a folder or file to take the tokenizer from instead of the model's own place.

    Raises:
        ValueError: there is no such model, or it is one that litspec cannot run exactly.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(
            f"model was {type(name).__name__}; allowed: a name, a hub id, a folder or a .gguf file, as text"
        )
    name = os.fspath(name)
    if name == "debug":
        if tokenizer is not None:
            raise ValueError(f'tokenizer was {os.fspath(tokenizer)!r}; allowed with model "debug": None, its own bytes')
        config = DEBUG_DRAFT if role == "draft" else DEBUG_TARGET
        tokens = ByteTokenizer()
        return OpenedModel(name, config, random_tensors(config), tokens, None, {}, tokens.eos_token_ids)
    path = resolve_model(name)
    checkpoint = open_checkpoint(path)
    tokens = load_tokenizer(Path(tokenizer) if tokenizer is not None else path)
    check_vocabulary(tokens, checkpoint.config.vocab_size)
    template = None
    if checkpoint.chat_template is not None:
        template = ChatTemplate.for_tokenizer(checkpoint.chat_template, tokens)
    return OpenedModel(
        name=name,
        config=checkpoint.config,
        tensors=checkpoint.tensors(),
        tokenizer=tokens,
        template=template,
        generation_config=_sampling_defaults(checkpoint),
        eos_token_ids=checkpoint.eos_token_ids or tokens.eos_token_ids,
        checkpoint=checkpoint,
    )


def _sampling_defaults(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the defaults that SamplingParams knows, and warn of the others; a wrong one fails here and not later."""
    given = checkpoint.generation_config
    ignored = sorted(set(given) - set(SamplingParams.model_fields))
    if ignored:
        warnings.warn(
            f"{checkpoint.path}: generation_config's {', '.join(ignored)} is not supported and is ignored", stacklevel=3
        )
    known = {name: value for name, value in given.items() if name not in ignored}
    try:
        SamplingParams(**known)
    except ParameterError as error:
        raise ValueError(f"{checkpoint.path}: generation_config's {error}; mend or remove it there") from None
    return known


def check_placement(config: EngineConfig) -> None:
    """Raise ValueError for a device or dtype that this machine lacks: before anything is downloaded."""
    resolve_dtype(config.dtype, resolve_device(config.device))


def build_engine(target: OpenedModel, config: EngineConfig) -> tuple[Engine, MemoryPlan]:
    """Plan the memory, read the weights and put the engine together; shapes are not compiled yet (`Engine.warm_up`).

    Raises:
        ValueError: the draft does not fit the target, or the memory does not hold them.
    """
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    draft = None
    if config.draft_model is not None:
        draft = open_model(config.draft_model, role="draft")
        check_same_tokenizer(target, draft)
    layers = config.early_exit_layers
    if layers is not None:
        check_num_layers(target.config, layers)
    packs = stays_packed(device, dtype, [target] if draft is None else [target, draft])
    plan = MemoryPlan.of(
        target.config,
        None if draft is None else draft.config,
        packed=target.packed_size if packs else PackedSize(),
        draft_packed=draft.packed_size if packs and draft is not None else PackedSize(),
        dtype=dtype,
        num_slots=config.max_batch_size,
        max_seq_length=config.max_seq_length,
        num_draft_tokens=config.most_draft_tokens,
        device=str(device),
        available_bytes=available_bytes(device),
    )
    if config.max_seq_length is None and plan.max_seq_length < usual_max_seq_length(target.config):
        warnings.warn(
            f"max_seq_length is {plan.max_seq_length}, which the memory allows ({plan}); give it to have another",
            stacklevel=2,
        )
    shapes = Shapes.plan(max_batch_size=config.max_batch_size, num_draft_tokens=config.most_draft_tokens)
    import_ahead(config.compile)
    model = _fill(target, device, dtype, plan.max_seq_length, config.compile, packs=packs)
    cache = model.new_cache(config.max_batch_size)
    proposer: Proposer | None = None
    if layers is not None:
        proposer = EarlyExitProposer(model, cache, num_layers=layers, shapes=shapes)
    elif draft is not None:
        context = min(plan.max_seq_length, draft.config.block_size)
        smaller = _fill(draft, device, dtype, context, config.compile, packs=packs)
        proposer = ModelProposer(
            smaller, num_slots=config.max_batch_size, shapes=shapes, vocab_size=target.config.vocab_size
        )
    elif config.is_drafting:
        proposer = NgramProposer()
    engine = Engine(
        model,
        cache,
        shapes=shapes,
        proposer=proposer,
        num_draft_tokens=config.num_draft_tokens if config.is_drafting else 0,
        options=_engine_options(config),
    )
    return engine, plan


def stays_packed(device: torch.device, dtype: torch.dtype, models: Sequence[OpenedModel]) -> bool:
    """Return whether weights stay packed: kernels multiply them on the CPU, in float32 at the most."""
    has_any = any(model.packed_size.numbers for model in models)
    return device.type == "cpu" and dtype != torch.float64 and has_any and load_kernels()


def _engine_options(config: EngineConfig) -> EngineOptions:
    return EngineOptions(
        prefix_reuse=config.prefix_reuse,
        batching=config.batching,
        generate_timeout_s=config.generate_timeout if isinstance(config, ServeConfig) else None,
    )


def check_same_tokenizer(target: OpenedModel, draft: OpenedModel) -> None:
    """Raise ValueError, naming the first id that differs, unless the two models speak of the same tokens."""
    token_id = first_difference(target.tokenizer, draft.tokenizer)
    if token_id is not None:
        theirs, ours = draft.tokenizer.id_to_piece(token_id), target.tokenizer.id_to_piece(token_id)
        raise ValueError(
            f"draft {draft.name} has another tokenizer than {target.name}: token {token_id} is {theirs!r} there and "
            f'{ours!r} here; use a draft of the same family, or draft="ngram"'
        )


@torch.inference_mode()
def _fill(
    opened: OpenedModel, device: torch.device, dtype: torch.dtype, context: int, mode: CompileMode, *, packs: bool
) -> CompiledGPT:
    with empty_modules(device, dtype):
        gpt = GPT(opened.config, max_seq_length=context)
    gpt.load(opened.checkpoint.packed_tensors() if packs and opened.checkpoint is not None else opened.tensors)
    return CompiledGPT(gpt, mode)
