"""The calls of one connection, by a client of the test's own, and runs on another machine: a real sshd on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gputui.runs.checks import CheckResult
from gputui.runs.executors.commands import CommandResult, UnreachableError
from gputui.runs.executors.options import SlurmOptions, SshOptions
from gputui.runs.executors.ssh import SshExecutor
from gputui.runs.executors.ssh.connection import LoginShell, SshShell
from gputui.runs.executors.ssh.ssh_runner import START, SshRunner, remove_run_folder
from tests.conftest import wait_until
from tests.runs.executors.conftest import CopiedHome
from tests.runs.executors.ssh_machine import WAIT_SECONDS, RemoteMachine
from tests.tables import table
from tests.texts import mentions

# A stand-in for ssh: skips the options, which all take a value, and the host, and gives the rest to a shell.
CLIENT = """#!{python}
import os, sys
sys.stdout.write({greeting!r})
sys.stdout.flush()
words = sys.argv[1:]
while words[0].startswith("-"):
    del words[:2]
del words[:1]
if words[0] == "--":
    del words[0]
os.execvp("sh", ["sh", "-c", " ".join(words)])
"""


def greet(folder: Path, monkeypatch: pytest.MonkeyPatch, greeting: str) -> None:
    """Put the client before all others in $PATH, with text that a login there prints first."""
    client = folder / "bin" / "ssh"
    client.parent.mkdir()
    client.write_text(CLIENT.format(python=sys.executable, greeting=greeting))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")


def test_the_connection_that_starts_a_run_does_not_wait_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("read line < pipe; touch ended")
    os.mkfifo(tmp_path / "pipe")
    # Reading the output to its end, as sshd does, would wait for every process that holds it open.
    subprocess.run(["bash", "-c", START, "bash", str(tmp_path)], capture_output=True, timeout=60, check=True)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "pipe").write_text("go on\n")
    wait_until((tmp_path / "ended").exists, what="the end")


@pytest.mark.long
def test_a_line_that_drops_loses_nothing_and_fails_nothing(ssh: CopiedHome, remote: RemoteMachine) -> None:
    run_id = ssh.launch("steps=100000")
    ssh.wait_for_step(run_id, 5)
    remote.stop()
    wait_until(lambda: ssh.placement(run_id).get("problem"), WAIT_SECONDS, "a problem")
    assert ssh.machine.state(run_id) == "running"
    step_count = len(ssh.steps(run_id))
    remote.start()
    wait_until(lambda: ssh.placement(run_id).get("problem") is None, WAIT_SECONDS, "an answer")
    ssh.wait_for_step(run_id, step_count + 5)
    ssh.finish(run_id)


@pytest.mark.long
@table("options, status", [({}, "pass"), ({"setup": ["exit 3"]}, "fail"), ({"folder": "/proc/none"}, "fail")])
def test_a_check_launches_a_command_there_and_leaves_nothing(
    remote: RemoteMachine, options: dict[str, Any], status: str
) -> None:
    target = {"name": "kepler", "kind": "ssh", **remote.target(), "python": sys.executable, **options}
    results = {result.name: result for result in SshExecutor().survey(target)}
    assert results["launch"].status == status, results
    assert not list(remote.runs.glob("*/*"))


@pytest.mark.long
def test_the_gputui_there_tells_which_gpus_are_free(remote: RemoteMachine, tmp_path: Path) -> None:
    target = {"name": "kepler", "kind": "ssh", **remote.target()}

    def gpus() -> CheckResult:
        (check,) = [result for result in SshExecutor().survey(target) if result.name == "gpus"]
        return check

    assert gpus().status == "skip"
    home = tmp_path / "home there"
    (home / "state").mkdir(parents=True)
    (home / "state" / "simulated.yaml").write_text(
        "gpus: 3\nforeign: [{gpu: 1, memory: 9GiB, user: ann, command: x}]\n"
    )
    program = remote.folder / "bin" / "gputui"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gputui --home "{home}" "$@"\n')
    program.chmod(0o755)
    with (remote.folder / ".bash_profile").open("a") as profile:
        profile.write(f"PATH={program.parent}:$PATH\n")
    try:
        check = gpus()
        assert check.status == "pass", check
        assert mentions(check.detail, "2 of 3"), check
    finally:
        subprocess.run([program, "agent", "stop"], check=True, capture_output=True)


@table("shell", [SshShell, LoginShell])
def test_only_what_is_between_the_marks_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: type[SshShell]
) -> None:
    greet(tmp_path, monkeypatch, "Welcome\n/home/me")
    done = shell({"host": "kepler"}).call(["sh", "-c", "cat; echo why >&2; printf end; exit 255"], "given\n")
    assert done == CommandResult(255, "given\nend", "why\n")
    with pytest.raises(UnreachableError) as raised:
        shell({"host": "kepler"}).call(["sh", "-c", 'echo "{half}"; kill -9 $PPID'])
    assert "half" not in str(raised.value)


def test_a_run_whose_interpreter_does_not_exist_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet(tmp_path, monkeypatch, "Welcome\n")
    folder = tmp_path / "run" / "attempts" / "1"
    folder.mkdir(parents=True)
    target = {"name": "k", "host": "k", "folder": str(tmp_path / "there"), "python": "/nope/python"}
    plan = {"attempt": 1, "target": target, "argv": ["python"], "cwd": str(tmp_path), "output": "output.log",
            "asks": {"gpus": 0}}  # fmt: skip
    (folder / "attempt.json").write_text(json.dumps(plan))
    assert SshRunner(folder).poll()
    assert "/nope/python" in json.loads((folder / "exit.json").read_text())["error"]
    (checked,) = [check for check in SshExecutor().survey(target) if check.name == "python"]
    assert checked.status == "fail"
    assert "/nope/python" in checked.detail


def test_a_run_is_removed_there_with_the_environment_of_its_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet(tmp_path, monkeypatch, "Welcome\n")
    remote_folder = tmp_path / "there" / "0123abcd" / "a-1"
    folder = tmp_path / "run" / "attempts" / "1"
    for path in (remote_folder, folder):
        path.mkdir(parents=True)
    (folder / "root.json").write_text(json.dumps({"path": str(remote_folder)}))
    (folder / "attempt.json").write_text(json.dumps({"client_environment": {"PATH": os.environ["PATH"]}}))
    monkeypatch.setenv("PATH", "/nope")
    remove_run_folder(tmp_path / "run", {"host": "k"})
    assert remote_folder.parent.is_dir()
    assert not remote_folder.exists()


def test_an_environment_below_the_working_directory_keeps_its_path(tmp_path: Path) -> None:
    argv = ["/w/.venv/bin/python", "/w/train.py"]
    plan = {"target": {"host": "k"}, "argv": argv, "resume": {"argv": argv}, "cwd": "/w", "metrics": []}
    (tmp_path / "attempt.json").write_text(json.dumps(plan))
    remote_plan = SshRunner(tmp_path).plan_there("/r", "/r/code")
    assert remote_plan["argv"] == remote_plan["resume"]["argv"] == ["/w/.venv/bin/python", "/r/code/train.py"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync: apt-get install rsync")
@table("name", ["müller", "with blank", "it's", "a$HOME*"])
def test_a_folder_of_any_name_receives_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    greet(tmp_path, monkeypatch, "Welcome\nno line's end")
    source = tmp_path / "sent" / "source"
    destination = tmp_path / "sent" / name
    source.mkdir(parents=True)
    (source / "step one.py").write_text("1")
    (source / "left_out.py").write_text("2")
    done = SshShell({"host": "kepler"}).send(source, "step one.py", str(destination))
    assert done.code == 0, done.errors
    assert [path.name for path in destination.iterdir()] == ["step one.py"]
    assert sorted(path.name for path in source.parent.iterdir()) == sorted(["source", name])


@table("wrong", [{"host": "-oX=id"}, {"files": ["/d"]}, {"files": ["a/../../b"]}, {"folder": "~/r"}, {"python": "~/p"}])
def test_what_cannot_work_there_is_refused(wrong: dict[str, Any]) -> None:
    right = {"host": "me@kepler-2", "files": ["a..b/c"], "folder": "/data/~me"}
    for options, kind in ((SshOptions, "ssh"), (SlurmOptions, "slurm")):
        options.model_validate({"kind": kind, **right})
        with pytest.raises(ValidationError):
            options.model_validate({"kind": kind, **right, **wrong})
