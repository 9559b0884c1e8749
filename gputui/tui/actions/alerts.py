"""What can be done on the page of alerts."""

from __future__ import annotations

from gputui.tui.actions.model import Action, act
from gputui.tui.actions.reasons import can_acknowledge, changes_alert, has_run, needs_alert, refused_here
from gputui.tui.actions.scopes import ALERTS, WATCHED

ALERT_ACTIONS: tuple[Action, ...] = (
    act("alerts", "exclamation_mark", "alerts", "What is wrong now, and what was", WATCHED, shown=False),
    act("alert_run", "enter l right", "run", "Open the page of the run that it concerns", ALERTS, has_run),
    act("alerts_back", "escape backspace h left", "back", "Back to where you came from", ALERTS),
    act("acknowledge", "a space", "seen", "Note that you have seen it; ends no alert", ALERTS, can_acknowledge),
    act("acknowledge_all", "A", "all seen", "The same for all that last", ALERTS, refused_here, shown=False),
    act("silence", "z", "silence", "Tell nobody of it for a time", ALERTS, changes_alert),
    act("alert_moment", "t", "its moment", "Look at everything as it was when it was raised", ALERTS, needs_alert),
    act("alerts_filter", "slash", "filter", "Show only alerts in which the words occur", ALERTS),
    act("alerts_order", "o", "order", "The severest first, or the newest", ALERTS),
    act("alert_up", "up k", "up", "The alert above", ALERTS, shown=False, in_palette=False),
    act("alert_down", "down j", "down", "The alert below", ALERTS, shown=False, in_palette=False),
    act("alerts_first", "home g", "first", "The first alert", ALERTS, shown=False, in_palette=False),
    act("alerts_last", "end G", "last", "The last alert", ALERTS, shown=False, in_palette=False),
    act("alerts_page_up", "pageup", "page up", "A page up", ALERTS, shown=False, in_palette=False),
    act("alerts_page_down", "pagedown", "page down", "A page down", ALERTS, shown=False, in_palette=False),
)
