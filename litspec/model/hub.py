"""Models from the Hugging Face hub, through huggingface_hub, which resumes and verifies its own downloads.

It asks the hub about a model each time, and offers a half downloaded one when offline. So a note of the files that a
finished download brought is kept beside them: while all of these are there, the hub is not asked again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from litspec.model.embedded import SourceError

# What a checkpoint is loaded from; subfolders and `consolidated` files hold the same weights in other formats.
ALLOWED_FILES = ("*.safetensors", "*.json", "tokenizer.model", "*.jinja")
IGNORED_FILES = ("*/*", "consolidated*.safetensors")

# Takes a repository id and huggingface_hub.snapshot_download's keywords; returns the folder.
Snapshot = Callable[..., str]


def find_in_cache(name: str, hub_folder: Path) -> Path | None:
    """Return the folder of a model whose download finished and whose files are all still there."""
    try:
        note = json.loads(_note_path(name, hub_folder).read_text(encoding="utf-8"))
        folder = Path(note["folder"])
        if all((folder / file).stat().st_size == size for file, size in note["files"].items()):
            return folder
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # no note, or not one of ours: the hub is asked
    return None


def take_from_hub(name: str, hub_folder: Path, *, snapshot: Snapshot) -> Path:
    """Download what a checkpoint needs of the repository `name`; return its folder.

    Raises:
        SourceError: not found, gated, offline, no space, or nothing in it that can be loaded.
    """
    try:
        hub_folder.mkdir(parents=True, exist_ok=True)
        found = snapshot(
            name, cache_dir=hub_folder, allow_patterns=list(ALLOWED_FILES), ignore_patterns=list(IGNORED_FILES)
        )
        folder = Path(found)
        files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        if "config.json" not in files or not any(file.endswith(".safetensors") for file in files):
            raise SourceError(
                f"{name} on the Hugging Face hub has no config.json with *.safetensors, from which a model is loaded; "
                "give another repository, or the path of a .gguf file"
            )
        note = _note_path(name, hub_folder)
        partial = note.with_name(f"{note.name}.{os.getpid()}")
        partial.write_text(json.dumps({"folder": str(folder), "files": files}), encoding="utf-8")
        os.replace(partial, note)
        return folder
    except SourceError:
        raise
    except Exception as error:  # the library's, requests', httpx' and the system's: each has its own kinds
        raise _explain(name, error) from error


def snapshot_download(name: str, **options: Any) -> str:
    """Call huggingface_hub's function of this name, which takes a second to import."""
    import huggingface_hub

    return huggingface_hub.snapshot_download(name, **options)


def _note_path(name: str, hub_folder: Path) -> Path:
    return hub_folder / f"{name.replace('/', '--')}.json"


def _explain(name: str, error: Exception) -> SourceError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        reason = f"{name} is gated: accept its terms on huggingface.co/{name}, then set HF_TOKEN or run `hf auth login`"
    elif isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        reason = (
            f"{name} is no folder here, and not on the Hugging Face hub or private there; check the spelling, "
            "and for a private one set HF_TOKEN or run `hf auth login`"
        )
    elif isinstance(error, errors.HfHubHTTPError) and not isinstance(error, errors.LocalEntryNotFoundError):
        reason = f"the Hugging Face hub did not hand out {name} ({_first_line(error)}); try again later"
    elif isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        reason = (
            f"cannot write {name} into the cache ({error.strerror}); "
            "free some space there, or name another folder in LITSPEC_CACHE"
        )
    else:
        reason = (
            f"{name} is no folder here and not in the cache, and the Hugging Face hub was not reached "
            f"({_first_line(error)}); "
            "check the network and HF_HUB_OFFLINE, or give a local folder or .gguf file"
        )
    return SourceError(reason)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
