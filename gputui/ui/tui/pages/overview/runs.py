"""The table of runs on the overview."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from gputui.core.text import cell_width, clean, clip, clip_middle
from gputui.core.units import ago, count, count_of, duration, index_ranges, metric_value, rate, short_number
from gputui.metrics.draw.parts import Line, Span
from gputui.metrics.progress import Progress
from gputui.recovery.costs import in_words
from gputui.store.runs import Run
from gputui.ui.tui.layout.columns import (
    Column,
    FittedColumns,
    bar_spans,
    drop_empty,
    fit_columns,
    fit_line,
    highlight,
    line_width,
    row_line,
    rule,
    shrink,
)
from gputui.ui.tui.layout.lists import ListState, order_named
from gputui.ui.tui.layout.sparklines import ease_losses, spark
from gputui.ui.tui.pages.overview.run_order import ORDERS, Entry, StudyEntry, entry_id
from gputui.ui.views.run_words import (
    awaits_step,
    run_style,
    run_title,
    silent_seconds,
    state_sign,
    status_line,
    tag_words,
)
from gputui.ui.views.snapshot import RunRow, Snapshot, StudyRow
from gputui.ui.views.words import RUN_SIGNS, STUDY_SIGNS, run_sign

_LEAST_NAME = 13
_GAP_OF_NAME = 1

_FITTED = ("GPUS", "LOST", "PROFILE")
"""The columns that only runs which are not over have, and whose cells differ in length."""


class RunsState(ListState, frozen=True):
    """The table's list with the marked runs, and whether arrow keys move in it."""

    order: str = "state"
    marked: frozenset[str] = frozenset()
    is_focused: bool = True


class _TableRow(NamedTuple):
    """A run with what its cells depend on besides."""

    run_row: RunRow
    snapshot: Snapshot
    state: RunsState

    @property
    def run(self) -> Run:
        return self.run_row.run

    @property
    def progress(self) -> Progress:
        return self.run_row.progress


def runs_panel(
    entries: Sequence[Entry], state: RunsState, snapshot: Snapshot, width: int, height: int, *, has_keys: bool = True
) -> list[Line]:
    """A heading, then a row per run or study.

    Args:
        entries: the rows, filtered and sorted.
        has_keys: whether keys can be pressed; a printed panel names none.
    """
    notes: list[Span] = []
    if state.marked:
        notes.append((f"{len(state.marked)} marked", "accent"))
    if not entries:
        text = f"  {_empty_text(snapshot, state, has_keys=has_keys)}"
        return [_heading([], state, "", notes, width), fit_line([(text, "dim")], width)][:height]
    visible = entries[state.top : state.top + max(0, height - 1)]
    fitted = fit_columns(_columns(entries, snapshot, state, width), width)
    part = ""
    if len(entries) > len(visible) > 0:
        part = f"{state.top + 1}–{state.top + len(visible)} of {len(entries)}"
    lines = [_heading(fitted, state, part, notes, width)]
    return [*lines, *(_row(fitted, entry, snapshot, state, width) for entry in visible)][:height]


def _empty_text(snapshot: Snapshot, state: RunsState, *, has_keys: bool) -> str:
    """The text in place of runs."""
    if state.filter_text:
        return "No run matches the filter; esc clears it."
    if snapshot.past is not None:
        return "There was no run yet."
    if has_keys:
        return "No run yet. Press n to launch a profile or a command."
    return "No run yet; gputui run launches a profile or a command."


def _heading(fitted: FittedColumns[_TableRow], state: RunsState, part: str, notes: Sequence[Span], width: int) -> Line:
    """``RUNS 1–5 of 40 ── STATE ── PROGRESS ── … 2 marked``: the ``part`` of the list that is shown stands above the
    names, short if it has no room there, so that it covers no head."""
    title = f"RUNS {order_named(ORDERS, state.order).title}".rstrip()
    if state.filter_text:
        title += f" /{clean(state.filter_text)}"
    cells_before_state = sum(room for _, room in fitted[:2]) + _GAP_OF_NAME
    if part and cell_width(f" {title} {part} ") > cells_before_state:
        part = part.replace(" of ", "/")
    whole = f"{title} {part}".rstrip()
    _, *rest = rule(whole, width, notes=notes)
    line = fit_line([(f" {title} ", "title"), (f"{part} ".lstrip(), "dim")], width - line_width(rest))
    return _with_heads([*line, *rest], fitted, line_width(line))


