"""The shim with real processes: what it starts, how it stops it, and that nothing is ever left behind."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gputui.runs import shim, shim_processes
from gputui.runs.executors.base import LocalExecutor
from gputui.runs.executors.process import find
from gputui.runs.identity import identify, is_alive
from gputui.runs.processes import processes_of
from gputui.runs.shim import SHIM_FILES
from tests.conftest import wait_until
from tests.tables import table

STOPPED_WHILE_IT_WAITS = """
import os, signal, time
from gputui.runs.shim_signals import STOP_SIGNALS, awaited_signal
signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
waiting = os.getpid()
if os.fork() == 0:
    for _ in range(3):
        time.sleep(0.1)
        os.kill(waiting, signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(waiting, signal.SIGCONT)
    os.kill(waiting, signal.SIGTERM)
    os._exit(0)
signals = []
while not any(signals):
    signals.append(awaited_signal(STOP_SIGNALS, 0.3))
print(set(signals) == {None, signal.SIGTERM})
"""

SAVES_WHEN_ASKED = """
import os, signal, sys, threading
asked = threading.Event()
def note(*_):
    print("asked", flush=True)
    asked.set()
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
while not asked.wait(0.05):
    pass
while not os.path.exists("let"):
    pass
print("saved", flush=True)
"""

BEGUN_IN_THE_END = """
import os
os.set_inheritable(os.open("alive", os.O_WRONLY), True)
if os.fork() == 0:
    os.setsid()
    for _ in range(200):
        if os.fork():
            os._exit(0)
    os.execve("/bin/sleep", ["sleep", "60"], {})
"""

RANKS = """
import os, signal, subprocess, sys, time
if "LOCAL_RANK" not in os.environ:
    others = []
    for rank in (1, 2):
        env = {**os.environ, "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
        others.append(subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=env))
    while not os.path.exists("SEEN"):
        time.sleep(0.02)
    others[0].poll()
    sys.exit(1)
time.sleep(60)
"""


class Attempt:
    """An attempt folder and the shim that works on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        code: str,
        *,
        grace_seconds: float = 5.0,
        argv: list[str] | None = None,
        inherit: Mapping[str, str] | None = None,
        program: str = shim.__file__,
        **plan: Any,
    ) -> None:
        record = {
            "argv": argv or [sys.executable, "-c", code],
            "env": {"GPUTUI_RUN_DIR": str(self.folder), "GPUTUI_ATTEMPT": "1"},
            "cwd": str(self.folder),
            "grace_seconds": grace_seconds,
            "lock_files": [],
            "run_id": "vit-1",
            "workspace": "the home /data/home",
            **plan,
        }
        (self.folder / "attempt.json").write_text(json.dumps(record))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", program, str(self.folder)],
            start_new_session=True,
            env={**os.environ, **(inherit or {})},
        )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def started(self) -> dict[str, Any]:
        path = self.folder / "started.json"
        wait_until(path.exists, what="the start")
        return dict(json.loads(path.read_text()))

    def ended(self) -> dict[str, Any]:
        assert self.process is not None
        self.process.wait(60)
        return dict(json.loads((self.folder / "exit.json").read_text()))

    def output(self) -> str:
        path = self.folder / "output.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    attempt = Attempt(tmp_path)
    yield attempt
    if attempt.process is not None and attempt.process.poll() is None:
        attempt.process.kill()
    for process in processes_of(tmp_path):
        os.kill(process.pid, signal.SIGKILL)


def left_over(attempt: Attempt) -> list[int]:
    return [process.pid for process in processes_of(attempt.folder)]


def agent_entry(folder: Path) -> dict[str, Any]:
    """An agent's command line: here one that writes its environment and ends."""
    code = f"import os, pathlib; pathlib.Path({str(folder / 'agent-ran')!r}).write_text(repr(dict(os.environ)))"
    return {
        "argv": [sys.executable, "-c", code],
        "unset": ["GPUTUI_RUN_DIR"],
        "lock": str(folder / "agent.lock"),
        "stopped": str(folder / "agent.stopped"),
        "log": str(folder / "agent.log"),
    }


def watched_by(pid: int) -> set[int]:
    """The processes whose ends a process waits for, by its pidfds."""
    pids = set()
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            pids |= {int(watched) for watched in re.findall(r"^Pid:\t(\d+)$", path.read_text(), re.MULTILINE)}
    return pids


# --- ends -------------------------------------------------------------------------------------------------------------


