"""The types in which a GGUF file stores tensors, and how each is decoded to float32.

The layouts are ggml's, which its sources describe (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable
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


def _sixes(twelve_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eight scales and eight minima, six bits each, of a Q4_K's or Q5_K's 12 bytes; (N, 8) float32."""
    low, middle, high = (twelve_bytes[:, start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), axis=1)
    minima = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _decode_q4_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = _sixes(blocks[:, 4:16])
    pairs = blocks[:, 16:].reshape(-1, 4, 32)  # each 32 bytes hold one group in their low halves, the next in the high
    numbers = np.stack((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32).astype(np.float32)
    return _scaled(numbers, _scales(blocks[:, :2]) * scales, _scales(blocks[:, 2:4]) * minima)


def _decode_q5_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = _sixes(blocks[:, 4:16])
    fifths = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # bit g of byte i: group g, number i
    pairs = blocks[:, 48:].reshape(-1, 4, 32)
    numbers = np.stack((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32) | fifths << 4
    return _scaled(numbers.astype(np.float32), _scales(blocks[:, :2]) * scales, _scales(blocks[:, 2:4]) * minima)


def _decode_q6_k(blocks: np.ndarray) -> np.ndarray:
    lows, highs = blocks[:, :128].reshape(-1, 2, 1, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    # Of each half's 128 numbers the low fours lie in 64 bytes, twice; the high twos in 32 bytes, four times.
    fours = np.concatenate((lows & 15, lows >> 4), axis=2).reshape(-1, 2, 4, 32)
    twos = highs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    numbers = (fours | twos << 4).reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    scales = _scales(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (numbers * scales[:, :, None]).reshape(-1, 256)


def _scaled(numbers: np.ndarray, scales: np.ndarray, minima: np.ndarray) -> np.ndarray:
    return (numbers * scales[:, :, None] - minima[:, :, None]).reshape(len(numbers), -1)


# numpy, since torch's thread pool costs more than these many small steps when the processors are busy
TYPES = {
    0: Type("F32", 1, 4, lambda blocks: blocks.view(np.float32)),
    1: Type("F16", 1, 2, lambda blocks: blocks.view(np.float16)),
    2: Type("Q4_0", 32, 18, _decode_q4_0),
    3: Type("Q4_1", 32, 20, _decode_q4_1),
    8: Type("Q8_0", 32, 34, _decode_q8_0),
    12: Type("Q4_K", 256, 144, _decode_q4_k),
    13: Type("Q5_K", 256, 176, _decode_q5_k),
    14: Type("Q6_K", 256, 210, _decode_q6_k),
    30: Type("BF16", 1, 2, lambda blocks: blocks.view(np.int16)),  # numpy has no bfloat16: see gguf.py
}
PACKED = ("Q4_0", "Q4_1", "Q8_0")
"""What ops/packed.py has a form for."""
