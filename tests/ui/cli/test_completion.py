"""What a shell completes, asked as click's scripts ask it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from gputui.core.config import Workspace
from gputui.ui.cli.main import command
from tests.stores import open_store
from tests.tables import table
from tests.ui.cli.program import call, said
from tests.ui.tui.filling import Filler


@pytest.fixture
def home(workspace: Workspace) -> Path:
    filler = Filler(workspace)
    filler.gpus(3)
    for run_id in ("vit-1", "vit-2", "bert-1"):
        filler.run(run_id, "succeeded")
    filler.run("live-1", "running")
    filler.connection.execute("UPDATE runs SET state = 'failed' WHERE run_id = 'bert-1'")
    filler.metrics("vit-1", 1, [{"step": 1, "loss": 2.0, "lr": 0.1, "accuracy": 0.5}])
    filler.study("lr-search-1", trials=0)
    filler.close()
    home = workspace.state.parent
    workspace.targets.write_text("lab: {kind: slurm}\n# hub:\nkepler2:\n  kind: ssh\n  host: me@kepler2\n")
    (home / "studies").mkdir()
    (home / "studies" / "wide.yaml").touch()
    (workspace.profiles / "mine.yaml").touch()
    return home


def completed(home: Path, line: str) -> list[str]:
    *words, incomplete = f"--home {home} {line}".split(" ")
    asked = ShellComplete(command, {}, "gputui", "_GPUTUI_COMPLETE").get_completions(words, incomplete)
    return [item.value for item in asked]


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
        ("rm --tag ", []),
        ("nonsense x", []),
    ],
)
def test_names_of_the_home(home: Path, line: str, values: list[str]) -> None:
    assert completed(home, line) == values


def test_a_word_that_is_no_profile_is_a_file(home: Path) -> None:
    asked = ShellComplete(command, {}, "gputui", "_GPUTUI_COMPLETE").get_completions(["run"], "./train")
    assert [(item.type, item.value) for item in asked] == [("file", "./train")]


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
        assert "_GPUTUI_COMPLETE" in said(workspace, "completion", shell)
    assert call(workspace, "completion", "tcsh").code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(home: Path) -> None:
    script = (
        'eval "$(gputui completion bash)"; COMP_WORDS=(gputui show b); COMP_CWORD=2; _gputui_completion gputui; '
        'echo "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "GPUTUI_HOME": str(home)}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("bert-1", "")
