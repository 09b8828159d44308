"""The bridge to Thunder: each operation kept whole gives what it gives plainly, with the shape its meta promises.

The shim test says when the import shim in ops/executor.py can go.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from litspec.ops import executor, index_select_2d
from litspec.ops.attention import cached_attention
from litspec.ops.layers import apply_rope, linear, rms_norm, silu_mul
from litspec.ops.noise import gumbel_noise

INDEX = torch.tensor([[0, 2], [1, 1]])
OPERATIONS = {
    "linear": (linear, (torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5))),
    "rms_norm": (lambda x, w: rms_norm(x, w, 1e-5), (torch.randn(2, 4).bfloat16(), torch.randn(4).bfloat16())),
    "apply_rope": (apply_rope, (torch.randn(2, 3, 2, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 4))),
    "silu_mul": (silu_mul, (torch.randn(2, 3), torch.randn(2, 3))),
    "gumbel_noise": (gumbel_noise, (torch.tensor([1, 2]), INDEX, torch.arange(7))),
    "gumbel_noise of candidates": (gumbel_noise, (torch.tensor([1, 2]), INDEX, torch.arange(12).view(2, 2, 3))),
    "index_select_2d of rows": (lambda t, i: index_select_2d(t, 0, i), (torch.randn(3, 4), INDEX)),
    "index_select_2d within": (lambda t, i: index_select_2d(t, 2, i), (torch.randn(2, 4, 3, 5), INDEX)),
    "index_select_2d at the end": (lambda t, i: index_select_2d(t, -1, i), (torch.randn(2, 4, 3), INDEX)),
    "index_select_2d of slots": (
        lambda t, i, r: index_select_2d(t, 1, i, rows_B=r),
        (torch.randn(4, 3, 5), INDEX, torch.tensor([3, 0])),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_kept_whole_and_has_the_shape_of_its_meta(name):
    function, arguments = OPERATIONS[name]
    jitted = executor.jit(function)
    got, want = jitted(*arguments), function(*arguments)
    assert torch.equal(got, want)
    trace = executor.last_trace(jitted)
    assert str(trace).count(f" {name.split()[0]}(") == 1
    (promised,) = trace.output if isinstance(trace.output, tuple) else (trace.output,)
    assert tuple(promised.shape) == tuple(want.shape)
    assert executor.thunder.core.dtypes.to_torch_dtype(promised.dtype) == want.dtype
    assert torch.equal(trace.python_callable()(*arguments)[0], want)


def test_cached_attention_writes_the_cache_it_was_given():
    q, kv = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 2, 8)
    k_cache, v_cache = torch.zeros(2, 2, 6, 8), torch.zeros(2, 2, 6, 8)
    slots, positions = torch.tensor([1]), torch.tensor([[3]])

    def attend(q, k, v, k_cache, v_cache, slots, positions):
        return cached_attention(q, k, v, k_cache, v_cache, slots, positions, 0.5)

    jitted = executor.jit(attend)
    jitted(q, kv, kv, k_cache, v_cache, slots, positions)
    assert torch.equal(k_cache[1, :, 3], kv[0, 0]) and k_cache.count_nonzero() == 16
    later = torch.tensor([[5]])
    got = executor.last_trace(jitted).python_callable()(q, kv, kv, k_cache, v_cache, slots, later)[0]
    want = cached_attention(q, kv, kv, k_cache.clone(), v_cache.clone(), slots, later, 0.5)
    assert torch.equal(got, want)  # the key length is not baked into the trace
    assert torch.equal(v_cache[1, :, 5], kv[0, 0])


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def torch_version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def test_the_import_shim_is_still_needed():
    plain = run("import warnings; warnings.simplefilter('ignore'); import thunder")
    if torch_version() < (2, 13):
        assert not executor.mended_methods and plain.returncode == 0, plain.stderr
        return
    assert executor.mended_methods
    if plain.returncode == 0:
        pytest.fail("thunder imports by itself on this torch: the shim in ops/executor.py can go")
    assert any(name in plain.stderr for name in executor.mended_methods), plain.stderr


def test_the_shim_adds_stubs_once_and_they_say_what_happened():
    assert executor.mend_torch_for_thunder() == []
    for name in executor.mended_methods:
        stub = getattr(torch.Tensor, name)
        assert stub.__name__ == name
        with pytest.raises(NotImplementedError, match=f"torch.Tensor.{name} was removed from torch"):
            getattr(torch.zeros(1), name)()


def test_nothing_imports_thunder_before_it_is_used():
    checked = run("import sys, litspec, litspec.model.compile; sys.exit('thunder' in sys.modules)")
    assert checked.returncode == 0, checked.stderr
