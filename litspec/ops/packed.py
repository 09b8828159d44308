"""Weights that stay packed: small integers in groups of 32 inputs that share a scale, and the linear that reads them.

A packed weight is one uint8 tensor (out / 16, in / 32, bytes): a block of 16 output rows and 32 inputs lies together,
as the kernels read it (ops/kernels/packed_linear.h). The number of bytes says which format it is. They stand for the
numbers of the GGUF types of the same names, bit for bit; `unpack` is the plain definition of what they mean. Rows are
filled up to a multiple of 16 with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from litspec.ops.kernels import load_kernels

BLOCK_ROWS, GROUP = 16, 32
_HALVES, _SINGLES = 2 * BLOCK_ROWS, 4 * BLOCK_ROWS
_NIBBLES = BLOCK_ROWS * GROUP // 2
_BYTES = 2 * _NIBBLES
Q4_0, Q4_1, Q8_0 = _NIBBLES + _HALVES, _NIBBLES + 2 * _HALVES, _BYTES + _HALVES
Q4_K, Q5_K = _NIBBLES + 2 * _SINGLES, _BYTES + 2 * _SINGLES
Q6_K = Q5_K + 16
"""Bytes of a block in each format; the K types have factors of single precision, and Q6_K two scales a group."""
PACKED = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0, "Q4_K": Q4_K, "Q5_K": Q5_K, "Q6_K": Q6_K}
_HAS_NIBBLES, _HAS_MINIMUM, _HAS_HALVES = (Q4_0, Q4_1, Q4_K), (Q4_1, Q4_K, Q5_K), (Q4_0, Q4_1, Q8_0)


def is_packed(weight: Tensor) -> bool:
    """Whether a weight is packed; a plain one holds floating-point numbers."""
    return weight.dtype == torch.uint8


def packed_shape(weight: Tensor) -> tuple[int, int]:
    """Return (out, in) of a packed weight, the rows that fill the last block included."""
    return weight.shape[0] * BLOCK_ROWS, weight.shape[1] * GROUP


def filled_up(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape (out, in) that a weight of this shape has once it is packed."""
    return (-(-shape[0] // BLOCK_ROWS) * BLOCK_ROWS, *shape[1:])


def pack(numbers_NK: Tensor, scales_NG: Tensor, minima_NG: Tensor | None = None, *, bits: int) -> Tensor:
    """Pack a weight.

    Args:
        numbers_NK: integers, 0 to 15 with 4 bits, -128 to 127 with 8; K is a multiple of 32.
        scales_NG: float16 or float32, one for each 32 inputs of a row; with 8 bits in float32 and without minima, one
            for each 16.
        minima_NG: of the same dtype, one for each 32; None with 4 bits means that 0 to 15 stand for -8 to 7.
        bits: 4 or 8.
    """
    N, K = numbers_NK.shape
    assert K % GROUP == 0, f"rows of {K} inputs; packed are multiples of {GROUP}"
    missing = -N % BLOCK_ROWS
    numbers, scales, minima = (
        t if t is None or not missing else torch.cat((t, t.new_zeros(missing, t.shape[1])))
        for t in (numbers_NK, scales_NG, minima_NG)
    )
    assert numbers is not None and scales is not None
    blocks = numbers.unflatten(0, (-1, BLOCK_ROWS)).unflatten(2, (K // GROUP, GROUP))  # (out / 16, 16, G, 32)
    if bits == 8:
        quants = blocks.to(torch.int8).permute(0, 2, 3, 1).contiguous().view(torch.uint8)
    else:
        eights = blocks.to(torch.uint8).unflatten(3, (-1, 4, 2)).permute(0, 2, 3, 1, 4, 5)
        quants = (eights[..., 0] | eights[..., 1] << 4).contiguous()
    is_halved = scales.shape[1] == 2 * (K // GROUP)
    factors = [scales[:, 0::2], scales[:, 1::2]] if is_halved else [scales]
    factors += [] if minima is None else [minima]
    parts = [quants.flatten(2), *map(_factor_bytes, factors)]
    if is_halved:
        parts.append(parts[0].new_zeros(*parts[0].shape[:2], Q6_K - Q5_K))
    packed = torch.cat(parts, dim=2).contiguous()
    wanted = {
        (4, torch.float16, False): Q4_0,
        (4, torch.float16, True): Q4_1,
        (8, torch.float16, False): Q8_0,
        (4, torch.float32, True): Q4_K,
        (8, torch.float32, True): Q5_K,
        (8, torch.float32, False): Q6_K,
    }
    assert packed.shape[2] == wanted.get((bits, scales.dtype, minima is not None)), "no format has these parts"
    return packed


def unpack(weight: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the numbers that a packed weight stands for, (out, in), computed in float32."""
    num_blocks, num_groups, kind = weight.shape
    size = _NIBBLES if kind in _HAS_NIBBLES else _BYTES
    quants, rest = weight[..., :size].contiguous(), weight[..., size : Q5_K if kind == Q6_K else kind].contiguous()
    factors = rest.view(torch.float16 if kind in _HAS_HALVES else torch.float32).float()
    factors = factors.unflatten(2, (-1, BLOCK_ROWS)).permute(2, 0, 3, 1)[..., None]  # (factor, out / 16, 16, G, 1)
    if kind in _HAS_NIBBLES:
        pairs = quants.view(num_blocks, num_groups, GROUP // 8, BLOCK_ROWS, 4)
        eights = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(4)  # input j of 8 lies in bits 4j to 4j + 3
        numbers = eights.permute(0, 3, 1, 2, 4).flatten(3).float()
    else:
        numbers = quants.view(torch.int8).view(num_blocks, num_groups, GROUP, BLOCK_ROWS).permute(0, 3, 1, 2).float()
    if kind == Q4_0:
        numbers = numbers - 8.0
    if kind == Q6_K:
        values = torch.cat((numbers[..., :16] * factors[0], numbers[..., 16:] * factors[1]), dim=-1)
    else:
        values = numbers * factors[0]
    if kind in _HAS_MINIMUM:
        values = values + factors[1]
    return values.reshape(num_blocks * BLOCK_ROWS, num_groups * GROUP).to(dtype)


def packed_rows(weight: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows of a packed weight, (…, in): what an embedding looks up."""
    blocks = weight[ids.flatten() // BLOCK_ROWS]
    rows = unpack(blocks, dtype).unflatten(0, (-1, BLOCK_ROWS))
    return rows[torch.arange(len(rows), device=ids.device), ids.flatten() % BLOCK_ROWS].view(*ids.shape, -1)


def packed_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x · weightᵀ for a packed weight; x (…, in).

    On the CPU a kernel multiplies in float32, row by row in one fixed order, so that a row's result does not depend on
    what is multiplied beside it. float64, other devices and machines without a compiler take the plain definition.
    """
    if x.device.type != "cpu" or x.dtype == torch.float64 or not load_kernels():
        return plain_packed_linear(x, weight)
    rows = x.reshape(-1, x.shape[-1]).float().contiguous()
    return torch.ops.litspec.packed_linear(rows, weight, "").view(*x.shape[:-1], packed_shape(weight)[0]).to(x.dtype)


def plain_packed_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Do what `packed_linear` does by its definition, in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) @ unpack(weight, wide).T).to(x.dtype)


def _factor_bytes(factors_NG: Tensor) -> Tensor:
    """Return scales or minima as the bytes of each block, (out / 16, G, bytes)."""
    return factors_NG.unflatten(0, (-1, BLOCK_ROWS)).transpose(1, 2).contiguous().view(torch.uint8)
