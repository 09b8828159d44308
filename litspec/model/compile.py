"""Compiling a GPT with Thunder: one trace per shape, shared by all layers.

Tracing a whole model takes tens of seconds a shape and tracing one block a fraction of one, so a block is traced with
its weights and its cache as arguments, and the traced computation itself is called, without Thunder's prologue of
guards. In exchange this module guards: a trace is looked up by shape, dtype, device and stride of what it was traced
with, and no Python number that varies ever enters a trace (the key length is found inside `cached_attention`).
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from litspec.kvcache import KVCache
from litspec.model.config import Config
from litspec.model.gpt import GPT, block_forward
from litspec.model.window import pack_window

CompileMode = Literal["thunder", "none"]
Layout = tuple[torch.Size, torch.dtype, torch.device, tuple[int, ...]]

_ARGUMENT_NAMES = tuple(inspect.signature(block_forward).parameters)[1:]
_SLOTS = _ARGUMENT_NAMES.index("slots_B")
_NUM_ACTIVATIONS = _ARGUMENT_NAMES.index("attention_norm")


def _layout(t: Tensor) -> Layout:
    """Return what a trace depends on; the stride of a dimension of size 1 means nothing and differs at torch's whim."""
    if t.is_contiguous():
        return t.shape, t.dtype, t.device, ()
    strides = tuple(stride for size, stride in zip(t.shape, t.stride(), strict=True) if size != 1)
    return t.shape, t.dtype, t.device, strides


class CompiledGPT:
    """A GPT whose layers run as traced computations, or plainly with mode "none"; called like the GPT itself.

    Args:
        gpt: the model.
        mode: "thunder" traces each shape when it is first met (`warm_up` meets them all); "none" runs eagerly.

    Attributes:
        compile_s: seconds spent tracing so far.
    """

    def __init__(self, gpt: GPT, mode: CompileMode = "thunder") -> None:
        if mode not in ("thunder", "none"):
            raise ValueError(f'compile was {mode!r}; allowed: "thunder" or "none"')
        self.gpt = gpt
        self.mode = mode
        self.compile_s = 0.0
        layouts = {tuple(None if w is None else _layout(w) for w in weights) for weights in gpt.layer_weights}
        self._guards_weights = len(layouts) > 1
        self._computations: dict[Any, Callable[..., tuple[Tensor]]] = {}
        self._traces: list[Any] = []

    @property
    def config(self) -> Config:
        """The model's shape."""
        return self.gpt.config

    @property
    def vocab_size(self) -> int:
        """Token ids that it can be fed."""
        return self.gpt.config.vocab_size

    @property
    def max_seq_length(self) -> int:
        """Positions that it can be fed."""
        return self.gpt.max_seq_length

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.gpt.device

    @property
    def num_shapes(self) -> int:
        """Shapes traced so far; 0 with mode "none"."""
        return len(self._computations)

    @property
    def traces(self) -> Sequence[Any]:
        """The final trace of each shape, in the order met; printing one shows what runs."""
        return self._traces

    def new_cache(self, num_slots: int) -> KVCache:
        """Return an empty cache for this model."""
        return self.gpt.new_cache(num_slots)

    def warm_up(self, cache: KVCache, shapes: Iterable[tuple[int, int]]) -> None:
        """Trace every (rows, width) by feeding it to the scratch slot; one layer is enough where all are alike."""
        if self.mode == "none":
            return
        for rows, width in shapes:
            window = pack_window(
                [], [], [], rows=rows, width=width, scratch_slot=cache.scratch_slot, device=self.device
            )
            num_layers = None if self._guards_weights else 1
            self.hidden(window.idx_BT, window.input_pos_BT, cache=cache, slots=window.slots_B, num_layers=num_layers)

    def hidden(
        self,
        idx: Tensor,
        input_pos: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        num_layers: int | None = None,
    ) -> Tensor:
        """Feed tokens and return the residual stream (B, T, C); arguments as `GPT.forward`, without `block`."""
        return self.gpt.hidden(idx, input_pos, cache=cache, slots=slots, num_layers=num_layers, block=self._block)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states (…, C): (…, V), float32 (float64 in a float64 model)."""
        return self.gpt.logits(hidden)

    def __call__(
        self,
        idx: Tensor,
        input_pos: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        num_layers: int | None = None,
    ) -> Tensor:
        """Feed tokens and return the logits after each (B, T, V); arguments as `GPT.forward`, without `block`."""
        return self.logits(self.hidden(idx, input_pos, cache=cache, slots=slots, num_layers=num_layers))

    def _block(self, config: Config, *arguments: Any) -> Tensor:
        if self.mode == "none" or arguments[_SLOTS] is None:
            return block_forward(config, *arguments)
        tensors = [argument for argument in arguments if argument is not None]
        key = tuple(map(_layout, tensors if self._guards_weights else tensors[:_NUM_ACTIVATIONS]))
        computation = self._computations.get(key)
        if computation is None:
            computation = self._computations[key] = self._trace(arguments)
        return computation(*tensors)[0]

    def _trace(self, arguments: tuple[Any, ...]) -> Callable[..., tuple[Tensor]]:
        """Trace the block for the layout of these arguments.

        Thunder runs the function once to make its trace. It then writes the same values to the same positions as the
        call that follows, so the cache is left as that call leaves it.
        """
        executor = _import_executor()
        started = time.perf_counter()
        config = self.config

        def block(*arguments: Any) -> Tensor:
            return block_forward(config, *arguments)

        jitted = executor.jit(block)
        jitted(*arguments)
        trace = executor.last_trace(jitted)
        # The bare computation takes its tensors by position: one left out, or another order, would shift the rest.
        found = [argument.name for argument in trace.args]
        wanted = [name for name, argument in zip(_ARGUMENT_NAMES, arguments, strict=True) if argument is not None]
        assert found == wanted, f"the trace takes {found} instead of {wanted}"
        self._traces.append(trace)
        self.compile_s += time.perf_counter() - started
        return trace.python_callable()


def import_ahead(mode: CompileMode) -> None:
    """Start to import Thunder beside what the caller does next: it takes seconds, and so does reading weights."""

    def import_quietly() -> None:
        with contextlib.suppress(ValueError):  # the first trace says what is wrong
            _import_executor()

    if mode == "thunder":
        threading.Thread(target=import_quietly, name="import-thunder").start()


def _import_executor() -> Any:
    """Return ops/executor.py, which brings Thunder; ValueError says what to do where it cannot be imported."""
    try:
        from litspec.ops import executor
    except (ImportError, AttributeError) as fault:
        raise ValueError(
            f'compile was "thunder", which cannot be imported here ({fault}); install lightning-thunder 0.2.6, or load '
            'with compile="none", which gives the same tokens'
        ) from fault
    return executor
