"""Commands that the screen writes for the agent."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from gputui.ui.tui import commands


class Desk(commands.Commands):
    """The part of the app that writes commands, without the app."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.is_told = threading.Condition()
        self._newest_write = threading.Event()
        self._newest_write.set()
        self.workspace = cast("Any", None)

    def call_later(self, _callback: object, *arguments: object) -> bool:
        with self.is_told:
            self.told.append(arguments[-1])
            self.is_told.notify_all()
        return True

    def tell(self, text: str, kind: str = "info") -> None:
        self.call_later(None, text)


def test_commands_are_written_in_the_order_of_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the store delays one of them, or refuses it: "stop" after "run" never comes first."""
    monkeypatch.setattr(commands, "withdraw_late", lambda *_: None)
    desk = Desk()
    written = []
    may_write = threading.Event()

    def slowly() -> int:
        assert may_write.wait(10)
        written.append("run")
        return 1

    def not_at_all() -> int:
        written.append("label")
        raise OSError("full")

    desk.ask_in_order([("Start", slowly)])
    desk.ask_in_order([("Label", not_at_all)])
    desk.ask_in_order([("Stop", lambda: written.append("stop") or 2)])
    may_write.set()
    with desk.is_told:
        assert desk.is_told.wait_for(lambda: len(desk.told) == 3, 10)
    assert desk.told == [1, "Cannot ask the agent: full", 2]
    assert written == ["run", "label", "stop"]
