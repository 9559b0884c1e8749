"""Which processes are an attempt's, with real shims: also those that wiped their environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gputui.runs.attempt_processes import AttemptProcess, processes_of
from tests.conftest import wait_until
from tests.faults.jobs import SCRIPTS
from tests.runs.test_shim import Attempt, attempt  # noqa: F401 - a fixture

SET_TITLE = (SCRIPTS / "title.py").read_text()

# Sets its title when the shim has listed it, and says its PID then.
RANK = f"""
{SET_TITLE}
import pathlib, sys, time
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "attempts/1"
def listed():
    try:
        return f'"pid": {{os.getpid()}},' in (folder / "processes.json").read_text()
    except OSError:
        return False
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


def pid_of(run_dir: Path, rank: int) -> int:
    path = run_dir / f"attempts/1/{rank}.pid"
    return int(wait_until(lambda: path.exists() and path.read_text(), what=f"rank {rank}"))


def by_pid(run_dir: Path) -> dict[int, AttemptProcess]:
    return {process.pid: process for process in processes_of(run_dir, 1)}


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
    found = by_pid(run_dir)
    assert [(found[pid].rank, found[pid].local_world_size) for pid in pids] == [(0, 2), (1, 2)]
    assert processes_of(run_dir) == list(found.values()) and processes_of(run_dir, 2) == []
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