def _with_heads(line: Line, fitted: FittedColumns[_TableRow], start: int) -> Line:
    """Put the columns' heads into the bare part of a rule, each above its column."""
    heads: list[Span] = []
    bare = next(number for number, (_, style) in enumerate(line) if style == "rule")
    end = start + cell_width(line[bare][0])
    x = 0
    for number, (column, room) in enumerate(fitted):
        if number:
            x += column.gap
        head = f" {column.head} "
        # Aligned like the cells below.
        begin = x - 1
        if column.align == ">":
            begin += room - len(column.head)
        if column.head and begin >= start and begin + len(head) < end:
            heads += [("─" * (begin - start), "rule"), (head, "head")]
            start = begin + len(head)
        x += room
    return [*line[:bare], *heads, ("─" * (end - start), "rule"), *line[bare + 1 :]]


def _row(fitted: FittedColumns[_TableRow], entry: Entry, snapshot: Snapshot, state: RunsState, width: int) -> Line:
    if isinstance(entry, StudyEntry):
        line = _study_row(fitted, entry, snapshot, state, width)
    elif _is_training(entry):
        line = row_line(fitted, _TableRow(entry, snapshot, state), width)
    else:
        line = _idle_row(fitted, _TableRow(entry, snapshot, state), width)
    if entry_id(entry) == state.cursor and state.is_focused:
        return highlight(line)
    return line


def _is_training(row: RunRow) -> bool:
    return row.run.shown_state == "running" and not awaits_step(row)


def _idle_row(fitted: FittedColumns[_TableRow], row: _TableRow, width: int) -> Line:
    """A run that does not train now: its first columns, then its status line in the room of the others. What matters of
    a failed one is the reason, which begins behind its state."""
    run = row.run
    progress = row.progress
    labels = _queue_words(row)
    last_heads: tuple[str, ...] = ("STATE",)
    if run.shown_state in ("succeeded", "ending", "stopping", "stopped") and progress.step is not None:
        last_heads = ("STEP",)
        if progress.listed_metric[1] is not None:
            last_heads = ("STEP", "LOSS", "METRIC")
    elif progress.step is not None:
        labels += f"step {count(progress.step)} · "
    if run.tags:
        labels += f"{tag_words(run)} · "
    last = max(number for number, (column, _) in enumerate(fitted) if column.head in last_heads)
    head = tuple((tuple(column.cell(row, room)), room, column) for column, room in fitted[: last + 1])
    status, style = status_line(row.run_row, row.snapshot.at)
    facts = ""
    if run.holds_gpus and (indices := _gpu_indices(row)):
        facts += f" · GPU {indices}"
    if row.run_row.cost is not None and (cost := in_words(row.run_row.cost)):
        facts += f" · failures cost {cost}"
    if note := clean(run.note or ""):
        facts += f" · {note}"
    tail: tuple[Span, ...] = ((labels, "label"), (status, style), (facts, "dim"))
    if style == "dim":
        tail = ((labels, "label"), (status + facts, "dim"))
    gap = fitted[len(head)][0].gap
    return [*_short_row(head, gap, tail, width)]


