"""The bell that wakes the agent when a command was written."""

from __future__ import annotations

import threading
from pathlib import Path

from gputui.agent.doorbell import Doorbell


def test_a_touch_of_the_doorbell_is_heard_each_time(tmp_path: Path) -> None:
    rang = threading.Event()
    bell = Doorbell(tmp_path, rang.set)
    bell.start()
    assert bell.is_heard
    for _ in range(2):
        rang.clear()
        (tmp_path / ".doorbell").touch()
        assert rang.wait(60.0)
    bell.stop()


def test_without_a_watch_left_the_agent_goes_on(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path / "no such folder", lambda: None)
    bell.start()
    assert not bell.is_heard
    bell.stop()
