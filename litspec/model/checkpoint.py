"""Checkpoint: a model as it lies on disk, opened and checked but not yet read.

Opening reads headers only: the config, the names, shapes and types of all tensors. They are checked here against
`Config.parameter_shapes`, so that whatever is wrong with a checkpoint is one CheckpointError before memory is taken.
Tensors are then read one at a time. `gguf.py` and `hf.py` know the two formats; nothing outside them does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from litspec.model.config import Config


class CheckpointError(ValueError):
    """A checkpoint cannot be used: what was found, what is allowed, what to do."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as its file's header describes it; `read` fetches it in the layout that GPT wants.

    Attributes:
        read_packed: fetches it packed (ops/packed.py), with the same numbers; None where it has no packed form.
        packed_bytes: what it takes then.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    read: Callable[[], Tensor] = field(repr=False)
    read_packed: Callable[..., Tensor] | None = field(default=None, repr=False)
    packed_bytes: int = 0


class PackedSize(NamedTuple):
    """How many of a model's numbers stay packed, and in how many bytes."""

    numbers: int = 0
    num_bytes: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        path: the file or folder.
        config: the model's shape.
        generation_config: sampling defaults that the model brings, by SamplingParams' names; a `do_sample: false` is
            temperature 0. Others of Hugging Face's names are among them where their value would change the text.
        eos_token_ids: every id that ends a text.
        chat_template: the Jinja source, None where the model has none.
        stored: the tensors by litspec's names, exactly those of `config.parameter_shapes()`.
        replaced_head: a head of its own in a checkpoint that says it is tied; it is not used.
    """

    path: Path
    config: Config
    generation_config: Mapping[str, Any]
    eos_token_ids: frozenset[int]
    chat_template: str | None
    stored: Mapping[str, StoredTensor] = field(repr=False)
    replaced_head: StoredTensor | None = field(default=None, repr=False)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) for every name of `config.parameter_shapes()`, reading one at a time.

        Tensors have the dtype they are stored in, quantised ones float32; q and k are in rotate-half order. Where the
        config ties head and embedding the embedding is used, and a stored head that differs from it is warned of.

        Raises:
            CheckpointError: the file changed or broke since it was opened.
        """
        for name, shape in self.config.parameter_shapes().items():
            tensor = self.stored[name].read()
            assert tuple(tensor.shape) == shape, (name, tuple(tensor.shape), shape)
            if name == "embedding" and self.replaced_head is not None:
                self._warn_of_head(tensor, self.replaced_head)
            yield name, tensor

    def packed_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what `tensors` does, but packed where the file has it so.

        Raises:
            CheckpointError: as `tensors`.
        """
        for name in self.config.parameter_shapes():
            stored = self.stored[name]
            yield name, (stored.read if stored.read_packed is None else stored.read_packed)()

    @property
    def packed_size(self) -> PackedSize:
        """What of the model `packed_tensors` yields packed."""
        packed = [stored for stored in self.stored.values() if stored.read_packed is not None]
        return PackedSize(sum(math.prod(s.shape) for s in packed), sum(s.packed_bytes for s in packed))

    def _warn_of_head(self, embedding_VC: Tensor, head: StoredTensor) -> None:
        if not torch.equal(embedding_VC, head.read()):
            warnings.warn(
                f"{head.file}: the config ties head and embedding, yet {head.name} differs from the embedding; "
                "the embedding is used. Set tie_word_embeddings to false in config.json to use the stored head.",
                stacklevel=3,
            )


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a folder in the Hugging Face layout (config.json and safetensors).

    Raises:
        CheckpointError: nothing is there, it is broken, or the model is one that litspec cannot run exactly.
    """
    path = Path(path)
    if path.is_dir():
        from litspec.model.hf import open_hf  # each format's library is imported only where it is met

        return open_hf(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; allowed: a .gguf file or a folder with config.json")
    if path.suffix == ".gguf" or _starts_with_magic(path):
        from litspec.model.gguf import open_gguf

        return open_gguf(path)
    raise CheckpointError(
        f"{path} is not a GGUF file; allowed: a .gguf file, or the folder that holds config.json and *.safetensors"
    )


def _starts_with_magic(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); check its permissions") from None


def match_tensors(
    config: Config,
    stored: Mapping[str, StoredTensor],
    *,
    top_names: Mapping[str, str],
    layer_names: Mapping[str, str],
    layer_prefix: str,
    path: Path,
    source: str,
) -> dict[str, StoredTensor]:
    """Return the stored tensors by litspec's names, after checking that they are exactly the config's.

    Args:
        config: says what there must be.
        stored: the tensors by their names in the file; whatever is to be ignored has been left out.
        top_names: the file's name of each tensor outside the layers.
        layer_names: the file's name of each tensor of a layer.
        layer_prefix: what stands before it in the file, with {} for the layer's number.
        path: the checkpoint, for messages.
        source: where the config comes from, for messages.

    Raises:
        CheckpointError: a tensor is missing, unexpected or of another shape.
    """
    if config.n_layer > len(stored):  # said first: a broken count of layers would take hours to list
        raise CheckpointError(
            f"{path} has {len(stored)} tensors, too few for the {config.n_layer} layers of {source}; fetch it again"
        )
    names = dict(top_names)
    for layer in range(config.n_layer):
        prefix = layer_prefix.format(layer)
        names |= {f"layers.{layer}.{ours}": prefix + theirs for ours, theirs in layer_names.items()}
    shapes = config.parameter_shapes()
    if missing := [names[name] for name in shapes if names[name] not in stored]:
        hint = "set tie_word_embeddings to true if it shares the embedding, or " if missing == [names["head"]] else ""
        raise CheckpointError(
            f"{path} lacks {_listed(missing)}, which {source} asks for ({len(shapes)} tensors in all); "
            f"{hint}fetch the checkpoint again or convert it again"
        )
    if unexpected := sorted(set(stored) - {names[name] for name in shapes}):
        raise CheckpointError(
            f"{path} has {_listed(unexpected)}, which {source} does not explain; allowed: the {len(shapes)} tensors of "
            "a plain Llama, Mistral, Qwen2 or Qwen3. Leaving a tensor out would change the answers: use a checkpoint "
            "without it (merge an adapter first)"
        )
    for name, shape in shapes.items():
        tensor = stored[names[name]]
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.file}: {tensor.name} has shape {tensor.shape}, but {source} makes it {shape}; "
                "the two do not belong together: fetch the checkpoint again"
            )
    return {name: stored[names[name]] for name in shapes}


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"tensor {shown}" if len(names) == 1 else f"{len(names)} tensors ({shown}{', …' if len(names) > 3 else ''})"


