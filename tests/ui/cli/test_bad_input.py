"""Bad input answers with one clear line and a documented exit code, and changes nothing."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.runs.agent_process import read_identity
from gputui.ui.main import entry
from tests.homes import Home
from tests.machines import Machine
from tests.stories import overnight
from tests.tables import table
from tests.texts import mentions
from tests.ui.cli.program import call, error_of, json_of


def no_run_was_made(workspace: Workspace) -> bool:
    return not any(entry.is_dir() for entry in workspace.runs.iterdir()) and json_of(workspace, "ps") == []


@pytest.fixture
def recorded(home: Home, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("script: a.py\nrecovery: {max_attempts: many}\n")
    overnight(home)
    return workspace


def test_exit_codes_of_the_program_itself(machine: Machine, tmp_path: Path) -> None:
    def code(home: Path, *arguments: str) -> int:
        argv = [sys.executable, "-m", "gputui", "--home", str(home), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done
        assert (done.stdout == "") is (done.returncode != 0), done
        return done.returncode

    home = machine.workspace.state.parent
    (tmp_path / "file").write_text("")
    assert code(home, "ps") == 0
    assert code(home, "frobnicate") == 2
    assert code(home, "show", "nobody-1") == 3
    assert code(tmp_path / "file", "ps") == 2
    assert code(tmp_path / "file" / "home", "--record", "--duration", "1") == 3


@pytest.mark.parametrize("command", ["help recovery", "--help", "ps --help", "profile list"])
def test_a_reader_that_leaves_is_no_error(workspace: Workspace, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "gputui", "--home", str(workspace.state.parent), *command.split()]
    done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("is_named", [True, False])
def test_only_a_home_that_nobody_named_is_told_beside_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_named: bool
) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    monkeypatch.delenv("GPUTUI_HOME", raising=False)
    monkeypatch.setattr("gputui.ui.main.own_checkout", lambda: home)
    monkeypatch.setattr(sys, "argv", ["gputui", *(["--home", str(home)] if is_named else []), "--record"])
    with pytest.raises(SystemExit) as ended:
        entry()
    error = capsys.readouterr().err
    assert (ended.value.code, str(home) in error, "--home" in error) == (3, True, not is_named)


def test_each_mistake_of_a_profile_has_its_line(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\nlaunchr: torchrun\nscript: steps.py\ngpus: -1\n")
    (tmp_path / "steps.py").touch()
    first, second = error_of(workspace, "check", str(tmp_path / "bad.yaml"), code=2).splitlines()
    assert mentions(first, "bad.yaml:2", "launchr", "launcher")
    assert mentions(second, "bad.yaml:4", "gpus")


@table("arguments", [("run", "--name"), ("run", "--dry-run", "--name"), ("label", "a-1", "--name")])
def test_a_name_is_taken_as_it_is_or_refused(workspace: Workspace, arguments: tuple[str, ...]) -> None:
    more = ["--", "true"] if arguments[0] == "run" else []
    assert mentions(error_of(workspace, *arguments, "vit base (v2)", *more, code=2), "--name", "vit-base-v2")


def test_what_cannot_run_here_is_refused_before_a_run_is_made(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 2\n")
    base = "launcher: python\ngpus: 0\nscript: "
    lost = machine.profile("lost", f"name: lost\n{base}gone.py\npython: {sys.executable}\n")
    bare = machine.profile("bare", f"name: bare\n{base}steps.py\npython: /no/python\n")
    good = machine.profile()
    for arguments, code, mentioned in (
        ((good, "--set", "nonsense"), 2, "NAME=VALUE"), ((good, "--set", "batchsize=3"), 2, "did you mean batch_size"),
        ((good, "--set", "steps=many"), 2, "'many'"), ((good, "--gpus", "0,5"), 3, "5"),
        ((good, "--gpus", "3"), 3, "2"), ((lost,), 3, "gone.py"), ((bare,), 3, "/no/python"),
    ):  # fmt: skip
        text = error_of(machine.workspace, "run", *arguments, code=code)
        assert mentioned in text, arguments
        assert text.count("\n") == 1, arguments
    machine.gputui("agent", "start")
    for verb in ("stop", "restart", "resume", "rm"):
        assert "nobody-1" in error_of(machine.workspace, verb, "nobody-1", code=3), verb
    assert no_run_was_made(machine.workspace)


KILLED = ("policy", "try", "--incident", "killed")
RUN = "vit-b16-1"
REFUSED: list[tuple[tuple[str, ...], int, str]] = [
    # arguments, exit code, what the line mentions
    (("frobnicate",), 2, "frobnicate"), (("rnu",), 2, "did you mean run?"), (("ps", "--nope"), 2, "--nope"),
    ((), 2, "terminal"), (("--duration", "3"), 2, "--record"), (("--once", "--demo"), 2, "do not go together"),
    (("--json",), 2, "--record and --once"), (("--at", "soon"), 2, "--once and gputui --record work without"),
    (("--once", "--at", "soon"), 2, "--at: 'soon'"), (("--prometheus", "9464"), 2, "--record"),
    (("--record", "--prometheus", "nonsense"), 2, "HOST:PORT"),
    (("run", "digits-dpp"), 2, "digits-ddp"), (("check", "./nowhere.yaml"), 2, "nowhere.yaml"),
    (("show", "nobody-1"), 3, "nobody-1"), (("logs", "nobody-1"), 3, "nobody-1"),
    (("explain", "nobody-1"), 3, "nobody-1"), (("metrics", "nobody-1"), 3, "nobody-1"),
    (("metrics", RUN, "lss"), 3, "no metric"), (("metrics", RUN, "--export", "loss.pdf"), 2, ".csv, .svg or .png"),
    (("metrics", RUN, "--export", "/dev/null/loss.svg"), 3, "/dev/null"),
    (("resume", RUN, "--time", "8h"), 2, "--time"),
    (("resume", RUN, "--set", "batch=3"), 2, "did you mean batch_size"), (("resume", RUN, "--from", ""), 2, "--from"),
    (("policy", "try", "--incident", "cudaoom"), 2, "cuda_oom"), (("policy", "show", "standrad"), 2, "standard"),
    ((*KILLED, "--policy", "xyz"), 2, "known are"), (("policy", "try"), 2, "--incident"),
    ((*KILLED, "--profile", "a", "--run", "b"), 2, "not both"), ((*KILLED, "--profile", "nowhere"), 2, "nowhere"),
    ((*KILLED, "--run", "nobody-1"), 3, "nobody-1"), (("policy", "show", "./bad.yaml"), 2, "max_attempts"),
    (("alerts", "ack"), 2, "numbers"), (("alerts", "silence", "1", "--for", "soon"), 2, "30min"),
    (("alerts", "silence", "1", "--for", "90d"), 2, "30 days"), (("alerts", "--all", "rules"), 2, "alerts alone"),
    (("report",), 2, "run names or --since"), (("report", RUN, "--since", "1h"), 2, "run names or --since"),
    (("report", "--since", "soon"), 2, "--since"),
    (("report", RUN, "--gate", "gpu_utilisation=3"), 2, "gpu_utilization?"),
    (("report", RUN, "--gate", "gpu_utilization=much"), 2, "gpu_utilization=85"),
    (("gpus", "--memory", "1GiB"), 2, "--recommend"),
    (("export", "vitt-b16-1", "--to", "csv"), 3, RUN), (("export", RUN, "los", "--to", "csv"), 3, "loss?"),
    (("export", "lr-sweep-3", "--to", "csv"), 3, "nothing"),
    (("export", RUN, "--to", "jsonl", "--out", "/dev/null/x"), 3, "/dev/null"),
    (("export", RUN, "--to", "csv", "--follow", "--force"), 2, "--force"),
]  # fmt: skip


@table(("arguments", "code", "mentioned"), REFUSED)
def test_one_line_says_what_is_wrong(
    recorded: Workspace, arguments: tuple[str, ...], code: int, mentioned: str
) -> None:
    runs = {run["id"] for run in json_of(recorded, "ps")}
    text = error_of(recorded, *arguments, code=code)
    assert mentioned in text
    assert text.count("\n") == 1
    assert {run["id"] for run in json_of(recorded, "ps")} == runs
    assert read_identity(recorded) is None


def test_where_nothing_has_been_recorded_yet(workspace: Workspace) -> None:
    assert json_of(workspace, "ps") == []
    for arguments in (("show",), ("logs",), ("explain",), ("show", "nobody-1"), ("--once", "--readonly")):
        assert "nothing has been recorded" in error_of(workspace, *arguments, code=3), arguments


def test_a_run_that_cannot_be_acted_on(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--wait")
    assert "succeeded already" in error_of(machine.workspace, "stop", "steps-1", code=3)
    machine.gputui("rm", "steps-1")
    assert json_of(machine.workspace, "ps") == []
    assert not machine.workspace.run_dir("steps-1").exists()


def test_a_database_of_another_version_is_left_alone(machine: Machine) -> None:
    with closing(sqlite3.connect(machine.workspace.database)) as connection:
        connection.execute("PRAGMA user_version = 9999")
    before = machine.workspace.database.read_bytes()
    assert "another version" in error_of(machine.workspace, "ps", code=4)
    assert "another version" in error_of(machine.workspace, "run", machine.profile(), code=4)
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
    assert "no 2>FILE" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "state").exists()


@table(
    ("command", "mentioned"),
    [
        ("init .", "folder"), ("run .", "folder"), ("run --dry-run .", "folder"), ("study run --grid x=1 .", "folder"),
        ("run -- --lr 3", "--lr"), ("init -- --lr 3", "--lr"), ("run ''", "train.py"), ("run -- ''", "train.py"),
        ("init ''", "train.py"), ("run 'a.py | tee x'", "bash -c 'a.py | tee x'"), ("init 'a; b'", "bash -c 'a; b'"),
        ("study run a.py --grid lr=1,2", "study run --grid KEY=A,B -- python a.py"),
        ("study run a.sh", "study run --grid KEY=A,B -- a.sh"),
        ("study run -- python a.py --lr 1", "study run --grid KEY=A,B -- python"),
    ],
)  # fmt: skip
def test_what_is_no_command_says_what_to_type(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, mentioned: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = error_of(workspace, *shlex.split(command), code=2).splitlines()
    assert mentioned in line
    assert not list(tmp_path.glob("*.yaml"))


@table(
    ("typed", "meant"),
    [
        ("init a.py -o x.yaml", "-o: did you mean --out? Or for a command with its arguments: "
         "gputui init -- python a.py -o x.yaml"),
        ("init torchrun plain.py --output=x.yaml", "--output: did you mean --out? Or for a command with its arguments: "
         "gputui init -- torchrun plain.py --output=x.yaml"),
        ("init a.py --home x", "--home is not an option of a.py; gputui's own comes directly behind gputui: "
         "gputui --home … init a.py"),
        ("init a.py --lrr 3", "--lrr is not an option of a.py; did you mean --lr? Or for a command with its arguments: "
         "gputui init -- python a.py --lrr 3"),
        ("init torchrun a.py --grow=3", "--grow is not an option of a.py; for a command with its arguments: "
         "gputui init -- torchrun a.py --grow=3"),
        ("run --dry-run a.py --home x", "a.py has no option --home; gputui's own comes directly behind gputui"),
        ("run --dry-run a.py -g 2", "a.py has no option -g; gputui's own, --gpus, comes before the script"),
        ("run --dry-run a.py --gpus 2", "a.py has no option --gpus; gputui's own, --gpus, comes before the script"),
    ],
)  # fmt: skip
def test_an_option_for_gputui_that_the_script_does_not_have(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n")
    Path("plain.py").write_text("print(1)\n")
    assert meant in error_of(workspace, *typed.split(), code=2)
    assert not list(tmp_path.glob("*.yaml"))


@table(
    "typed",
    [
        "a.py --lr 3",
        "open.py --grow 3",
        "plain.py --home 3",
        "-- python a.py -o x.yaml",
        "-- a.py --out x.yaml",
        "-- a.py --home 3",
    ],
)
def test_options_of_the_script_are_not_those_of_init(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"
    Path("a.py").write_text(source)
    Path("open.py").write_text(source.replace("parse_args", "parse_known_args"))
    Path("plain.py").write_text("print(1)\n")
    assert call(workspace, "init", *typed.split()).code == 0
    (profile,) = tmp_path.glob("*.yaml")
    assert f"{{{typed.split()[-2].lstrip('-')}}}" in profile.read_text()
    profile.unlink()
