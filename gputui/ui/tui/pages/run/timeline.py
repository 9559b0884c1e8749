"""The timeline of a run: attempts, incidents, decisions, and their costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

from gputui.core.text import clean
from gputui.core.units import count, duration
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.recovery.costs import in_words, total
from gputui.runs.checkpoint_names import step_words
from gputui.store.attempts import Attempt
from gputui.store.hardware import GpuView
from gputui.store.run_history import DecisionView
from gputui.ui.tui.data.snapshot import RunPage
from gputui.ui.tui.layout.columns import fit_line, wrap
from gputui.ui.tui.layout.words import clock, day_name, run_sign
from gputui.ui.tui.pages.run.failure import fatal_incident, title_of
from gputui.ui.tui.pages.run.head import gpu_words

EVIDENCE_SHOWN = 3
_MARGIN = len(" 00:00:00 ")
"""Cells of the time of day before each entry."""
_INDENT = 2
_DAY_STYLE = "label"
_EVENT_STYLES = {"warning": "warn", "error": "bad"}


class _Entry(NamedTuple):
    """One entry: its time (UTC unix seconds), text and style, and the details below it."""

    at: float
    style: str
    text: str
    details: tuple[Span, ...] = ()


def timeline_lines(
    page: RunPage, gpus: Sequence[GpuView], now: float, width: int, *, with_evidence: bool = False
) -> list[Line]:
    """Attempts, and incidents with decisions and costs, in order of time. Days other than that of ``now`` have a
    heading. ``with_evidence`` adds the evidence of each incident."""
    sinks = ((f"→ sinks: {', '.join(page.sinks)}", "dim"),) if page.sinks else ()
    entries = [
        _Entry(page.run.created_at, "dim", "queued", sinks),
        *(_start_of(attempt, gpus, page.run.target) for attempt in page.attempts),
        *(_end_of(attempt) for attempt in page.attempts if attempt.ended_at is not None),
        *_incidents(page, with_evidence=with_evidence),
        *(
            _Entry(event.at, _EVENT_STYLES.get(event.severity, "dim"), clean(event.message))
            for event in page.data_events
        ),
    ]
    if page.run.ended_at is not None:
        sign = run_sign(page.run.state)
        # The reason of a failed run is in the banner.
        reason = "" if page.run.state == "failed" else clean(page.run.told_reason or "")
        words = f"{sign.glyph} {sign.word}" + (f": {reason}" if reason else "")
        entries.append(_Entry(page.run.ended_at, sign.style, words))
    entries.sort(key=lambda entry: entry[0])
    lines: list[Line] = []
    day = day_name(now)
    for entry in entries:
        if day_name(entry.at) != day:
            day = day_name(entry.at)
            lines.append(fit_line([(f" {day}", _DAY_STYLE)], width))
        lines += _entry_lines(f" {clock(entry.at)} ", entry.style, entry.text, entry.details, width)
    return lines


def begins_entry(line: Line) -> bool:
    """Whether a line of the timeline is the first line of an entry or the heading of a day."""
    return bool(line) and not line[0][0].startswith("  ")


def day_of(lines: Sequence[Line], place: int) -> str:
    """The day of the line at index ``place``; empty for today, or if the line is itself that heading."""
    days = [number for number, line in enumerate(lines[: place + 1]) if line[0][1] == _DAY_STYLE]
    return "" if not days or days[-1] == place else lines[days[-1]][0][0].strip()


def cost_lines(page: RunPage, width: int) -> list[Line]:
    """The total cost of the run's failures; nothing if there were none."""
    met = {incident.incident_id for incident in page.incidents}
    together = total(paid for incident_id, paid in page.costs.items() if incident_id in met)
    if together is None or not in_words(together):
        return []
    incidents = "1 incident" if together.incidents == 1 else f"{together.incidents} incidents"
    least = "at least " if together.unknown else ""
    text = f"{incidents} cost {least}{in_words(together)}"
    return [fit_line([(" " + part, "warn")], width) for part in wrap(text, width - 2)]


def _incidents(page: RunPage, *, with_evidence: bool) -> Iterator[_Entry]:
    by_incident: dict[int, list[DecisionView]] = {}
    for decision in page.decisions:
        by_incident.setdefault(decision.incident_id, []).append(decision)
    fatal = fatal_incident(page)
    for incident in page.incidents:
        details: list[Span] = []
        if with_evidence:
            details += [(f"· {clean(str(found))}", "dim") for found in incident.evidence[:EVIDENCE_SHOWN]]
        if incident is not fatal:
            decided = by_incident.get(incident.incident_id, [])
            details += [(f"→ {clean(each.reason or each.verdict)}", "text") for each in decided]
        paid = page.costs.get(incident.incident_id)
        if paid is not None and in_words(paid):
            details.append((f"cost {in_words(paid)}", "dim"))
        text = title_of(incident) if incident is fatal else clean(incident.summary)
        yield _Entry(incident.at, "warn", text, tuple(details))


@lru_cache(8192)
def _entry_lines(stamp: str, style: str, text: str, details: tuple[Span, ...], width: int) -> tuple[Line, ...]:
    """An entry as lines, cached because the page is drawn every second. Callers must not change them."""
    lines: list[Line] = []
    for number, part in enumerate(wrap(text, width - _MARGIN)):
        lines.append(fit_line([(stamp if number == 0 else " " * _MARGIN, "dim"), (part, style)], width))
    for detail, detail_style in details:
        for number, part in enumerate(wrap(detail, width - _MARGIN - _INDENT)):
            margin = _MARGIN if number == 0 else _MARGIN + _INDENT
            lines.append(fit_line([(" " * margin + part, detail_style)], width))
    return tuple(lines)


def _start_of(attempt: Attempt, gpus: Sequence[GpuView], target: str | None) -> _Entry:
    where = gpu_words(attempt.gpus, gpus) if target is None else clean(target)
    if attempt.resumed_from is not None:
        # Until the first step is known, the name of the checkpoint.
        name = PurePath(attempt.resumed_from).name
        given = clean(name) if attempt.resumed_step is None else step_words(name, attempt.resumed_step)
        begin = given if attempt.first_step is None else f"step {count(attempt.first_step)}"
        text = f"attempt {attempt.number} from {begin} on {where}"
    else:
        text = f"attempt {attempt.number} on {where}" if attempt.number > 1 else f"started on {where}"
    at = attempt.started_at if attempt.started_at is not None else attempt.created_at
    return _Entry(at, "text", text)


def _end_of(attempt: Attempt) -> _Entry:
    assert attempt.ended_at is not None
    if attempt.exit_signal is not None:
        how = f"ended by signal {attempt.exit_signal}"
    elif attempt.exit_code is not None:
        how = f"ended with code {attempt.exit_code}"
    else:
        how = "ended"
    seconds = None if attempt.started_at is None else attempt.ended_at - attempt.started_at
    # With a clock that was set back, the duration is unknown.
    took = "" if seconds is None or seconds < 0 else f" after {duration(seconds)}"
    at_step = "" if attempt.last_step is None else f" at step {count(attempt.last_step)}"
    return _Entry(attempt.ended_at, "dim", f"attempt {attempt.number} {how}{took}{at_step}")
