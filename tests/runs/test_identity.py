"""Processes of runs: identity, readings, the agent's, GPU locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gputui.core.config import Workspace
from gputui.machine.procfs import read_stat
from gputui.runs import agent_process, shim
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, exit_reason
from gputui.runs.executors.process import ExecutorProcess, find
from gputui.runs.gpu_locks import UNKNOWN_HOLDER, GpuHeldError, GpuLocks
from gputui.runs.identity import (
    asker,
    environment_of,
    identify,
    is_alive,
    is_gone,
    send_signal,
)
from gputui.runs.processes import processes_of
from tests.conftest import wait_until
from tests.texts import mentions


def test_this_process_is_alive_as_itself_only() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(own._replace(start_ticks=own.start_ticks + 1))
    assert not is_alive(own._replace(boot_id="another boot"))


def test_no_signal_reaches_a_process_that_took_over_a_number() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        identity = identify(child.pid)
        assert identity is not None
        assert not send_signal(identity._replace(start_ticks=identity.start_ticks - 1), signal.SIGKILL)
        assert not send_signal(identity._replace(boot_id="another boot"), signal.SIGKILL)
        assert child.poll() is None
        assert send_signal(identity, signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
        assert not send_signal(identity, signal.SIGKILL)


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    identity = identify(child.pid)
    wait_until(lambda: (stat := read_stat(child.pid)) is not None and stat.is_dead, what="the zombie")
    assert identify(child.pid) is None
    assert identity is None or not is_alive(identity)
    child.wait()


def test_marks_are_found_whole() -> None:
    name = f"/homes/a/state/runs/mark-{os.getpid()}"
    environment = {**os.environ, "GPUTUI_RUN_ID": "mark-1", "GPUTUI_RUN_DIR": name, "GPUTUI_ATTEMPT": "2"}
    code = "print(1, flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert [found.pid for found in processes_of(Path(name))] == [child.pid]
        assert [found.pid for found in processes_of(Path(name), 2)] == [child.pid]
        assert processes_of(Path(name), 1) == []
        assert processes_of(Path(name[:-1])) == []
        assert processes_of(Path(name.replace("homes/a", "homes/b"))) == []
        assert environment_of(child.pid)["GPUTUI_RUN_DIR"] == name
        child.kill()


def test_a_process_of_another_pid_namespace_is_judged_by_its_lock_alone(tmp_path: Path) -> None:
    own = identify(os.getpid())
    assert own is not None
    # Its number means another process here, such as this one.
    identity = own._replace(boot_id=f"{own.boot_id.partition('/')[0]}/1")
    started = {"shim_pid": identity.pid, "shim_start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
    folder = tmp_path / "attempts/1"
    folder.mkdir(parents=True)
    (folder / "started.json").write_text(json.dumps(started))
    executor = ExecutorProcess(identity, folder)
    with (folder / "attempt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert executor.is_alive and find(executor.kind, tmp_path, 1) == identity
    assert not executor.is_alive and find(executor.kind, tmp_path, 1) is None
    assert not send_signal(identity, signal.SIGCONT)
    assert not is_gone(identity._asdict())
    assert not is_gone(asker()) and is_gone({**asker(), "boot_id": "another boot/1"})


def test_a_full_disk_is_told_whatever_its_log_says(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.agent_log.write_text("INFO of yesterday\n")
    full = SimpleNamespace(free=agent_process.LEAST_FREE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert mentions(exit_reason(workspace), workspace.state, "full")


def test_an_interpreter_that_is_gone_is_named(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living screen whose Python was removed or upgraded asks for an agent."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(AgentUnreachableError, match="/nowhere/python"):
        ensure_agent(workspace)


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
    assert locks.holder("GPU-a") is None and locks.holder("GPU-b") == UNKNOWN_HOLDER
    if shared:
        locks.take(["GPU-b"], shared=True).close()
    taken.close()
    assert locks.holder("GPU-b") is None
    taken = locks.take(UUIDS)
    assert taken.problems == () and len(taken.paths) == 2
    assert {Path(path).stat().st_mode & 0o777 for path in taken.paths} == {0o600}
    taken.close()
    # Where everybody may make files, everybody must be able to lock this one.
    locks.folder.chmod(0o1777)
    assert [Path(path).stat().st_mode & 0o777 for path in locks.take(["GPU-c"], shared=shared).paths] == [0o666]


def test_a_lock_says_who_holds_it_while_that_process_lives(locks: GpuLocks) -> None:
    taken = locks.take(["GPU-a"])
    shim.note_holder(taken.descriptors[0], "vit-1", "the home /data/home")
    assert mentions(locks.holder("GPU-a"), "vit-1 of the home /data/home", f"pid {os.getpid()}")
    with pytest.raises(GpuHeldError, match="GPU-a is held by vit-1 of the home"):
        locks.take(UUIDS)
    note = json.loads(locks.path("GPU-a").read_text())
    # Anybody can write there, and a process of another PID namespace is not seen here.
    for changes, words in (
        ({"uid": os.getuid() + 1, "user": "alice\x1b[2J"}, "vit-1 of alice"), ({"pid": 2**22 + 1}, UNKNOWN_HOLDER),
        ({"start_ticks": 1}, UNKNOWN_HOLDER), ({"run_id": None}, UNKNOWN_HOLDER),
    ):  # fmt: skip
        locks.path("GPU-a").write_text(json.dumps({**note, **changes}))
        holder = locks.holder("GPU-a")
        assert mentions(holder, words) and "\x1b" not in (holder or ""), changes
    taken.close()
    assert locks.holder("GPU-a") is None


def test_what_is_no_lock_file_keeps_nobody_from_a_gpu(locks: GpuLocks) -> None:
    locks.folder.mkdir()
    locks.path("GPU-a").symlink_to("elsewhere")
    os.mkfifo(locks.path("GPU-b"))
    taken = locks.take(UUIDS)
    assert taken.descriptors == () and len(taken.problems) == 2
    assert not any(map(locks.holder, UUIDS))


def test_a_file_that_opens_and_cannot_be_locked_is_no_held_lock(
    locks: GpuLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    taken = locks.take(["GPU-a"])
    assert (taken.descriptors, taken.paths) == ((), ())
    [problem] = taken.problems
    assert mentions(problem, locks.path("GPU-a"), os.strerror(errno.ENOLCK))
