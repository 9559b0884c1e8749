"""Commands that the screen writes for the agent."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from gputui.ui.tui import commands


class Shell:
    """The part of the app that `Commands` needs."""

    workspace = None

    def __init__(self) -> None:
        self.told: list[object] = []
        self.is_told = threading.Condition()

    def call_later(self, _callback: object, *told: object) -> None:
        with self.is_told:
            self.told.append(told[-1])
            self.is_told.notify_all()

    def tell(self, text: str, _kind: str) -> None:
        self.call_later(None, text)


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
    with shell.is_told:
        assert shell.is_told.wait_for(lambda: len(shell.told) == 3, 10)
    assert shell.told == [1, "Cannot ask the agent: full", 2]
    assert written == ["run", "label", "stop"]
