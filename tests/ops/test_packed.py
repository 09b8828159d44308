"""Packed weights: what they mean, and kernels that multiply them as the plain definition does, row by row the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.ops.kernels import instruction_sets, load_kernels
from litspec.ops.layers import linear
from litspec.ops.packed import (
    PACKED,
    Q4_0,
    filled_up,
    is_packed,
    pack,
    packed_linear,
    packed_rows,
    packed_shape,
    plain_packed_linear,
    unpack,
)

FORMATS = tuple(PACKED)


def random_weight(kind: str, rows: int, inputs: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a packed weight and, worked out without ops/packed.py, the numbers that it stands for."""
    chance = torch.Generator().manual_seed(seed)
    share = 16 if kind == "Q6_K" else 32
    dtype = torch.float32 if kind.endswith("K") else torch.float16
    scales = (torch.rand(rows, inputs // share, generator=chance) * 0.1 - 0.03).to(dtype)
    has_minima = kind in ("Q4_1", "Q4_K", "Q5_K")
    minima = torch.randn(rows, inputs // share, generator=chance).to(dtype) if has_minima else None
    low, high = (0, 16) if kind.startswith("Q4") else (-128, 128)
    numbers = torch.randint(low, high, (rows, inputs), generator=chance)
    wide = numbers.double() - (8 if kind == "Q4_0" else 0)
    values = (wide * scales.double().repeat_interleave(share, dim=1)).float()
    if minima is not None:
        values = values + minima.float().repeat_interleave(share, dim=1)
    return pack(numbers, scales, minima, bits=4 if kind.startswith("Q4") else 8), values.double()


def kernel(x: torch.Tensor, weight: torch.Tensor, isa: str) -> torch.Tensor:
    return torch.ops.litspec.packed_linear(x.contiguous(), weight, isa)


def test_kernels_are_built_here():
    assert load_kernels()
    assert instruction_sets()[-1] == "portable"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("rows", "inputs"), [(16, 32), (48, 96), (5, 32), (33, 64)])
def test_what_is_unpacked_is_what_was_packed(kind, rows, inputs):
    weight, values = random_weight(kind, rows, inputs, seed=rows)
    assert is_packed(weight) and weight.shape == (-(-rows // 16), inputs // 32, PACKED[kind])
    assert packed_shape(weight) == filled_up((rows, inputs)) == unpack(weight).shape
    assert unpack(weight)[:rows].equal(values.float())
    assert (unpack(weight)[rows:] == 0).all()
    ids = torch.tensor([[0, rows - 1], [rows // 2, 0]])
    assert packed_rows(weight, ids, torch.float64).equal(values.float().double()[ids])
    assert packed_rows(weight, ids[0, 0], torch.bfloat16).equal(values.float()[0].bfloat16())


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_kernel_is_its_definition_within_rounding(isa, kind, data):
    blocks, groups = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    tokens, seed = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 99))
    weight, values = random_weight(kind, 16 * blocks, 32 * groups, seed=seed)
    x = torch.randn(tokens, 32 * groups, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 7 - 3)
    exact, magnitude = x.double() @ values.T, x.double().abs() @ values.abs().T
    # Q4's numbers and minima partly cancel, so the bound is on what is added and not on the sum.
    added = magnitude + (x.double().abs() @ torch.full_like(values, 2.0).T if kind not in ("Q8_0", "Q6_K") else 0.0)
    assert ((kernel(x, weight, isa) - exact).abs() <= 32 * groups * 6e-8 * added + 1e-30).all()
    assert ((plain_packed_linear(x, weight) - exact).abs() <= 32 * groups * 6e-8 * added + 1e-30).all()


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_is_the_same_whatever_is_multiplied_beside_it(isa, kind):
    weight, _ = random_weight(kind, 16 * 13, 32 * 5)
    x = torch.randn(70, 160, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([kernel(x[i : i + 1], weight, isa) for i in range(70)])
    for tokens in (*range(2, 20), 31, 32, 33, 64, 70):
        for start in (0, 70 - tokens):
            assert kernel(x[start : start + tokens], weight, isa).equal(alone[start : start + tokens])
    for blocks in range(1, 13):
        assert kernel(x[:5], weight[:blocks].contiguous(), isa).equal(alone[:5, : 16 * blocks])


def test_threads_change_nothing():
    weight, _ = random_weight("Q4_1", 16 * 300, 320)
    x = torch.randn(40, 320)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(packed_linear(x, weight))
    finally:
        torch.set_num_threads(before)
    assert results[0].equal(results[1]) and results[0].equal(results[2])


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_token_that_is_not_finite_spoils_no_other(isa, kind, bad):
    weight, _ = random_weight(kind, 64, 64)
    x = torch.randn(7, 64)
    clean = kernel(x, weight, isa)
    x[3, 17] = bad
    found = kernel(x, weight, isa)
    others = [0, 1, 2, 4, 5, 6]
    assert found[others].equal(clean[others])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_scales_of_every_size(kind):
    halves = torch.tensor([0.0, 6e-8, 6.1e-5, 65504.0, -65504.0, 1.0, -6e-8, 2.5], dtype=torch.float16)
    numbers = torch.arange(16 * 32 * 8).view(16, 256) % 16
    minima = halves.flip(0).expand(16, 8).contiguous() if kind == "Q4_1" else None
    weight = pack(numbers, halves.expand(16, 8).contiguous(), minima, bits=8 if kind == "Q8_0" else 4)
    x = torch.eye(256)
    for isa in instruction_sets():
        assert torch.allclose(kernel(x, weight, isa), unpack(weight).T, rtol=2e-5, atol=0.0 if kind == "Q8_0" else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", FORMATS)
def test_linear_takes_any_shape_and_dtype(kind, dtype):
    weight, values = random_weight(kind, 48, 64)
    x = torch.randn(2, 3, 64).to(dtype)
    bias = torch.randn(48).to(dtype)
    found = linear(x.transpose(0, 1), weight, bias)
    expected = (x.transpose(0, 1).double() @ values.T).to(dtype) + bias
    assert found.shape == (3, 2, 48) and found.dtype == dtype
    assert torch.allclose(found.double(), expected.double(), rtol=2e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-1)
    if dtype == torch.float64:
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(1, 64), torch.zeros(1, 1, Q4_0, dtype=torch.uint8), "x has 64 inputs, the weight 32"),
        (torch.zeros(1, 32), torch.zeros(1, 1, 7, dtype=torch.uint8), "unknown packed format"),
        (torch.zeros(1, 32, dtype=torch.float64), torch.zeros(1, 1, Q4_0, dtype=torch.uint8), "x must be float32"),
        (torch.zeros(1, 32), torch.zeros(16, 32), "weight is not packed"),
    ],
)
def test_the_kernel_refuses_what_it_cannot_multiply(x, weight, message):
    with pytest.raises(RuntimeError, match=message):
        torch.ops.litspec.packed_linear(x, weight, "")
    with pytest.raises(RuntimeError, match="instruction set 'mmx' is not one of"):
        torch.ops.litspec.packed_linear(torch.zeros(1, 32), torch.zeros(1, 1, Q4_0, dtype=torch.uint8), "mmx")


def test_no_tokens_give_no_rows():
    weight, _ = random_weight("Q4_0", 16, 32)
    assert packed_linear(torch.zeros(0, 32), weight).shape == (0, 16)
