"""GPU lock files with real locks: who sees whose, and that what lies in their place keeps nobody from a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputui.config import Workspace
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks, HeldLocks

UUIDS = ("GPU-a", "GPU-b")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as /run/lock."""
    folder = tmp_path / "lock"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def mine(tmp_path: Path, shared: Path) -> GpuLocks:
    return GpuLocks((tmp_path / "mine" / "leases",), shared)


@pytest.fixture
def other(tmp_path: Path, shared: Path) -> GpuLocks:
    return GpuLocks((tmp_path / "other" / "leases",), shared)


@contextmanager
def held(locks: GpuLocks, *uuids: str) -> Iterator[HeldLocks]:
    taken = locks.take(uuids)
    yield taken
    taken.close()


def test_simulated_gpus_are_locked_in_their_own_home(workspace: Workspace) -> None:
    workspace.scenario.touch()
    assert GpuLocks.of(workspace, {}) == GpuLocks((workspace.state / "locks",), None)


def test_a_gpu_is_held_by_one_home_and_all_or_none_are_taken(mine: GpuLocks, other: GpuLocks) -> None:
    with held(mine, "GPU-b"):
        with pytest.raises(GpuHeldError, match="GPU-b is held by another home"):
            other.take(UUIDS)
        assert other.holder("GPU-a") is None
        assert f"(pid {os.getpid()})" in (other.holder("GPU-b") or "")
    with held(other, *UUIDS) as taken:
        assert taken.problems == () and len(taken.paths) == 4
        assert {Path(path).stat().st_mode & 0o777 for path in taken.paths} == {0o600, 0o644}
        assert mine.own[0].stat().st_mode & 0o777 == mine.own[0].parent.stat().st_mode & 0o777 == 0o700


# Takes and lets go again and again; says so if anybody else of another group had it at that time.
_CONTENDER = """
import pathlib, sys, time
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks
own, shared, group, inside, rounds = *map(pathlib.Path, sys.argv[1:3]), sys.argv[3], pathlib.Path(sys.argv[4]), 150
locks = GpuLocks((own,), shared)
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


def test_however_they_meet_two_groups_never_hold_one_gpu(mine: GpuLocks, shared: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    who = [("mine", "a" * 16), ("mine", "a" * 16), ("other", "b" * 16), ("other", "c" * 16), ("mine", "alone")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CONTENDER, str(tmp_path / home / "leases"), str(shared), group, str(inside)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for home, group in who
    ]
    ends = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(who), ends
    assert sum(int(out) for out, _ in ends) > 0
