"""Sending what somebody is owed: by a command or a webhook, in a thread each, with a deadline and again if need be."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.run_files import notice_of
from gputui.agent.notify.delivery import describe, post, run_command
from gputui.charts.units import duration
from gputui.recovery.policies import NoticeTarget
from gputui.redaction import Redactor, secrets_in
from gputui.runs import notices
from gputui.runs.notices import Owed
from gputui.runs.repository import transaction
from gputui.store.events import EventKind, add_event

# After each failure; after as many tries and one it is given up. A mail server that restarts is back by then.
AGAIN_SECONDS = (10.0, 60.0, 300.0, 900.0)

Result = tuple[Owed, str | None]


def _secrets_of(notice: NoticeTarget) -> set[str]:
    """What a failing command may say in its last words, and an error of the webhook."""
    return secrets_in(os.environ, {}, notice.command) | ({notice.webhook} if notice.webhook else set())


@dataclass(slots=True)
class Outbox:
    """The messages of one state directory. ``wake`` makes the loop turn, from any thread; ``alerts_by`` says how alerts
    are told now, None where nobody wants to know."""

    context: AgentContext
    alerts_by: Callable[[], NoticeTarget | None] = lambda: None
    under_way: set[int] = field(default_factory=set)
    results: queue.SimpleQueue[Result] = field(default_factory=queue.SimpleQueue)
    # What could not be written yet must not be sent again.
    unsettled: deque[Result] = field(default_factory=deque)

    def turn(self) -> None:
        """Note how sending ended, and begin to send what is due. Raises sqlite3.Error."""
        while not self.results.empty():
            self.unsettled.append(self.results.get())
        while self.unsettled:
            owed, trouble = self.unsettled[0]
            self._settle(owed, trouble)
            self.under_way.discard(owed.notice_id)
            self.unsettled.popleft()
        for owed in notices.due(self.context.connection, self.context.now()):
            if owed.notice_id not in self.under_way:
                self._begin(owed)

    def _begin(self, owed: Owed) -> None:
        if owed.tries > len(AGAIN_SECONDS):
            # The agents that tried did not live to say how it ended.
            self._give_up(owed, "no agent outlived it")
            return
        notice = self.alerts_by() if owed.run_id is None else notice_of(self.context.workspace, owed.run_id)
        if notice is None or not (notice.command if owed.way == "command" else notice.webhook):
            where = "alerts.yaml" if owed.run_id is None else "the run's folder"
            self._give_up(owed, f"{where} no longer says by which {owed.way}")
            return
        notices.note_try(self.context.connection, owed.notice_id)
        self.under_way.add(owed.notice_id)
        threading.Thread(target=self._send, args=(owed, notice), name=f"notify-{owed.notice_id}", daemon=True).start()

    def _send(self, owed: Owed, notice: NoticeTarget) -> None:
        trouble = None
        try:
            (run_command if owed.way == "command" else post)(notice, owed.message)
        except Exception as error:
            trouble = Redactor(_secrets_of(notice)).text(describe(error))
        self.results.put((owed, trouble))
        self.context.wake()

    def _settle(self, owed: Owed, trouble: str | None) -> None:
        now = self.context.now()
        if trouble is None:
            with transaction(self.context.connection):
                notices.note_sent(self.context.connection, owed.notice_id, now)
                if owed.alert_id is None:
                    # An alert is an event already.
                    self._event(owed, "notice_sent", f"told by {owed.way}: {owed.message['text']}", "info")
        elif owed.tries >= len(AGAIN_SECONDS):
            self._give_up(owed, trouble)
        else:
            seconds = AGAIN_SECONDS[owed.tries]
            with transaction(self.context.connection):
                notices.note_delay(self.context.connection, owed.notice_id, now + seconds)
                if owed.tries == 0:
                    text = f"nobody was told: {trouble}; trying again in {duration(seconds)}"
                    self._event(owed, "notice_delayed", text, "warning")

    def _give_up(self, owed: Owed, why: str) -> None:
        with transaction(self.context.connection):
            notices.note_given_up(self.context.connection, owed.notice_id, self.context.now())
            self._event(owed, "notice_failed", f"nobody was told: {why}; given up", "error")

    def _event(self, owed: Owed, kind: EventKind, text: str, severity: str) -> None:
        subject = None if owed.alert_id is None else f"alert {owed.alert_id}"
        now, connection = self.context.now(), self.context.connection
        add_event(
            connection,
            kind,
            text,
            now=now,
            key=owed.way,
            severity=severity,
            subject=subject,
            run_id=owed.run_id,
            attempt=owed.attempt,
        )
