"""The types in which a GGUF file stores tensors, and how each is decoded to float32.

The layouts are ggml's, which its sources describe (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np


class Type(NamedTuple):
    """A storage type: blocks of `block_size` numbers in `block_bytes` bytes, and how (N, block_bytes) is decoded."""

    name: str
    block_size: int
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]


def _scales(two_bytes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)


def _nibbles(blocks: np.ndarray) -> np.ndarray:
    """Return the 32 numbers 0-15 of 16 bytes: all low halves first, then all high halves."""
    numbers = np.empty((len(blocks), 32), dtype=np.float32)
    numbers[:, :16] = blocks & np.uint8(0x0F)
    numbers[:, 16:] = blocks >> np.uint8(4)
    return numbers


def _decode_q8_0(blocks: np.ndarray) -> np.ndarray:
    numbers = blocks[:, 2:].view(np.int8).astype(np.float32)
    numbers *= _scales(blocks[:, :2])
    return numbers


def _decode_q4_0(blocks: np.ndarray) -> np.ndarray:
    numbers = _nibbles(blocks[:, 2:])
    numbers -= np.float32(8)
    numbers *= _scales(blocks[:, :2])
    return numbers


def _decode_q4_1(blocks: np.ndarray) -> np.ndarray:
    numbers = _nibbles(blocks[:, 4:])
    numbers *= _scales(blocks[:, :2])
    numbers += _scales(blocks[:, 2:4])
    return numbers


class Parts(NamedTuple):
    """What blocks of 256 are made of: integers, and the factors of each group of 32 (of 16 in Q6_K), float32."""

    numbers: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None


def _sixes(twelve_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eight scales and eight minima, six bits each, of a Q4_K's or Q5_K's 12 bytes; (N, 8) float32."""
    low, middle, high = (twelve_bytes[:, start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), axis=1)
    minima = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def parts_of(kind: str, blocks: np.ndarray) -> Parts:
    """Take blocks of a K type apart; numbers (N, groups, size) and factors (N, groups)."""
    if kind == "Q6_K":
        lows, highs = blocks[:, :128].reshape(-1, 2, 1, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
        # Of each half's 128 numbers the low fours lie in 64 bytes, twice; the high twos in 32 bytes, four times.
        fours = np.concatenate((lows & 15, lows >> 4), axis=2).reshape(-1, 2, 4, 32)
        twos = highs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
        numbers = (fours | twos << 4).reshape(-1, 16, 16).astype(np.int8) - np.int8(32)
        scales = _scales(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
        return Parts(numbers, scales, None)
    scales, minima = _sixes(blocks[:, 4:16])
    pairs = blocks[:, -128:].reshape(-1, 4, 32)  # each 32 bytes hold a group in their low halves, the next in the high
    numbers = np.stack((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32)
    if kind == "Q5_K":
        numbers |= (
            blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
        ) << 4  # bit g of byte i: group g
    return Parts(numbers, _scales(blocks[:, :2]) * scales, _scales(blocks[:, 2:4]) * -minima)


def _decode_parts(kind: str, blocks: np.ndarray) -> np.ndarray:
    numbers, scales, minima = parts_of(kind, blocks)
    values = numbers.astype(np.float32) * scales[:, :, None]
    values = values if minima is None else values + minima[:, :, None]
    return values.reshape(len(blocks), -1)


# numpy, since torch's thread pool costs more than these many small steps when the processors are busy
TYPES = {
    0: Type("F32", 1, 4, lambda blocks: blocks.view(np.float32)),
    1: Type("F16", 1, 2, lambda blocks: blocks.view(np.float16)),
    2: Type("Q4_0", 32, 18, _decode_q4_0),
    3: Type("Q4_1", 32, 20, _decode_q4_1),
    8: Type("Q8_0", 32, 34, _decode_q8_0),
    12: Type("Q4_K", 256, 144, partial(_decode_parts, "Q4_K")),
    13: Type("Q5_K", 256, 176, partial(_decode_parts, "Q5_K")),
    14: Type("Q6_K", 256, 210, partial(_decode_parts, "Q6_K")),
    30: Type("BF16", 1, 2, lambda blocks: blocks.view(np.int16)),  # numpy has no bfloat16: see gguf.py
}
