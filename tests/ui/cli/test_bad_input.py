"""Bad input answers with one clear line and a documented exit code, and changes nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from gputui.core.config import Workspace
from tests.machines import Machine
from tests.stores import open_store
from tests.texts import mentions
from tests.ui.cli.program import refused, shape


def no_run_was_made(workspace: Workspace) -> bool:
    return not any(entry.is_dir() for entry in workspace.runs.iterdir()) and shape(workspace, "ps") == []


def test_exit_codes_of_the_program_itself(machine: Machine, tmp_path: Path) -> None:
    def code(home: Path, *words: str) -> int:
        argv = [sys.executable, "-m", "gputui", "--home", str(home), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr and (done.stdout == "") is (done.returncode != 0), done
        return done.returncode

    home = machine.workspace.state.parent
    (tmp_path / "file").write_text("")
    assert code(home, "ps") == 0
    assert code(home, "frobnicate") == 2
    assert code(home, "show", "nobody-1") == 3
    assert code(tmp_path / "file", "ps") == 2
    assert code(tmp_path / "file" / "home", "--record", "--duration", "1") == 4


def test_an_unknown_profile_and_each_mistake_of_one_with_its_line(workspace: Workspace, tmp_path: Path) -> None:
    text = refused(workspace, "run", "digits-dpp", code=2)
    assert "digits-ddp" in text and text.count("\n") == 1
    assert "nowhere.yaml" in refused(workspace, "check", "./nowhere.yaml", code=2)
    (tmp_path / "bad.yaml").write_text("name: bad\nlaunchr: torchrun\nscript: steps.py\ngpus: -1\n")
    first, second = refused(workspace, "check", str(tmp_path / "bad.yaml"), code=2).splitlines()
    assert mentions(first, "bad.yaml:2", "launchr", "launcher") and mentions(second, "bad.yaml:4", "gpus")
    assert no_run_was_made(workspace)


def test_an_unknown_parameter_and_a_wrong_value(machine: Machine) -> None:
    words = ("run", machine.profile(), "--set", "batchsize=3", "--set", "steps=many")
    assert "NAME=VALUE" in refused(machine.workspace, *words, "--set", "nonsense", code=2)
    text = refused(machine.workspace, *words, code=2)
    assert "did you mean batch_size" in text and "steps" in text
    assert no_run_was_made(machine.workspace)


def test_an_unknown_run_and_nothing_recorded_yet(workspace: Workspace) -> None:
    assert "nothing has been recorded" in refused(workspace, "show", "nobody-1", code=3)
    assert shape(workspace, "ps") == []
    open_store(workspace.database).close()
    for verb in ("show", "logs", "metrics", "explain"):
        text = refused(workspace, verb, "nobody-1", code=3)
        assert "nobody-1" in text and text.count("\n") == 1, verb


def test_what_cannot_run_here_is_refused_before_a_run_is_made(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 2\n")
    base = "launcher: python\ngpus: 0\nscript: "
    lost = machine.profile("lost", f"name: lost\n{base}gone.py\npython: {sys.executable}\n")
    bare = machine.profile("bare", f"name: bare\n{base}steps.py\npython: /no/python\n")
    for words, named in (
        (("run", machine.profile(), "--gpus", "0,5"), "5"),
        (("run", machine.profile(), "--gpus", "3"), "2"),
        (("run", lost), "gone.py"),
        (("run", bare), "/no/python"),
    ):
        text = refused(machine.workspace, *words, code=3)
        assert named in text and text.count("\n") == 1, words
    machine.gputui("agent", "start")
    for verb in ("stop", "restart", "resume", "rm"):
        assert "nobody-1" in refused(machine.workspace, verb, "nobody-1", code=3), verb
    assert no_run_was_made(machine.workspace)


def test_words_that_do_not_belong(workspace: Workspace) -> None:
    for words, named in {
        ("frobnicate",): "frobnicate",
        ("rnu",): "did you mean run?",
        ("ps", "--nope"): "--nope",
        ("--duration", "3"): "--record",
        (): "terminal",
        ("--once", "--demo"): "do not go together",
        ("--json",): "--json goes with --record and --once",
        ("--at", "soon"): "the screen needs a terminal; gputui --once and gputui --record work without one",
    }.items():
        text = refused(workspace, *words, code=2)
        assert named in text and text.count("\n") == 1, words


def test_a_run_that_cannot_be_acted_on(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--wait")
    assert "succeeded already" in refused(machine.workspace, "stop", "steps-1", code=3)
    assert "did you mean steps" in refused(machine.workspace, "resume", "steps-1", "--set", "step=3", code=2)
    assert "--from is empty" in refused(machine.workspace, "resume", "steps-1", "--from", "", code=2)
    assert "no metric" in refused(machine.workspace, "metrics", "steps-1", "lss", code=3)
    machine.gputui("rm", "steps-1")
    assert shape(machine.workspace, "ps") == []
    assert not machine.workspace.run_dir("steps-1").exists()


def test_a_database_of_another_version_is_left_alone(machine: Machine) -> None:
    with closing(sqlite3.connect(machine.workspace.database)) as connection:
        connection.execute("PRAGMA user_version = 9999")
    before = machine.workspace.database.read_bytes()
    assert "another version" in refused(machine.workspace, "ps", code=4)
    assert "another version" in refused(machine.workspace, "run", machine.profile(), code=4)
    assert machine.workspace.database.read_bytes() == before


def test_a_screen_that_would_be_drawn_into_a_file_is_refused(tmp_path: Path) -> None:
    theirs, ours = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gputui", "--home", str(tmp_path)],
            stdin=ours, stdout=ours, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert "no 2>FILE" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "state").exists()
