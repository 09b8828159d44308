"""The small functions of a block against their formulas in plain Python, and what they do in low precision."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from litspec.ops.layers import apply_rope, linear, rms_norm, silu_mul

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_linear_is_a_product_with_the_transposed_weight():
    x, weight, bias = random(2, 3, 5), random(4, 5, seed=1), random(4, seed=2)
    want = [[[sum(x[b, t, i] * weight[o, i] for i in range(5)) for o in range(4)] for t in range(3)] for b in range(2)]
    torch.testing.assert_close(linear(x, weight), torch.tensor(want, dtype=torch.float64))
    torch.testing.assert_close(linear(x, weight, bias), torch.tensor(want, dtype=torch.float64) + bias)


def test_rms_norm_equals_its_formula():
    x, weight, eps = random(2, 3, 8), random(8, seed=1), 0.5
    got = rms_norm(x, weight, eps)
    for b in range(2):
        for t in range(3):
            rms = math.sqrt(sum(v * v for v in x[b, t].tolist()) / 8 + eps)
            want = [v / rms * w for v, w in zip(x[b, t].tolist(), weight.tolist(), strict=True)]
            assert got[b, t].tolist() == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layer_returns_the_dtype_it_was_given(dtype):
    x = random(2, 3, 2, 8, dtype=dtype)
    table = random(2, 3, 8, dtype=torch.promote_types(dtype, torch.float32))
    assert rms_norm(x, random(8, dtype=dtype), 1e-5).dtype == dtype
    assert apply_rope(x, table, table).dtype == dtype
    assert silu_mul(x, x).dtype == dtype
    assert linear(x, random(4, 8, dtype=dtype)).dtype == dtype


def test_rms_norm_of_float16_does_not_overflow():
    # 300 squared is beyond float16; the sum is taken in float32.
    got = rms_norm(torch.full((1, 64), 300.0, dtype=torch.float16), torch.ones(64, dtype=torch.float16), 1e-5)
    assert torch.equal(got, torch.ones(1, 64, dtype=torch.float16))


def test_rms_norm_in_bfloat16_is_the_wide_result_rounded_before_the_weight():
    x, weight = random(4, 64, dtype=torch.bfloat16), random(64, dtype=torch.bfloat16, seed=1)
    wide = x.double()
    normed = (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16()
    assert torch.equal(rms_norm(x, weight, 1e-5), normed * weight)


def test_rope_turns_each_pair_by_its_angle():
    B, T, H, D = 2, 3, 2, 6
    x, angles = random(B, T, H, D), random(B, T, D // 2, seed=1)
    table = torch.cat((angles, angles), dim=-1)
    got = apply_rope(x, table.cos(), table.sin())
    for b in range(B):
        for t in range(T):
            for h in range(H):
                for i in range(D // 2):
                    pair = complex(x[b, t, h, i], x[b, t, h, i + D // 2])
                    turned = pair * cmath.exp(1j * angles[b, t, i].item())
                    assert got[b, t, h, i].item() == pytest.approx(turned.real, abs=1e-12)
                    assert got[b, t, h, i + D // 2].item() == pytest.approx(turned.imag, abs=1e-12)


def test_rope_in_bfloat16_rotates_in_float32():
    x = random(1, 5, 2, 64, dtype=torch.bfloat16)
    angles = random(1, 5, 32, seed=1) * 1000
    table = torch.cat((angles, angles), dim=-1)
    cos, sin = table.cos().float(), table.sin().float()
    want = apply_rope(x.float(), cos, sin).bfloat16()
    assert torch.equal(apply_rope(x, cos, sin), want)


def test_silu_mul_equals_its_formula():
    gate, up = random(3, 7), random(3, 7, seed=1)
    want = [g / (1 + math.exp(-g)) * u for g, u in zip(gate.flatten().tolist(), up.flatten().tolist(), strict=True)]
    assert silu_mul(gate, up).flatten().tolist() == pytest.approx(want, rel=1e-13)
