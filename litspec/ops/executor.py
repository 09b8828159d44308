"""The bridge to Thunder: litspec's opaque operations as an executor, and the import shim.

An operation that writes into its input (the cache) cannot be traced through, so Thunder is told to keep
`cached_attention` and `gumbel_noise` whole: a meta function gives the shape, the plain definition does the work. This is
the only module, with model/compile.py, that knows Thunder; importing it costs about a second.
"""

from __future__ import annotations

from typing import Any

import torch

from litspec.ops.attention import cached_attention
from litspec.ops.noise import gumbel_noise

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

import thunder  # noqa: E402
from thunder.core import dtypes  # noqa: E402
from thunder.core.proxies import TensorProxy  # noqa: E402
from thunder.extend import OperatorExecutor, register_executor  # noqa: E402

litspec_executor = OperatorExecutor("litspec", version=1)
register_executor(litspec_executor)


def _cached_attention_meta(
    q: TensorProxy, k: TensorProxy, v: TensorProxy, k_cache: TensorProxy, v_cache: TensorProxy, *_: Any
) -> TensorProxy:
    return TensorProxy(like=q)


def _gumbel_noise_meta(seeds_B: TensorProxy, positions_BT: TensorProxy, ids: TensorProxy) -> TensorProxy:
    shape = (*positions_BT.shape, ids.shape[-1])
    return TensorProxy(shape=shape, dtype=dtypes.float64, device=ids.device, requires_grad=False)


litspec_executor.register_operator(
    "cached_attention", meta=_cached_attention_meta, fn=cached_attention, replaces=cached_attention
)
litspec_executor.register_operator("gumbel_noise", meta=_gumbel_noise_meta, fn=gumbel_noise, replaces=gumbel_noise)


def jit(function: Any) -> Any:
    """Return `function` jitted by Thunder with litspec's operations kept whole."""
    return thunder.jit(function, executors=[litspec_executor, thunder.pytorch_executor])


def last_trace(jitted: Any) -> Any:
    """Return the final trace of a jitted function; its `python_callable()` runs without guards, results in a tuple."""
    return thunder.last_traces(jitted)[-1]
