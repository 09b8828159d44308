"""What a control group leaves, from folders that look like the kernel's."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from litspec.model import cgroup

MIB = 2**20


def group(folder: Path, *, limit: str | int, use: str | int = 0, stat: str = "", version: int = 2) -> None:
    """Write a group's files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, use), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(stat)


def free_in(root: Path, *lines: str) -> int | None:
    """Return what is left to a process of these groups."""
    membership = root.parent / "membership"
    membership.write_text("".join(f"{line}\n" for line in lines))
    return cgroup.free_bytes(root=root, membership=membership)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    return folder


def test_limit_less_use(root):
    group(root / "app", limit=512 * MIB, use=100 * MIB)
    assert free_in(root, "0::/app") == 412 * MIB


def test_pages_that_hold_files_are_free(root):
    stat = f"anon 7\nfile {90 * MIB}\nactive_file {30 * MIB}\ninactive_file {40 * MIB}\nshmem {20 * MIB}\n"
    group(root / "app", limit=512 * MIB, use=100 * MIB, stat=stat)
    assert free_in(root, "0::/app") == 482 * MIB
    group(root / "app", limit=512 * MIB, use=50 * MIB, stat=stat)
    assert free_in(root, "0::/app") == 512 * MIB, "never more than the limit"


def test_no_limit(root):
    group(root / "app", limit="max", use=100 * MIB)
    assert free_in(root, "0::/app") is None


def test_the_tightest_of_the_groups_above_counts(root):
    group(root / "a" / "b", limit=512 * MIB)
    group(root / "a", limit=256 * MIB, use=10 * MIB)
    group(root, limit=1024 * MIB)
    assert free_in(root, "0::/a/b") == 246 * MIB


def test_a_path_of_the_host_falls_back_to_the_root_of_the_mount(root):
    group(root, limit=64 * MIB, use=MIB)
    assert free_in(root, "0::/docker/1234") == 63 * MIB


def test_the_first_version(root):
    stat = f"inactive_file 1\ntotal_active_file {MIB}\ntotal_inactive_file {2 * MIB}\n"
    group(root / "memory" / "app", limit=512 * MIB, use=100 * MIB, stat=stat, version=1)
    assert free_in(root, "4:cpu,memory:/app", "1:pids:/other", "0::/") == 415 * MIB


def test_the_second_version_beside_the_first(root):
    group(root / "unified" / "app", limit=512 * MIB, use=100 * MIB)
    assert free_in(root, "0::/app") == 412 * MIB


def test_more_in_use_than_allowed_is_nothing_left(root):
    group(root, limit=MIB, use=5 * MIB)
    assert free_in(root, "0::/") == 0


@pytest.mark.parametrize("line", ["", "nonsense", "0:", "0::", "0::relative", "0::/../../etc", "4:memory", ":::"])
def test_lines_that_name_no_group(root, line):
    group(root, limit=MIB)
    assert free_in(root, line) is None


@pytest.mark.parametrize(("limit", "use"), [("", 0), ("many", 0), (MIB, "?"), ("1e6", 0)])
def test_files_that_hold_no_number(root, limit, use):
    group(root, limit=limit, use=use)
    assert free_in(root, "0::/") is None


@pytest.mark.parametrize("stat", ["inactive_file\n", "inactive_file many\n", "\n\n", "inactive_file 1 2\n"])
def test_a_stat_that_cannot_be_read_takes_nothing_off(root, stat):
    group(root, limit=10 * MIB, use=4 * MIB, stat=stat)
    assert free_in(root, "0::/") == 6 * MIB


def test_where_there_are_no_groups(tmp_path):
    assert cgroup.free_bytes(root=tmp_path / "none", membership=tmp_path / "none") is None
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert cgroup.free_bytes(root=tmp_path, membership=tmp_path / "bytes") is None


def test_this_machine_can_be_asked():
    left = cgroup.free_bytes()
    assert left is None or left >= 0
    assert psutil.virtual_memory().available > 0