def _study_row(
    fitted: FittedColumns[_TableRow], entry: StudyEntry, snapshot: Snapshot, state: RunsState, width: int
) -> Line:
    """A study: how far it is and its best value, or how its trials ended."""
    study = entry.study
    glyph = "◇"
    style = "dim"
    if study is not None:
        glyph = "◆"
        style = STUDY_SIGNS[study.state].style
    cells: dict[str, list[Span]] = {
        "": [*_pointer(entry_id(entry), state), (glyph, style)],
        "RUN": [(clean(entry.study_id), "text")],
        "STATE": [("study", style)],
    }
    if study is not None and study.planned:
        share = min(1.0, study.over / study.planned)
        room = next((room for column, room in fitted if column.head == "PROGRESS"), 0)
        cells["PROGRESS"] = _share_bar(share, room, "bar")
        cells["STEP"] = [(f"{study.over}", "text"), (f"/{count_of(study.planned, 'trial')}", "dim")]
    head = tuple((tuple(cells[column.head]), room, column) for column, room in fitted[:5] if column.head in cells)
    gap = fitted[len(head)][0].gap
    return [*_short_row(head, gap, study_words(entry, snapshot.at), width)]


def study_words(entry: StudyEntry, now: float) -> tuple[Span, ...]:
    """``best 0.931 (trial 12) · 3 running``; of an ended study ``2 h ago · 20 trials: 18 done · 2 failed``."""
    if entry.study is not None:
        return _active_study_words(entry.study)
    states = Counter(trial.run.trial_state or run_sign(trial.run.state).word for trial in entry.trials)
    counts = " · ".join(f"{count(number)} {word.replace('complete', 'done')}" for word, number in states.most_common())
    text = f"{count_of(len(entry.trials), 'trial')}: {counts}"
    ends = [trial.run.ended_at for trial in entry.trials if trial.run.ended_at is not None]
    if ends:
        text = f"{ago(now - max(ends))} · {text}"
    return ((text, "dim"),)


def _active_study_words(study: StudyRow) -> tuple[Span, ...]:
    spans: list[Span] = []
    if study.state != "running":
        spans.append((f"{STUDY_SIGNS[study.state].word} · ", "warn"))
    counts = []
    if study.running or not study.queued:
        counts.append(f"{study.running} running")
    if study.queued:
        counts.append(f"{study.queued} queued")
    text = " · ".join(counts)
    if study.best is not None:
        spans += [("best ", "dim"), (metric_value(study.best), "label")]
        text = f" (trial {study.best_number}) · {text}"
    return (*spans, (text, "dim"))


@lru_cache(1024)
def _short_row(
    head: tuple[tuple[tuple[Span, ...], int, Column[_TableRow]], ...], gap: int, tail: tuple[Span, ...], width: int
) -> tuple[Span, ...]:
    """The first cells of a row and a text behind them. Cached, because most rows of a long table stay the same for
    hours.

    Args:
        head: the spans of each cell, its room and its column; the last cell takes the room that it needs.
        gap: the blanks before the text.
        tail: the text, whose dim facts are whole or not there.
    """
    line: Line = []
    for number, (spans, room, column) in enumerate(head, 1):
        if number == len(head):
            room = max(room, sum(cell_width(text) for text, _ in spans))
        if number > 1:
            line.append((" " * column.gap, "text"))
        line += fit_line(spans, room, column.align)
    line.append((" " * gap, "text"))
    for text, style in tail:
        while style == "dim" and cell_width(text) > width - line_width(line) and " · " in text:
            text = text.rpartition(" · ")[0]
        line.append((text, style))
    return tuple(fit_line(line, width))


def _queue_words(row: _TableRow) -> str:
    """``#2 priority 5 · ``: the position of a queued run; empty for others."""
    run = row.run
    if run.state != "queued":
        return ""
    waiting = [queued.run.run_id for queued in row.snapshot.runs if queued.run.state == "queued"]
    position = f"#{waiting.index(run.run_id) + 1}"
    if run.priority:
        return f"{position} priority {run.priority} · "
    return f"{position} · "


def _sign(row: _TableRow, width: int) -> list[Span]:
    sign = state_sign(row.run_row, row.snapshot.at)
    return [*_pointer(row.run.run_id, row.state), (sign.glyph, sign.style)]


