"""The commit and the diff of the code that a run was launched with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gputui.runs.code_version import code_words, read_code, without_diff


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
