"""Which processes are an attempt's, with real shims: also those that wiped their environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.runs import attempt_processes, shim
from gputui.runs.attempt_processes import AttemptProcess, owner_of, processes_of
from gputui.runs.identity import environment_of, marked_processes
from gputui.runs.orphans import find_marked
from gputui.runs.process_table import ProcessTable
from tests.conftest import wait_until
from tests.faults.jobs import SCRIPTS
from tests.runs.test_shim import Attempt, attempt  # noqa: F401 - a fixture

SET_TITLE = (SCRIPTS / "title.py").read_text()

# Says its PID when it is ready. With "seen" it sets its title when the shim has listed it.
RANK = f"""
{SET_TITLE}
import pathlib, sys, time
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "attempts/1"
def listed():
    try:
        return f'"pid": {{os.getpid()}},' in (folder / "processes.json").read_text()
    except OSError:
        return False
while "seen" in sys.argv and not listed():
    time.sleep(0.01)
set_title()
open(folder / f"{{os.environ['RANK']}}.pid", "w").write(str(os.getpid()))
time.sleep(60)
"""
LAUNCHER = f"""
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "attempts/1"
for rank in range(2):
    log = folder / "ranks/x/attempt_0" / str(rank) / "stdout.log"
    log.parent.mkdir(parents=True)
    subprocess.Popen(
        [sys.executable, "-c", {RANK!r}, *sys.argv[1:]],
        env={{**os.environ, "RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}},
        stdout=open(log if "log" in sys.argv else os.devnull, "w"),
    )
time.sleep(60)
"""


def begin(attempt: Attempt, *words: str, code: str = LAUNCHER) -> Path:  # noqa: F811
    """Start two ranks of the run job-1. Returns its folder."""
    run_dir = attempt.folder / "runs" / "job-1"
    folder = run_dir / "attempts" / "1"
    folder.mkdir(parents=True)
    attempt.folder = folder
    env = {"GPUTUI_RUN_ID": "job-1", "GPUTUI_RUN_DIR": str(run_dir), "GPUTUI_ATTEMPT": "1"}
    attempt.start("", argv=[sys.executable, "-c", code, *words], env=env, inherit=env)
    return run_dir


def pid_of(run_dir: Path, rank: int) -> int:
    path = run_dir / f"attempts/1/{rank}.pid"
    return int(wait_until(lambda: path.exists() and path.read_text(), what=f"rank {rank}"))


def by_pid(run_dir: Path) -> dict[int, AttemptProcess]:
    return {process.pid: process for process in processes_of(run_dir, 1)}


def test_ranks_that_set_their_title_after_they_were_seen_keep_their_numbers(attempt: Attempt) -> None:  # noqa: F811
    run_dir = begin(attempt, "seen")
    pids = [pid_of(run_dir, rank) for rank in range(2)]
    assert "RANK" not in (environment_of(pids[0]) or {})
    found = by_pid(run_dir)
    assert [(found[pid].rank, found[pid].local_world_size) for pid in pids] == [(0, 2), (1, 2)]
    assert found[attempt.started()["pid"]].rank is None


def test_ranks_that_set_their_title_at_once_are_known_by_their_logs(attempt: Attempt) -> None:  # noqa: F811
    run_dir = begin(attempt, "log")
    pids = [pid_of(run_dir, rank) for rank in range(2)]
    found = by_pid(run_dir)
    assert [found[pid].rank for pid in pids] == [0, 1]
    assert [owner_of(pid, run_dir.parent) for pid in pids] == [("job-1", 0), ("job-1", 1)]
    shown = ProcessTable(run_dir.parent).read([])
    assert [(shown[pid].run_id, shown[pid].rank) for pid in pids] == [("job-1", 0), ("job-1", 1)]


LIGHTNING = """
import os, subprocess, sys, time
if "LOCAL_RANK" not in os.environ:
    for rank in (1, 2):
        env = {**os.environ, "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
        subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=env)
    os.environ["LOCAL_RANK"] = "0"
time.sleep(60)
"""


def test_a_script_that_starts_the_other_ranks_itself_is_the_first(attempt: Attempt) -> None:  # noqa: F811
    """Lightning's own launcher: RANK is nowhere, and the first rank's environment was set from inside."""
    run_dir = begin(attempt, code=LIGHTNING)

    def ranks() -> list[AttemptProcess]:
        return [process for process in processes_of(run_dir, 1) if process.rank is not None]

    wait_until(lambda: {process.rank for process in ranks()} == {0, 1, 2}, 20, "the ranks")
    assert {process.local_world_size for process in ranks()} == {3}


def test_a_launcher_with_a_first_rank_below_it_is_none(attempt: Attempt) -> None:  # noqa: F811
    code = LIGHTNING.replace("(1, 2)", "(1, 0)")
    run_dir = begin(attempt, code=code)
    wait_until(
        lambda: sorted(p.rank for p in processes_of(run_dir, 1) if p.rank is not None) == [0, 1], 20, "the ranks"
    )
    assert by_pid(run_dir)[attempt.started()["pid"]].rank is None


def test_processes_without_environment_are_found_when_the_shim_is_gone(attempt: Attempt) -> None:  # noqa: F811
    run_dir = begin(attempt, "seen")
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


def test_an_agent_started_from_inside_a_run_is_not_of_it(attempt: Attempt) -> None:  # noqa: F811
    """Nor is what that agent starts, also after it wiped its environment."""
    inner = f"{SET_TITLE}\nimport time\nset_title()\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    agent = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {inner!r}])\ntime.sleep(60)"
    code = f"""
import os, subprocess, sys, time
env = {{name: value for name, value in os.environ.items() if not name.startswith("GPUTUI_")}}
process = subprocess.Popen([sys.executable, "-c", {agent!r}], env=env | {{"GPUTUI_AGENT": "1"}})
print(process.pid, flush=True)
time.sleep(60)
"""
    run_dir = begin(attempt, code=code)
    wait_until(lambda: len(attempt.output().split()) == 2, what="both")
    strangers = {int(word) for word in attempt.output().split()}
    family = {process.pid for process in processes_of(run_dir)}
    assert family == {attempt.started()["pid"], attempt.started()["shim_pid"]}
    listed = json.loads(wait_until(lambda: (attempt.folder / "processes.json").read_text(), what="the list"))
    assert not strangers & {entry["pid"] for entry in listed["processes"]} - {0}
    for pid in strangers:
        os.kill(pid, signal.SIGKILL)


def test_a_folder_that_a_program_has_set_is_no_other_run(attempt: Attempt) -> None:  # noqa: F811
    code = """
import os, subprocess, sys, time
own = {**os.environ, "GPUTUI_RUN_DIR": "/tmp/elsewhere"}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=own, start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
    run_dir = begin(attempt, code=code)
    child = int(wait_until(attempt.output, what="its PID"))
    assert child in by_pid(run_dir)
    assert owner_of(child, run_dir.parent) == ("job-1", None)
    attempt.signal(signal.SIGTERM)
    attempt.ended()
    assert child not in shim.all_pids()


def test_no_list_stays_behind(attempt: Attempt) -> None:  # noqa: F811
    attempt.start("import time; time.sleep(60)")
    wait_until((attempt.folder / "processes.json").exists, what="the list")
    attempt.signal(signal.SIGUSR2)
    attempt.ended()
    assert not (attempt.folder / "processes.json").exists()


def test_numbers_given_out_anew_are_looked_at_anew(attempt: Attempt) -> None:  # noqa: F811
    """After the kernel's counter has begun again, a number may name another process."""
    family = shim.Family(os.fsencode(attempt.folder), str(attempt.folder))
    family.own = os.getppid()
    family.look(0.0)
    assert os.getpid() in family.members
    family.members[os.getpid()].start_ticks -= 1
    family.newest = 1 << 40
    family.look(0.0)
    assert family.members[os.getpid()].start_ticks == (shim.stat_of(os.getpid()) or (0, "", 0))[2]


def test_a_tag_that_was_seen_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a shim, and after the process has wiped its environment."""
    monkeypatch.setattr(attempt_processes, "_YOUNG_SECONDS", -1.0)
    run_dir = tmp_path / "job-1"
    code = f"{SET_TITLE}\nimport sys\nprint(1, flush=True)\nsys.stdin.readline()\nset_title()\nprint(2, flush=True)\n"
    environment = {**os.environ, "GPUTUI_RUN_DIR": str(run_dir), "GPUTUI_ATTEMPT": "3", "RANK": "5"}
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}sys.stdin.readline()"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        scanner = attempt_processes.ProcessScanner()
        before = scanner.scan().processes_of(run_dir, 3)
        assert [(found.pid, found.rank) for found in before] == [(process.pid, 5)]
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert processes_of(run_dir, 3) == []
        assert scanner.scan().processes_of(run_dir, 3) == before
        assert scanner.scan().processes_of(run_dir, 2) == []
        process.kill()
    assert scanner.scan().processes_of(run_dir, 3) == []


@pytest.mark.parametrize("is_other", [True, False], ids=["another folder", "the same folder"])
def test_a_process_for_which_the_runs_path_is_another_folder_is_a_stranger(tmp_path: Path, is_other: bool) -> None:
    """As in two containers with one PID namespace, whose homes have one path."""
    run_dir, other = tmp_path / "job-1", tmp_path / "other"
    run_dir.mkdir()
    other.mkdir()
    enter = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    if subprocess.run([*enter, "mount", "--bind", other, run_dir], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mount namespaces")
    script = f"mount --bind {other if is_other else run_dir} {run_dir} && echo ready && exec sleep 1000"
    tag = {"GPUTUI_RUN_DIR": str(run_dir), "GPUTUI_ATTEMPT": "1"}
    process = subprocess.Popen([*enter, "sh", "-c", script], env={**os.environ, **tag}, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        ours = [] if is_other else [process.pid]
        assert [one.pid for one in processes_of(run_dir)] == ours
        assert [one.pid for one in marked_processes(run_dir)] == ours
    finally:
        process.kill()
        process.communicate()


def test_the_processes_of_a_home_that_was_moved_behind_a_link_stay_its_own(tmp_path: Path) -> None:
    """Their environment has the path from before. Another home's run of the same name is none of them."""
    old, new = tmp_path / "old", tmp_path / "large-disk" / "home"
    runs = old / "runs"
    for folder in (runs, tmp_path / "other" / "runs"):
        (folder / "job-1" / "attempts").mkdir(parents=True)
    new.parent.mkdir()
    tags = [
        {"GPUTUI_RUN_ID": "job-1", "GPUTUI_RUN_DIR": str(folder / "job-1"), "GPUTUI_ATTEMPT": "1", "RANK": "3"}
        for folder in (runs, tmp_path / "other" / "runs")
    ]
    processes = [subprocess.Popen(["sleep", "1000"], env={**os.environ, **tag}) for tag in tags]
    try:
        old.rename(new)
        old.symlink_to(new)
        pid, moved = processes[0].pid, new / "runs"
        wait_until(lambda: [one.pid for one in processes_of(moved / "job-1", 1)] == [pid], what="its process")
        assert [one.pid for one in marked_processes(moved / "job-1", 1)] == [pid]
        assert [one.identity.pid for one in find_marked(moved)] == [pid]
        assert owner_of(pid, moved) == ("job-1", 3)
        assert owner_of(processes[1].pid, moved) is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
