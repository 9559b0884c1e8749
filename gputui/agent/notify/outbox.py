"""The outbox: sends stored notifications by a command or a webhook, each in a job, with retries."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.run_files import notice_of
from gputui.agent.notify.delivery import describe, post, run_command
from gputui.core.redaction import Redactor, secrets_in
from gputui.core.units import duration
from gputui.recovery.policies import NoticeTarget
from gputui.runs import notices
from gputui.runs.notices import Owed
from gputui.runs.repository import transaction
from gputui.store.events import EventKind, Severity, add_event

# Delays after failures; after one more failure the message is given up. A mail server restarts faster.
AGAIN_SECONDS = (10.0, 60.0, 300.0, 900.0)

# Fewer than all jobs, so that unresponsive servers do not block other jobs.
AT_ONCE = 4
# More than the deadline of a command or a webhook.
SEND_SECONDS = 60.0


class _Sending(Struct, frozen=True):
    owed: Owed
    notice: NoticeTarget
    job: Job[None]

    def trouble(self) -> str | None:
        """Why it could not be sent, redacted; None if it was. The job must be over."""
        try:
            self.job.result()
        except Exception as error:
            webhook = {self.notice.webhook} if self.notice.webhook else set()
            return Redactor(secrets_in(os.environ, {}, self.notice.command) | webhook).text(describe(error))
        return None


@dataclass(slots=True)
class Outbox:
    """The messages of one state directory. ``alerts_by`` returns where alerts are sent, or None; ``under_way`` are
    messages that are being sent, or whose result is not stored yet, by id."""

    context: AgentContext
    alerts_by: Callable[[], NoticeTarget | None] = lambda: None
    under_way: dict[int, _Sending] = field(default_factory=dict)

    def turn(self) -> None:
        """Store results, and start to send what is due. Raises sqlite3.Error."""
        for sending in list(self.under_way.values()):
            if sending.job.is_over:
                self._settle(sending.owed, sending.trouble())
                # Deleted last: a message whose result cannot be stored must not be sent again.
                del self.under_way[sending.owed.notice_id]
        for owed in notices.due(self.context.connection, self.context.now()):
            if owed.notice_id not in self.under_way and len(self.under_way) < AT_ONCE:
                self._begin(owed)

    def _begin(self, owed: Owed) -> None:
        if owed.tries > len(AGAIN_SECONDS):
            # Each agent that tried died before it stored a result.
            self._give_up(owed, "no agent outlived it")
            return
        notice = self.alerts_by() if owed.run_id is None else notice_of(self.context.workspace, owed.run_id)
        if notice is None or not (notice.command if owed.way == "command" else notice.webhook):
            where = "alerts.yaml" if owed.run_id is None else "the run's folder"
            self._give_up(owed, f"{where} no longer says by which {owed.way}")
            return
        notices.note_try(self.context.connection, owed.notice_id)
        send = run_command if owed.way == "command" else post
        job = self.context.jobs.start(
            f"sending notice {owed.notice_id}", partial(send, notice, owed.message), deadline_seconds=SEND_SECONDS
        )
        self.under_way[owed.notice_id] = _Sending(owed, notice, job)

    def _settle(self, owed: Owed, trouble: str | None) -> None:
        now = self.context.now()
        if trouble is None:
            with transaction(self.context.connection):
                notices.note_sent(self.context.connection, owed.notice_id, now)
                if owed.alert_id is None:
                    # An alert is an event already.
                    self._event(owed, "notice_sent", f"notified by {owed.way}: {owed.message['text']}", "info")
        elif owed.tries >= len(AGAIN_SECONDS):
            self._give_up(owed, trouble)
        else:
            seconds = AGAIN_SECONDS[owed.tries]
            with transaction(self.context.connection):
                notices.note_delay(self.context.connection, owed.notice_id, now + seconds)
                if owed.tries == 0:
                    text = f"not notified: {trouble}; trying again in {duration(seconds)}"
                    self._event(owed, "notice_delayed", text, "warning")

    def _give_up(self, owed: Owed, reason: str) -> None:
        with transaction(self.context.connection):
            notices.note_given_up(self.context.connection, owed.notice_id, self.context.now())
            self._event(owed, "notice_failed", f"not notified: {reason}; given up", "error")

    def _event(self, owed: Owed, kind: EventKind, text: str, severity: Severity) -> None:
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
