"""The events of a run as markers on its axis."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

import orjson

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap
from gputui.metrics.curves.lines import CurveLine
from gputui.metrics.curves.model import ChartMarker, MarkerKind
from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.store.attempts import Attempt
from gputui.store.run_history import read_incidents
from gputui.store.runs import get_run

EVENTS_KEPT = 1000
"""Most events of the training with a marker, the newest; no chart has room for more."""

WORD_CHARACTERS = 20  # a longer word would cover the next marker

_TOLD_OTHERWISE = frozenset({"start", "resume", "stop", "end", "validation", "bottleneck"})
"""Events of the training that attempts tell of already, or that come all the time."""


def event_marker(line: CurveLine, axis_map: AxisMap) -> ChartMarker | None:
    """The marker of a line with an event; None if it is not worth one, or has no place on the axis."""
    name = line.values.get("event")
    if not isinstance(name, str) or name in _TOLD_OTHERWISE:
        return None
    keys = ("error", "reason", "cause")
    text = next((value for key in keys if isinstance(value := line.values.get(key), str)), "")
    path = line.values.get("path")
    if not text and isinstance(path, str):
        # All paths have the same folder.
        text = f"{name.replace('_', ' ')} {PurePath(path).name}"
    kind: MarkerKind = "event"
    word = _words(name[:80])
    if name == "checkpoint":
        kind = "checkpoint"
        word = "ckpt"
    x = axis_map.place(line.attempt, line.step, line.at)
    return _marker(x, kind, word, at=line.at, attempt=line.attempt, text=clean(text[:200]))


def event_lines(connection: sqlite3.Connection, run_id: str) -> list[CurveLine]:
    """The newest lines of a run with an event, oldest first. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT m.attempt, m.step, m.at, m.data FROM metric_sources AS s CROSS JOIN metrics AS m "
        "INDEXED BY metrics_with_event ON m.source_id = s.source_id AND instr(m.data, "
        "'\"event\"') > 0 WHERE s.run_id = ? AND (m.rank IS NULL OR m.rank = 0) AND m.step IS NOT "
        "NULL ORDER BY m.source_id DESC, m.at DESC LIMIT ?",
        (run_id, EVENTS_KEPT),
    )
    lines = [CurveLine(attempt, step, at, orjson.loads(data)) for attempt, step, at, data in rows.fetchall()]
    lines.reverse()
    return lines


def markers(
    connection: sqlite3.Connection,
    run_id: str,
    attempts: Sequence[Attempt],
    events: Iterable[ChartMarker],
    axis_map: AxisMap,
) -> tuple[ChartMarker, ...]:
    """All markers with a place on the axis, in order of x, for any window: the starts of ``attempts``, incidents,
    alerts, the end, and the training's own ``events``. Raises sqlite3.Error."""
    placed = [
        *events,
        *(_attempt_marker(attempt, axis_map) for attempt in attempts),
        *_incident_markers(connection, run_id, attempts, axis_map),
        *(_alert_marker(alert, axis_map) for alert in alerts.of_run(connection, run_id)),
    ]
    run = get_run(connection, run_id)
    if run is not None and run.ended_at is not None and attempts:
        last = attempts[-1]
        x = _of_step_or_moment(axis_map, last.number, last.last_step, last.ended_at or run.ended_at)
        placed.append(_marker(x, "end", run.state, at=run.ended_at, attempt=last.number, text=clean(run.reason or "")))
    with_place = (marker for marker in placed if marker is not None)
    return tuple(sorted(with_place, key=lambda marker: (marker.x, marker.at or 0.0)))


def _attempt_marker(attempt: Attempt, axis_map: AxisMap) -> ChartMarker | None:
    """The start of a run or, of a later attempt, its restart."""
    number = attempt.number
    begin = axis_map.timeline.begins.get(number)
    step = attempt.resumed_step
    if step is None:
        step = attempt.first_step
    x = _of_step_or_moment(axis_map, number, step, begin)
    if number == 1:
        return _marker(x, "start", "start", begin, 1)
    text = f"attempt {number}"
    if step is not None:
        text += f" from step {step}"
    return _marker(x, "restart", f"↻{number - 1}", at=begin, attempt=number, text=text)


def _incident_markers(
    connection: sqlite3.Connection, run_id: str, attempts: Sequence[Attempt], axis_map: AxisMap
) -> Iterator[ChartMarker | None]:
    last_steps = {attempt.number: attempt.last_step for attempt in attempts}
    for incident in read_incidents(connection, run_id):
        step = incident.step
        if step is None:
            step = last_steps.get(incident.attempt)
        x = _of_step_or_moment(axis_map, incident.attempt, step, incident.at)
        text = clean(incident.summary)
        yield _marker(x, "incident", _words(incident.kind), at=incident.at, attempt=incident.attempt, text=text)


def _alert_marker(alert: AlertView, axis_map: AxisMap) -> ChartMarker | None:
    at = alert.raised_at
    attempt = axis_map.timeline.attempt_at(at)
    x = axis_map.place_moment(at)
    return _marker(x, "alert", _words(alert.rule), at=at, attempt=attempt, text=clean(alert.sentence))


def _words(name: str) -> str:
    """The name of a kind of event as words: ``cuda oom``."""
    return clean(name).replace("_", " ")


def _marker(
    x: float | None, kind: MarkerKind, word: str, at: float | None, attempt: int | None, text: str = ""
) -> ChartMarker | None:
    if x is None:
        return None
    return ChartMarker(x, kind, word[:WORD_CHARACTERS], at=at, attempt=attempt, text=text)


def _of_step_or_moment(axis_map: AxisMap, attempt: int, step: int | None, at: float | None) -> float | None:
    x = axis_map.place(attempt, step, at)
    if x is None and at is not None:
        return axis_map.place_moment(at, attempt)
    return x
