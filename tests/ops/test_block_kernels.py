"""The kernels of a block against their definitions in float64, and that a token's result is its own, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from litspec.ops.attention import cached_attention, plain_cached_attention
from litspec.ops.kernels import instruction_sets
from litspec.ops.layers import apply_rope, rms_norm, silu_mul

OPS = torch.ops.litspec
NAN = float("nan")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Case:
    """Ragged rows in shuffled slots whose caches hold NaN wherever nothing was written."""

    def __init__(self, lengths: list[int], T: int, K: int, group: int, D: int, *, M: int = 200) -> None:
        B = len(lengths)
        self.slots = torch.randperm(B + 2, generator=torch.Generator().manual_seed(T))[:B]
        self.k_cache, self.v_cache = (torch.full((B + 2, K, M, D), NAN) for _ in range(2))
        for row, (slot, length) in enumerate(zip(self.slots.tolist(), lengths, strict=True)):
            self.k_cache[slot, :, :length] = random(K, length, D, seed=10 + row)
            self.v_cache[slot, :, :length] = random(K, length, D, seed=50 + row)
        self.q, self.k, self.v = random(B, T, K * group, D, seed=1), random(B, T, K, D, seed=2), random(B, T, K, D)
        self.positions = torch.tensor([list(range(n, n + T)) for n in lengths])
        self.scale = D**-0.5

    def run(self, isa: str) -> tuple[Tensor, Tensor, Tensor]:
        k_cache, v_cache = self.k_cache.clone(), self.v_cache.clone()
        given = (self.q, self.k, self.v, k_cache, v_cache, self.slots, self.positions, self.scale)
        return OPS.cached_attention(*given, isa), k_cache, v_cache

    def run_plain(self) -> tuple[Tensor, Tensor, Tensor]:
        # The definition reads what its mask hides, so there it may hold no NaN.
        k_cache, v_cache = (t.nan_to_num(0.0).double() for t in (self.k_cache, self.v_cache))
        given = (self.q.double(), self.k.double(), self.v.double(), k_cache, v_cache, self.slots, self.positions)
        return plain_cached_attention(*given, self.scale), k_cache, v_cache


@pytest.mark.parametrize("isa", instruction_sets())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_attention_is_its_definition_and_reads_nothing_beyond_a_row(isa, data):
    lengths = data.draw(st.lists(st.integers(0, 150), min_size=1, max_size=5))
    T, K, group = data.draw(st.integers(1, 16)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    case = Case(lengths, T, K, group, data.draw(st.sampled_from([32, 48, 64, 80, 96, 128, 256])))
    found, k_cache, v_cache = case.run(isa)
    expected, k_expected, v_expected = case.run_plain()
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=2e-6)
    assert k_cache.nan_to_num(0.0).double().equal(k_expected) and v_cache.nan_to_num(0.0).double().equal(v_expected)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("start", [0, 1, 60, 63, 64, 65, 130])
def test_a_window_gives_what_its_tokens_give_one_by_one_and_beside_others(isa, start):
    case = Case([start, 17, 90], 9, 3, 3, 64)
    together, k_after, v_after = case.run(isa)
    k_cache, v_cache = case.k_cache.clone(), case.v_cache.clone()
    for t in range(9):
        q, k, v = (x[:1, t : t + 1].contiguous() for x in (case.q, case.k, case.v))
        given = (q, k, v, k_cache, v_cache, case.slots[:1], case.positions[:1, t : t + 1].contiguous(), case.scale)
        assert OPS.cached_attention(*given, isa).equal(together[:1, t : t + 1])
    slot = int(case.slots[0])
    assert k_cache[slot].nan_to_num(7.0).equal(k_after[slot].nan_to_num(7.0))
    assert v_cache[slot].nan_to_num(7.0).equal(v_after[slot].nan_to_num(7.0))


@pytest.mark.parametrize("isa", instruction_sets())
def test_scores_of_any_size_and_a_token_that_is_not_a_number(isa):
    case = Case([100, 40], 3, 2, 2, 32)
    clean, _, _ = case.run(isa)
    for factor in (1e3, 1e-30, 0.0):
        case.q = random(2, 3, 4, 32, seed=1) * factor
        assert torch.allclose(case.run(isa)[0].double(), case.run_plain()[0], rtol=1e-4, atol=1e-5)
    case.q = random(2, 3, 4, 32, seed=1)
    case.q[1, 2] = NAN
    found, _, _ = case.run(isa)
    assert found[0].equal(clean[0]) and found[1, :2].equal(clean[1, :2]) and found[1, 2].isnan().all()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads):
    case, x = Case([150, 3, 77], 8, 3, 3, 64), random(300, 576)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            rotated = OPS.apply_rope(random(9, 8, 6, 64), random(9, 8, 64, seed=1), random(9, 8, 64, seed=2), "")
            results.append((case.run("")[0], OPS.rms_norm(x, x[0], 1e-5, ""), OPS.silu_mul(x, x, ""), rotated))
    finally:
        torch.set_num_threads(before)
    assert all(one.equal(other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("size", [1, 7, 16, 33, 64, 576])
@pytest.mark.parametrize("factor", [1e-20, 1.0, 1e17])
def test_norms(isa, size, factor):
    x, weight = random(5, 3, size) * factor, random(size, seed=1)
    found = OPS.rms_norm(x, weight, 1e-5, isa)
    assert torch.allclose(found.double(), rms_norm(x.double(), weight.double(), 1e-5), rtol=1e-5, atol=1e-30)
    assert OPS.rms_norm(x[2:3, 1:2].contiguous(), weight, 1e-5, isa).equal(found[2:3, 1:2])


@pytest.mark.parametrize("isa", instruction_sets())
def test_silu_mul(isa):
    gate = torch.cat((random(1000) * 10, torch.tensor([0.0, -0.0, 200.0, -200.0, 88.0, -88.0, 1e-30, -103.5])))
    up = random(1008, seed=1)
    found = OPS.silu_mul(gate, up, isa)
    assert torch.allclose(found.double(), silu_mul(gate.double(), up.double()), rtol=1e-5, atol=1e-30)
    for start, end in ((0, 5), (3, 20), (995, 1008)):
        assert OPS.silu_mul(gate[start:end].contiguous(), up[start:end].contiguous(), isa).equal(found[start:end])
    assert OPS.silu_mul(torch.tensor([NAN, 1.0]), torch.ones(2), isa).isnan().tolist() == [True, False]


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
def test_rope(isa, size):
    x, cos, sin = random(2, 5, 3, size), random(2, 5, size, seed=1), random(2, 5, size, seed=2)
    found = OPS.apply_rope(x, cos, sin, isa)
    assert torch.allclose(found.double(), apply_rope(x.double(), cos.double(), sin.double()), rtol=1e-5, atol=1e-5)
    one = (t[1:, 3:4].contiguous() for t in (x, cos, sin))
    assert OPS.apply_rope(*one, isa).equal(found[1:, 3:4])


def test_what_has_no_kernel_takes_the_definition():
    case = Case([5, 9], 2, 2, 2, 24)  # no multiple of 16
    k_cache, v_cache = (t.nan_to_num(0.0) for t in (case.k_cache, case.v_cache))
    given = (case.q, case.k, case.v, k_cache, v_cache, case.slots, case.positions, case.scale)
    assert torch.allclose(cached_attention(*given).double(), case.run_plain()[0], atol=1e-5)
    x = random(1, 2, 3, 24)
    assert torch.allclose(apply_rope(x, x[:, :, 0], x[:, :, 1]), apply_rope(x.double(), x[:, :, 0], x[:, :, 1]).float())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"slots": torch.tensor([9])}, IndexError, "slot 9 of 3"),
        ({"slots": torch.tensor([-1])}, IndexError, "slot -1 of 3"),
        ({"positions": torch.tensor([[200]])}, IndexError, "position 200 of 200"),
        ({"slots": torch.tensor([0], dtype=torch.int32)}, RuntimeError, "slots must be int64"),
        ({"q": random(1, 1, 4, 32).double()}, RuntimeError, "must be float32"),
        ({"k": random(1, 1, 2, 16)}, RuntimeError, "wrong dimensions|keys and cache differ"),
    ],
)
def test_the_attention_kernel_refuses_what_it_cannot_read(change, error, message):
    case = Case([5], 1, 2, 2, 32)
    for name, value in change.items():
        setattr(case, name, value)
    with pytest.raises(error, match=message):
        case.run("")
