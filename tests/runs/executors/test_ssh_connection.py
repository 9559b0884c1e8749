"""The calls of one connection: a client that hands its command to a shell of this machine, as sshd does."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gputui.runs.executors.slurm.options import SlurmOptions
from gputui.runs.executors.ssh.connection import SshShell
from gputui.runs.executors.ssh.options import SshOptions
from tests.tables import table

# Options of ssh that take a value come before the host; the rest is joined with blanks and read by a shell.
CLIENT = """#!{python}
import os, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    del words[:2]
del words[:1]
if words[0] == "--":
    del words[0]
os.execvp("sh", ["sh", "-c", " ".join(words)])
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync: apt-get install rsync")
@table("name", ["müller", "with blank", "it's", "a$HOME*"])
def test_a_folder_of_any_name_receives_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    client = tmp_path / "bin" / "ssh"
    client.parent.mkdir()
    client.write_text(CLIENT.format(python=sys.executable))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
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