def test_an_exit_code_and_the_output_are_kept(attempt: Attempt) -> None:
    attempt.start("import sys; print('hello'); print('oops', file=sys.stderr); sys.exit(7)")
    ended = attempt.ended()
    assert (ended["code"], ended["signal"], ended["stop_requested"]) == (7, None, False)
    assert ended["ended_at"] >= ended["started_at"]
    assert 0.0 < ended["ran_seconds"] <= ended["ended_at"] - ended["started_at"]
    assert ended["max_rss_bytes"] > 1_000_000
    assert sorted(attempt.output().split()) == ["hello", "oops"]


def test_a_death_by_signal_is_told_apart(attempt: Attempt) -> None:
    attempt.start("import os; os.kill(os.getpid(), 9)")
    ended = attempt.ended()
    assert (ended["code"], ended["signal"]) == (None, signal.SIGKILL)


def test_a_command_that_cannot_start_is_said(attempt: Attempt) -> None:
    attempt.start("", argv=["/does/not/exist"])
    ended = attempt.ended()
    assert ended["code"] is None
    assert ended["ran_seconds"] is None
    assert "No such file" in ended["error"]
    assert "/does/not/exist" in ended["error"]


def test_the_record_names_living_processes(attempt: Attempt) -> None:
    attempt.start("import time; time.sleep(60)")
    started = attempt.started()
    identity = identify(started["pid"])
    assert identity is not None
    assert identity.start_ticks == started["start_ticks"]
    attempt.signal(signal.SIGUSR2)
    ended = attempt.ended()
    assert (ended["signal"], ended["forced"], ended["stop_requested"]) == (signal.SIGKILL, True, True)
    assert not is_alive(identity)


# --- stops ------------------------------------------------------------------------------------------------------------


def test_a_stop_lets_the_command_finish_its_work(attempt: Attempt) -> None:
    attempt.start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert (ended["code"], ended["stop_requested"], ended["forced"]) == (0, True, False)
    assert "saved" in attempt.output()


def test_a_process_that_is_stopped_while_it_waits_is_not_asked_to_end() -> None:
    command = [sys.executable, "-c", STOPPED_WHILE_IT_WAITS]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "True\n"


def test_a_command_that_ignores_a_stop_is_killed_after_its_grace(attempt: Attempt) -> None:
    attempt.start(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(60)",
        grace_seconds=0.5,
    )
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert (ended["signal"], ended["forced"]) == (signal.SIGKILL, True)
    assert left_over(attempt) == []


def test_workers_in_sessions_of_their_own_are_asked_and_then_gone(attempt: Attempt) -> None:
    """A worker that called setsid and whose parent is gone still belongs to the attempt, and gets a SIGTERM first."""
    worker = (
        "import os, signal, sys, time\n"
        "os.setsid()\n"
        "def leave(*_):\n    print('worker asked', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('worker ready', flush=True)\ntime.sleep(60)"
    )
    attempt.start(
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {worker!r}])\n"
        f"subprocess.Popen([sys.executable, '-c', {worker.replace('leave)', 'signal.SIG_IGN)')!r}])\n"
        "time.sleep(60)"
    )
    wait_until(lambda: attempt.output().count("worker ready") == 2)
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert ended["signal"] == signal.SIGTERM
    assert attempt.output().count("worker asked") == 1
    assert ended["survivors"] == []
    assert left_over(attempt) == []


def test_a_script_behind_a_command_that_a_stop_ends_at_once_has_the_rest_of_its_grace(attempt: Attempt) -> None:
    """The save lasts longer than what is left of a run is given without a stop."""
    script = attempt.folder / "train.py"
    script.write_text(SAVES_WHEN_ASKED)
    # A shim with a patched constant, so that its sweep is over while the script still waits.
    program = attempt.folder / "short_shim.py"
    program.write_text(
        f"import runpy, sys\nsys.argv[0] = {shim.__file__!r}\n"
        f"names = runpy.run_path({shim.__file__!r})\nnames['main'].__globals__['STRAY_GRACE_SECONDS'] = 0.0\n"
        "def note(self, pids, before=names['Shim'].ask):\n"
        "    before(self, pids)\n"
        "    if self.command.has_ended: (self.directory / 'swept').touch()\n"
        "names['Shim'].ask = note\nsys.exit(names['main']())"
    )
    attempt.start(
        "", argv=["bash", "-c", f"{sys.executable} train.py; echo over"], grace_seconds=30, program=str(program)
    )
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    wait_until((attempt.folder / "swept").exists, what="the sweep")
    wait_until(lambda: "asked" in attempt.output())
    (attempt.folder / "let").touch()
    ended = attempt.ended()
    assert attempt.output().split() == ["ready", "asked", "saved"]
    assert (ended["signal"], ended["stop_requested"], ended["forced"]) == (signal.SIGTERM, True, False)
    assert left_over(attempt) == []


