"""The runs table and the events strip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.charts.bars import sparkline
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN, age, count, duration, metric_value
from gputui.store.views import EventView
from gputui.tui.render.columns import Column, Placed, clip_line, fit_line, place, row_line, rule
from gputui.tui.render.histories import thinned
from gputui.tui.render.words import OVER, SEVERITY_GLYPHS, SEVERITY_STYLES, moment, run_sign, run_state_text
from gputui.tui.snapshot import Progress, RunRow


@dataclass(frozen=True, slots=True)
class RunsState:
    """What the table adds to the snapshot: the row under the cursor, the first row shown, the filter."""

    cursor: str | None = None
    top: int = 0
    filter_text: str = ""


@dataclass(frozen=True, slots=True)
class _Shown:
    row: RunRow
    now: float
    is_current: bool


def matching(rows: Sequence[RunRow], filter_text: str) -> list[RunRow]:
    """The rows in which every word of the filter occurs, in id, name, state, profile or reason."""
    words = filter_text.lower().split()
    return [row for row in rows if all(word in _haystack(row) for word in words)]


def _haystack(row: RunRow) -> str:
    run = row.run
    return " ".join(
        (run.run_id, run.name, run.profile, run_sign(run.state).word, run.reason or "", run.waiting_for or "")
    ).lower()


def runs_lines(rows: Sequence[RunRow], state: RunsState, now: float, width: int, height: int) -> list[Line]:
    """A heading, then a row per run; ``rows`` are those that match the filter."""
    shown = rows[state.top : state.top + max(0, height - 1)]
    note = ""
    if len(rows) > height - 1 and shown:
        note = f"{state.top + 1}–{state.top + len(shown)} of {len(rows)}"
    title = f"RUNS /{clean(state.filter_text)}" if state.filter_text else "RUNS"
    lines = [rule(title, width, note)]
    if not rows:
        text = (
            "No run matches the filter; esc clears it."
            if state.filter_text
            else "No run yet. Press n to launch one from a profile."
        )
        return [*lines, fit_line([("  " + text, "dim")], width)][:height]
    placed = place(_COLUMNS, width)
    for row in shown:
        lines.append(_row(placed, _Shown(row, now, row.run.run_id == state.cursor), width))
    return lines[:height]


def _row(placed: Placed[_Shown], shown: _Shown, width: int) -> Line:
    """A run that trains shows all its columns; of any other the outlook takes the room of what it does not have."""
    if shown.row.run.state in ("running", "stopping"):
        return row_line(placed, shown, width)
    head = row_line(placed[:3], shown, sum(room + column.gap for column, room in placed[:3]) - placed[0][0].gap)
    step = shown.row.progress.step
    reached = f"step {count(step)} · " if step is not None and shown.row.run.state in OVER else ""
    text, style = outlook(shown.row, shown.now)
    return fit_line([*head, (" ", "text"), (reached, "dim"), (text, style)], width)


def _sign(shown: _Shown, width: int) -> list[Span]:
    sign = run_sign(shown.row.run.state)
    return [("▸" if shown.is_current else " ", "cursor"), (sign.glyph, sign.style)]


def _name(shown: _Shown, width: int) -> list[Span]:
    return [(clean(shown.row.run.run_id), "cursor" if shown.is_current else "text")]


def _state(shown: _Shown, width: int) -> list[Span]:
    run = shown.row.run
    return [(run_state_text(run), run_sign(run.state).style)]


def _step(shown: _Shown, width: int) -> list[Span]:
    progress = shown.row.progress
    if progress.step is None:
        return []
    total = f"/{count(progress.total_steps)}" if progress.total_steps else ""
    return [("step ", "dim"), (count(progress.step), "text"), (total, "dim")]


def _loss(shown: _Shown, width: int) -> list[Span]:
    progress = shown.row.progress
    if progress.loss is None:
        return []
    is_finite = progress.loss == progress.loss and abs(progress.loss) != float("inf")
    return [("loss ", "dim"), (metric_value(progress.loss), "text" if is_finite else "bad")]


def _curve(shown: _Shown, width: int) -> list[Span]:
    return [(sparkline(thinned(shown.row.progress.losses, width), width), "series.0")]


def _remark(shown: _Shown, width: int) -> list[Span]:
    return [outlook(shown.row, shown.now)]


def outlook(row: RunRow, now: float) -> Span:
    """What there is to say about a run in a few words: time left, what it waits for, why it ended."""
    run, progress = row.run, row.progress
    if run.state == "queued":
        if run.not_before is not None and run.not_before > now:
            return (f"again in {duration(run.not_before - now)}", "text")
        return (clean(run.waiting_for) if run.waiting_for else "next", "text")
    if run.state in OVER:
        ended = "" if run.ended_at is None else f"{age(now - run.ended_at)} ago"
        reason = clean(run.reason or "")
        if run.state == "succeeded" or not reason:
            took = _took(row)
            return (" · ".join(part for part in (ended, took) if part), "dim")
        return (f"{ended} · {reason}" if ended else reason, "text")
    if run.state == "recovering":
        return (clean(run.reason or "finding out what happened"), "text")
    if run.state == "stopping":
        return ("checkpointing, then leaving", "text")
    left = time_left(progress)
    return (left, "text") if left else ("" if run.state == "running" else "waiting for its first step", "dim")


def time_left(progress: Progress) -> str:
    """``1 h 42 left``, rounded so that it does not change with every step; empty when it cannot be told."""
    seconds = progress.seconds_left
    if seconds is None:
        return ""
    if seconds >= 120:
        seconds = round(seconds / 60) * 60
    elif seconds >= 30:
        seconds = round(seconds / 10) * 10
    return f"{duration(seconds)} left"


def _took(row: RunRow) -> str:
    run = row.run
    if run.started_at is None or run.ended_at is None:
        return ""
    return f"took {duration(run.ended_at - run.started_at)}"


_COLUMNS: tuple[Column[_Shown], ...] = (
    Column("", 2, _sign),
    Column("run", 13, _name, gap=1, grow=2, most=30),
    Column("state", 10, _state, gap=1, grow=1, most=13),
    Column("step", 18, _step, gap=1, grow=1, most=24),
    Column("loss", 10, _loss, importance=1, gap=2, most=11, grow=1),
    Column("curve", 7, _curve, importance=2, gap=1, grow=1, most=24),
    Column("outlook", 12, _remark, gap=2, grow=4),
)


# --- events ---------------------------------------------------------------------------------------------------------


def events_lines(events: Sequence[EventView], now: float, width: int, height: int) -> list[Line]:
    """A heading and the newest events, the newest last."""
    lines = [rule("EVENTS", width)]
    if not events and height > 1:
        lines.append(fit_line([("  Nothing has happened yet.", "dim")], width))
    room = height - 1
    for event in list(events)[-room:] if room > 0 else []:
        lines.append(event_line(event, now, width))
    return lines[:height]


def event_line(event: EventView, now: float, width: int) -> Line:
    """``03:02:11  vit-b16-1  GPU 7 fell off the bus``."""
    style = SEVERITY_STYLES.get(event.severity, "text")
    subject = event.subject or event.run_id
    return fit_line(
        clip_line(
            [
                (f" {moment(event.at, now)} ", "dim"),
                (SEVERITY_GLYPHS.get(event.severity, " ") + " ", style),
                (f"{clean(subject)}  " if subject else "", "label"),
                (clean(event.message) or UNKNOWN, "text"),
            ],
            width,
        ),
        width,
    )
