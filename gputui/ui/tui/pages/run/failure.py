"""The banner of a failed run: why it failed, and the keys that help."""

from __future__ import annotations

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.recovery.kinds import KINDS
from gputui.store.run_history import IncidentView
from gputui.ui.tui.actions import Context, find
from gputui.ui.tui.data.snapshot import RunPage
from gputui.ui.tui.layout.columns import fit_line, fitting, wrap

MOST_CAUSE_LINES = 3

_KEYS = (
    ("traceback", "traceback"),
    ("section_log", "log"),
    ("restart", "restart"),
    ("clone", "launch with changes"),
)


def fatal_incident(page: RunPage) -> IncidentView | None:
    """The incident that ended a failed run; None for other runs, or if none is known."""
    if page.run.state != "failed" or not page.incidents:
        return None
    return page.incidents[-1]


def banner_lines(page: RunPage, context: Context, width: int) -> list[Line]:
    """The cause, what recovery decided, and the keys that help; nothing for a run that did not fail."""
    if page.run.state != "failed":
        return []
    incident = fatal_incident(page)
    if incident is None:
        cause, after = clean(page.run.told_reason or "no cause is known"), ""
    else:
        cause = clean(incident.summary)
        decision = next((one for one in page.decisions if one.incident_id == incident.incident_id), None)
        after = clean(decision.reason) if decision is not None else ""
    tries = len(page.attempts)
    if tries > 1:
        after = f"{tries} attempts · {after}" if after else f"{tries} attempts"
    texts = [(part, "bad") for part in wrap(cause[:1].upper() + cause[1:], width - 4)[:MOST_CAUSE_LINES]]
    texts += [(part, "text") for part in wrap(after, width - 4)[:MOST_CAUSE_LINES]]
    lines: list[Line] = [fit_line([(" ┃ ", "bad"), part], width) for part in texts]
    keys: list[list[Span]] = [[(" ┃ ", "bad")]]
    for name, words in _KEYS:
        action = find(name, "run")
        possible = action.why_not(context) is None
        keys.append(
            [(context.key_word(action), "key" if possible else "dim"), (f" {words}   ", "text" if possible else "dim")]
        )
    return [*lines, fitting(keys, width)]


def title_of(incident: IncidentView) -> str:
    """A short name of an incident, for places where the banner shows its summary."""
    kind = KINDS.get(incident.kind)
    return kind.title if kind is not None else incident.kind.replace("_", " ")