# (lowest, highest, whole numbers only) of the sampling defaults that a checkpoint may bring
_SAMPLING_DEFAULTS = {
    "max_new_tokens": (1, math.inf, True),
    "temperature": (0.0, 2.0, False),
    "top_k": (0, math.inf, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, False),
    "repetition_penalty": (1e-6, 10.0, False),
}
# What else may change which tokens are chosen, and the value that changes nothing.
_LEFT_ASIDE = {
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "bad_words_ids": [],
    "sequence_bias": {},
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}


def checked_generation_config(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the sampling defaults among `values` (names as in Hugging Face's generation_config.json).

    What litspec has no parameter for is returned as it is, unless it changes nothing: a caller can warn of it.

    Raises:
        CheckpointError: a default that cannot be meant.
    """
    defaults: dict[str, Any] = {}
    for key, (lowest, highest, is_whole) in _SAMPLING_DEFAULTS.items():
        value = values.get(key)
        if value is None:
            continue
        allowed_types = int if is_whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed_types) or not lowest <= value <= highest:
            kind = "a whole number" if is_whole else "a number"
            raise CheckpointError(
                f"{source}: {key} was {value!r}; allowed: {kind} from {lowest} to {highest}; mend or remove it there"
            )
        defaults[key] = value
    if defaults.get("top_k") == 0:  # Hugging Face's and llama.cpp's word for "keep every token"
        del defaults["top_k"]
    if defaults.get("top_p") == 0.0:  # keeps the best token alone
        defaults["top_p"] = 1e-9
    if values.get("do_sample") is False:
        defaults["temperature"] = 0.0
    left_aside = {key: values.get(key) for key in _LEFT_ASIDE}
    return {**defaults, **{k: v for k, v in left_aside.items() if v is not None and v != _LEFT_ASIDE[k]}}
