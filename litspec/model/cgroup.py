"""The memory that a container may still take: its control group's limit less its use, by the kernel's own files.

A container sees the machine's memory and is killed when it passes its own limit, so the machine's figure alone promises
too much. Pages that only hold files count as free: the kernel gives them up first, and a checkpoint that was just read
is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


class _Names(NamedTuple):
    """How a version of control groups names its files, and in memory.stat the pages that hold files."""

    limit: str
    use: str
    files: tuple[str, ...]


_V2 = _Names("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def free_bytes(*, root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return the bytes that this process's control groups leave it, the tightest of them; None without a limit.

    Args:
        root: where control groups are mounted.
        membership: the file that names this process's groups.
    """
    return min(_left(root, membership), default=None)


def _left(root: Path, membership: Path) -> Iterator[int]:
    """Yield what each group leaves that has a limit: those of this process and all above them."""
    for names, mount, path in _groups(root, membership):
        # Inside a container a path may be the host's, of which only the mount's own root is there to be read.
        folder = mount.joinpath(*Path(path).parts[1:])
        while True:
            left = _left_in(folder, names)
            if left is not None:
                yield left
            if folder == mount:
                break
            folder = folder.parent


def _groups(root: Path, membership: Path) -> Iterator[tuple[_Names, Path, str]]:
    """Yield the names of files, the mount and the path of each hierarchy that may limit memory."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not (colon and path.startswith("/")) or ".." in path.split("/"):
            continue
        if not controllers:
            yield _V2, root, path
            yield _V2, root / "unified", path
        elif "memory" in controllers.split(","):
            yield _V1, root / "memory", path


def _left_in(folder: Path, names: _Names) -> int | None:
    """Return what one group leaves; None where it has no limit or cannot be read."""
    try:
        limit, use = (int((folder / name).read_text(encoding="utf-8")) for name in (names.limit, names.use))
    except (OSError, ValueError):  # v2 says "max" where there is no limit
        return None
    return max(0, limit - max(0, use - _file_bytes(folder, names)))


def _file_bytes(folder: Path, names: _Names) -> int:
    """Return the bytes of pages that only hold files; 0 where that is not said."""
    try:
        words = [line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines()]
        return sum(int(pair[1]) for pair in words if len(pair) == 2 and pair[0] in names.files)
    except (OSError, ValueError):
        return 0
