"""The events of a run as markers on its axis."""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

import orjson
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap
from gputui.metrics.curves.model import Axis, ChartData, ChartMarker, HardwareCurve, MarkerKind, MetricCurve
from gputui.metrics.curves.run_lines import CurveLine
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.parts import Curve as DrawnCurve
from gputui.metrics.draw.parts import Marker, XAxis, YAxis
from gputui.metrics.draw.picture import Drawing
from gputui.store import alerts
from gputui.store.attempts import Attempt
from gputui.store.run_history import IncidentView, read_incidents
from gputui.store.runs import RunLookupError, find_run

EVENTS_KEPT = 1000
"""Most events of the training with a marker, the newest; no chart has room for more."""

WORD_CHARACTERS = 20
CHECKPOINT = "checkpoint"

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
    kind: MarkerKind = "checkpoint" if name == CHECKPOINT else "event"
    word = "ckpt" if name == CHECKPOINT else clean(name[:80]).replace("_", " ")
    x = axis_map.place(line.attempt, line.step, line.at)
    return _marker(x, kind, word, line.at, line.attempt, clean(text[:200]))


def event_lines(connection: sqlite3.Connection, run_id: str) -> list[CurveLine]:
    """The newest lines of a run with an event, oldest first. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT m.attempt, m.step, m.at, m.data FROM metric_sources AS s CROSS JOIN metrics AS m "
        "INDEXED BY metrics_with_event ON m.source_id = s.source_id AND instr(m.data, '\"event\"') > 0 "
        "WHERE s.run_id = ? AND (m.rank IS NULL OR m.rank = 0) AND m.step IS NOT NULL "
        "ORDER BY m.source_id DESC, m.at DESC LIMIT ?",
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
    """All markers with a place on the axis, the training's own ``events`` among them, in order of x, for any window.
    Raises sqlite3.Error."""
    found: list[ChartMarker | None] = [*events, *(_begin(attempt, axis_map) for attempt in attempts)]
    by_number = {attempt.number: attempt for attempt in attempts}
    for incident in read_incidents(connection, run_id):
        found.append(_incident(incident, by_number.get(incident.attempt), axis_map))
    for alert in alerts.of_run(connection, run_id):
        word = clean(alert.rule).replace("_", " ")
        x = axis_map.place_moment(alert.raised_at)
        found.append(
            _marker(
                x, "alert", word, alert.raised_at, axis_map.timeline.attempt_at(alert.raised_at), clean(alert.sentence)
            )
        )
    found += [_end(connection, run_id, attempts, axis_map)]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: (each.x, each.at or 0.0)))


def _marker(
    x: float | None, kind: MarkerKind, word: str, at: float | None, attempt: int | None, text: str = ""
) -> ChartMarker | None:
    return None if x is None else ChartMarker(x, kind, word[:WORD_CHARACTERS], at, attempt, text)


def _begin(attempt: Attempt, axis_map: AxisMap) -> ChartMarker | None:
    begin = axis_map.timeline.begins.get(attempt.number)
    step = attempt.resumed_step if attempt.resumed_step is not None else attempt.first_step
    x = _of_step_or_moment(axis_map, attempt.number, step, begin)
    if attempt.number == 1:
        return _marker(x, "start", "start", begin, 1)
    text = f"attempt {attempt.number}" + (f" from step {step}" if step is not None else "")
    return _marker(x, "restart", f"↻{attempt.number - 1}", begin, attempt.number, text)


def _incident(incident: IncidentView, attempt: Attempt | None, axis_map: AxisMap) -> ChartMarker | None:
    step = incident.step
    if step is None and attempt is not None:
        step = attempt.last_step
    x = _of_step_or_moment(axis_map, incident.attempt, step, incident.at)
    return _marker(
        x, "incident", clean(incident.kind).replace("_", " "), incident.at, incident.attempt, clean(incident.summary)
    )


def _end(
    connection: sqlite3.Connection, run_id: str, attempts: Sequence[Attempt], axis_map: AxisMap
) -> ChartMarker | None:
    if not attempts:
        return None
    try:
        run = find_run(connection, run_id)
    except RunLookupError:
        return None
    if run.ended_at is None:
        return None
    last = attempts[-1]
    x = _of_step_or_moment(axis_map, last.number, last.last_step, last.ended_at or run.ended_at)
    return _marker(x, "end", run.state, run.ended_at, last.number, clean(run.reason or ""))


def _of_step_or_moment(axis_map: AxisMap, attempt: int, step: int | None, at: float | None) -> float | None:
    x = axis_map.place(attempt, step, at)
    return axis_map.place_moment(at, attempt) if x is None and at is not None else x


class ValueAt(Struct, frozen=True):
    """The value measured nearest to the crosshair, and the extremes of its bin.

    ``value`` is NaN or infinite if nothing finite was measured there; ``value`` and ``x`` are None for an empty curve.
    """

    x: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None


def values_at(curves: Iterable[Sequence[Bin]], position: float) -> list[ValueAt]:
    """For each curve, given as bins in order of x, its value nearest to ``position``."""
    return [_value_at(bins, position) for bins in curves]


def _value_at(bins: Sequence[Bin], position: float) -> ValueAt:
    if not bins:
        return ValueAt()
    place = bisect_left(bins, position, key=lambda each: each.last_x)
    near = bins[max(0, place - 1) : place + 1]
    found = min(near, key=lambda each: max(each.first_x - position, position - each.last_x, 0.0))
    if found.first is None or found.last is None:
        infinity = math.inf if found.positive_infinite >= found.negative_infinite else -math.inf
        return ValueAt(found.first_x, math.nan if found.nan else infinity)
    at_start = abs(position - found.first_x) < abs(position - found.last_x)
    x, value = (found.first_x, found.first) if at_start else (found.last_x, found.last)
    return ValueAt(x, value, found.low, found.high)


COLOURS = 6

X_AXES: Mapping[Axis, XAxis] = {
    "step": XAxis("step", kind="count"),
    "time": XAxis("time since the start", kind="time"),
    "trained": XAxis("time of training", kind="time"),
    "epoch": XAxis("epoch"),
}

_LINES: frozenset[MarkerKind] = frozenset({"restart", "incident", "alert"})
"""Markers drawn as a line with a word; the others are notches."""


def drawing(data: ChartData, title: str, names: Sequence[str] | None = None, *, is_log: bool = False) -> Drawing:
    """A drawing of the curves of ``names``, or of all. ``title`` is harmless text."""
    wanted = [curve for name, curve in data.curves.items() if names is None or name in names]
    return Drawing(
        [drawn for number, curve in enumerate(wanted) for drawn in _drawn(curve, f"series.{number % COLOURS}")],
        title,
        _axis(data),
        YAxis("log" if is_log else "linear"),
        _markers(data),
    )


def hardware_drawing(data: ChartData, title: str, curves: Sequence[HardwareCurve], labels: Sequence[str]) -> Drawing:
    """A drawing of hardware curves of one field, each with its label."""
    drawn = [
        DrawnCurve(curve.bins, f"series.{number % COLOURS}", label, curve.last)
        for number, (curve, label) in enumerate(zip(curves, labels, strict=True))
    ]
    return Drawing(drawn, title, _axis(data), YAxis(), _markers(data))


def _drawn(curve: MetricCurve, style: str) -> list[DrawnCurve]:
    """A curve, behind it the redone steps and, for an average, the measured curve."""
    shadows = []
    if curve.redone:
        shadows.append(DrawnCurve(curve.redone, style, f"{curve.name} (redone)", is_shadow=True))
    if curve.smooth:
        shadows.append(DrawnCurve(curve.bins, style, f"{curve.name} (measured)", is_shadow=True))
    return [*shadows, DrawnCurve(curve.smooth or curve.bins, style, curve.name, curve.last)]


def _axis(data: ChartData) -> XAxis:
    axis, window = X_AXES[data.request.axis], data.request.window
    start, end = window or (None, None)
    return replace(axis, start=start, end=end, scale="log" if data.request.is_log else "linear")


def _markers(data: ChartData) -> list[Marker]:
    shown = (marker for marker in data.markers if marker.kind not in ("start", "end"))
    return [Marker(marker.x, marker.word, is_line=marker.kind in _LINES) for marker in shown]
