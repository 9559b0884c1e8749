"""The timeline of a run: attempts, incidents, decisions, and their costs."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from gputui.core.text import cell_width, clean
from gputui.core.units import count, count_of, duration
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.recovery.costs import in_words, total
from gputui.runs.checkpoint_names import step_words
from gputui.store.attempts import Attempt
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import RunPage
from gputui.ui.tui.layout.columns import fit_line, wrap
from gputui.ui.tui.layout.gpu_words import with_indices
from gputui.ui.tui.layout.words import SEVERITY_STYLES, dated_clock, sign_of
from gputui.ui.tui.pages.run.head import fatal_incident, gpu_words, title_of

EVIDENCE_SHOWN = 3
_INDENT = 2


class _Entry(NamedTuple):
    """One entry: its time (UTC unix seconds), text and style, and the details below it."""

    at: float
    style: str
    text: str
    details: Sequence[Span] = ()


def timeline_lines(
    page: RunPage, gpus: Sequence[GpuView], now: float, width: int, *, with_evidence: bool = False
) -> list[Line]:
    """Attempts, and incidents with decisions and costs, in order of time, each with its day if that is not today.
    ``with_evidence`` adds the evidence of each incident."""
    run = page.run
    sinks = [(f"→ sinks: {', '.join(page.sinks)}", "dim")] if page.sinks else []
    entries = [
        _Entry(run.created_at, "dim", "queued", sinks),
        *(_start_of(attempt, gpus, run.target) for attempt in page.attempts),
        *(_end_of(attempt, attempt.ended_at) for attempt in page.attempts if attempt.ended_at is not None),
        *_incidents(page, gpus, with_evidence=with_evidence),
    ]
    for event in page.data_events:
        style = "dim" if event.severity == "info" else SEVERITY_STYLES[event.severity]
        entries.append(_Entry(event.at, style, clean(event.message)))
    if run.ended_at is not None:
        sign = sign_of(run)
        # The reason of a failed run is in the banner.
        reason = "" if run.state == "failed" else clean(run.told_reason or "")
        entries.append(_Entry(run.ended_at, sign.style, f"{sign.glyph} {sign.word}{': ' if reason else ''}{reason}"))
    entries.sort(key=lambda entry: entry.at)
    stamps = [dated_clock(entry.at, now) for entry in entries]
    margin = max(map(cell_width, stamps)) + 2
    lines: list[Line] = []
    for stamp, entry in zip(stamps, entries, strict=True):
        before = f"{stamp:>{margin - 1}} "
        for part in wrap(entry.text, width - margin):
            lines.append(fit_line([(before, "dim"), (part, entry.style)], width))
            before = " " * margin
        for detail, style in entry.details:
            for number, part in enumerate(wrap(detail, width - margin - _INDENT)):
                indent = margin + (_INDENT if number else 0)
                lines.append(fit_line([(" " * indent + part, style)], width))
    return lines


def cost_lines(page: RunPage, width: int) -> list[Line]:
    """The total cost of the run's failures; nothing if there were none."""
    met = {incident.incident_id for incident in page.incidents}
    together = total(paid for incident_id, paid in page.costs.items() if incident_id in met)
    if together is None or not in_words(together):
        return []
    least = "at least " if together.unknown else ""
    text = f"{count_of(together.incidents, 'incident')} cost {least}{in_words(together)}"
    return [fit_line([(" " + part, "warn")], width) for part in wrap(text, width - 2)]


def _incidents(page: RunPage, gpus: Sequence[GpuView], *, with_evidence: bool) -> Iterator[_Entry]:
    fatal = fatal_incident(page)
    for incident in page.incidents:
        evidence = incident.evidence[:EVIDENCE_SHOWN] if with_evidence else ()
        details = [(f"· {clean(with_indices(str(found), gpus))}", "dim") for found in evidence]
        if incident is not fatal:
            decided = (one for one in page.decisions if one.incident_id == incident.incident_id)
            details += [(f"→ {clean(with_indices(each.reason or each.verdict, gpus))}", "text") for each in decided]
        paid = page.costs.get(incident.incident_id)
        if paid is not None and in_words(paid):
            details.append((f"cost {in_words(paid)}", "dim"))
        text = title_of(incident) if incident is fatal else clean(with_indices(incident.summary, gpus))
        yield _Entry(incident.at, "warn", text, details)


def _start_of(attempt: Attempt, gpus: Sequence[GpuView], target: str | None) -> _Entry:
    where = gpu_words(attempt.gpus, gpus) if target is None else clean(target)
    verb = f"attempt {attempt.number} started" if attempt.number > 1 else "started"
    if attempt.resumed_from is not None:
        name, step = PurePath(attempt.resumed_from).name, attempt.resumed_step
        verb = f"attempt {attempt.number} resumed from {clean(name) if step is None else step_words(name, step)}"
    at = attempt.started_at if attempt.started_at is not None else attempt.created_at
    return _Entry(at, "text", f"{verb} on {where}")


def _end_of(attempt: Attempt, ended_at: float) -> _Entry:
    if attempt.state == "stopped":
        ended = "was stopped"
    elif attempt.exit_signal is not None:
        names = {each.value: each.name for each in signal.Signals}
        ended = f"was ended by {names.get(attempt.exit_signal, f'signal {attempt.exit_signal}')}"
    elif attempt.exit_code is not None:
        ended = f"exited with code {attempt.exit_code}" if attempt.exit_code else "exited normally"
    else:
        ended = "ended"
    seconds = None if attempt.started_at is None else ended_at - attempt.started_at
    # With a clock that was set back, the duration is unknown.
    took = "" if seconds is None or seconds < 0 else f" after {duration(seconds)}"
    at_step = "" if attempt.last_step is None else f" at step {count(attempt.last_step)}"
    return _Entry(ended_at, "dim", f"attempt {attempt.number} {ended}{took}{at_step}")
