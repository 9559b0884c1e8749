"""GPU lock files with real locks: who sees whose, and that what lies in their place keeps nobody from a GPU."""

from __future__ import annotations

import fcntl
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


def test_the_place_of_a_user_does_not_depend_on_a_login(workspace: Workspace, tmp_path: Path) -> None:
    always = Path(f"/tmp/gputui-{os.getuid()}/leases")
    assert GpuLocks.of(workspace, {}).own == (always,)
    runtime = tmp_path / "runtime"
    assert GpuLocks.of(workspace, {"XDG_RUNTIME_DIR": str(runtime)}).own == (always, runtime / "gputui/leases")
    os.chown(runtime, 12345, 12345)
    assert GpuLocks.of(workspace, {"XDG_RUNTIME_DIR": str(runtime)}).own == (always,), "left over by sudo"
    assert GpuLocks.of(workspace, {}).shared in (Path("/run/lock"), Path("/tmp"))


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


def test_looking_makes_no_file_and_takes_nothing(mine: GpuLocks, shared: Path) -> None:
    assert mine.holder("GPU-a") is None and list(shared.iterdir()) == []


def test_a_lock_of_an_older_gputui_counts(mine: GpuLocks) -> None:
    mine.own[0].mkdir(mode=0o700, parents=True)
    with (mine.own[0] / "GPU-a.lock").open("w") as older:
        fcntl.flock(older, fcntl.LOCK_EX)
        assert mine.holder("GPU-a") is not None
        with pytest.raises(GpuHeldError):
            mine.take(UUIDS)


@pytest.mark.parametrize("what", ["fifo", "link", "hard link", "folder", "unreadable"])
def test_what_somebody_put_in_the_place_of_a_lock_keeps_nobody_from_a_gpu(
    mine: GpuLocks, shared: Path, tmp_path: Path, what: str
) -> None:
    place, victim = shared / "gputui-GPU-a.lock", tmp_path / "victim"
    victim.write_text("dear to somebody")
    if what == "fifo":
        os.mkfifo(place)
    elif what == "link":
        place.symlink_to(victim)
    elif what == "hard link":
        place.hardlink_to(victim)
    elif what == "folder":
        place.mkdir()
    elif os.geteuid() != 0:
        place.touch(0o000)
    else:
        pytest.skip("root may read everything")
    with victim.open() as target:
        fcntl.flock(target, fcntl.LOCK_EX)
        assert mine.holder("GPU-a") is None
        with held(mine, "GPU-a") as taken:
            (problem,) = taken.problems
            assert str(place) in problem and "have it removed" in problem
            assert taken.paths == (str(mine.own[0] / "GPU-a.lock"),)
    assert victim.read_text() == "dear to somebody"


@contextmanager
def holder_process(locks: GpuLocks, group: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds GPU-a together with a group; its taker has ended, as an agent that was killed."""
    # The descriptors pass from a process that ends to one that stays, as from an agent to its shim.
    script = (
        "import os, pathlib, sys; from gputui.runs.gpu_locks import GpuLocks\n"
        "held = GpuLocks((pathlib.Path(sys.argv[1]),), pathlib.Path(sys.argv[2])).take(['GPU-a'], sys.argv[3])\n"
        "if os.fork(): os._exit(0)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", script, str(locks.own[0]), str(locks.shared), group]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert process.wait() == 0, "who took them is gone"
        yield process


def test_a_group_holds_a_gpu_together_and_keeps_everybody_else_away(mine: GpuLocks, other: GpuLocks) -> None:
    with holder_process(mine, "a" * 16) as first:
        assert mine.holder("GPU-a") is not None and other.holder("GPU-a") is not None
        for locks, group in ((mine, None), (mine, "b" * 16), (other, None), (other, "b" * 16)):
            with pytest.raises(GpuHeldError):
                locks.take(["GPU-a"], group)
        fellow = mine.take(["GPU-a"], "a" * 16)
        assert first.stdin is not None and first.stdout is not None
        first.stdin.close()
        assert first.stdout.read() == "", "the one that came first has ended"
    for locks, group in ((mine, None), (other, None), (other, "b" * 16)):
        with pytest.raises(GpuHeldError):
            locks.take(["GPU-a"], group)
    fellow.close()
    assert other.holder("GPU-a") is None
    with held(other, "GPU-a"), pytest.raises(GpuHeldError):
        mine.take(["GPU-a"], "a" * 16)


def test_marks_that_nobody_needs_are_removed(mine: GpuLocks, shared: Path) -> None:
    mine.take(["GPU-a"], "a" * 16).close()
    assert (shared / f"gputui-GPU-a.lock.{'a' * 16}").exists()
    with held(mine, "GPU-b"):
        assert mine.holder("GPU-a") is None
    assert [path.name for path in sorted(shared.iterdir())] == ["gputui-GPU-a.lock", "gputui-GPU-b.lock"]


def test_what_lies_in_the_place_of_a_mark_keeps_nobody_from_a_gpu(mine: GpuLocks, shared: Path) -> None:
    os.mkfifo(shared / f"gputui-GPU-a.lock.{'a' * 16}")
    taken = mine.take(["GPU-a"], "a" * 16)
    with pytest.raises(GpuHeldError):
        mine.take(["GPU-a"], "a" * 16)
    taken.close()


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


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
def test_a_folder_that_somebody_else_made_is_named_and_not_used(mine: GpuLocks, tmp_path: Path) -> None:
    mine.own[0].mkdir(parents=True)
    os.chown(tmp_path / "mine", 12345, 12345)
    trap = mine.own[0] / "GPU-a.lock"
    trap.touch()
    with trap.open() as lock, held(mine, "GPU-a") as taken:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert GpuLocks(mine.own, None).holder("GPU-a") is None
        (problem,) = taken.problems
        assert str(tmp_path / "mine") in problem and "belongs to uid 12345" in problem
    link = GpuLocks((tmp_path / "link" / "leases",), None)
    (tmp_path / "link").symlink_to(tmp_path)
    with held(link, "GPU-a") as taken:
        assert len(taken.problems) == 1 and taken.paths == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_sees_the_lock_and_who_holds_it(tmp_path: Path) -> None:
    # Where the other user may enter.
    shared = Path(f"/dev/shm/gputui-test-{os.getpid()}")
    shared.mkdir()
    shared.chmod(0o1777)
    locks = GpuLocks((tmp_path / "mine" / "leases",), shared)
    look = (
        "import encodings.ascii, os, sys, pathlib; from gputui.runs.gpu_locks import GpuLocks; os.setuid(65534);"
        "found = GpuLocks((), pathlib.Path(sys.argv[1])); print(found.holder('GPU-a'));"
        "print(found.take(['GPU-b']).problems)"
    )
    try:
        with held(locks, "GPU-a"):
            found = subprocess.run(
                [sys.executable, "-c", look, str(shared)], capture_output=True, text=True, check=True
            )
        assert found.stdout.splitlines() == [f"root (pid {os.getpid()})", "()"]
        with held(locks, *UUIDS) as taken:
            assert taken.problems == (), "a file of another user can be locked"
    finally:
        for path in shared.iterdir():
            path.unlink()
        shared.rmdir()
