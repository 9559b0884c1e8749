"""Why a run failed, and what to do about it: over the whole width, before everything else."""

from __future__ import annotations

from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.recovery.kinds import KINDS
from gputui.store.run_history import IncidentView
from gputui.tui.actions import Context, find
from gputui.tui.data.snapshot import RunPage
from gputui.tui.layout.columns import fit_line, fitting, wrap

MOST_CAUSE_LINES = 3

_KEYS = (
    ("traceback", "traceback"),
    ("section_log", "log"),
    ("restart", "restart"),
    ("clone", "launch with changes"),
)


def fatal_incident(page: RunPage) -> IncidentView | None:
    """What a failed run failed of; None where it did not fail, or nothing is known of it."""
    if page.run.state != "failed" or not page.incidents:
        return None
    return page.incidents[-1]


def banner_lines(page: RunPage, context: Context, width: int) -> list[Line]:
    """What, where, whether it was retried, and the keys that help; nothing for a run that did not fail."""
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
    texts = [(part, "bad") for part in wrap(_sentence(cause), width - 4)[:MOST_CAUSE_LINES]]
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
    """What an incident is called where the banner has its summary."""
    kind = KINDS.get(incident.kind)
    return kind.title if kind is not None else incident.kind.replace("_", " ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
