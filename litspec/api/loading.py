"""From the words of `LLM.load` to a running engine: find, open, check, fill, compile.

Whatever is wrong with what the user gave is a ValueError before memory is taken. A target and its draft must share a
tokenizer; ids that only padding has may differ in number.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from litspec.api.config import MAX_BATCH_SIZE, MAX_DRAFT_TOKENS
from litspec.draft import EarlyExitProposer, ModelProposer, NgramProposer, Proposer
from litspec.draft.early_exit import check_num_layers
from litspec.engine.engine import Engine
from litspec.engine.request import SamplingParams
from litspec.model.chat_template import ChatTemplate
from litspec.model.checkpoint import open_checkpoint
from litspec.model.compile import CompiledGPT, CompileMode, import_ahead
from litspec.model.config import Config
from litspec.model.debug import DEBUG_DRAFT, DEBUG_TARGET, random_tensors
from litspec.model.gpt import GPT
from litspec.model.placement import empty_modules, resolve_device, resolve_dtype
from litspec.model.source import resolve_model
from litspec.model.tokenizer import ByteTokenizer, Tokenizer, check_vocabulary, first_difference, load_tokenizer
from litspec.model.window import Shapes

DEFAULT_MAX_SEQ_LENGTH = 2048


@dataclass(frozen=True)
class OpenedModel:
    """A model that was found and checked, whose weights are still to be read.

    Attributes:
        name: as the user gave it.
        tensors: yields the weights when they are wanted.
        generation_config: sampling defaults that it brings.
    """

    name: str
    config: Config
    tensors: Iterable[tuple[str, Tensor]]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    generation_config: Mapping[str, Any]
    eos_token_ids: frozenset[int]


@dataclass(frozen=True)
class LoadOptions:
    """The keyword arguments of `LLM.load`, checked.

    Raises:
        ValueError: one is not allowed; the message says what was given and what is allowed.
    """

    draft: str | None = "ngram"
    num_draft_tokens: int = 4
    max_batch_size: int = 8
    max_seq_length: int | None = None
    dtype: str = "auto"
    quantize: str = "none"
    compile: CompileMode = "thunder"
    device: str = "auto"

    def __post_init__(self) -> None:
        _check_count("num_draft_tokens", self.num_draft_tokens, 1, MAX_DRAFT_TOKENS)
        _check_count("max_batch_size", self.max_batch_size, 1, MAX_BATCH_SIZE)
        if self.max_seq_length is not None:
            _check_count("max_seq_length", self.max_seq_length, 2, 2**31 - 1)
        if self.quantize != "none":
            raise ValueError(f'quantize was {self.quantize!r}; allowed for now: "none"')
        if self.compile not in ("thunder", "none"):
            raise ValueError(f'compile was {self.compile!r}; allowed: "thunder" or "none"')
        if self.draft is not None and not isinstance(self.draft, str):
            raise ValueError(f'draft was {self.draft!r}; allowed: "ngram", "early-exit:N", a model\'s name, or None')
        _ = self.early_exit_layers
        resolve_dtype(self.dtype, resolve_device(self.device))  # before anything is downloaded

    @property
    def early_exit_layers(self) -> int | None:
        """N of a draft "early-exit:N"; None for another draft."""
        kind, _, layers = (self.draft or "").partition(":")
        if kind != "early-exit":
            return None
        if not layers.isdecimal() or int(layers) < 1:
            raise ValueError(f'draft was {self.draft!r}; allowed: "early-exit:N" with N the number of layers, from 1')
        return int(layers)

    @property
    def draft_model(self) -> str | None:
        """The name of a draft that is a model; None for another kind."""
        is_model = self.draft not in (None, "none", "ngram") and self.early_exit_layers is None
        return self.draft if is_model else None


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
        config = DEBUG_DRAFT if role == "draft" else DEBUG_TARGET
        tokens = ByteTokenizer()
        return OpenedModel(name, config, random_tensors(config), tokens, None, {}, tokens.eos_token_ids)
    path = resolve_model(name)
    checkpoint = open_checkpoint(path)
    tokens = load_tokenizer(Path(tokenizer) if tokenizer is not None else path)
    check_vocabulary(tokens, checkpoint.config.vocab_size)
    template = None
    ignored = sorted(set(checkpoint.generation_config) - set(SamplingParams.model_fields))
    if ignored:
        warnings.warn(f"{path}: generation_config's {', '.join(ignored)} is not supported and is ignored", stacklevel=2)
    if checkpoint.chat_template is not None:
        template = ChatTemplate.for_tokenizer(checkpoint.chat_template, tokens)
    return OpenedModel(
        name=name,
        config=checkpoint.config,
        tensors=checkpoint.tensors(),
        tokenizer=tokens,
        template=template,
        generation_config=checkpoint.generation_config,
        eos_token_ids=checkpoint.eos_token_ids or tokens.eos_token_ids,
    )


def build_engine(target: OpenedModel, options: LoadOptions) -> Engine:
    """Read the weights and put the engine together; shapes are not compiled yet (`Engine.warm_up`).

    Raises:
        ValueError: the draft does not fit the target.
    """
    device = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype, device)
    drafts = options.draft not in (None, "none")
    num_draft_tokens = options.num_draft_tokens if drafts else 0
    context = _context(target.config, options.max_seq_length)
    draft = None
    if options.draft_model is not None:
        draft = open_model(options.draft_model, role="draft")
        check_same_tokenizer(target, draft)
    layers = options.early_exit_layers
    if layers is not None:
        check_num_layers(target.config, layers)
    shapes = Shapes.plan(max_batch_size=options.max_batch_size, num_draft_tokens=num_draft_tokens)
    import_ahead(options.compile)
    model = _fill(target, device, dtype, context, options.compile)
    cache = model.new_cache(options.max_batch_size)
    proposer: Proposer | None = None
    if layers is not None:
        proposer = EarlyExitProposer(model, cache, num_layers=layers, shapes=shapes)
    elif draft is not None:
        smaller = _fill(draft, device, dtype, min(context, draft.config.block_size), options.compile)
        proposer = ModelProposer(
            smaller, num_slots=options.max_batch_size, shapes=shapes, vocab_size=target.config.vocab_size
        )
    elif options.draft == "ngram":
        proposer = NgramProposer()
    return Engine(model, cache, shapes=shapes, proposer=proposer, num_draft_tokens=num_draft_tokens)


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
    opened: OpenedModel, device: torch.device, dtype: torch.dtype, context: int, mode: CompileMode
) -> CompiledGPT:
    with empty_modules(device, dtype):
        gpt = GPT(opened.config, max_seq_length=context)
    gpt.load(opened.tensors)
    return CompiledGPT(gpt, mode)


def _context(config: Config, max_seq_length: int | None) -> int:
    if max_seq_length is None:
        return min(config.block_size, DEFAULT_MAX_SEQ_LENGTH)
    if max_seq_length > config.block_size:
        raise ValueError(
            f"max_seq_length was {max_seq_length}; {config.name} was trained for {config.block_size} positions, so "
            f"allowed: 2 to {config.block_size}"
        )
    return max_seq_length


def _check_count(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} was {value!r}; allowed: an integer from {low} to {high}")
