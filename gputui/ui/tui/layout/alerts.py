"""The strip of alerts on the overview, and the signs of their severities."""

from __future__ import annotations

from gputui.core.text import clean
from gputui.core.units import count_of
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.data.snapshot import AlertsState
from gputui.ui.tui.layout.columns import between

SIGNS = {"error": ("✗", "bad"), "warning": ("▲", "warn"), "info": ("·", "accent")}
"""Glyph and style of each severity."""

SEVEREST_FIRST = ("error", "warning", "info")


def alert_strip(state: AlertsState, now: float, width: int, *, has_keys: bool = True) -> Line | None:
    """The number of alerts of each severity, and the worst in words; None if there are none."""
    news = [one for one in state.last if one.is_news(now)]
    if not news:
        return None
    parts: list[Span] = [(" ", "text")]
    for severity in SEVEREST_FIRST:
        count = sum(one.severity == severity for one in news)
        if count:
            glyph, style = SIGNS[severity]
            parts.append((f"{glyph} {count_of(count, 'note' if severity == 'info' else severity)}  ", style))
    worst = news[0]
    quiet = len(state.last) - len(news)
    right: list[Span] = [(f"{quiet} acked or silenced  ", "dim")] if quiet and width >= 110 else []
    right += [(" !", "key"), (" alerts ", "dim")] if has_keys else []
    return between([*parts, (clean(worst.sentence), SIGNS[worst.severity][1])], right, width)
