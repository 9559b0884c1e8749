"""The code that a run is launched with, and the difference between two."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.runs.code_diff import run_code_diff
from gputui.runs.code_version import code_words, read_code, without_diff
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_private
from tests.texts import mentions

SPEC = RunSpec(name="x", launcher="python", program=("train.py",), python="python", workdir="/")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
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


def ran(runs: Path, run_id: str, checkout: Path, **env: str) -> None:
    """A run of what lies in the checkout now."""
    (runs / run_id).mkdir(parents=True)
    spec = replace(SPEC, workdir=str(checkout), code=read_code(checkout), env=env)
    write_private(runs / run_id / SPEC_FILE, spec.to_json())


@pytest.fixture
def runs(tmp_path: Path, checkout: Path) -> Path:
    """x-1 ran the commit, x-2 with a change that was not committed, x-3 another commit with another change."""
    folder = tmp_path / "runs"
    ran(folder, "x-1", checkout)
    (checkout / "train.py").write_text("lr = 0.2\n")
    ran(folder, "x-2", checkout, HUB_TOKEN="a-very-secret-value")
    (checkout / "model.py").write_text("layers = 2\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "two")
    (checkout / "train.py").write_text("lr = 0.3  # a-very-secret-value\n")
    ran(folder, "x-3", checkout)
    return folder


def changes(lines: list[str]) -> list[str]:
    return [line for line in lines if line[:1] in ("+", "-") and not line.startswith(("---", "+++"))]


def test_the_commit_and_what_differs_from_it(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert read_code(checkout) == {"commit": commit, "branch": "main", "changed_files": 0, "diff": ""}
    (checkout / "train.py").write_text("lr = 0.2\n")
    (checkout / "new.py").write_text("")
    code = read_code(checkout)
    assert code is not None
    assert code["changed_files"] == 2
    assert "-lr = 0.1" in code["diff"]
    assert "+lr = 0.2" in code["diff"]
    assert mentions(code_words(code), commit[:8], "main", "2 files")
    assert "diff" not in (without_diff(code) or {"diff": 1})
    git(checkout, "checkout", "-q", "--detach")
    assert (read_code(checkout) or {})["branch"] is None


def test_a_folder_without_git_has_no_code(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert read_code(tmp_path) is None
    assert read_code(tmp_path / "none") is None
    assert code_words(None) is None
    assert without_diff(None) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_code(checkout) is None, "no git"


def test_git_compares_what_ran(runs: Path, checkout: Path) -> None:
    before = sorted(path for path in checkout.rglob("*"))
    assert changes(run_code_diff(runs, "x-1", "x-2")) == ["-lr = 0.1", "+lr = 0.2"]
    differences = changes(run_code_diff(runs, "x-2", "x-3"))
    assert differences[:2] == ["+layers = 2", "-lr = 0.2"]
    assert differences[2].startswith("+lr = 0.3")
    assert "a-very-secret-value" not in "".join(differences)
    # Nothing is written into the checkout, its index and its objects.
    assert sorted(path for path in checkout.rglob("*")) == before
    assert changes(run_code_diff(runs, "x-1", "x-1")) == []