def _pointer(row_id: str, state: RunsState) -> list[Span]:
    """The cursor or the mark of a row."""
    if row_id in state.marked:
        pointer = "◈" if row_id == state.cursor else "◆"
        return [(pointer, "cursor")]
    if state.is_focused:
        pointer = "▸" if row_id == state.cursor else " "
        return [(pointer, "cursor")]
    pointer = "›" if row_id == state.cursor else " "
    return [(pointer, "dim")]


def _name(row: _TableRow, width: int) -> list[Span]:
    run = row.run
    style = "text" if run.state.is_over else run_style(run)
    return [(clip_middle(run_title(run), width), style)]


def _state(row: _TableRow, width: int) -> list[Span]:
    sign = state_sign(row.run_row, row.snapshot.at)
    return [(sign.word, sign.style)]


def _step(row: _TableRow, width: int) -> list[Span]:
    progress = row.progress
    if progress.step is None:
        return []
    step = count(progress.step)
    is_over = row.run.state.is_over
    totals: list[str] = []
    if progress.total_steps and not is_over:
        totals = [f"/{count(progress.total_steps)}", f"/{short_number(progress.total_steps)}"]
    total = next((text for text in totals if cell_width(step + text) <= width), "")
    return [(step, "text"), (total, "dim")]


def _done(row: _TableRow, width: int) -> list[Span]:
    """The share of the steps done, as a bar and in percent."""
    share = row.run_row.share_done
    if share is None:
        return []
    style = "dim" if row.run.state.is_over else "bar"
    return _share_bar(share, width, style)


def _share_bar(share: float, width: int, style: str) -> list[Span]:
    return [*bar_spans(share, width - 5, style), (f"{math.floor(share * 100):>4}%", "text")]


def _metric(row: _TableRow, width: int) -> list[Span]:
    """``accuracy 0.931``: the run's own metric, without its path where that does not fit."""
    name, value = row.progress.listed_metric
    number = _number(value, _LOSS.width)
    room = width - sum(cell_width(text) for text, _ in number) - 1
    if not number:
        return []
    if cell_width(clean(name)) > room:
        name = name.rpartition("/")[2]
    return [(f"{clip(clean(name), room)} ", "dim"), *number]


def _number(value: float | None, width: int) -> list[Span]:
    if value is None:
        return []
    usual = metric_value(value)
    if 0.0995 <= abs(value) < 1000:
        # Three decimals keep the points of usual losses below each other.
        usual = f"{value:.3f}"
    # As many digits as fit: a clipped number would be another number.
    texts = [usual, *(f"{value:.{digits}g}" for digits in (3, 2, 1)), f"{value:.0e}".replace("e-0", "e-")]
    text = next((text for text in texts if cell_width(text) <= width), texts[-1])
    style = "text" if math.isfinite(value) else "bad"
    return [(text, style)]


def _curve(row: _TableRow, width: int) -> list[Span]:
    progress = row.progress
    losses = progress.losses
    if progress.has_own_metric and progress.metric_value is not None:
        # Beside another metric it would be taken for the curve of that one.
        losses = ()
    return [(spark(ease_losses(losses), width), run_style(row.run))]


def _time_left(row: _TableRow, width: int) -> list[Span]:
    status, style = status_line(row.run_row, row.snapshot.at)
    return [(status.removesuffix(" left"), style)]


def _gpu_indices(row: _TableRow) -> str:
    """``0–3, 6``: the GPUs of a run; empty for none."""
    return index_ranges(sorted(gpu.index for gpu in row.snapshot.gpus if gpu.uuid in row.run.gpus))


def _pace(row: _TableRow, width: int) -> list[Span]:
    pace = row.progress.steps_per_second
    if pace is None or silent_seconds(row.run_row, row.snapshot.at):
        return []
    return [(rate(pace), "text")]


