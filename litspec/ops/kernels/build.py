"""Compiles the C++ kernels once and loads them.

The library lies in the cache folder under a hash of the sources, the flags, the compiler and torch's version, so that
what is there can be used and another version never is. Each instruction set is compiled by itself, and the processor's
best is taken at run time. Without a compiler litspec serves with the plain definitions, after one warning; where
`$LITSPEC_KERNELS` is "required" that is an error, and "off" never looks for them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock

from litspec.paths import cache_dir

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-ffp-contract=off", "-w")
"""No -ffast-math: the order of additions is part of what a kernel promises."""
X86_FLAGS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
}
FOR_EACH_SET = ("packed_linear.cpp", "block.cpp")
WAYS = ("auto", "required", "off")


class KernelError(ValueError):
    """The kernels are required and cannot be had."""


@functools.cache
def load_kernels() -> bool:
    """Load the kernels, compiling them first if need be; return whether they are there.

    Raises:
        KernelError: they cannot be built and `$LITSPEC_KERNELS` is "required", or it is none of WAYS.
    """
    way = os.environ.get("LITSPEC_KERNELS") or "auto"
    if way not in WAYS:
        raise KernelError(f"$LITSPEC_KERNELS was {way!r}; allowed: {', '.join(WAYS)}")
    if way == "off":
        return False
    try:
        torch.ops.load_library(build())
    except (OSError, KernelError) as error:
        message = f"the CPU kernels cannot be built, and decoding is several times slower without them: {error}"
        if way == "required":
            raise KernelError(message) from None
        warnings.warn(message, stacklevel=2)
        return False
    return True


@functools.cache
def instruction_sets() -> list[str]:
    """Return the instruction sets that have kernels and that this processor has, the best first."""
    return list(torch.ops.litspec.instruction_sets()) if load_kernels() else []


def build() -> Path:
    """Return the library, compiling it unless it is in the cache folder.

    Raises:
        KernelError: there is no compiler, or it fails.
    """
    compiler = find_compiler()
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    sets = {**(X86_FLAGS if is_x86 else {}), "portable": ()}
    sources = sorted(file for file in SOURCES.iterdir() if file.suffix in (".cpp", ".h"))
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    described = "\n".join(
        [torch.__version__, sys.platform, version, repr((FLAGS, sets)), *map(Path.read_text, sources)]
    )
    folder = cache_dir() / "kernels" / hashlib.sha256(described.encode()).hexdigest()[:16]
    library = folder / "litspec_kernels.so"
    if library.is_file():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):  # several workers start at once
        if not library.is_file():
            print("litspec: compiling the CPU kernels, once; this takes about half a minute", file=sys.stderr)
            _compile(compiler, sets, is_x86=is_x86, library=library)
    return library


def find_compiler() -> str:
    """Return the C++ compiler: `$CXX`, or the first that is there of the usual names."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise KernelError("there is no C++ compiler; install g++, or set $CXX")


def _compile(compiler: str, sets: dict[str, tuple[str, ...]], *, is_x86: bool, library: Path) -> None:
    torch_folder = Path(torch.__file__).parent
    includes = [f"-I{torch_folder / 'include'}", f"-I{torch_folder / 'include/torch/csrc/api/include'}"]
    defined = ["-DLITSPEC_X86"] if is_x86 else []
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        commands = [
            [*FLAGS, *flags, f"-DLITSPEC_ISA={isa}", f"-DLITSPEC_ISA_{isa.upper()}", source]
            for isa, flags in sets.items()
            for source in FOR_EACH_SET
        ]
        commands += [[*FLAGS, "sample.cpp"], [*FLAGS, "-fopenmp", *defined, *includes, "bindings.cpp"]]
        objects = [Path(name, f"{number}.o") for number in range(len(commands))]
        running = [
            subprocess.Popen(
                [compiler, *command, "-c", "-o", str(target)], cwd=SOURCES, stderr=subprocess.PIPE, text=True
            )
            for command, target in zip(commands, objects, strict=True)
        ]
        _wait(running)
        linked = Path(name, library.name)
        link = [compiler, "-shared", "-o", str(linked), *map(str, objects)]
        link += [f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10", "-ltorch"]
        _wait([subprocess.Popen(link, stderr=subprocess.PIPE, text=True)])
        os.replace(linked, library)


def _wait(running: Sequence[subprocess.Popen[str]]) -> None:
    try:
        for process in running:
            _, errors = process.communicate()
            if process.returncode:
                lines = [line for line in errors.splitlines() if "error" in line] or errors.splitlines()
                raise KernelError(f"the compiler failed: {' '.join(lines[:2])}")
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
