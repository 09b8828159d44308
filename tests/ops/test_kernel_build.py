"""Building the kernels: once, whatever is changed again, and with a clear word where it cannot be done."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from litspec.ops.kernels import build as module
from litspec.ops.kernels.build import KernelError, build, load_kernels


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LITSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "load_kernels", load_kernels.__wrapped__)
    return tmp_path / "kernels"


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """Put a stand-in for the compiler's work in its place, and note each library that is made."""
    made: list[str] = []

    def compile_nothing(compiler, sets, *, is_x86, library):
        made.append(str(library))
        library.write_bytes(b"")

    monkeypatch.setattr(module, "_compile", compile_nothing)
    return made


def test_what_was_built_is_used_again(folder, compiled, capsys):
    first, second = build(), build()
    assert first == second and compiled == [str(first)]
    assert capsys.readouterr().err.count("compiling the CPU kernels") == 1


def test_another_version_of_anything_is_another_library(folder, compiled, monkeypatch, tmp_path):
    libraries = {build()}
    monkeypatch.setattr("torch.__version__", "9.9")
    libraries.add(build())
    monkeypatch.setattr(module, "FLAGS", ("-O1",))
    libraries.add(build())
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.cpp").write_text("int a;")
    monkeypatch.setattr(module, "SOURCES", sources)
    libraries.add(build())
    (sources / "a.cpp").write_text("int b;")
    libraries.add(build())
    assert len(libraries) == len(compiled) == 5


def test_without_a_compiler_there_is_one_warning(folder, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("LITSPEC_KERNELS", "auto")
    with pytest.warns(UserWarning, match=r"several times slower without them: there is no C\+\+ compiler; install"):
        assert module.load_kernels() is False
    monkeypatch.setenv("LITSPEC_KERNELS", "required")
    with pytest.raises(KernelError, match="there is no C"):
        module.load_kernels()


def test_what_the_compiler_says_is_told(folder, monkeypatch, tmp_path):
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("packed_linear.cpp", "bindings.cpp"):
        (sources / name).write_text("this is no program")
    monkeypatch.setattr(module, "SOURCES", sources)
    with pytest.raises(KernelError, match="the compiler failed: "):
        build()
    assert not list(folder.rglob("*.so"))


def test_they_can_be_left_out_and_a_typo_is_told(folder, monkeypatch):
    monkeypatch.setenv("LITSPEC_KERNELS", "off")
    assert module.load_kernels() is False
    monkeypatch.setenv("LITSPEC_KERNELS", "on")
    with pytest.raises(KernelError, match="was 'on'; allowed: auto, required, off"):
        module.load_kernels()


def test_a_model_loads_without_them(tmp_path):
    script = (
        "import warnings; from litspec.ops.packed import *; import torch\n"
        "w = pack(torch.ones(16, 32, dtype=torch.int64), torch.ones(16, 1).half(), bits=8)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    assert packed_linear(torch.ones(2, 32), w).equal(torch.full((2, 16), 32.0))\n"
        "    assert packed_linear(torch.ones(2, 32), w).equal(torch.full((2, 16), 32.0))\n"
        "print(len(seen))\n"
    )
    environment = {**os.environ, "LITSPEC_CACHE": str(tmp_path), "LITSPEC_KERNELS": "auto", "CXX": "", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
