"""The compiled GPT: bit for bit what the plain one gives, one trace a shape for all layers, and the traps of a cache.

CP-01 positions per row, CP-02 the buffers themselves are written, CP-04 the cost of a step does not follow the size of
the cache, CP-07 a write replaces. The import shim is tested in tests/ops/test_executor.py.
"""

from __future__ import annotations

import sys
import time

import pytest
import torch

import litspec.ops
from litspec.kvcache import KVCache
from litspec.model.compile import CompiledGPT, import_ahead
from litspec.model.gpt import GPT
from litspec.model.window import Shapes
from tests.model.tiny_gpt import consecutive, some_tokens, tiny_gpt


class Pair:
    """The same model plainly and compiled, each with its own cache."""

    def __init__(self, gpt: GPT, *, num_slots: int = 4) -> None:
        self.gpt, self.compiled = gpt, CompiledGPT(gpt)
        self.plain_cache, self.cache = gpt.new_cache(num_slots), self.compiled.new_cache(num_slots)

    def assert_equal_step(self, idx: torch.Tensor, input_pos: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
        got = self.compiled(idx, input_pos, cache=self.cache, slots=slots)
        assert torch.equal(got, self.gpt(idx, input_pos, cache=self.plain_cache, slots=slots))
        for ours, plain in zip((*self.cache.k, *self.cache.v), (*self.plain_cache.k, *self.plain_cache.v), strict=True):
            assert torch.equal(ours, plain)
        return got


@pytest.mark.parametrize("T", [1, 5])
def test_positions_of_its_own_for_each_row(T):
    # CP-01, and again with other positions and slots through the same trace.
    pair = Pair(tiny_gpt(dtype=torch.float32))
    for starts, slots in (([0, 7], [1, 3]), ([20, 2], [0, 1]), ([5, 30], [3, 2])):
        pair.assert_equal_step(some_tokens(2, T, seed=starts[0]), consecutive(starts, T), torch.tensor(slots))
    assert pair.compiled.num_shapes == 1


def test_the_buffers_are_written_in_place_step_after_step():
    # CP-02
    pair = Pair(tiny_gpt())
    before = [t.data_ptr() for t in (*pair.cache.k, *pair.cache.v)]
    for step in range(10):
        pair.assert_equal_step(some_tokens(2, 1, seed=step), None, torch.tensor([2, 0]))
    assert [t.data_ptr() for t in (*pair.cache.k, *pair.cache.v)] == before
    assert pair.cache.k[1][2, :, :10].count_nonzero() == 2 * 10 * 8 and not pair.cache.k[1][2, :, 10:].any()


def test_a_second_write_to_a_slot_replaces_the_first():
    # CP-07: three tokens are rejected, and others fed at their positions.
    pair = Pair(tiny_gpt())
    slots, prompt = torch.tensor([1]), some_tokens(1, 6)
    pair.assert_equal_step(prompt, consecutive([0], 6), slots)
    pair.assert_equal_step(some_tokens(1, 4, seed=8), consecutive([6], 4), slots)
    second = some_tokens(1, 4, seed=9)
    got = pair.assert_equal_step(second, consecutive([6], 4), slots)
    torch.testing.assert_close(got, pair.gpt(torch.cat((prompt, second), 1))[:, 6:])


VARIANTS = {
    "llama": {},
    "qwen2": {"has_qkv_bias": True, "tie_embeddings": True},
    "qwen3": {"has_qk_norm": True, "head_size": 10},
    "all biases": {"has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True, "n_query_groups": 4},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_thunder_equals_eager_bit_for_bit(variant, dtype):
    pair = Pair(tiny_gpt(dtype=dtype, **VARIANTS[variant]))
    slots = torch.tensor([2, 0])
    pair.assert_equal_step(some_tokens(2, 9), consecutive([0, 0], 9), slots)
    for step in range(3):
        pair.assert_equal_step(some_tokens(2, 1, seed=step), consecutive([9 + step, 4 + step], 1), slots)


def test_one_trace_serves_every_layer_and_holds_the_cache_write():
    pair = Pair(tiny_gpt(n_layer=5))
    pair.assert_equal_step(some_tokens(2, 3), consecutive([0, 0], 3), torch.tensor([0, 1]))
    (trace,) = pair.compiled.traces
    assert str(trace).count("cached_attention(") == 1
    assert "index_copy" not in str(trace) and "scaled_dot_product" not in str(trace)


def test_the_number_of_shapes_stays_while_decoding():
    gpt = tiny_gpt(max_seq_length=256)
    compiled = CompiledGPT(gpt)
    cache = compiled.new_cache(3)
    compiled(some_tokens(2, 16), cache=cache)
    counts = set()
    for step in range(200):
        compiled(some_tokens(2, 1, seed=step), cache=cache)
        counts.add(compiled.num_shapes)
    assert counts == {2}
    assert len(compiled.traces) == 2 and compiled.compile_s > 0
    assert cache.fed_S[0] == 216


def narrow_cache(cache: KVCache) -> KVCache:
    """Give the cache another layout in memory with the same shape."""
    cache.k = [torch.cat((t, t), -1)[..., : t.shape[-1]] for t in cache.k]
    return cache


def test_another_shape_dtype_or_stride_gets_a_trace_of_its_own():
    gpt = tiny_gpt(dtype=torch.float32)
    compiled = CompiledGPT(gpt)
    idx, positions, slots = some_tokens(2, 2), consecutive([0, 0], 2), torch.arange(2)
    others = [
        (gpt.new_cache(2), idx, positions),
        (gpt.new_cache(2), idx, positions + 3),  # the same layout
        (gpt.new_cache(3), idx, positions),  # one more slot
        (gpt.new_cache(2), some_tokens(2, 3), consecutive([0, 0], 3)),
        (gpt.new_cache(2), idx, torch.arange(2).expand(2, 2)),
        (gpt.new_cache(2), idx, positions, slots.int()),
        (narrow_cache(gpt.new_cache(2)), idx, positions),
    ]
    counts = []
    for cache, fed, input_pos, *given in others:
        got = compiled(fed, input_pos, cache=cache, slots=given[0] if given else slots)
        assert torch.equal(got, gpt(fed, input_pos, cache=gpt.new_cache(3), slots=slots))
        counts.append(compiled.num_shapes)
    assert counts == [1, 1, 2, 3, 4, 5, 6]


def test_layers_that_lie_otherwise_in_memory_get_a_trace_of_their_own():
    gpt = tiny_gpt(n_layer=3)
    o = gpt.layers[1].o
    o.data = o.data.t().contiguous().t()
    pair = Pair(gpt)
    pair.compiled.warm_up(pair.cache, [(2, 1)])
    assert pair.compiled.num_shapes == 2
    pair.plain_cache, pair.cache = gpt.new_cache(4), gpt.new_cache(4)
    pair.assert_equal_step(some_tokens(2, 1), consecutive([0, 0], 1), torch.arange(2))
    assert pair.compiled.num_shapes == 2


def test_warm_up_traces_every_shape_and_touches_the_scratch_slot_alone():
    gpt = tiny_gpt()
    compiled, shapes = CompiledGPT(gpt), Shapes((1, 2), (1, 3), (8,))
    cache = compiled.new_cache(2)
    compiled.warm_up(cache, shapes)
    assert compiled.num_shapes == len(compiled.traces) == 6
    assert not any(t[: cache.scratch_slot].any() for t in (*cache.k, *cache.v))
    assert cache.k[0][cache.scratch_slot].any()
    for rows, width in shapes:
        compiled(some_tokens(rows, width), cache=cache, slots=torch.arange(rows))
    assert compiled.num_shapes == 6


def test_mode_none_traces_nothing_and_equals_the_plain_model():
    gpt = tiny_gpt()
    compiled = CompiledGPT(gpt, "none")
    compiled.warm_up(gpt.new_cache(1), [(1, 1)])
    idx = some_tokens(1, 3)
    assert torch.equal(compiled(idx, cache=gpt.new_cache(1)), gpt(idx, cache=gpt.new_cache(1)))
    assert (compiled.num_shapes, compiled.traces, compiled.compile_s) == (0, [], 0.0)


def test_without_a_cache_it_runs_plainly():
    gpt = tiny_gpt()
    compiled = CompiledGPT(gpt)
    assert torch.equal(compiled(some_tokens(1, 4)), gpt(some_tokens(1, 4))) and compiled.num_shapes == 0


def test_it_shows_the_models_facts():
    compiled = CompiledGPT(tiny_gpt(max_seq_length=40))
    assert (compiled.vocab_size, compiled.max_seq_length, compiled.device.type) == (61, 40, "cpu")
    assert compiled.config is compiled.gpt.config


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match='compile was \'inductor\'; allowed: "thunder" or "none"'):
        CompiledGPT(tiny_gpt(), "inductor")  # pyright: ignore[reportArgumentType]


def test_where_thunder_cannot_be_imported_the_error_names_the_other_mode(monkeypatch):
    monkeypatch.delattr(litspec.ops, "executor", raising=False)
    monkeypatch.setitem(sys.modules, "litspec.ops.executor", None)
    import_ahead("thunder")  # says nothing: the first trace does
    gpt = tiny_gpt(n_layer=1)
    with pytest.raises(ValueError, match=r'compile was "thunder".*install lightning-thunder.*compile="none"'):
        CompiledGPT(gpt)(some_tokens(1, 1), cache=gpt.new_cache(1))


def test_a_step_costs_the_same_with_a_cache_sixteen_times_as_large():
    # CP-04: 40 tokens in use of 512 or 8192; each cache is one layer's, 2 MB or 33 MB.
    def step_s(M: int) -> float:
        compiled, cache = models[M]
        started = time.perf_counter()
        for position in range(40, 44):
            compiled(idx, torch.tensor([[position]]), cache=cache, slots=slots)
        return time.perf_counter() - started

    idx, slots, models = some_tokens(1, 1), torch.tensor([0]), {}
    for M in (512, 8192):
        gpt = tiny_gpt(dtype=torch.float32, max_seq_length=M, n_head=8, n_query_groups=8, head_size=32)
        compiled = CompiledGPT(gpt)
        models[M] = compiled, compiled.new_cache(3)
        compiled(some_tokens(1, 40), cache=models[M][1], slots=slots)
        step_s(M)
    pairs = [(step_s(512), step_s(8192)) for _ in range(21)]
    small, large = (sorted(column)[10] for column in zip(*pairs, strict=True))
    assert large / small < 1.5
