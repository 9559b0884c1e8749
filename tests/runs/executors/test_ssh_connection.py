"""The calls of one connection: a client that hands its command to a shell of this machine, as sshd does."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gputui.runs.executors.slurm.options import SlurmOptions
from gputui.runs.executors.ssh.connection import SshShell
from gputui.runs.executors.ssh.options import SshOptions

# Options of ssh that take a value come before the host; the rest is joined with blanks and read by a shell.
CLIENT = """#!{python}
import json, os, sys
words = sys.argv[1:]
open({record!r}, "a").write(json.dumps(words) + "\\n")
while words[0].startswith("-"):
    del words[:2]
del words[:1]
if words[0] == "--":
    del words[0]
os.execvp("sh", ["sh", "-c", " ".join(words)])
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the client writes the words of each of its calls."""
    programs, written = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    client = programs / "ssh"
    client.write_text(CLIENT.format(python=sys.executable, record=str(written)))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return written


def sockets_of(record: Path) -> str | None:
    """Where the last call's client would look for a shared connection."""
    words = json.loads(record.read_text().splitlines()[-1])
    return next((word.partition("=")[2] for word in words if word.startswith("ControlPath=")), None)


@pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync: apt-get install rsync")
@pytest.mark.parametrize("name", ["müller", "with blank", "it's", "a$HOME*"])
def test_a_folder_of_any_name_receives_what_is_sent(tmp_path: Path, record: Path, name: str) -> None:
    source, there = tmp_path / "source", tmp_path / name
    source.mkdir()
    (source / "step one.py").write_text("1")
    (source / "left_out.py").write_text("2")
    done = SshShell({"host": "kepler"}).send(source, "step one.py", str(there))
    assert done.code == 0, done.errors
    assert [path.name for path in there.iterdir()] == ["step one.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["bin", "calls", "runtime", "source", name])


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="g") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def test_connections_are_shared_in_a_private_folder(record: Path, runtime: Path) -> None:
    assert SshShell({"host": "kepler"}).call(["echo", "a  b"]).output == "a  b\n"
    folder = runtime / "gputui-ssh"
    assert sockets_of(record) == f"{folder}/%C" and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["gone", "a file", "open to all", "a long path"])
def test_a_call_is_made_where_no_connection_can_be_shared(
    record: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = runtime / "gputui-ssh"
    if kind == "open to all":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "a file":
        folder.touch()
    else:
        (runtime / ("x" * 60)).mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/self/1000" if kind == "gone" else str(runtime / ("x" * 60)))
    assert SshShell({"host": "kepler"}).call(["echo", "here"]).output == "here\n"
    assert sockets_of(record) is None


def test_an_empty_runtime_folder_is_none(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SshShell({"host": "kepler"})
    found = []
    for set_it in (lambda: monkeypatch.setenv("XDG_RUNTIME_DIR", ""), lambda: monkeypatch.delenv("XDG_RUNTIME_DIR")):
        set_it()
        shell.call(["true"])
        found.append(sockets_of(record))
    assert found[0] == found[1]


@pytest.mark.parametrize("options", [SshOptions, SlurmOptions])
def test_a_host_that_reads_as_an_option_is_refused(options: type[SshOptions | SlurmOptions]) -> None:
    kind = "ssh" if options is SshOptions else "slurm"
    assert options.model_validate({"kind": kind, "host": "me@kepler-2"}).host == "me@kepler-2"
    with pytest.raises(ValidationError):
        options.model_validate({"kind": kind, "host": "-oProxyCommand=id"})


@pytest.mark.parametrize("wrong", [{"files": ["/data"]}, {"files": ["a/../../b"]}, {"folder": "~/runs"}])
def test_paths_that_cannot_work_there_are_refused(wrong: dict[str, Any]) -> None:
    SshOptions.model_validate({"kind": "ssh", "host": "k", "files": ["a..b/c"], "folder": "/data/~me"})
    with pytest.raises(ValidationError):
        SshOptions.model_validate({"kind": "ssh", "host": "k", **wrong})
