"""The calls of one connection: a client that hands its command to a shell of this machine, as sshd does."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gputui.runs.executors.courier import CommandResult, UnreachableError
from gputui.runs.executors.options import SlurmOptions, SshOptions
from gputui.runs.executors.slurm.slurm_courier import LoginShell
from gputui.runs.executors.ssh.connection import SshShell, survey
from gputui.runs.executors.ssh.ssh_courier import SshCourier
from tests.tables import table

# Options of ssh that take a value come before the host; the rest is joined with blanks and read by a shell.
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
    plan = {"attempt": 1, "target": target, "argv": ["python"], "cwd": str(tmp_path), "output": "output.log"}
    (folder / "attempt.json").write_text(json.dumps(plan))
    assert SshCourier(folder).turn()
    assert "/nope/python" in json.loads((folder / "exit.json").read_text())["error"]
    (checked,) = [each for each in survey(target) if each.name == "python"]
    assert checked.status == "fail" and "/nope/python" in checked.detail


@pytest.mark.long
@pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync: apt-get install rsync")
@table("name", ["müller", "with blank", "it's", "a$HOME*"])
def test_a_folder_of_any_name_receives_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    greet(tmp_path, monkeypatch, "Welcome\nno line's end")
    folder = tmp_path / "sent"
    source, there = folder / "source", folder / name
    source.mkdir(parents=True)
    (source / "step one.py").write_text("1")
    (source / "left_out.py").write_text("2")
    done = SshShell({"host": "kepler"}).send(source, "step one.py", str(there))
    assert done.code == 0, done.errors
    assert [path.name for path in there.iterdir()] == ["step one.py"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["source", name])


@table("options", [SshOptions, SlurmOptions])
def test_a_host_that_reads_as_an_option_is_refused(options: type[SshOptions | SlurmOptions]) -> None:
    kind = "ssh" if options is SshOptions else "slurm"
    assert options.model_validate({"kind": kind, "host": "me@kepler-2"}).host == "me@kepler-2"
    with pytest.raises(ValidationError):
        options.model_validate({"kind": kind, "host": "-oProxyCommand=id"})


@table("wrong", [{"files": ["/data"]}, {"files": ["a/../../b"]}, {"folder": "~/runs"}])
def test_paths_that_cannot_work_there_are_refused(wrong: dict[str, Any]) -> None:
    SshOptions.model_validate({"kind": "ssh", "host": "k", "files": ["a..b/c"], "folder": "/data/~me"})
    with pytest.raises(ValidationError):
        SshOptions.model_validate({"kind": "ssh", "host": "k", **wrong})
