"""Sending what somebody is owed: by a command or a webhook, in a thread each, with a deadline and again if need be."""

from __future__ import annotations

import json
import queue
import sqlite3
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gputui.agent.rundirs import notice_of
from gputui.charts.units import duration
from gputui.config import Workspace
from gputui.recovery.policies import Notice
from gputui.runs import notices, repository
from gputui.runs.notices import Owed
from gputui.runs.repository import transaction

COMMAND_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0
LAST_WORDS = 200
# After each failure; after as many tries and one it is given up. A mail server that restarts is back by then.
AGAIN_SECONDS = (10.0, 60.0, 300.0, 900.0)

Result = tuple[Owed, str | None]


@dataclass(slots=True)
class Notifier:
    """The messages of one state directory. ``wake`` makes the loop turn, from any thread."""

    connection: sqlite3.Connection
    workspace: Workspace
    wall: Callable[[], float]
    wake: Callable[[], None]
    under_way: set[int] = field(default_factory=set)
    results: queue.SimpleQueue[Result] = field(default_factory=queue.SimpleQueue)

    def turn(self) -> None:
        """Note how sending ended, and begin to send what is due. Raises sqlite3.Error."""
        while not self.results.empty():
            owed, trouble = self.results.get()
            self._settle(owed, trouble)
            self.under_way.discard(owed.notice_id)
        for owed in notices.due(self.connection, self.wall()):
            if owed.notice_id not in self.under_way:
                self._begin(owed)

    def _begin(self, owed: Owed) -> None:
        if owed.tries > len(AGAIN_SECONDS):
            # The agents that tried did not live to say how it ended.
            self._give_up(owed, "no agent outlived it")
            return
        notice = notice_of(self.workspace, owed.run_id)
        if notice is None or not (notice.command if owed.way == "command" else notice.webhook):
            self._give_up(owed, f"the run's folder no longer says by which {owed.way}")
            return
        notices.note_try(self.connection, owed.notice_id)
        self.under_way.add(owed.notice_id)
        threading.Thread(target=self._send, args=(owed, notice), name=f"notify-{owed.run_id}", daemon=True).start()

    def _send(self, owed: Owed, notice: Notice) -> None:
        trouble = None
        try:
            (run_command if owed.way == "command" else post)(notice, owed.message)
        except Exception as error:
            trouble = describe(error)
        self.results.put((owed, trouble))
        self.wake()

    def _settle(self, owed: Owed, trouble: str | None) -> None:
        now = self.wall()
        if trouble is None:
            with transaction(self.connection):
                notices.note_sent(self.connection, owed.notice_id, now)
                self._event(owed, f"told by {owed.way}: {owed.message['text']}", "info")
        elif owed.tries >= len(AGAIN_SECONDS):
            self._give_up(owed, trouble)
        else:
            seconds = AGAIN_SECONDS[owed.tries]
            with transaction(self.connection):
                notices.note_delay(self.connection, owed.notice_id, now + seconds)
                if owed.tries == 0:
                    self._event(owed, f"nobody was told: {trouble}; trying again in {duration(seconds)}", "warning")

    def _give_up(self, owed: Owed, why: str) -> None:
        with transaction(self.connection):
            notices.note_given_up(self.connection, owed.notice_id, self.wall())
            self._event(owed, f"nobody was told: {why}; given up", "error")

    def _event(self, owed: Owed, text: str, severity: str) -> None:
        repository.add_event(
            self.connection, text, now=self.wall(), severity=severity, run_id=owed.run_id, attempt=owed.attempt
        )


def run_command(notice: Notice, message: Mapping[str, Any]) -> None:
    """Run the command with the message's text as its last argument and all of it as JSON on its standard input.

    Raises OSError, and subprocess.SubprocessError where it fails or takes too long.
    """
    subprocess.run(
        [*notice.command, str(message["text"])],
        input=json.dumps(message).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=COMMAND_SECONDS,
        check=True,
        start_new_session=True,
    )


def post(notice: Notice, message: Mapping[str, Any]) -> None:
    """Send the message as JSON. Raises OSError, ValueError or http.client.HTTPException."""
    request = urllib.request.Request(  # noqa: S310 - the policy allows http and https only
        str(notice.webhook), json.dumps(message).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS) as answer:  # noqa: S310
        answer.read(1)


def describe(error: Exception) -> str:
    """What went wrong, without the command or the address, which may hold secrets."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the command took longer than {COMMAND_SECONDS:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        words = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return f"the command ended with code {error.returncode}" + (f": {words[-1][:LAST_WORDS]}" if words else "")
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return f"the command or the webhook cannot be reached: {reason}"
