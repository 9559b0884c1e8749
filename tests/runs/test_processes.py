"""The processes of a run, with real shims: also those that wiped their environment; and signals to
them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.machine.procfs import read_stat
from gputui.runs import identity
from gputui.runs.identity import SignalRefusedError, send_checked_signal
from gputui.runs.processes import AttemptProcess, ProcessTable, processes_of
from tests.conftest import wait_until
from tests.faults.jobs import SCRIPTS
from tests.runs.test_shim import Attempt, attempt  # noqa: F401 - a fixture

SET_TITLE = (SCRIPTS / "title.py").read_text()

# Sets its title when the shim has listed it with its rank, and says its PID then. Between fork and exec it has the
# environment of the launcher, without a rank.
RANK = f"""
{SET_TITLE}
import json, pathlib, sys, time
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "attempts/1"
def listed():
    try:
        processes = json.loads((folder / "processes.json").read_text())["processes"]
    except OSError:
        return False
    return any(each["pid"] == os.getpid() and each["rank"] is not None for each in processes)
while not listed():
    time.sleep(0.01)
set_title()
open(folder / f"{{os.environ['RANK']}}.pid", "w").write(str(os.getpid()))
time.sleep(60)
"""
LAUNCHER = f"""
import os, pathlib, subprocess, sys, time
for rank in range(2):
    env = {{**os.environ, "RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}}
    subprocess.Popen([sys.executable, "-c", {RANK!r}], env=env)
time.sleep(60)
"""

BURNS = "import os, sys\nprint('ready', flush=True)\nwhile os.getppid() == int(sys.argv[1]): pass"
FORKS = "import os, signal\nchild = os.fork()\nif child == 0: signal.pause()\nprint(child, flush=True)\nsignal.pause()"


def pid_of(run_dir: Path, rank: int) -> int:
    path = run_dir / f"attempts/1/{rank}.pid"
    return int(wait_until(lambda: path.exists() and path.read_text(), what=f"rank {rank}"))


def by_pid(run_dir: Path) -> dict[int, AttemptProcess]:
    return {process.pid: process for process in processes_of(run_dir, 1)}


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def begin(code: str, **environment: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(os.getpid())],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], **environment},
        )
        begun.append(child)
        return child

    yield begin
    for child in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def ticks(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.start_ticks


def test_processes_without_environment_are_found_when_the_shim_is_gone(attempt: Attempt) -> None:  # noqa: F811
    run_dir = attempt.folder / "runs" / "job-1"
    folder = run_dir / "attempts" / "1"
    folder.mkdir(parents=True)
    attempt.folder = folder
    env = {"GPUTUI_RUN_ID": "job-1", "GPUTUI_RUN_DIR": str(run_dir), "GPUTUI_ATTEMPT": "1"}
    attempt.start(LAUNCHER, env=env, inherit=env)
    pids = [pid_of(run_dir, rank) for rank in range(2)]
    assert attempt.process is not None
    attempt.process.kill()
    attempt.process.wait()
    os.kill(attempt.started()["pid"], signal.SIGKILL)
    wait_until(lambda: len(by_pid(run_dir)) == 2, what="the end of the launcher")
    ranks = by_pid(run_dir)
    assert [(ranks[pid].rank, ranks[pid].local_world_size) for pid in pids] == [(0, 2), (1, 2)]
    assert processes_of(run_dir) == list(ranks.values())
    assert processes_of(run_dir, 2) == []
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_loader_workers_of_a_run_are_found_and_strangers_are_not(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    mark = {"GPUTUI_RUN_ID": "demo-1", "GPUTUI_RUN_DIR": f"{tmp_path}/demo-1", "RANK": "3"}
    rank = start(FORKS, **mark)
    worker = int(first_line(rank))
    stranger = start(FORKS, **mark | {"GPUTUI_RUN_DIR": "/elsewhere/demo-1"})
    first_line(stranger)
    table = ProcessTable(tmp_path)
    processes = table.read([])
    assert {rank.pid, worker} <= processes.keys()
    assert stranger.pid not in processes
    assert os.getpid() not in processes
    assert (processes[worker].run_id, processes[worker].rank, processes[worker].parent_pid) == ("demo-1", 3, rank.pid)
    assert processes[rank.pid].command is not None
    assert sys.executable in processes[rank.pid].command
    assert (processes[rank.pid].memory_bytes or 0) > 0
    assert processes[rank.pid].start_ticks == ticks(rank.pid)
    process = table.read([stranger.pid])[stranger.pid]
    assert process.run_id is None
    assert process.user is not None


def test_a_signal_reaches_the_very_process(start: Callable[..., subprocess.Popen[str]]) -> None:
    child = start(BURNS)
    first_line(child)
    began = ticks(child.pid)
    send_checked_signal(child.pid, began, signal.SIGSTOP)
    wait_until(lambda: (stat := read_stat(child.pid)) is not None and stat.state == "T")
    send_checked_signal(child.pid, began, signal.SIGCONT)
    wait_until(lambda: (stat := read_stat(child.pid)) is not None and stat.state != "T")
    send_checked_signal(child.pid, began, signal.SIGTERM)
    assert child.wait(60) == -signal.SIGTERM
    with pytest.raises(SignalRefusedError, match="has ended"):
        send_checked_signal(child.pid, began, signal.SIGTERM)


def test_no_signal_to_what_cannot_be_told_for_sure(
    start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(BURNS)
    first_line(child)
    began = ticks(child.pid)
    for pid, since, reason in (
        (child.pid, None, "in a container, or outside of ours"),
        (child.pid, began + 1, "is another process by now"),
        (os.getpid(), ticks(os.getpid()), "this screen"),
        (1, 0, "first process"),
        (4_194_305, 5, "has ended"),
    ):
        with pytest.raises(SignalRefusedError, match=reason):
            send_checked_signal(pid, since, signal.SIGKILL)
    monkeypatch.setattr(identity.os, "geteuid", lambda: 4_000_000)
    with pytest.raises(SignalRefusedError, match="another user's"):
        send_checked_signal(child.pid, began, signal.SIGKILL)
    monkeypatch.undo()
    assert child.poll() is None
    assert (stat := read_stat(child.pid)) is not None
    assert not stat.is_dead