def test_the_helpers_of_a_script_that_saves_are_not_asked_before_it(attempt: Attempt) -> None:
    """It cannot finish its step without its data loaders."""
    helper = "import sys, time; print('up', flush=True); time.sleep(60)"
    script = attempt.folder / "train.py"
    script.write_text(
        "import signal, subprocess, sys, time\n"
        f"helper = subprocess.Popen([sys.executable, '-c', {helper!r}], stdout=subprocess.PIPE)\n"
        "helper.stdout.readline()\n"
        "def save(*_):\n"
        "    try:\n        helper.wait(1)\n        print('lost', flush=True)\n"
        "    except subprocess.TimeoutExpired:\n        print('saved', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    attempt.start("", argv=["bash", "-c", f"{sys.executable} train.py; echo over"], grace_seconds=20)
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert attempt.output().split() == ["ready", "saved"]
    assert (ended["forced"], left_over(attempt)) == (False, [])


# --- what stays behind ------------------------------------------------------------------------------------------------


def test_what_a_finished_command_left_behind_is_swept(attempt: Attempt) -> None:
    attempt.start("import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])")
    ended = attempt.ended()
    assert (ended["code"], len(ended["left_behind"])) == (0, 1)
    assert left_over(attempt) == []


def test_a_process_begun_while_the_others_are_ended_is_ended_too(attempt: Attempt) -> None:
    """No look at the list of processes sees one whose parents end meanwhile; its environment is empty."""
    alive = attempt.folder / "alive"
    os.mkfifo(alive)
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    try:
        attempt.start(BEGUN_IN_THE_END)
        assert attempt.ended()["survivors"] == []
        # The pipe has ended: no process holds its other end.
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


# --- locks ------------------------------------------------------------------------------------------------------------


def test_locks_are_all_or_none(attempt: Attempt, tmp_path: Path) -> None:
    free = tmp_path / "a.lock"
    locked = tmp_path / "b.lock"
    with locked.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        attempt.start("print('never')", lock_files=[str(free), str(locked)])
        ended = attempt.ended()
    assert ended["lease_conflict"] == [str(locked)]
    assert attempt.output() == ""
    with free.open("w") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("joins", [True, False])
def test_a_lock_is_held_while_the_attempt_lives_and_shared_with_those_that_share(
    attempt: Attempt, tmp_path: Path, joins: bool
) -> None:
    plan: dict[str, Any] = {"lock_files": [str(tmp_path / "gpu.lock")]}
    attempt.start("import time; time.sleep(60)", **plan, gpu_share=0.5)
    attempt.started()
    assert json.loads((tmp_path / "gpu.lock").read_text())["workspace"] == "the home /data/home"
    (tmp_path / "other").mkdir()
    second = Attempt(tmp_path / "other")
    gpu_share = 0.5 if joins else 1.0
    second.start("print('ran')", **plan, gpu_share=gpu_share)
    ended = second.ended()
    expected = (True, 0) if joins else (False, None)
    assert (ended["lease_conflict"] is None, ended["code"]) == expected
    attempt.signal(signal.SIGUSR2)
    attempt.ended()
    with (tmp_path / "gpu.lock").open("r+") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- the shim itself --------------------------------------------------------------------------------------------------


def test_a_second_shim_leaves_the_attempt_alone(attempt: Attempt) -> None:
    attempt.start("import time; time.sleep(60)")
    first = attempt.started()
    second = subprocess.run([sys.executable, "-I", "-S", shim.__file__, str(attempt.folder)], timeout=60, check=False)
    assert second.returncode == 0
    assert json.loads((attempt.folder / "started.json").read_text()) == first
    assert not (attempt.folder / "exit.json").exists()
    attempt.signal(signal.SIGUSR2)
    attempt.ended()


def test_the_shim_needs_the_standard_library_only() -> None:
    """It must start in an environment without the packages that gputui needs, and load nothing of gputui later."""
    code = f"import runpy, sys; runpy.run_path({shim.__file__!r}, run_name='shim'); print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    loaded = printed.split()
    own_modules = {name for name in loaded if name.partition(".")[0] == "gputui"}
    own_files = {f"gputui.runs.{path.stem}" for path in SHIM_FILES} - {"gputui.runs.shim"}
    assert own_modules == {"gputui", "gputui.version", "gputui.runs", *own_files}
    assert {name.partition(".")[0] for name in loaded} - {"gputui", "__main__"} <= sys.stdlib_module_names


@table("groups, counters, expected", [
    ("0::/user.slice/a b.scope\n", {"user.slice/a b.scope/memory.events": "oom 4\noom_kill 3\n"}, 3),
    ("4:memory:/job\n0::/\n", {"memory.events": "oom_kill 5\n"}, 5), ("4:memory:/job\n", {}, None),
    ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.oom_control": "oom_kill_disable 0\noom_kill 3\n"}, 3),
    ("0::/gone\n", {}, None),
    ("0::/x\n", {"x/memory.events": "oom_kill many\n"}, None),
])  # fmt: skip
def test_oom_kills_of_the_control_group_are_counted(
    tmp_path: Path, groups: str, counters: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(groups)
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 9\n")
    for name, text in counters.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert shim_processes.oom_kills(tmp_path, tmp_path / "groups") == {"cgroup": expected, "host": 9}


def test_the_end_of_a_run_starts_an_agent_where_none_lives(attempt: Attempt) -> None:
    dead = {"pid": 2**22 - 1, "start_ticks": 1, "boot_id": "x"}
    (attempt.folder / "agent.lock").write_text(json.dumps(dead))
    attempt.start("import sys; sys.exit(1)", agent=agent_entry(attempt.folder))
    attempt.ended()
    environment = wait_until(
        lambda: path.read_text() if (path := attempt.folder / "agent-ran").exists() else None, what="the agent"
    )
    assert "PATH" in environment
    assert "GPUTUI_RUN_DIR" not in environment


def test_no_agent_is_started_where_one_was_stopped_on_purpose(attempt: Attempt) -> None:
    (attempt.folder / "agent.stopped").touch()
    attempt.start("import time; time.sleep(60)", agent=agent_entry(attempt.folder))
    attempt.started()
    os.kill(attempt.started()["pid"], signal.SIGKILL)
    attempt.ended()
    assert not (attempt.folder / "agent.log").exists()


def test_a_rank_that_a_signal_ended_is_named_whoever_asked_for_its_status(attempt: Attempt) -> None:
    """Its parent is a script that starts its ranks itself, and tells nobody."""
    seen_file = attempt.folder / "seen"
    attempt.start(RANKS.replace("SEEN", str(seen_file)))
    listed = attempt.folder / "processes.json"

    def ranks() -> dict[int, int]:
        entries = json.loads(listed.read_text())["processes"] if listed.exists() else []
        return {entry["rank"]: entry["pid"] for entry in entries if entry["rank"] is not None}

    wait_until(lambda: ranks().keys() == {0, 1, 2}, what="the ranks")
    victim = ranks()[1]
    assert victim in watched_by(attempt.started()["shim_pid"])
    os.kill(victim, signal.SIGKILL)
    # The parent does not ask for the status before the shim has read it.
    wait_until(lambda: victim not in watched_by(attempt.started()["shim_pid"]), what="the shim has seen the end")
    seen_file.touch()
    killed = attempt.ended()["killed_ranks"]
    assert killed[0] == {"rank": 1, "pid": victim, "signal": signal.SIGKILL}
    # Processes that the shim itself ended are not among them.
    assert all(rank["rank"] != 2 for rank in killed)


@pytest.mark.parametrize("has_record", [True, False])
def test_a_shim_whose_starter_left_no_note_of_it_is_found(attempt: Attempt, has_record: bool) -> None:
    """By the record of its start; before that, by its tag and the attempt's folder."""
    run_dir = attempt.folder / "job-1"
    attempt.folder = run_dir / "attempts" / "1"
    attempt.folder.mkdir(parents=True)
    env = {"GPUTUI_RUN_ID": "job-1", "GPUTUI_RUN_DIR": str(run_dir), "GPUTUI_ATTEMPT": "1"}
    attempt.start("import time; time.sleep(60)", env=env, inherit=env)
    attempt.started()
    assert attempt.process is not None
    if not has_record:
        (attempt.folder / "started.json").unlink()
    assert find(LocalExecutor(), run_dir, 1) == identify(attempt.process.pid)
    assert find(LocalExecutor(), run_dir, 2) is None
