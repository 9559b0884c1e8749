"""Commands that the screen writes for the agent."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from gputui.ui.tui import commands


class Shell:
    """What `Commands` needs of the app: a place for its messages."""

    workspace = None

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.is_told = threading.Condition()

    def post_message(self, message: Any) -> None:
        with self.is_told:
            self.messages.append(message)
            self.is_told.notify_all()

    def wait_for(self, count: int) -> list[Any]:
        with self.is_told:
            assert self.is_told.wait_for(lambda: len(self.messages) == count, 10)
        return self.messages


def test_commands_are_written_in_the_order_of_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the store delays one of them, or refuses it: "stop" after "run" never comes first."""
    monkeypatch.setattr(commands, "withdraw_late", lambda *_: None)
    shell, written, may_write = Shell(), [], threading.Event()
    asking = commands.Commands(cast("Any", shell), lambda: cast("Any", None), lambda _: None)

    def slowly() -> int:
        assert may_write.wait(10)
        written.append("run")
        return 1

    def not_at_all() -> int:
        written.append("label")
        raise OSError("full")

    asking.ask_by("Start", slowly)
    asking.ask_by("Label", not_at_all)
    asking.ask_by("Stop", lambda: written.append("stop") or 2)
    may_write.set()
    assert {message.command_id for message in shell.wait_for(3)} == {1, 2, None}
    assert written == ["run", "label", "stop"]
