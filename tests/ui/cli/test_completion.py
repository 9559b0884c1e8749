"""What a shell completes, asked as click's scripts ask it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from click.shell_completion import ShellComplete

from gputui.core.config import Workspace
from gputui.ui.main import command
from tests.homes import Home, open_store
from tests.stories import search
from tests.tables import table
from tests.ui.cli.program import call, output_of


@pytest.fixture
def folder(home: Home, workspace: Workspace) -> Path:
    """The folder of a home with runs, profiles, studies and targets."""
    home.gpus(3)
    for run_id in ("vit-1", "vit-2", "bert-1"):
        home.run(run_id, "succeeded")
    home.run("live-1", "running")
    home.connection.execute("UPDATE runs SET state = 'failed' WHERE run_id = 'bert-1'")
    home.metrics("vit-1", 1, [{"step": 1, "loss": 2.0, "lr": 0.1, "accuracy": 0.5}])
    home.metrics("bert-1", 1, [{"step": 1, "*": 1.0, "val loss": 1.0, "it's": 1.0, "a$b": 1.0, "k=v:w": 1.0}])
    home.connection.execute("INSERT INTO run_labels (run_id, tags) VALUES ('vit-1', '[\"a:b\"]')")
    search(home, "lr-search-1", trials=0)
    folder = workspace.state.parent
    workspace.targets.write_text("lab: {kind: slurm}\n# hub:\nkepler2:\n  kind: ssh\n  host: me@kepler2\n")
    (folder / "studies").mkdir()
    (folder / "studies" / "wide.yaml").touch()
    (workspace.profiles / "mine.yaml").touch()
    return folder


def completed(folder: Path, line: str) -> list[str]:
    *arguments, incomplete = f"--home {folder} {line}".split(" ")
    items = ShellComplete(command, {}, "gputui", "_GPUTUI_COMPLETE").get_completions(arguments, incomplete)
    return [item.value for item in items]


@pytest.fixture
def bash(folder: Path, tmp_path: Path) -> Iterator[pexpect.spawn[str]]:
    """An interactive bash with the script, in which gputui prints its arguments."""
    (tmp_path / "train me.py").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "GPUTUI_HOME": str(folder), "TERM": "dumb", "LANG": "C.UTF-8"}
    shell = pexpect.spawn("bash", ["--norc", "-i"], env=environ, cwd=str(tmp_path), encoding="utf-8", echo=False)
    shell.sendline('bind "set enable-bracketed-paste off"; eval "$(gputui completion bash)"')
    shell.sendline("gputui() { printf '<%s>' \"$@\"; echo; }; gputui ready")
    shell.expect("<ready>\r\n")
    yield shell
    shell.close(force=True)


@table(
    ("line", "values"),
    [
        ("sto", ["stop"]),
        ("show ", ["live-1", "bert-1", "vit-2", "vit-1"]),
        ("stop ", ["live-1"]),
        ("rm bert-1 ", ["vit-2", "vit-1"]),
        ("restart ", ["live-1", "bert-1", "vit-2", "vit-1"]),
        ("resume ", ["bert-1"]),
        ("resume --force v", ["vit-2", "vit-1"]),
        ("label l", ["live-1"]),
        ("logs vi", ["vit-2", "vit-1"]),
        ("run --wait --after b", ["bert-1"]),
        ("run dig", ["digits-ddp"]),
        ("check mi", ["mine"]),
        ("study run wi", ["wide"]),
        ("study show ", ["lr-search-1"]),
        ("run --on ", ["lab", "kepler2"]),
        ("run --gpus ", ["0", "1", "2"]),
        ("run --gpus 2,", ["2,0", "2,1"]),
        ("show --dif", ["--diff"]),
        ("ps --profile v", ["vit-1", "vit-2"]),
        ("metrics vit-1 l", ["loss", "lr"]),
        ("metrics vit-1 loss l", ["lr"]),
        ("metrics vit-1 --loss ac", ["accuracy"]),
        ("metrics nobody-1 ", []),
        ("metrics --loss ", []),
        ("study run vit-1 --grid lr=1,2 --metric l", ["loss", "lr"]),
        ("study run wide --grid lr=1,2 --metric l", []),
        ("rm --tag ", ["a:b"]),
        ("run --after bert-1:", ["bert-1:any"]),
        ("nonsense x", []),
    ],
)
def test_names_of_the_home(folder: Path, line: str, values: list[str]) -> None:
    assert completed(folder, line) == values


def test_a_word_that_is_no_profile_is_a_file(folder: Path) -> None:
    items = ShellComplete(command, {}, "gputui", "_GPUTUI_COMPLETE").get_completions(["run"], "./train")
    assert [(item.type, item.value) for item in items] == [("file", "./train")]


@table("line", ["show ", "study show ", "run --gpus ", "run --on "])
def test_nothing_without_a_home(tmp_path: Path, line: str) -> None:
    assert completed(tmp_path / "none", line) == []
    assert not (tmp_path / "none").exists()


def test_a_database_of_another_version_completes_nothing(workspace: Workspace) -> None:
    with open_store(workspace.database) as connection:
        connection.execute("PRAGMA user_version = 1")
    assert completed(workspace.state.parent, "show ") == []


def test_each_shell_has_its_script(workspace: Workspace) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_GPUTUI_COMPLETE" in output_of(workspace, "completion", shell)
    assert call(workspace, "completion", "tcsh").code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@table(
    ("typed", "arguments"),
    [
        ("show b", ["show", "bert-1"]),
        ("metrics bert-1 \\*", ["metrics", "bert-1", "*"]),
        ("metrics bert-1 v", ["metrics", "bert-1", "val loss"]),
        ("metrics bert-1 val\\ l", ["metrics", "bert-1", "val loss"]),
        ("metrics bert-1 'val l", ["metrics", "bert-1", "val loss"]),
        ('metrics bert-1 "val l', ["metrics", "bert-1", "val loss"]),
        ("metrics bert-1 it", ["metrics", "bert-1", "it's"]),
        ('metrics bert-1 "it', ["metrics", "bert-1", "it's"]),
        ("metrics bert-1 'i", ["metrics", "bert-1", "it's"]),
        ("metrics bert-1 a", ["metrics", "bert-1", "a$b"]),
        ('metrics bert-1 "a\\$', ["metrics", "bert-1", "a$b"]),
        ("metrics bert-1 k=", ["metrics", "bert-1", "k=v:w"]),
        ("metrics bert-1 k=v:", ["metrics", "bert-1", "k=v:w"]),
        ("metrics bert-1 'k=v:", ["metrics", "bert-1", "k=v:w"]),
        ("metrics bert-1 --loss=v", ["metrics", "bert-1", "--loss=val loss"]),
        ("metrics bert-1 --loss=k=v:", ["metrics", "bert-1", "--loss=k=v:w"]),
        ("label --tagged a:", ["label", "--tagged", "a:b"]),
        ("run --after bert-1:", ["run", "--after", "bert-1:any"]),
        ("run --after=bert-1:", ["run", "--after=bert-1:any"]),
        ("run ./tr", ["run", "./train me.py"]),
    ],
)
def test_bash_inserts_what_it_reads_back(bash: pexpect.spawn[str], typed: str, arguments: list[str]) -> None:
    bash.sendline(f"gputui {typed}\t")
    bash.expect("<([^\r]*)>\r\n")
    assert bash.match[1].split("><") == arguments
