"""GPU lock files with real locks: who sees whose, and that what lies in their place keeps nobody from a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks

UUIDS = ("GPU-a", "GPU-b")


@pytest.fixture
def locks(tmp_path: Path) -> GpuLocks:
    return GpuLocks(tmp_path / "locks")


def test_simulated_gpus_are_locked_in_their_own_home(workspace: Workspace) -> None:
    workspace.scenario.touch()
    assert GpuLocks.of(workspace).folder == workspace.state / "locks"
    workspace.scenario.unlink()
    assert GpuLocks.of(workspace).folder in (Path("/run/lock"), Path("/tmp"))


@pytest.mark.parametrize("group", [None, "a" * 16])
def test_a_gpu_is_held_by_one_and_all_or_none_are_taken(locks: GpuLocks, group: str | None) -> None:
    taken = locks.take(["GPU-b"], group)
    with pytest.raises(GpuHeldError, match="GPU-b is held by another home"):
        locks.take(UUIDS)
    with pytest.raises(GpuHeldError, match="GPU-b is held by another home"):
        locks.take(UUIDS, "b" * 16)
    assert locks.holder("GPU-a") is None
    assert f"(pid {os.getpid()})" in (locks.holder("GPU-b") or "")
    taken.close()
    assert locks.holder("GPU-b") is None
    taken = locks.take(UUIDS)
    assert taken.problems == () and len(taken.paths) == 2
    assert {Path(path).stat().st_mode & 0o777 for path in taken.paths} == {0o600}
    taken.close()
    # Where everybody may make files, everybody must be able to lock this one.
    locks.folder.chmod(0o1777)
    assert [Path(path).stat().st_mode & 0o777 for path in locks.take(["GPU-c"], group).paths] == [0o644]


def test_what_is_no_lock_file_keeps_nobody_from_a_gpu(locks: GpuLocks) -> None:
    locks.folder.mkdir()
    locks.path("GPU-a").symlink_to("elsewhere")
    os.mkfifo(locks.path("GPU-b"))
    taken = locks.take(UUIDS)
    assert taken.descriptors == () and len(taken.problems) == 2
    assert all(locks.holder(uuid) is None for uuid in UUIDS)


# Takes and lets go again and again; says so if anybody else of another group had it at that time.
_CONTENDER = """
import pathlib, sys, time
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks
folder, group, inside, rounds = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), 150
locks = GpuLocks(folder)
taken = 0
for number in range(rounds):
    try:
        held = locks.take(["GPU-a"], None if group == "alone" else group)
    except GpuHeldError:
        continue
    taken += 1
    own_mark = inside / f"{group}.{id(held)}.{number}.{__import__('os').getpid()}"
    own_mark.touch()
    others = [entry.name for entry in inside.iterdir() if not entry.name.startswith(group + ".")]
    if group == "alone":
        others += [entry.name for entry in inside.iterdir() if entry != own_mark]
    if others:
        raise SystemExit(f"{own_mark.name} beside {others}")
    own_mark.unlink()
    held.close()
print(taken)
"""


def test_however_they_meet_two_groups_never_hold_one_gpu(locks: GpuLocks, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    who = ["a" * 16, "a" * 16, "b" * 16, "c" * 16, "alone"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CONTENDER, str(locks.folder), group, str(inside)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for group in who
    ]
    ends = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(who), ends
    assert sum(int(out) for out, _ in ends) > 0
