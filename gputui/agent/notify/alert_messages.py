"""Messages about alerts: recipients, rate limit and text. The outbox sends them."""

from __future__ import annotations

import sqlite3
from collections import deque
from dataclasses import dataclass, field

from gputui.agent.context import AgentContext
from gputui.core.text import clean
from gputui.recovery.policies import NoticeTarget
from gputui.recovery.watch.overrides import Delivery
from gputui.recovery.watch.rules import SEVERITIES
from gputui.runs import notices
from gputui.runs.notices import Way
from gputui.store.alerts import AlertView
from gputui.store.json_shapes import alert_shape

# Rate limit, because a failing machine raises dozens of alerts at once. The next message has the number left out.
MOST_MESSAGES = 12
WITHIN_SECONDS = 300.0


@dataclass(slots=True)
class AlertDelivery:
    """Queues messages about alerts within the rate limit."""

    context: AgentContext
    owed_at: deque[float] = field(default_factory=deque)
    left_out: int = 0

    def owe(self, connection: sqlite3.Connection, delivery: Delivery | None, alert: AlertView, now: float) -> None:
        """Queue the messages about an alert that was raised or cleared; ``now`` is UTC unix seconds. Works inside the
        caller's transaction."""
        if delivery is None or alert.severity not in SEVERITIES[SEVERITIES.index(delivery.severity) :]:
            return
        while self.owed_at and self.context.monotonic() - self.owed_at[0] > WITHIN_SECONDS:
            self.owed_at.popleft()
        if len(self.owed_at) >= MOST_MESSAGES:
            self.left_out += 1
            return
        self.owed_at.append(self.context.monotonic())
        state = "" if alert.lasts else "over: "
        text = clean(f"{state}{alert.sentence}")
        # A command gets this on stdin, a webhook as its body.
        message = {"text": text, "kind": "alert", "at": now, **alert_shape(alert, now)}
        if self.left_out:
            message["text"] += f" (and {self.left_out} more not sent; gputui alerts lists them)"
            self.left_out = 0
        named: dict[Way, object] = {"command": delivery.command, "webhook": delivery.webhook}
        ways = [way for way, value in named.items() if value]
        notices.put_of_alert(connection, alert.alert_id, ways, message, now=now)


def notice_for(delivery: Delivery | None) -> NoticeTarget | None:
    """The recipients of alerts in the form of a run's notification settings."""
    return None if delivery is None else NoticeTarget(delivery.command, delivery.webhook)
