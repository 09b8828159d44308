"""Compiling a GPT with Thunder: one trace per shape, shared by all layers.

Tracing a whole model takes tens of seconds a shape and tracing one block a fraction of one, so a block is traced with
its weights and its cache as arguments, and the traced computation itself is called, without Thunder's prologue of guards.
In exchange this module guards: a trace is looked up by shape, dtype, device and stride of what it was traced with, and
no Python number that varies ever enters a trace (the key length is found inside `cached_attention`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from litspec.kvcache import KVCache
from litspec.model.config import Config
from litspec.model.gpt import GPT, Weights, block_forward

CompileMode = Literal["thunder", "none"]
Layout = tuple[torch.Size, torch.dtype, torch.device, tuple[int, ...]]


def _layout(t: Tensor) -> Layout:
    return t.shape, t.dtype, t.device, t.stride()


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
        self._names = tuple(gpt.layer_weights[0])
        self._weight_layouts = [tuple(_layout(w) for w in weights.values()) for weights in gpt.layer_weights]
        self._is_uniform = len(set(self._weight_layouts)) == 1
        self._computations: dict[Any, Callable[..., tuple[Tensor]]] = {}
        self._traces: list[Any] = []

    @property
    def config(self) -> Config:
        """The model's shape."""
        return self.gpt.config

    @property
    def max_seq_length(self) -> int:
        """Positions that it can be fed."""
        return self.gpt.max_seq_length

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.gpt.embedding.device

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

    def hidden(self, idx: Tensor, input_pos: Tensor | None = None, **where: Any) -> Tensor:
        """Feed tokens and return the residual stream; arguments as `GPT.hidden`, without `block`."""
        return self.gpt.hidden(idx, input_pos, block=self._block, **where)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states."""
        return self.gpt.logits(hidden)

    def __call__(self, idx: Tensor, input_pos: Tensor | None = None, **where: Any) -> Tensor:
        """Feed tokens and return the logits after each; arguments as `GPT.forward`, without `block`."""
        return self.logits(self.hidden(idx, input_pos, **where))

    def _block(
        self,
        config: Config,
        weights: Weights,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        input_pos: Tensor,
        slots: Tensor | None,
        k_cache: Tensor | None,
        v_cache: Tensor | None,
    ) -> Tensor:
        if self.mode == "none" or slots is None or k_cache is None or v_cache is None:
            return block_forward(config, weights, x, cos, sin, input_pos, slots, k_cache, v_cache)
        tensors = (x, cos, sin, input_pos, slots, k_cache, v_cache)
        key = tuple(map(_layout, tensors))
        if not self._is_uniform:
            key = (*key, *map(_layout, weights.values()))
        computation = self._computations.get(key)
        if computation is None:
            computation = self._trace(key, (*tensors, *weights.values()))
        return computation(*tensors, *weights.values())[0]

    def _trace(self, key: Any, arguments: tuple[Tensor, ...]) -> Callable[..., tuple[Tensor]]:
        """Trace the block for these arguments' layout.

        Thunder runs the function once to make its trace. It then writes the same values to the same positions as the
        call that follows, so the cache is left as that call leaves it.
        """
        from litspec.ops import executor

        started = time.perf_counter()
        names, config = self._names, self.config

        def block(
            x: Tensor,
            cos: Tensor,
            sin: Tensor,
            input_pos: Tensor,
            slots: Tensor,
            k_cache: Tensor,
            v_cache: Tensor,
            *weights: Tensor,
        ) -> Tensor:
            named = dict(zip(names, weights, strict=True))
            return block_forward(config, named, x, cos, sin, input_pos, slots, k_cache, v_cache)

        jitted = executor.jit(block)
        jitted(*arguments)
        trace = executor.last_trace(jitted)
        self._check_arguments(trace, len(arguments))
        self._traces.append(trace)
        self._computations[key] = computation = trace.python_callable()
        self.compile_s += time.perf_counter() - started
        return computation

    def _check_arguments(self, trace: Any, num_arguments: int) -> None:
        """Assert that the bare computation takes what the block takes: a tensor left out would shift the rest."""
        assert len(trace.args) == num_arguments, f"the trace takes {len(trace.args)} tensors of {num_arguments}"
