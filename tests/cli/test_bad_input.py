"""Bad input answers with one clear line and a documented exit code, and changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.machine import Machine


def refused(machine: Machine, *words: str, code: int) -> str:
    """What a refused command said: every line begins with the program's name, nothing is printed beside it."""
    done = machine.call(*words)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr and all(line.startswith("gputui: ") for line in done.stderr.splitlines()), done.stderr
    return done.stderr


def no_run_was_made(machine: Machine) -> bool:
    folders = [entry for entry in machine.workspace.runs.iterdir() if entry.is_dir()]
    if not machine.workspace.database.exists():
        return not folders
    return not folders and machine.rows("SELECT count(*) FROM runs") == [(0,)]


def test_an_unknown_profile(machine: Machine) -> None:
    said = refused(machine, "run", "digits-dpp", code=2)
    assert "digits-ddp" in said and said.count("\n") == 1
    said = refused(machine, "check", "./nowhere.yaml", code=2)
    assert "nowhere.yaml" in said
    assert no_run_was_made(machine)


def test_every_error_of_a_profile_at_once_with_its_line(machine: Machine) -> None:
    profile = machine.profile("bad", "name: bad\nlaunchr: torchrun\nscript: steps.py\ngpus: -1\nparams: {a: [1]}\n")
    said = refused(machine, "check", profile, code=2)
    lines = said.splitlines()
    assert len(lines) == 3
    assert "bad.yaml:2" in lines[0] and "launchr" in lines[0] and "did you mean launcher" in lines[0]
    assert "bad.yaml:4" in lines[1] and "gpus" in lines[1]
    assert "bad.yaml:5" in lines[2] and "params" in lines[2]
    assert no_run_was_made(machine)


def test_an_unknown_parameter_and_a_wrong_value(machine: Machine) -> None:
    profile = machine.profile()
    said = refused(machine, "run", profile, "--set", "batchsize=3", "--set", "steps=many", "--set", "nonsense", code=2)
    assert "NAME=VALUE" in said
    said = refused(machine, "run", profile, "--set", "batchsize=3", "--set", "steps=many", code=2)
    assert "did you mean batch_size" in said and "steps" in said
    assert no_run_was_made(machine)


def test_an_unknown_run(machine: Machine) -> None:
    machine.gputui("agent", "start")
    for verb in ("show", "logs", "metrics", "explain", "stop", "restart", "resume", "rm"):
        said = refused(machine, verb, "nobody-1", code=3)
        assert "nobody-1" in said and said.count("\n") == 1


def test_nothing_recorded_yet(machine: Machine) -> None:
    assert "nothing has been recorded" in refused(machine, "show", "nobody-1", code=3)
    assert machine.json("ps") == []


def test_a_gpu_that_does_not_exist(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 2\n")
    said = refused(machine, "run", machine.profile(), "--gpus", "0,5", code=3)
    assert "5" in said and said.count("\n") == 1
    said = refused(machine, "run", machine.profile(), "--gpus", "3", code=3)
    assert "2" in said and said.count("\n") == 1
    assert no_run_was_made(machine)


def test_no_driver(machine: Machine) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    said = refused(machine, "run", machine.profile(), "--gpus", "1", code=3)
    assert "--gpus 0" in said
    assert machine.json("gpus") == []
    assert "No NVIDIA driver found" in machine.gputui("gpus")
    assert "gputui --demo" in machine.gputui("gpus")


def test_a_script_that_is_not_there(machine: Machine) -> None:
    profile = machine.profile(
        "lost", f"name: lost\nlauncher: python\nscript: gone.py\ngpus: 0\npython: {sys.executable}\n"
    )
    said = refused(machine, "run", profile, code=3)
    assert "gone.py" in said and said.count("\n") == 1
    assert no_run_was_made(machine)


def test_an_interpreter_without_torch(machine: Machine) -> None:
    venv.create(machine.folder / "bare", with_pip=False, symlinks=True)
    python = machine.folder / "bare" / "bin" / "python"
    profile = machine.profile("bare", f"name: bare\nlauncher: torchrun\nscript: steps.py\ngpus: 0\npython: {python}\n")
    said = refused(machine, "run", profile, code=3)
    assert "torch" in said and str(python) in said
    profile = machine.profile("none", "name: none\nlauncher: torchrun\nscript: steps.py\ngpus: 0\npython: /no/python\n")
    assert "/no/python" in refused(machine, "run", profile, code=3)
    assert no_run_was_made(machine)


def test_words_that_do_not_belong(machine: Machine) -> None:
    assert "frobnicate" in refused(machine, "frobnicate", code=2)
    assert "--nope" in refused(machine, "ps", "--nope", code=2)
    assert "--record" in refused(machine, "--duration", "3", code=2)
    assert "terminal" in refused(machine, code=2)


def test_a_run_that_cannot_be_acted_on(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--wait")
    assert "succeeded already" in refused(machine, "stop", "steps-1", code=3)
    assert "did you mean steps" in refused(machine, "resume", "steps-1", "--set", "step=3", code=2)
    assert "no metric" in refused(machine, "metrics", "steps-1", "lss", code=3)
    machine.gputui("rm", "steps-1")
    assert machine.json("ps") == []
    assert not machine.workspace.run_dir("steps-1").exists()


def test_a_home_that_cannot_be_written(machine: Machine, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for words in (["ps"], ["run", machine.profile()], ["--record", "--duration", "1"]):
        result = subprocess.run(
            [sys.executable, "-m", "gputui", "--home", str(blocked / "home"), *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in result.stderr
        assert result.returncode == (0 if words == ["ps"] else 4), result.stderr


def test_a_database_of_a_newer_gputui_is_left_alone(machine: Machine) -> None:
    with sqlite3.connect(machine.workspace.database) as connection:
        connection.execute("PRAGMA user_version = 9999")
    before = machine.workspace.database.read_bytes()
    assert "newer gputui" in refused(machine, "ps", code=4)
    assert "newer gputui" in refused(machine, "run", machine.profile(), code=4)
    assert machine.workspace.database.read_bytes() == before


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("mount") is None, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    """A home on a file system of 16 MB that is filled while a run goes on: the run is not harmed, and when there is
    room again everything it measured is there."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this container may not mount")
    machine = Machine(small)
    try:
        machine.gputui("run", machine.profile(), "--set", "steps=150", "--set", "seconds=0.04")
        wait_until(lambda: len(machine.steps("steps-1")) > 5, what="some steps")
        run_dir = machine.workspace.run_dir("steps-1")
        ballast = small / "ballast"
        # Metrics must still fit, the database's log must not: leave a little, and take it back at once.
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass
        with ballast.open("r+b") as file:
            file.truncate(ballast.stat().st_size - 24 * 1024)
        # Where the database's log has room of its own left for the question, but not for the answer, nobody can refuse.
        done = machine.call("run", machine.profile(), "--set", "steps=5")
        assert done.returncode in (3, 4) and done.stdout == "", (done.returncode, done.stdout, done.stderr)
        assert "No space left" in done.stderr or "disk" in done.stderr
        ballast.unlink()
        machine.wait_for("steps-1", "succeeded", "failed")
        written = [line for line in (run_dir / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]
        assert len(machine.steps("steps-1")) == len(written)
        assert machine.rows("PRAGMA integrity_check") == [("ok",)]
        assert machine.gputui("run", machine.profile(), "--set", "steps=5", "--wait")
    finally:
        machine.close()
        subprocess.run(["umount", "-l", str(small)], check=True)
