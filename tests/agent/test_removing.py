"""A run's folder is gone at once, and deleted although an agent dies over it."""

from __future__ import annotations

import threading

from gputui.agent import removing
from gputui.config import Workspace


def finish(thread: threading.Thread | None) -> None:
    assert thread is not None
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_a_folder_is_out_of_the_way_at_once_and_deleted_then(workspace: Workspace) -> None:
    (workspace.run_dir("a-1") / "checkpoints").mkdir(parents=True)
    thread = removing.put_away(workspace, "a-1")
    assert not workspace.run_dir("a-1").exists()
    finish(thread)
    assert list((workspace.state / "removed").iterdir()) == []
    assert removing.put_away(workspace, "a-1") is None


def test_what_was_left_is_deleted_by_the_next_agent(workspace: Workspace) -> None:
    assert removing.go_on(workspace) is None
    (workspace.state / "removed" / "a-1.1" / "checkpoints").mkdir(parents=True)
    (workspace.run_dir("a-1")).mkdir()
    finish(removing.put_away(workspace, "a-1"))
    finish(removing.go_on(workspace))
    assert list((workspace.state / "removed").iterdir()) == []
