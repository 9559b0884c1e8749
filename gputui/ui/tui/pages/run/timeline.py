"""The timeline of a run: attempts, incidents, decisions, and their costs."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from functools import lru_cache
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
    details: tuple[Span, ...] = ()


def timeline_lines(
    page: RunPage, gpus: Sequence[GpuView], now: float, width: int, *, with_evidence: bool = False
) -> list[Line]:
    """Attempts, and incidents with decisions and costs, in order of time, each with its day if that is not today.
    ``with_evidence`` adds the evidence of each incident."""
    sinks = ((f"→ sinks: {', '.join(page.sinks)}", "dim"),) if page.sinks else ()
    entries = [
        _Entry(page.run.created_at, "dim", "queued", sinks),
        *(_start_of(attempt, gpus, page.run.target) for attempt in page.attempts),
        *(_end_of(attempt) for attempt in page.attempts if attempt.ended_at is not None),
        *_incidents(page, gpus, with_evidence=with_evidence),
        *(
            _Entry(event.at, "dim" if event.severity == "info" else SEVERITY_STYLES[event.severity],
                   clean(event.message))
            for event in page.data_events
        ),
    ]  # fmt: skip
    if page.run.ended_at is not None:
        sign = sign_of(page.run)
        # The reason of a failed run is in the banner.
        reason = "" if page.run.state == "failed" else clean(page.run.told_reason or "")
        words = f"{sign.glyph} {sign.word}" + (f": {reason}" if reason else "")
        entries.append(_Entry(page.run.ended_at, sign.style, words))
    entries.sort(key=lambda entry: entry.at)
    stamps = [dated_clock(entry.at, now) for entry in entries]
    margin = max(map(cell_width, stamps)) + 2
    return [
        line
        for stamp, entry in zip(stamps, entries, strict=True)
        for line in _entry_lines(f" {stamp:>{margin - 2}} ", entry.style, entry.text, entry.details, width)
    ]


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
        details: list[Span] = []
        if with_evidence:
            details += [
                (f"· {clean(with_indices(str(found), gpus))}", "dim") for found in incident.evidence[:EVIDENCE_SHOWN]
            ]
        if incident is not fatal:
            decided = (one for one in page.decisions if one.incident_id == incident.incident_id)
            details += [(f"→ {clean(with_indices(each.reason or each.verdict, gpus))}", "text") for each in decided]
        paid = page.costs.get(incident.incident_id)
        if paid is not None and in_words(paid):
            details.append((f"cost {in_words(paid)}", "dim"))
        text = title_of(incident) if incident is fatal else clean(with_indices(incident.summary, gpus))
        yield _Entry(incident.at, "warn", text, tuple(details))


@lru_cache(8192)
def _entry_lines(stamp: str, style: str, text: str, details: tuple[Span, ...], width: int) -> tuple[Line, ...]:
    """An entry as lines, cached because the page is drawn every second; not to be changed."""
    lines: list[Line] = []
    margin = len(stamp)
    for number, part in enumerate(wrap(text, width - margin)):
        lines.append(fit_line([(stamp if number == 0 else " " * margin, "dim"), (part, style)], width))
    for detail, detail_style in details:
        for number, part in enumerate(wrap(detail, width - margin - _INDENT)):
            before = margin if number == 0 else margin + _INDENT
            lines.append(fit_line([(" " * before + part, detail_style)], width))
    return tuple(lines)


def _start_of(attempt: Attempt, gpus: Sequence[GpuView], target: str | None) -> _Entry:
    where = gpu_words(attempt.gpus, gpus) if target is None else clean(target)
    verb = f"attempt {attempt.number} started" if attempt.number > 1 else "started"
    if attempt.resumed_from is not None:
        name = PurePath(attempt.resumed_from).name
        step = attempt.resumed_step
        verb = f"attempt {attempt.number} resumed from {clean(name) if step is None else step_words(name, step)}"
    at = attempt.started_at if attempt.started_at is not None else attempt.created_at
    return _Entry(at, "text", f"{verb} on {where}")


def _end_of(attempt: Attempt) -> _Entry:
    assert attempt.ended_at is not None
    if attempt.state == "stopped":
        ended = "was stopped"
    elif attempt.exit_signal is not None:
        names = {each.value: each.name for each in signal.Signals}
        ended = f"was ended by {names.get(attempt.exit_signal, f'signal {attempt.exit_signal}')}"
    elif attempt.exit_code is not None:
        ended = f"exited with code {attempt.exit_code}" if attempt.exit_code else "exited normally"
    else:
        ended = "ended"
    seconds = None if attempt.started_at is None else attempt.ended_at - attempt.started_at
    # With a clock that was set back, the duration is unknown.
    took = "" if seconds is None or seconds < 0 else f" after {duration(seconds)}"
    at_step = "" if attempt.last_step is None else f" at step {count(attempt.last_step)}"
    return _Entry(attempt.ended_at, "dim", f"attempt {attempt.number} {ended}{took}{at_step}")
