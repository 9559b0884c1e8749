"""The commit and the diff of the code that a run was launched with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gputui.runs import code_version
from gputui.runs.code_version import CUT, code_words, read_code, without_diff
from tests.machine import Machine


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("lr = 0.1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def test_the_commit_and_what_differs_from_it(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert read_code(checkout) == {"commit": commit, "branch": "main", "changed_files": 0, "diff": ""}
    (checkout / "train.py").write_text("lr = 0.2\n")
    (checkout / "new.py").write_text("")
    code = read_code(checkout)
    assert code is not None and code["changed_files"] == 2
    assert "-lr = 0.1" in code["diff"] and "+lr = 0.2" in code["diff"]
    assert code_words(code) == f"{commit[:8]} on main, 2 files changed"
    assert "diff" not in (without_diff(code) or {"diff": 1})
    git(checkout, "checkout", "-q", "--detach")
    assert (read_code(checkout) or {})["branch"] is None


def test_a_folder_without_git_has_no_code(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert read_code(tmp_path) is None and read_code(tmp_path / "none") is None
    assert code_words(None) is None and without_diff(None) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_code(checkout) is None, "no git"


def test_a_long_diff_is_cut(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_version, "MOST_DIFF_BYTES", 200)
    (checkout / "train.py").write_text("x = 1\n" * 500)
    code = read_code(checkout)
    assert code is not None and code["diff"].endswith(CUT) and len(code["diff"]) <= 200 + len(CUT)


def test_a_run_keeps_the_code_that_it_was_launched_with(machine: Machine) -> None:
    profile = machine.profile()
    git(machine.folder, "init", "-q", "-b", "main")
    git(machine.folder, "add", "steps.py", "steps.yaml")
    git(machine.folder, "commit", "-qm", "one")
    script = machine.folder / "steps.py"
    script.write_text(script.read_text() + "# token=hunter2secret\n")
    machine.gputui("run", profile, "--wait")
    shown = machine.json("show")["code"]
    assert shown["commit"] == git(machine.folder, "rev-parse", "HEAD") and shown["changed_files"] >= 1
    (stored,) = machine.rows("SELECT spec FROM runs")
    assert "hunter2" not in stored[0] and "diff" not in json.loads(stored[0])["code"]
    diff = machine.gputui("show", "--diff")
    assert "+# token=" in diff and "hunter2secret" not in diff, "the private diff is shown without secrets"
    assert "changed" in machine.gputui("show")