def _lost(row: _TableRow, width: int) -> list[Span]:
    """The cost of failures: ``421 steps 3 min``."""
    cost = row.run_row.cost
    if cost is None:
        return []
    parts = []
    if cost.lost_steps is not None:
        parts.append(count_of(cost.lost_steps, "step"))
    if cost.lost_seconds is not None:
        parts.append(duration(cost.lost_seconds))
    if not parts:
        return []
    return [(" ".join(parts), "warn")]


def _run_time(row: _TableRow, width: int) -> list[Span]:
    seconds = row.run.trained_seconds(row.snapshot.at)
    if seconds is None:
        return []
    if seconds >= 60:
        seconds = seconds // 60 * 60
    return [(duration(seconds), "text")]


def _labels(row: _TableRow, width: int) -> list[Span]:
    tags = tag_words(row.run)
    note = clean(row.run.note or "")
    if tags:
        note = f" {note}"
    return [(tags, "label"), (note, "dim")]


def _columns(entries: Sequence[Entry], snapshot: Snapshot, state: RunsState, width: int) -> list[Column[_TableRow]]:
    """The columns for these rows, none wider than its cells need, so that the words behind them get the rest. Long
    names have up to a sixth of the width, and more if it is spare."""
    rows = [_TableRow(entry, snapshot, state) for entry in entries if isinstance(entry, RunRow)]
    # Also those that start or end now, so that no column moves while they do.
    active = [row for row in rows if not row.run.state.is_over]
    widest = max((cell_width(run_title(row.run)) for row in rows), default=0)
    name = min(max(_LEAST_NAME, widest), max(_LEAST_NAME, width // 6))
    others: list[Column[_TableRow]] = []
    for column in _OTHERS:
        if column.head not in _FITTED:
            others.append(column)
        elif drop_empty([column], active):
            others.append(shrink(column, active))
    if any(row.progress.has_own_metric for row in rows):
        others[others.index(_LOSS)] = _METRIC
    if any(row.run.tags or row.run.note for row in rows):
        others.insert(-1, _LABELS)
    return [
        _SIGN,
        Column("RUN", name, _name, gap=_GAP_OF_NAME, grow=2, most=max(name, min(widest, 60))),
        replace(_STATE, width=max(_STATE.width, shrink(_STATE, rows).width)),
        *others,
    ]


# As wide as any state after a restart, so that no column moves when a run begins, ends or restarts.
_STATE: Column[_TableRow] = Column(
    "STATE", max(cell_width(sign.word) for sign in RUN_SIGNS.values()) + len(" ↻1"), _state, gap=1
)
_SIGN: Column[_TableRow] = Column("", 2, _sign)
_LABELS: Column[_TableRow] = Column("TAGS", 14, _labels, importance=6, gap=2, grow=2, most=40)
_LOSS: Column[_TableRow] = Column(
    "LOSS", 7, lambda row, width: _number(row.progress.loss, width), ">", importance=1, gap=2
)
_METRIC: Column[_TableRow] = Column("METRIC", 14, _metric, ">", importance=1, gap=2, grow=1, most=20)
_OTHERS: tuple[Column[_TableRow], ...] = (
    Column("PROGRESS", 9, _done, importance=2, gap=1, grow=1, most=20),
    Column("STEP", 13, _step, ">", gap=1),
    _LOSS,
    Column("", 7, _curve, importance=3, gap=2, grow=2, most=48),
    Column("STEP/S", 6, _pace, ">", importance=4, gap=2),
    Column(
        "GPUS",
        8,
        lambda row, _: [(_gpu_indices(row), "text")],
        importance=5,
        gap=2,
        most=24,
        value=lambda row: _gpu_indices(row) or None,
    ),
    Column("LOST", 21, _lost, importance=6, gap=2, value=lambda row: _lost(row, 0) or None),
    Column("TIME", 11, _run_time, ">", importance=7, gap=2),
    Column("PROFILE", 12, lambda row, _: [(clean(row.run.profile), "dim")], importance=8, gap=2, most=24),
    Column("ETA", 11, _time_left, gap=2, grow=4),
)
