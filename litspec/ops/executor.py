"""The bridge to Thunder: litspec's opaque operations as an executor, and the import shim.

An operation that writes into its input (the cache) cannot be traced through, and each Python call that Thunder
interprets costs milliseconds, so the operations of a block are kept whole: a meta function gives the shape, the plain
definition does the work, and a kernel may take its place. This is the only module, with model/compile.py, that knows
Thunder; importing it costs about a second.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from litspec.ops.attention import cached_attention
from litspec.ops.index2d import index_select_2d
from litspec.ops.layers import apply_rope, linear, rms_norm, silu_mul
from litspec.ops.noise import gumbel_noise
from litspec.ops.packed import BLOCK_ROWS

_DROPPED_METHODS = ("align_as", "align_to", "has_names", "refine_names", "rename")


def mend_torch_for_thunder() -> list[str]:
    """Give torch.Tensor back the named-tensor methods that Thunder 0.2.6 looks up at import; return their names.

    torch 2.13 dropped them. Thunder only registers them as unsupported, so a stub that raises is enough.
    """
    missing = [name for name in _DROPPED_METHODS if not hasattr(torch.Tensor, name)]
    for name in missing:

        def stub(*_: Any, _name: str = name, **__: Any) -> None:
            raise NotImplementedError(f"torch.Tensor.{_name} was removed from torch")

        stub.__name__ = name
        setattr(torch.Tensor, name, stub)
    return missing


mended_methods = mend_torch_for_thunder()

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # it names every optional package that is not installed
    import thunder
    from thunder.core import dtypes
    from thunder.core.proxies import TensorProxy
    from thunder.extend import OperatorExecutor, register_executor

litspec_executor = OperatorExecutor("litspec", version=1)
register_executor(litspec_executor)


def _like_first(first: Any, *_: Any) -> TensorProxy:
    return TensorProxy(like=first)


def _linear_meta(x: Any, weight: Any, bias: Any = None) -> TensorProxy:
    out = weight.shape[0] * BLOCK_ROWS if weight.dtype == dtypes.uint8 else weight.shape[0]
    return TensorProxy(like=x, shape=(*x.shape[:-1], out))


def _index_select_2d_meta(t: Any, dim: int, idx: Any, *, rows_B: Any = None) -> TensorProxy:
    dim %= t.ndim
    before = () if dim == 0 else (idx.shape[0], *t.shape[1:dim])
    selected = tuple(idx.shape) if dim == 0 else (idx.shape[1],)
    return TensorProxy(like=t, shape=(*before, *selected, *t.shape[dim + 1 :]))


def _gumbel_noise_meta(seeds_B: Any, positions_BT: Any, ids: Any) -> TensorProxy:
    shape = (*positions_BT.shape, ids.shape[-1])
    return TensorProxy(shape=shape, dtype=dtypes.float64, device=ids.device, requires_grad=False)


_METAS: dict[Callable[..., Any], Callable[..., Any]] = {
    linear: _linear_meta,
    rms_norm: _like_first,
    apply_rope: _like_first,
    silu_mul: _like_first,
    cached_attention: _like_first,
    index_select_2d: _index_select_2d_meta,
    gumbel_noise: _gumbel_noise_meta,
}
for _operation, _meta in _METAS.items():
    litspec_executor.register_operator(_operation.__name__, meta=_meta, fn=_operation, replaces=_operation)


def jit(function: Any) -> Any:
    """Return `function` jitted by Thunder with litspec's operations kept whole."""
    return thunder.jit(function, executors=[litspec_executor, "torch"])


def last_trace(jitted: Any) -> Any:
    """Return the final trace of a jitted function; its `python_callable()` runs without guards, results in a tuple."""
    return thunder.last_traces(jitted)[-1]
