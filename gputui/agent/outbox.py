"""Notifications that are due, and their delivery by a command or a webhook, with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from sqlite3 import Connection
from typing import Any, NamedTuple

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.run_files import notice_of
from gputui.core.redaction import Redactor, redact_text, secrets_in
from gputui.core.text import clean
from gputui.core.units import duration
from gputui.recovery.policies import NoticeTarget
from gputui.recovery.watch.overrides import Delivery
from gputui.recovery.watch.rules import SEVERITIES
from gputui.runs import notices
from gputui.runs.notices import Owed, Way
from gputui.runs.repository import transaction
from gputui.store.alerts import AlertView
from gputui.store.events import EventKind, Severity
from gputui.store.json_shapes import alert_shape
from gputui.store.runs import Run

COMMAND_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0
STDERR_CHARACTERS = 200
STDERR_BYTES = 1 << 16

# Delays after failures; after one more failure the message is given up.
AGAIN_SECONDS = (10.0, 60.0, 300.0, 900.0)
# Fewer than all jobs, so that unresponsive servers do not block other jobs.
AT_ONCE = 4
# More than the deadline of a command or a webhook.
SEND_SECONDS = 60.0

Recipient = NoticeTarget | Delivery
"""The command and the webhook of a run's policy, or those of alerts."""


def run_command(notice: Recipient, message: Mapping[str, Any], seconds: float = COMMAND_SECONDS) -> None:
    """Run the command with the message's text as its last argument and the message as JSON on
    stdin.

    Background processes that it leaves, as mail programs do, are not waited for. After
    ``seconds``, its process group is killed.

    Raises OSError, or subprocess.SubprocessError if it fails or takes too long.
    """
    command = [*notice.command, str(message["text"])]
    # A file, because a pipe stays open while a background process holds it.
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            process.communicate(json.dumps(message).encode(), timeout=seconds)
        except BaseException:
            # Not reaped yet, so that its PID cannot be another's.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode:
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read()[-STDERR_BYTES:])


