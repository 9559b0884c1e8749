"""Which checkpoint a person means."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.ui.cli.resume import named_path
from tests.ledgers import ledger_row


def test_a_path_or_the_name_of_one_of_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [ledger_row(name) for name in ("step_1.pt", "a/last.pt", "b/last.pt")]
    assert named_path("step_1.pt", rows) == "/c/step_1.pt"
    assert named_path("/c/step_2.pt", rows) == "/c/step_2.pt"
    # Two of that name, and one that lies here.
    assert named_path("last.pt", rows) == str(tmp_path / "last.pt")
    (tmp_path / "step_1.pt").touch()
    assert named_path("step_1.pt", rows) == str(tmp_path / "step_1.pt")
