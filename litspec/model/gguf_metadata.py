"""Reads the header of a GGUF file into plain Python values: its keys, and where each tensor lies.

gguf's own GGUFReader builds numpy views for each of the hundred thousand strings of a tokenizer, which takes seconds
each time a model starts; this takes a tenth of one. It knows nothing of what the keys mean or how tensors are stored
(`gguf.py` does). Layout: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
_TYPE = struct.Struct("<I")


_Result = TypeVar("_Result")


class GgufError(ValueError):
    """A GGUF file that cannot be read; the message names the file and what is wrong."""


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies: its shape (rows first), the number of its storage type, and its first byte in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def read_metadata(path: Path) -> dict[str, Any]:
    """Return every key of the header with its value: numbers, strings, bools and lists of them.

    Raises:
        GgufError: the file is missing, is no GGUF file, has an unknown version, or ends within its header.
    """
    return _read(path, _Header.read)


def read_header(path: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    """Return the keys as `read_metadata` does, and the file's tensors.

    Raises:
        GgufError: as `read_metadata`.
    """
    return _read(path, lambda header: (header.read(), header.tensors()))


def _read(path: Path, part: Callable[[_Header], _Result]) -> _Result:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return part(_Header(data, path))
    except OSError as error:
        raise GgufError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, GgufError):
            raise
        # mmap refuses an empty file, and a string that is not UTF-8 ends here too.
        raise GgufError(f"{path} is not a usable GGUF file ({error}); take it anew") from None
    except (struct.error, RecursionError):  # lists within lists without end are no header either
        raise GgufError(f"{path} ends within its header: it is cut short; take it anew") from None


class _Header:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._at = 0
        self._num_tensors = 0
        self._alignment = 32

    def read(self) -> dict[str, Any]:
        if self._data[:4] != _MAGIC:
            raise GgufError(f"{self._path} is not a GGUF file: it starts with {bytes(self._data[:4])!r}, not b'GGUF'")
        self._at = 4
        version = self._unpack(_TYPE)
        if version not in _VERSIONS:
            raise GgufError(f"{self._path} has GGUF version {version}; allowed: 2 and 3, little-endian")
        self._num_tensors = self._unpack(_LENGTH)
        num_keys = self._unpack(_LENGTH)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._unpack(_TYPE))
        self._alignment = metadata.get("general.alignment", self._alignment)
        return metadata

    def tensors(self) -> list[GgufTensor]:
        """Return the tensors; the keys must have been read."""
        if not isinstance(self._alignment, int) or self._alignment < 1:
            raise GgufError(f"{self._path} has general.alignment {self._alignment!r}; allowed: an integer from 1")
        found: dict[str, GgufTensor] = {}
        for _ in range(self._num_tensors):
            name = self._string()
            if name in found:
                raise GgufError(f"{self._path} has two tensors {name}; take it anew")
            dims = [self._unpack(_LENGTH) for _ in range(self._unpack(_TYPE))]
            found[name] = GgufTensor(name, tuple(reversed(dims)), self._unpack(_TYPE), self._unpack(_LENGTH))
        start = -(-self._at // self._alignment) * self._alignment
        return [GgufTensor(t.name, t.shape, t.kind, start + t.offset) for t in found.values()]

    def _unpack(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _string(self) -> str:
        start = self._at + 8
        end = start + self._unpack(_LENGTH)
        if end > len(self._data):
            raise struct.error
        self._at = end
        return self._data[start:end].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind, length = self._unpack(_TYPE), self._unpack(_LENGTH)
            if length > len(self._data):  # each item takes a byte at least
                raise struct.error
            if kind in (_STRING, _ARRAY):
                return [self._value(kind) for _ in range(length)]
            items = struct.Struct(f"<{length}{self._code(kind)}")
            values = list(items.unpack_from(self._data, self._at))
            self._at += items.size
            return values
        return self._unpack(struct.Struct("<" + self._code(kind)))

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise GgufError(f"{self._path} holds a value of unknown type {kind} in its header; take it anew")
        return _SCALARS[kind]
