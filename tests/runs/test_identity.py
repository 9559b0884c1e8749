"""Telling a process from another one that was given its number."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.runs.identity import (
    boot_id,
    environment_of,
    has_open,
    identify,
    is_alive,
    marked_processes,
    read_stat,
    send_signal,
)
from tests.conftest import wait_until


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
        assert child.wait(10) == -signal.SIGKILL
        assert not send_signal(identity, signal.SIGKILL)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
@pytest.mark.parametrize("open_too", [True, False])
def test_signals_are_sent_where_there_are_no_pidfds(number: int, open_too: bool) -> None:
    code = f"""
import signal, subprocess, sys
from gputui.runs import user_signals
from gputui.runs.identity import identify, send_signal
from tests.runs.seccomp import forbid_pidfds
if not forbid_pidfds({number}, open_too={open_too}):
    sys.exit(77)
child = subprocess.Popen(["sleep", "60"])
other = subprocess.Popen(["sleep", "60"])
identity, second = identify(child.pid), identify(other.pid)
try:
    assert not send_signal(identity._replace(start_ticks=identity.start_ticks - 1), signal.SIGKILL)
    assert child.poll() is None
    assert send_signal(identity, signal.SIGTERM)
    assert child.wait(10) == -signal.SIGTERM
    assert not send_signal(identity, signal.SIGTERM)
    user_signals.send(other.pid, second.start_ticks, signal.SIGTERM)
    assert other.wait(10) == -signal.SIGTERM
finally:
    child.kill(); other.kill()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("no filter can be set here")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_signal_that_the_kernel_refuses_is_not_an_error() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        code = (
            "import logging, os, signal, sys; from gputui.runs.identity import identify, send_signal\n"
            "logging.basicConfig(level=logging.INFO)\n"
            f"child = identify({child.pid}); os.setuid(65534); sys.exit(send_signal(child, signal.SIGTERM))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, "another user's" in done.stderr) == (0, True), done.stderr
        assert child.poll() is None
        child.kill()


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    identity = identify(child.pid)
    wait_until(lambda: (stat := read_stat(child.pid)) is not None and stat.is_dead, what="the zombie")
    assert identify(child.pid) is None
    assert identity is None or not is_alive(identity)
    child.wait()


def test_a_command_name_with_parentheses_does_not_confuse() -> None:
    rename = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) Z (1 2 3', 0, 0, 0)"
    code = f"{rename}; print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = read_stat(child.pid)
        assert stat is not None
        assert stat.parent_pid == os.getpid()
        assert stat.state in "RS"
        child.kill()


def test_marks_are_found_whole() -> None:
    name = f"/homes/a/state/runs/mark-{os.getpid()}"
    environment = {**os.environ, "GPUTUI_RUN_ID": "mark-1", "GPUTUI_RUN_DIR": name, "GPUTUI_ATTEMPT": "2"}
    code = "print(1, flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert [found.pid for found in marked_processes(name)] == [child.pid]
        assert [found.pid for found in marked_processes(name, 2)] == [child.pid]
        assert marked_processes(name, 1) == []
        assert marked_processes(name[:-1]) == []
        assert marked_processes(name.replace("homes/a", "homes/b")) == []
        assert (environment_of(child.pid) or {})["GPUTUI_RUN_DIR"] == name
        child.kill()


def test_the_boot_has_a_name() -> None:
    assert len(boot_id()) == 36


def test_a_copy_of_an_open_file_is_not_open(tmp_path: Path) -> None:
    own, copy, moved = tmp_path / "lock", tmp_path / "copy", tmp_path / "moved"
    own.write_text("")
    copy.write_text("")
    with own.open():
        assert has_open(os.getpid(), own) and has_open(os.getpid(), copy) is False
        assert has_open(os.getpid(), tmp_path / "none") is None
        own.rename(moved)
        assert has_open(os.getpid(), moved)
    assert has_open(os.getpid(), moved) is False
