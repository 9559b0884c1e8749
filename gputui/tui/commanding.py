"""The app as far as runs are changed: commands for the agent, the questions before them, and the agent's answers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from textual.message import Message

from gputui.config import Workspace
from gputui.store.commands import CommandAnswer
from gputui.store.database import StoreError
from gputui.tui.layout.answers import answer_text
from gputui.tui.layout.words import OVER, run_sign
from gputui.tui.navigation import PagesApp
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.settings import Settings


@dataclass
class Asked(Message):
    """A command was written for the agent, or could not be."""

    words: str
    command_id: int | None
    problem: str | None


@dataclass
class Answered(Message):
    """The agent answered a command."""

    answer: CommandAnswer


class CommandingApp(PagesApp, inherit_bindings=False):
    """Writes commands and tells what became of them. The run that they are about is that of the page."""

    BINDINGS: ClassVar = []
    workspace: Workspace

    def __init__(self, settings: Settings, settings_path: Path | None) -> None:
        super().__init__(settings, settings_path)
        self._asked: dict[int, str] = {}

    def ask(self, words: str, verb: str, run_id: str | None, args: Mapping[str, Any]) -> None:
        """Write a command for the agent, in a thread: a locked database must not stop the screen."""
        from gputui.tui import commands

        self.ask_by(words, lambda: commands.ask(self.workspace, verb, run_id, args))

    def ask_by(self, words: str, write: Callable[[], int]) -> None:
        """The same with another way to write it; ``write`` returns the command's id."""

        def work() -> None:
            try:
                self.post_message(Asked(words, write(), None))
            except (StoreError, sqlite3.Error, OSError) as error:
                self.post_message(Asked(words, None, str(error)))
            except Exception as error:
                # Nobody would hear of it otherwise: the thread would end, and nothing would ever be launched.
                self.post_message(Asked(words, None, f"{type(error).__name__}: {error}"))

        threading.Thread(target=work, name="asking", daemon=True).start()

    def on_asked(self, message: Asked) -> None:
        if message.command_id is None:
            self.say(f"Cannot ask the agent: {message.problem}", "error")
            return
        self._asked[message.command_id] = message.words
        self.feed.watch(message.command_id)
        self.say(f"{message.words}…")

    def on_answered(self, message: Answered) -> None:
        answer = message.answer
        words = self._asked.pop(answer.command_id, "")
        if answer.state == "refused":
            self.say(f"{words}: refused. {answer.reason or ''}", "error")
            return
        result = answer.result or {}
        self.say(answer_text(words, result))
        if answer.verb == "run" and isinstance(self.screen_stack[0], OverviewScreen):
            self.screen_stack[0].point_at(str(result.get("id", "")))

    # --- what is asked for

    def do_stop(self) -> None:
        run = self.run_in_question
        text = f"Stop {run.run_id}? It gets the time to write a checkpoint, then its processes end."
        if run.state in ("queued", "recovering"):
            text = (
                f"Stop {run.run_id}? It is {run_sign(run.state).word} and has no process now; it will not start again."
            )
        self.confirmed("Stop", text, lambda: self.ask(f"Stop {run.run_id}", "stop", run.run_id, {"now": False}))

    def do_restart(self) -> None:
        run = self.run_in_question
        now = "" if run.state in OVER else " Its processes are stopped first."
        text = f"Begin {run.run_id} again from the start, with the parameters of its launch?{now}"
        self.confirmed("Restart", text, lambda: self.ask(f"Restart {run.run_id}", "restart", run.run_id, {}))

    def do_resume(self) -> None:
        run = self.run_in_question
        self.ask(f"Resume {run.run_id}", "resume", run.run_id, {"set": {}})

    def do_remove(self) -> None:
        run = self.run_in_question
        text = f"Remove {run.run_id} with its metrics, logs and checkpoints? This cannot be undone."
        self.confirmed("Remove", text, lambda: self.ask(f"Remove {run.run_id}", "rm", run.run_id, {}))