def post(notice: Recipient, message: Mapping[str, Any], seconds: float = WEBHOOK_SECONDS) -> None:
    """Send the message as JSON. Raises OSError, ValueError or http.client.HTTPException."""
    # Imported here because it takes 6 MB with TLS, which few agents need.
    import urllib.request

    request = urllib.request.Request(  # noqa: S310 - the policy allows http and https only
        str(notice.webhook), json.dumps(message).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
        answer.read(1)


def describe(error: Exception) -> str:
    """Message for an error of delivery, without the command or the address, which may contain
    secrets."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the command took longer than {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        words = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        said = f": {words[-1][:STDERR_CHARACTERS]}" if words else ""
        return f"the command ended with code {error.returncode}{said}"
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return f"the command or the webhook cannot be reached: {reason or type(error).__name__}"


class _Sending(NamedTuple):
    owed: Owed
    notice: Recipient
    job: Job[None]

    def trouble(self) -> str | None:
        """The reason why it could not be sent, redacted; None if it was. The job must be over."""
        try:
            self.job.result()
        except Exception as error:
            secrets = secrets_in(os.environ, {}, self.notice.command)
            secrets |= {self.notice.webhook} if self.notice.webhook else set()
            return Redactor(secrets).text(describe(error))
        return None


@dataclass(slots=True)
class Outbox:
    """The messages of one state directory. ``alerts_by`` returns where alerts are sent, or None;
    ``under_way`` are messages that are being sent, or whose result is not stored yet, by id."""

    context: AgentContext
    alerts_by: Callable[[], Recipient | None] = lambda: None
    under_way: dict[int, _Sending] = field(default_factory=dict)

    def turn(self) -> None:
        """Store results, and start to send what is due. Raises sqlite3.Error."""
        for sending in list(self.under_way.values()):
            if sending.job.is_over:
                self._settle(sending.owed, sending.trouble())
                # Last: a message whose result cannot be stored must not be sent again.
                del self.under_way[sending.owed.notice_id]
        for owed in notices.due(self.context.connection, self.context.now()):
            if owed.notice_id not in self.under_way and len(self.under_way) < AT_ONCE:
                self._begin(owed)

    def _begin(self, owed: Owed) -> None:
        context = self.context
        if owed.tries > len(AGAIN_SECONDS):
            # Each agent that tried died before it stored a result.
            self._give_up(owed, "no agent outlived it")
            return
        if owed.run_id is None:
            notice, where = self.alerts_by(), "alerts.yaml"
        else:
            notice, where = notice_of(context.workspace, owed.run_id), "the run's folder"
        if notice is None or not (notice.command if owed.way == "command" else notice.webhook):
            self._give_up(owed, f"{where} no longer says by which {owed.way}")
            return
        notices.note_try(context.connection, owed.notice_id)
        work = partial(run_command if owed.way == "command" else post, notice, owed.message)
        name = f"sending notice {owed.notice_id}"
        job = context.jobs.start(name, work, deadline_seconds=SEND_SECONDS)
        self.under_way[owed.notice_id] = _Sending(owed, notice, job)

    def _settle(self, owed: Owed, trouble: str | None) -> None:
        connection, now = self.context.connection, self.context.now()
        if trouble is None:
            with transaction(connection):
                notices.note_sent(connection, owed.notice_id, now)
                if owed.alert_id is None:
                    # An alert is an event already.
                    text = f"notified by {owed.way}: {owed.message['text']}"
                    self._event(owed, "notice_sent", text, "info")
        elif owed.tries >= len(AGAIN_SECONDS):
            self._give_up(owed, trouble)
        else:
            seconds = AGAIN_SECONDS[owed.tries]
            with transaction(connection):
                notices.note_delay(connection, owed.notice_id, now + seconds)
                if owed.tries == 0:
                    text = f"not notified: {trouble}; trying again in {duration(seconds)}"
                    self._event(owed, "notice_delayed", text, "warning")

    def _give_up(self, owed: Owed, reason: str) -> None:
        with transaction(self.context.connection) as connection:
            notices.note_given_up(connection, owed.notice_id, self.context.now())
            self._event(owed, "notice_failed", f"not notified: {reason}; given up", "error")

    def _event(self, owed: Owed, kind: EventKind, text: str, severity: Severity) -> None:
        subject = None if owed.alert_id is None else f"alert {owed.alert_id}"
        self.context.note(kind, text, owed.run_id, owed.attempt, key=owed.way, severity=severity, subject=subject)


class RunNews(NamedTuple):
    """News of a run: its incident, and the reason why it continues or stops."""

    kind: str
    summary: str
    reason: str
    continues: bool


def owe_news(context: AgentContext, recipient: Recipient | None, run: Run, news: RunNews) -> None:
    """Queue the messages about an attempt's end in the transaction of its event."""
    reason, now = redact_text(news.reason), context.now()
    message = {
        "text": f"{run.run_id} {'continues' if news.continues else 'stopped'}: {news.summary}; {reason}",
        "run_id": run.run_id,
        "attempt": run.attempt,
        "kind": news.kind,
        "summary": news.summary,
        "verdict": "retry" if news.continues else "stop",
        "reason": reason,
        "at": now,
    }
    notices.put(context.connection, run.run_id, run.attempt, _ways(recipient), message, now=now)


def owe_alert(connection: Connection, delivery: Delivery | None, alert: AlertView, now: float) -> None:
    """Queue the messages about an alert that was raised or cleared, if it is severe enough; ``now``
    is UTC unix seconds. Works inside the caller's transaction."""
    if delivery is None or SEVERITIES.index(alert.severity) < SEVERITIES.index(delivery.severity):
        return
    text = clean(f"{'' if alert.lasts else 'over: '}{alert.sentence}")
    # A command gets this on stdin, a webhook as its body.
    message = {"text": text, "kind": "alert", "at": now, **alert_shape(alert, now)}
    notices.put_of_alert(connection, alert.alert_id, _ways(delivery), message, now=now)


def _ways(recipient: Recipient | None) -> list[Way]:
    ways: list[Way] = []
    if recipient is not None and recipient.command:
        ways.append("command")
    if recipient is not None and recipient.webhook:
        ways.append("webhook")
    return ways
