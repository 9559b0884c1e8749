"""Alert messages: their recipients, their number and their text. The outbox sends them."""

from __future__ import annotations

import sqlite3
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gputui.agent.context import AgentContext
from gputui.alerts.overrides import Delivery
from gputui.alerts.rules import SEVERITIES
from gputui.charts.safe_text import clean
from gputui.recovery.policies import NoticeTarget
from gputui.runs import notices
from gputui.runs.notices import Way
from gputui.store.alerts import AlertView
from gputui.store.json_shapes import alert_shape

# A machine that falls apart raises dozens of alerts at once: after so many messages within so long the rest is counted,
# and reported with the next one.
MOST_MESSAGES = 12
WITHIN_SECONDS = 300.0


@dataclass(slots=True)
class AlertDelivery:
    """Bounds how many messages are sent about alerts."""

    context: AgentContext
    owed_at: deque[float] = field(default_factory=deque)
    left_out: int = 0

    def owe(self, connection: sqlite3.Connection, delivery: Delivery | None, alert: AlertView, now: float) -> None:
        """Owe the messages about an alert that was raised or cleared; ``now`` is UTC unix seconds. Works inside the
        caller's transaction."""
        if delivery is None or not is_severe_enough(alert.severity, delivery):
            return
        while self.owed_at and self.context.monotonic() - self.owed_at[0] > WITHIN_SECONDS:
            self.owed_at.popleft()
        if len(self.owed_at) >= MOST_MESSAGES:
            self.left_out += 1
            return
        self.owed_at.append(self.context.monotonic())
        message = alert_message(alert, now)
        if self.left_out:
            message["text"] += f" (and {self.left_out} more not sent; gputui alerts lists them)"
            self.left_out = 0
        notices.put_of_alert(connection, alert.alert_id, ways_of(delivery), message, now=now)


def ways_of(delivery: Delivery) -> list[Way]:
    """The ways that are configured."""
    ways: list[tuple[Way, bool]] = [("command", bool(delivery.command)), ("webhook", delivery.webhook is not None)]
    return [way for way, is_there in ways if is_there]


def notice_for(delivery: Delivery | None) -> NoticeTarget | None:
    """The same as the outbox wants it."""
    return None if delivery is None else NoticeTarget(delivery.command, delivery.webhook)


def is_severe_enough(severity: str, delivery: Delivery) -> bool:
    return severity in SEVERITIES[SEVERITIES.index(delivery.severity) :]


def alert_message(alert: AlertView, now: float) -> dict[str, Any]:
    """What a command gets on its standard input and a webhook as its body: an alert as ``gputui alerts --json`` shows
    it, and ``text``, one sentence."""
    state = "" if alert.lasts else "over: "
    return {"text": clean(f"{state}{alert.sentence}"), "kind": "alert", "at": now, **alert_shape(alert, now)}
