"""Opening the screen: where it cannot be drawn, and as a demo."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.cli import interactive
from gputui.config import Workspace, locate


def test_a_screen_that_would_be_drawn_into_a_file_is_refused(tmp_path: Path) -> None:
    theirs, ours = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gputui", "--home", str(tmp_path)],
            stdin=ours, stdout=ours, stderr=subprocess.PIPE, text=True, timeout=30, check=False,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert "no 2>FILE" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_the_demo_wears_the_settings_of_its_user_and_leaves_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = locate(tmp_path / "demo", {})
    demo.create()
    mine = tmp_path / "settings.json"
    mine.write_text('{"theme": "light"}')

    def show(workspace: Workspace, **_: object) -> int:
        assert workspace.settings.read_text() == '{"theme": "light"}'
        workspace.settings.write_text('{"theme": "mono"}')
        return 0

    monkeypatch.setattr("gputui.demo.home.demo_home", lambda: contextlib.nullcontext(demo))
    monkeypatch.setattr(interactive, "show", show)
    assert interactive.open_demo(readonly=False, settings=mine, at=None) == 0
    assert mine.read_text() == '{"theme": "light"}'
