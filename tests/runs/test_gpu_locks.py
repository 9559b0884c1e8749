"""GPU lock files with real locks: who sees whose, and that what lies in their place keeps nobody from a GPU."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize("shared", [False, True])
def test_a_gpu_is_held_by_one_and_all_or_none_are_taken(locks: GpuLocks, shared: bool) -> None:
    taken = locks.take(["GPU-b"], shared=shared)
    with pytest.raises(GpuHeldError, match="GPU-b is held by another home"):
        locks.take(UUIDS)
    assert not locks.is_held("GPU-a") and locks.is_held("GPU-b")
    if shared:
        locks.take(["GPU-b"], shared=True).close()
    taken.close()
    assert not locks.is_held("GPU-b")
    taken = locks.take(UUIDS)
    assert taken.problems == () and len(taken.paths) == 2
    assert {Path(path).stat().st_mode & 0o777 for path in taken.paths} == {0o600}
    taken.close()
    # Where everybody may make files, everybody must be able to lock this one.
    locks.folder.chmod(0o1777)
    assert [Path(path).stat().st_mode & 0o777 for path in locks.take(["GPU-c"], shared=shared).paths] == [0o644]


def test_what_is_no_lock_file_keeps_nobody_from_a_gpu(locks: GpuLocks) -> None:
    locks.folder.mkdir()
    locks.path("GPU-a").symlink_to("elsewhere")
    os.mkfifo(locks.path("GPU-b"))
    taken = locks.take(UUIDS)
    assert taken.descriptors == () and len(taken.problems) == 2
    assert not any(map(locks.is_held, UUIDS))
