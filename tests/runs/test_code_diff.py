"""How the code of two runs differs, with and without the checkout that they ran in."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.runs.code_diff import run_code_diff
from gputui.runs.code_version import read_code
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_private
from tests.runs.test_code_version import checkout, git  # noqa: F401 - a fixture

SPEC = RunSpec(name="x", launcher="python", program=("train.py",), python="python", workdir="/")


def ran(runs: Path, run_id: str, checkout: Path, **env: str) -> None:  # noqa: F811
    """A run of what lies in the checkout now."""
    (runs / run_id).mkdir(parents=True)
    spec = replace(SPEC, workdir=str(checkout), code=read_code(checkout), env=env)
    write_private(runs / run_id / SPEC_FILE, spec.to_json())


@pytest.fixture
def runs(tmp_path: Path, checkout: Path) -> Path:  # noqa: F811
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


def test_git_compares_what_ran(runs: Path, checkout: Path) -> None:  # noqa: F811
    before = sorted(path for path in checkout.rglob("*"))
    assert changes(run_code_diff(runs, "x-1", "x-2")) == ["-lr = 0.1", "+lr = 0.2"]
    found = changes(run_code_diff(runs, "x-2", "x-3"))
    assert found[:2] == ["+layers = 2", "-lr = 0.2"] and found[2].startswith("+lr = 0.3")
    assert "a-very-secret-value" not in "".join(found)
    # Nothing is written into the checkout, its index and its objects.
    assert sorted(path for path in checkout.rglob("*")) == before
    assert changes(run_code_diff(runs, "x-1", "x-1")) == []
