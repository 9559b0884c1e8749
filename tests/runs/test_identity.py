"""Identities of processes, and the signals and marks that go by them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from gputui.machine.procfs import read_stat
from gputui.runs.executors.process import ExecutorProcess, find
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


def test_this_process_is_alive_as_itself_only() -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert is_alive(identity)
    assert not is_alive(identity._replace(start_ticks=identity.start_ticks + 1))
    assert not is_alive(identity._replace(boot_id="another boot"))


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
        assert [process.pid for process in processes_of(Path(name))] == [child.pid]
        assert [process.pid for process in processes_of(Path(name), 2)] == [child.pid]
        assert processes_of(Path(name), 1) == []
        assert processes_of(Path(name[:-1])) == []
        assert processes_of(Path(name.replace("homes/a", "homes/b"))) == []
        assert environment_of(child.pid)["GPUTUI_RUN_DIR"] == name
        child.kill()


def test_a_process_of_another_pid_namespace_is_judged_by_its_lock_alone(tmp_path: Path) -> None:
    own_identity = identify(os.getpid())
    assert own_identity is not None
    # The PID comes from another PID namespace; here it belongs to another process, such as this one.
    identity = own_identity._replace(boot_id=f"{own_identity.boot_id.partition('/')[0]}/1")
    started = {"shim_pid": identity.pid, "shim_start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
    folder = tmp_path / "attempts/1"
    folder.mkdir(parents=True)
    (folder / "started.json").write_text(json.dumps(started))
    executor = ExecutorProcess(identity, folder)
    with (folder / "attempt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert executor.is_alive
        assert find(executor.kind, tmp_path, 1) == identity
    assert not executor.is_alive
    assert find(executor.kind, tmp_path, 1) is None
    assert not send_signal(identity, signal.SIGCONT)
    assert not is_gone(identity._asdict())
    assert not is_gone(asker())
    assert is_gone({**asker(), "boot_id": "another boot/1"})
