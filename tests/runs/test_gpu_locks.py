"""Locks of GPUs across the homes of a machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.runs import shim_locks
from gputui.runs.gpu_locks import UNKNOWN_HOLDER, GpuHeldError, GpuLocks
from tests.texts import mentions

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
    held_locks = locks.take(["GPU-b"], shared=shared)
    with pytest.raises(GpuHeldError, match="GPU-b is held by another home"):
        locks.take(UUIDS)
    assert locks.holder("GPU-a") is None
    assert locks.holder("GPU-b") == UNKNOWN_HOLDER
    if shared:
        locks.take(["GPU-b"], shared=True).close()
    held_locks.close()
    assert locks.holder("GPU-b") is None
    held_locks = locks.take(UUIDS)
    assert held_locks.problems == ()
    assert len(held_locks.paths) == 2
    assert {Path(path).stat().st_mode & 0o777 for path in held_locks.paths} == {0o600}
    held_locks.close()
    # In a folder that everybody may write to, everybody must be able to lock the file.
    locks.folder.chmod(0o1777)
    assert [Path(path).stat().st_mode & 0o777 for path in locks.take(["GPU-c"], shared=shared).paths] == [0o666]


def test_a_lock_says_who_holds_it_while_that_process_lives(locks: GpuLocks) -> None:
    held_locks = locks.take(["GPU-a"])
    shim_locks.note_holder(held_locks.descriptors[0], "vit-1", "the home /data/home")
    assert mentions(locks.holder("GPU-a"), "vit-1 of the home /data/home", f"pid {os.getpid()}")
    with pytest.raises(GpuHeldError, match="GPU-a is held by vit-1 of the home"):
        locks.take(UUIDS)
    note = json.loads(locks.path("GPU-a").read_text())
    # Anybody can write there, and a process of another PID namespace is not seen here.
    for changes, text in (
        ({"uid": os.getuid() + 1, "user": "alice\x1b[2J"}, "vit-1 of alice"), ({"pid": 2**22 + 1}, UNKNOWN_HOLDER),
        ({"start_ticks": 1}, UNKNOWN_HOLDER), ({"run_id": None}, UNKNOWN_HOLDER),
    ):  # fmt: skip
        locks.path("GPU-a").write_text(json.dumps({**note, **changes}))
        holder = locks.holder("GPU-a")
        assert mentions(holder, text), changes
        assert "\x1b" not in (holder or ""), changes
    held_locks.close()
    assert locks.holder("GPU-a") is None


def test_what_is_no_lock_file_keeps_nobody_from_a_gpu(locks: GpuLocks) -> None:
    locks.folder.mkdir()
    locks.path("GPU-a").symlink_to("elsewhere")
    os.mkfifo(locks.path("GPU-b"))
    held_locks = locks.take(UUIDS)
    assert held_locks.descriptors == ()
    assert len(held_locks.problems) == 2
    assert not any(map(locks.holder, UUIDS))


def test_a_file_that_opens_and_cannot_be_locked_is_no_held_lock(
    locks: GpuLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    held_locks = locks.take(["GPU-a"])
    assert (held_locks.descriptors, held_locks.paths) == ((), ())
    [problem] = held_locks.problems
    assert mentions(problem, locks.path("GPU-a"), os.strerror(errno.ENOLCK))
