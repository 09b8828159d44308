"""Paths: what `~` means, and the folder in which litspec keeps what it has downloaded and built."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `$LITSPEC_CACHE`, or ~/.cache/litspec."""
    given = os.environ.get("LITSPEC_CACHE")
    return expanded(given).absolute() if given else Path.home() / ".cache" / "litspec"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` replaced.

    Raises:
        ValueError: it starts with `~name` of a user whom this machine does not have.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"path was {os.fspath(path)!r}: {error} Allowed: a path, `~` for one's own folder") from None
