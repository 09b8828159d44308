"""The house itself: what travels in the wheel, what the Makefile does twice, what may not be written down."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import litspec

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 320  # "about 300"


def tracked_files() -> list[Path]:
    """Return what a commit holds; outside a git checkout, what lies in the known folders."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [file for name in listed.stdout.split("\0") if name and (file := ROOT / name).is_file()]
    folders = ("litspec", "config_hub", "tests", "docs", ".ci", ".github")
    files = [*ROOT.glob("*"), *(file for folder in folders for file in (ROOT / folder).rglob("*"))]
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and unpack it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_wheel_holds_what_the_package_needs(wheel):
    inside = {file.relative_to(wheel).as_posix() for file in wheel.rglob("*") if file.is_file()}
    kernels = {file.name for file in (ROOT / "litspec/ops/kernels").iterdir() if file.suffix in (".cpp", ".h")}
    assert len(kernels) > 5 and {f"litspec/ops/kernels/{name}" for name in kernels} <= inside
    configs = {
        f"litspec/config_hub/{file.relative_to(ROOT / 'config_hub')}" for file in ROOT.glob("config_hub/**/*.yaml")
    }
    assert configs
    assert (
        configs | {"litspec/py.typed", "litspec/bench/prompts.jsonl", "litspec/bench/load.yaml", "litspec/cli.py"}
        <= inside
    )
    assert not [name for name in inside if name.startswith(("tests/", "config_hub/"))]
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_config_names_are_found_in_the_wheel(wheel, tmp_path):
    code = "from litspec.api.config_sources import find_config; print(find_config('serve/smollm2-135m'))"
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == wheel / "litspec/config_hub/serve/smollm2-135m.yaml"


def test_importing_the_package_needs_no_torch():
    code = "import sys, litspec, litspec.cli, litspec.api.config_sources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_public_names():
    assert {"LLM", "SamplingParams", "Completion", "__version__"} <= set(litspec.__all__)
    for name in litspec.__all__:
        assert getattr(litspec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = litspec.LMM


def test_changelog_knows_the_version():
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert litspec.__version__ in headings


def test_source_files_fit_in_a_head():
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in (ROOT / "litspec").rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_there_is_no_drawer_for_odds_and_ends():
    assert not [
        file for file in (ROOT / "litspec").rglob("*.py") if file.stem in {"utils", "helpers", "common", "misc"}
    ]


# Spelt in two parts, so that this file does not find itself.
FORBIDDEN = {
    "a machine's path": r"(?<![\w.~}])/" + r"(?:work|root|home|opt|tmp)/\w",
    "a folder beside the checkout": r"\bshared/" + r"\w",
    "a document that does not travel": r"\b(?:DESIGN|STYLE|API)" + r"\.md\b",
    "a package index": r"index-url[= ]" + r"\S*://",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_names_where_it_was_made(what):
    found = []
    for file in tracked_files():
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if re.search(FORBIDDEN[what], line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_workflow_and_hooks_are_yaml():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["steps"][-1]["run"] == "bash .ci/run"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert hooks["repos"]


def test_ci_script_can_be_run():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
class TestMakefile:
    """What make would run, in a copy where nothing is installed."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / "pyproject.toml", (1_000, 1_000))
        return tmp_path

    def plan(self, folder: Path, *arguments: str) -> str:
        # A make that runs the tests hands its own flags down.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "--dry-run", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def stamp(self, folder: Path, *names: str) -> None:
        (folder / ".venv").mkdir(exist_ok=True)
        for name in names:
            (folder / ".venv" / name).touch()

    @pytest.mark.parametrize("target", ["serve", "bench"])
    def test_first_call_installs_and_takes_the_model(self, folder, target):
        steps = self.plan(folder, target, "PYTHON=python3.99")
        order = [
            "python3.99 -m venv",
            "pip install -e .",
            "litspec download smollm2-135m-instruct",
            f"litspec {target}",
        ]
        assert sorted(order, key=steps.index) == order

    @pytest.mark.parametrize("target", ["serve", "bench", "test", "check"])
    def test_second_call_installs_nothing(self, folder, target):
        self.stamp(folder, ".created", ".installed", ".installed-test")
        steps = self.plan(folder, target)
        assert "pip install" not in steps
        assert "-m venv" not in steps

    def test_changed_dependencies_are_installed(self, folder):
        self.stamp(folder, ".created", ".installed", ".installed-test")
        (folder / "pyproject.toml").touch()
        os.utime(folder / "pyproject.toml", (4e9, 4e9))
        steps = self.plan(folder, "check")
        assert "pip install -e '.[test]'" in steps
        assert "-m venv" not in steps

    def test_model_is_taken_before_the_tests(self, folder):
        steps = self.plan(folder, "test")
        assert steps.index("litspec download") < steps.index("-m pytest")

    def test_without_a_target_it_lists_them(self, folder):
        assert "test" in subprocess.run(["make"], cwd=folder, capture_output=True, text=True, check=True).stdout
