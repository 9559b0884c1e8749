"""`gputui check`: the verdict and its exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from tests.ui.cli.program import said


def test_the_verdict_is_the_last_line_and_fits_the_exit_code(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "a.yaml").write_text(f"script: a.py\nlauncher: python\npython: {sys.executable}\ngpus: 0\n")
    shown = said(workspace, "check", "./a.yaml", "--gpus", "0")
    assert "gputui run ./a.yaml --gpus 0" in shown.splitlines()[-1]
    (tmp_path / "a.py").unlink()
    assert said(workspace, "check", "./a.yaml", code=2).splitlines()[-1].startswith("✗")
