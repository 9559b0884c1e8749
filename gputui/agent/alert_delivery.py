"""Telling somebody about alerts: the machine's command and webhook, bounded in number, and never waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gputui.agent.notifying import Notifier
from gputui.alerts.overrides import Delivery
from gputui.alerts.rules import SEVERITIES
from gputui.charts.safe_text import clean
from gputui.recovery.policies import Notice
from gputui.store.alerts import AlertView
from gputui.store.json_shapes import alert_shape

# A machine that falls apart raises dozens of alerts at once: after so many messages within so long the rest is counted,
# and told with the next one.
MOST_MESSAGES = 12
WITHIN_SECONDS = 300.0


@dataclass(slots=True)
class AlertDelivery:
    """``clock`` is monotonic; ``wake`` makes the loop turn, from any thread."""

    clock: Callable[[], float]
    wake: Callable[[], None]
    sent: deque[float] = field(default_factory=deque)
    left_out: int = 0
    notifier: Notifier = field(init=False)

    def __post_init__(self) -> None:
        self.notifier = Notifier(self.wake)

    def tell(self, delivery: Delivery | None, alert: AlertView, now: float) -> None:
        """Begin to tell about an alert that was raised or cleared; ``now`` is UTC unix seconds."""
        if delivery is None or not is_severe_enough(alert.severity, delivery):
            return
        while self.sent and self.clock() - self.sent[0] > WITHIN_SECONDS:
            self.sent.popleft()
        if len(self.sent) >= MOST_MESSAGES:
            self.left_out += 1
            return
        self.sent.append(self.clock())
        message = alert_message(alert, now)
        if self.left_out:
            message["text"] += f" (and {self.left_out} more that were not told; gputui alerts lists them)"
            self.left_out = 0
        self.notifier.tell(f"alert {alert.alert_id}", Notice(delivery.command, delivery.webhook), message)

    def failures(self) -> list[str]:
        """What could not be told since the last call."""
        return [f"{subject}: {why}" for subject, why in self.notifier.failures()]


def is_severe_enough(severity: str, delivery: Delivery) -> bool:
    return severity in SEVERITIES[SEVERITIES.index(delivery.severity) :]


def alert_message(alert: AlertView, now: float) -> dict[str, Any]:
    """What a command gets on its standard input and a webhook as its body: an alert as ``gputui alerts --json`` shows
    it, and ``text``, one sentence."""
    state = "" if alert.lasts else "over: "
    return {"text": clean(f"{state}{alert.sentence}"), "kind": "alert", "at": now, **alert_shape(alert, now)}
