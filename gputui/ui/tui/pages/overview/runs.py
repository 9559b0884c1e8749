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
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.recovery.costs import in_words
from gputui.ui.tui.layout.columns import (
    Column,
    Placed,
    bar_spans,
    cells_in,
    fit_line,
    fitted,
    place,
    row_line,
    rule,
    selected,
    telling,
)
from gputui.ui.tui.layout.lists import ListState, order_named
from gputui.ui.tui.layout.sparklines import ease, spark
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
from gputui.ui.views.snapshot import RunRow, Snapshot
from gputui.ui.views.words import RUN_SIGNS, STUDY_SIGNS, run_sign


class RunsState(ListState, frozen=True):
    """The table's list with the marked runs, and whether arrow keys move in it."""

    order: str = "state"
    marked: frozenset[str] = frozenset()
    is_focused: bool = True


class _Shown(NamedTuple):
    row: RunRow
    snapshot: Snapshot
    state: RunsState


def runs_panel(
    entries: Sequence[Entry], state: RunsState, snapshot: Snapshot, width: int, height: int, *, has_keys: bool = True
) -> list[Line]:
    """A heading, then a row per run or study. ``entries`` are filtered and sorted; without ``has_keys`` the panel is
    printed, and names no key."""
    shown = entries[state.top : state.top + max(0, height - 1)]
    placed = place(_columns(entries, snapshot, state, width), width)
    notes: list[Span] = [(f"{len(state.marked)} marked", "accent")] if state.marked else []
    part = ""
    if len(entries) > len(shown) > 0:
        part = f"{state.top + 1}–{state.top + len(shown)} of {len(entries)}"
    lines = [_heading(placed if entries else [], state, part, notes, width)]
    if not entries:
        lines.append(fit_line([("  " + _empty_text(snapshot, state, has_keys=has_keys), "dim")], width))
    return [*lines, *(_row(placed, entry, snapshot, state, width) for entry in shown)][:height]


def _empty_text(snapshot: Snapshot, state: RunsState, *, has_keys: bool) -> str:
    """The text in place of runs."""
    if state.filter_text:
        return "No run matches the filter; esc clears it."
    if snapshot.past is not None:
        return "There was no run yet."
    if has_keys:
        return "No run yet. Press n to launch a profile or a command."
    return "No run yet; gputui run launches a profile or a command."


def _heading(placed: Placed[_Shown], state: RunsState, part: str, notes: Sequence[Span], width: int) -> Line:
    """``RUNS 1–5 of 40 ── STATE ── PROGRESS ── … 2 marked``: the ``part`` of the list that is shown stands above the
    names, short if it has no room there, so that it covers no head."""
    filter_words = f"/{clean(state.filter_text)}" if state.filter_text else ""
    title = " ".join(filter(None, ("RUNS", order_named(ORDERS, state.order).title, filter_words)))
    cells_before_state = sum(room for _, room in placed[:2]) + _GAP_OF_NAME
    if part and cell_width(f" {title} {part} ") > cells_before_state:
        part = part.replace(" of ", "/")
    whole = f"{title} {part}".rstrip()
    _, *rest = rule(whole, width, notes=notes)
    line = fit_line([(f" {title} ", "title"), (f"{part} ".lstrip(), "dim")], width - cells_in(rest))
    return _with_heads([*line, *rest], placed, cells_in(line))


def _with_heads(line: Line, placed: Placed[_Shown], start: int) -> Line:
    """Put the columns' heads into the bare part of a rule, each above its column."""
    heads: list[Span] = []
    at = 0
    bare = next(number for number, (_, style) in enumerate(line) if style == "rule")
    end = start + cell_width(line[bare][0])
    for column, room in placed:
        left = at if column is placed[0][0] else at + column.gap
        at = left + room
        head = f" {column.head} "
        # Aligned like the cells below.
        begin = left + room - len(column.head) - 1 if column.align == ">" else left - 1
        if column.head and begin >= start and begin + len(head) < end:
            heads += [("─" * (begin - start), "rule"), (head, "head")]
            start = begin + len(head)
    return [*line[:bare], *heads, ("─" * (end - start), "rule"), *line[bare + 1 :]]


def _row(placed: Placed[_Shown], entry: Entry, snapshot: Snapshot, state: RunsState, width: int) -> Line:
    if isinstance(entry, StudyEntry):
        line = _study_row(placed, entry, snapshot, state, width)
    elif _is_training(entry):
        line = row_line(placed, _Shown(entry, snapshot, state), width)
    else:
        line = _idle_row(placed, _Shown(entry, snapshot, state), width)
    if entry_id(entry) == state.cursor and state.is_focused:
        return selected(line)
    return line


def _is_training(row: RunRow) -> bool:
    return row.run.shown_state == "running" and not awaits_step(row)


def _idle_row(placed: Placed[_Shown], shown: _Shown, width: int) -> Line:
    """A run that does not train now: its first columns, then its status line in the room of the others. What matters of
    a failed one is the reason, which begins behind its state."""
    run, progress = shown.row.run, shown.row.progress
    has_step = run.shown_state in ("succeeded", "ending", "stopping", "stopped") and progress.step is not None
    shown_heads = ("STEP",) if progress.listed_metric[1] is None else ("STEP", "LOSS", "METRIC")
    cells = max(number for number, (c, _) in enumerate(placed, 1) if c.head in shown_heads) if has_step else 3
    cost = f" · failures cost {words}" if shown.row.cost is not None and (words := in_words(shown.row.cost)) else ""
    head = tuple((tuple(column.cell(shown, room)), room, column) for column, room in placed[:cells])
    tags, note = tag_words(run), clean(run.note or "")
    words, style = status_line(shown.row, shown.snapshot.at)
    indices = _gpu_indices(shown) if run.holds_gpus else ""
    gpus = f" · GPU {indices}" if indices else ""
    more = gpus + cost + (f" · {note}" if note else "")
    at_step = f"step {count(progress.step)} · " if progress.step is not None and not has_step else ""
    before = _queue_words(shown) + at_step + (f"{tags} · " if tags else "")
    after = ((words + more, style),) if style == "dim" else ((words, style), (more, "dim"))
    gap = placed[len(head)][0].gap
    return [*_short_row(head, gap, ((before, "label"), *after), width)]


def _study_row(placed: Placed[_Shown], entry: StudyEntry, snapshot: Snapshot, state: RunsState, width: int) -> Line:
    """A study: how far it is and its best value, or how its trials ended."""
    study = entry.study
    style = "dim" if study is None else STUDY_SIGNS[study.state].style
    cells: dict[str, list[Span]] = {
        "": [*_pointer(entry_id(entry), state), ("◇" if study is None else "◆", style)],
        "RUN": [(clean(entry.study_id if study is None else study.study_id), "text")],
        "STATE": [("study", style)],
    }
    if study is not None and study.planned:
        share = min(1.0, study.over / study.planned)
        cells["PROGRESS"] = _share_bar(share, next((w for c, w in placed if c.head == "PROGRESS"), 0), "bar")
        cells["STEP"] = [(f"{study.over}", "text"), (f"/{count_of(study.planned, 'trial')}", "dim")]
    head = tuple((tuple(cells[column.head]), room, column) for column, room in placed[:5] if column.head in cells)
    gap = placed[len(head)][0].gap
    return [*_short_row(head, gap, study_words(entry, snapshot.at), width)]


def study_words(entry: StudyEntry, now: float) -> tuple[Span, ...]:
    study = entry.study
    if study is not None:
        state = () if study.state == "running" else ((f"{STUDY_SIGNS[study.state].word} · ", "warn"),)
        live = f"{study.running} running"
        if study.queued:
            live = f"{live} · {study.queued} queued" if study.running else f"{study.queued} queued"
        if study.best is None:
            return (*state, (live, "dim"))
        best = f" (trial {study.best_number}) · {live}"
        return (*state, ("best ", "dim"), (metric_value(study.best), "label"), (best, "dim"))
    states = Counter(trial.run.trial_state or run_sign(trial.run.state).word for trial in entry.trials)
    words = " · ".join(f"{count(number)} {word.replace('complete', 'done')}" for word, number in states.most_common())
    last = max((trial.run.ended_at for trial in entry.trials if trial.run.ended_at is not None), default=None)
    ended = "" if last is None else f"{ago(now - last)} · "
    return ((f"{ended}{count_of(len(entry.trials), 'trial')}: {words}", "dim"),)


@lru_cache(1024)
def _short_row(
    head: tuple[tuple[tuple[Span, ...], int, Column[_Shown]], ...], gap: int, tail: tuple[Span, ...], width: int
) -> tuple[Span, ...]:
    """Cells, each with its room and its column, and the text ``gap`` cells behind them, whose dim facts are whole or
    not there; the last cell takes the room that it needs.

    Cached, because most rows of a long table stay the same for hours.
    """
    line: Line = []
    for number, (spans, room, column) in enumerate(head, 1):
        if number == len(head):
            room = max(room, sum(cell_width(text) for text, _ in spans))
        cell = fit_line(spans, room, column.align)
        line += [(" " * column.gap, "text"), *cell] if number > 1 else cell
    line.append((" " * gap, "text"))
    for text, style in tail:
        while style == "dim" and cell_width(text) > width - cells_in(line) and " · " in text:
            text = text.rpartition(" · ")[0]
        line.append((text, style))
    return tuple(fit_line(line, width))


def _queue_words(shown: _Shown) -> str:
    run = shown.row.run
    if run.state != "queued":
        return ""
    waiting = [row.run.run_id for row in shown.snapshot.runs if row.run.state == "queued"]
    return f"#{waiting.index(run.run_id) + 1} " + (f"priority {run.priority} " if run.priority else "") + "· "


def _sign(shown: _Shown, width: int) -> list[Span]:
    sign = state_sign(shown.row, shown.snapshot.at)
    return [*_pointer(shown.row.run.run_id, shown.state), (sign.glyph, sign.style)]


def _pointer(row_id: str, state: RunsState) -> list[Span]:
    is_marked = row_id in state.marked
    if row_id == state.cursor:
        pointer = "◈" if is_marked else "▸" if state.is_focused else "›"
    else:
        pointer = "◆" if is_marked else " "
    return [(pointer, "cursor" if state.is_focused or is_marked else "dim")]


def _name(shown: _Shown, width: int) -> list[Span]:
    run = shown.row.run
    return [(clip_middle(run_title(run), width), "text" if run.state.is_over else run_style(run))]


def _state(shown: _Shown, width: int) -> list[Span]:
    sign = state_sign(shown.row, shown.snapshot.at)
    return [(sign.word, sign.style)]


def _step(shown: _Shown, width: int) -> list[Span]:
    progress = shown.row.progress
    if progress.step is None:
        return []
    step, is_over = count(progress.step), shown.row.run.state.is_over
    totals: list[str] = []
    if progress.total_steps and not is_over:
        totals = [f"/{count(progress.total_steps)}", f"/{short_number(progress.total_steps)}"]
    total = next((text for text in totals if cell_width(step + text) <= width), "")
    return [(step, "text"), (total, "dim")]


def _done(shown: _Shown, width: int) -> list[Span]:
    """The share of the steps done, as a bar and in percent."""
    share = shown.row.share_done
    if share is None:
        return []
    return _share_bar(share, width, "dim" if shown.row.run.state.is_over else "bar")


def _share_bar(share: float, width: int, style: str) -> list[Span]:
    return [*bar_spans(share, width - 5, style), (f"{math.floor(share * 100):>4}%", "text")]


def _metric(shown: _Shown, width: int) -> list[Span]:
    """``accuracy 0.931``: the run's own metric, without its path where that does not fit."""
    name, value = shown.row.progress.listed_metric
    number = _number(value, _LOSS.width)
    room = width - sum(cell_width(text) for text, _ in number) - 1
    name = clean(name) if cell_width(clean(name)) <= room else clean(name.rpartition("/")[2])
    if number:
        return [(f"{clip(name, room)} ", "dim"), *number]
    return []


def _number(value: float | None, width: int) -> list[Span]:
    if value is None:
        return []
    # As many digits as fit: a clipped number would be another number.
    # Three decimals keep the points of usual losses below each other.
    usual = f"{value:.3f}" if 0.0995 <= abs(value) < 1000 else metric_value(value)
    texts = [usual, *(f"{value:.{digits}g}" for digits in (3, 2, 1)), f"{value:.0e}".replace("e-0", "e-")]
    text = next((text for text in texts if cell_width(text) <= width), texts[-1])
    return [(text, "text" if math.isfinite(value) else "bad")]


def _curve(shown: _Shown, width: int) -> list[Span]:
    progress = shown.row.progress
    # Beside another metric it would be taken for the curve of that one.
    losses = () if progress.has_own_metric and progress.metric_value is not None else progress.losses
    return [(spark(ease(losses), width), run_style(shown.row.run))]


def _time_left(shown: _Shown, width: int) -> list[Span]:
    words, style = status_line(shown.row, shown.snapshot.at)
    return [(words.removesuffix(" left"), style)]


def _gpu_indices(shown: _Shown) -> str:
    """``0–3, 6``: the GPUs of a run; empty for none."""
    return index_ranges(sorted(gpu.index for gpu in shown.snapshot.gpus if gpu.uuid in shown.row.run.gpus))


def _pace(shown: _Shown, width: int) -> list[Span]:
    pace = shown.row.progress.steps_per_second
    if pace is None or silent_seconds(shown.row, shown.snapshot.at):
        return []
    return [(rate(pace), "text")]


def _lost(shown: _Shown, width: int) -> list[Span]:
    """The cost of failures: ``421 steps 3 min``."""
    cost = shown.row.cost
    if cost is None:
        return []
    steps = "" if cost.lost_steps is None else count_of(cost.lost_steps, "step")
    time = "" if cost.lost_seconds is None else duration(cost.lost_seconds)
    words = " ".join(filter(None, (steps, time)))
    if words:
        return [(words, "warn")]
    return []


def _run_time(shown: _Shown, width: int) -> list[Span]:
    seconds = shown.row.run.trained_seconds(shown.snapshot.at)
    if seconds is None:
        return []
    return [(duration(seconds if seconds < 60 else seconds // 60 * 60), "text")]


def _labels(shown: _Shown, width: int) -> list[Span]:
    tags, note = tag_words(shown.row.run), clean(shown.row.run.note or "")
    return [(tags, "label"), (f" {note}" if tags else note, "dim")]


_LEAST_NAME, _GAP_OF_NAME = 13, 1

_FITTED = ("GPUS", "LOST", "PROFILE")
"""The columns that only runs which are not over have, and whose cells differ in length."""


def _columns(entries: Sequence[Entry], snapshot: Snapshot, state: RunsState, width: int) -> list[Column[_Shown]]:
    """The columns for these rows, none wider than its cells need, so that the words behind them get the rest. Long
    names have up to a sixth of the width, and more if it is spare."""
    rows = [_Shown(entry, snapshot, state) for entry in entries if isinstance(entry, RunRow)]
    # Also those that start or end now, so that no column moves while they do.
    active = [shown for shown in rows if not shown.row.run.state.is_over]
    widest = max((cell_width(run_title(shown.row.run)) for shown in rows), default=0)
    name = min(max(_LEAST_NAME, widest), max(_LEAST_NAME, width // 6))
    others: list[Column[_Shown]] = []
    for column in _OTHERS:
        if column.head not in _FITTED:
            others.append(column)
        elif telling([column], active):
            others.append(fitted(column, active))
    if any(shown.row.progress.has_own_metric for shown in rows):
        others[others.index(_LOSS)] = _METRIC
    if any(shown.row.run.tags or shown.row.run.note for shown in rows):
        others.insert(-1, _LABELS)
    return [
        _SIGN,
        Column("RUN", name, _name, gap=_GAP_OF_NAME, grow=2, most=max(name, min(widest, 60))),
        replace(_STATE, width=max(_STATE.width, fitted(_STATE, rows).width)),
        *others,
    ]


# As wide as any state after a restart, so that no column moves when a run begins, ends or restarts.
_STATE: Column[_Shown] = Column(
    "STATE", max(cell_width(sign.word) for sign in RUN_SIGNS.values()) + len(" ↻1"), _state, gap=1
)
_SIGN: Column[_Shown] = Column("", 2, _sign)
_LABELS: Column[_Shown] = Column("TAGS", 14, _labels, importance=6, gap=2, grow=2, most=40)
_LOSS: Column[_Shown] = Column(
    "LOSS", 7, lambda shown, width: _number(shown.row.progress.loss, width), ">", importance=1, gap=2
)
_METRIC: Column[_Shown] = Column("METRIC", 14, _metric, ">", importance=1, gap=2, grow=1, most=20)
_OTHERS: tuple[Column[_Shown], ...] = (
    Column("PROGRESS", 9, _done, importance=2, gap=1, grow=1, most=20),
    Column("STEP", 13, _step, ">", gap=1),
    _LOSS,
    Column("", 7, _curve, importance=3, gap=2, grow=2, most=48),
    Column("STEP/S", 6, _pace, ">", importance=4, gap=2),
    Column(
        "GPUS",
        8,
        lambda shown, _: [(_gpu_indices(shown), "text")],
        importance=5,
        gap=2,
        most=24,
        value=lambda shown: _gpu_indices(shown) or None,
    ),
    Column("LOST", 21, _lost, importance=6, gap=2, value=lambda shown: _lost(shown, 0) or None),
    Column("TIME", 11, _run_time, ">", importance=7, gap=2),
    Column("PROFILE", 12, lambda shown, _: [(clean(shown.row.run.profile), "dim")], importance=8, gap=2, most=24),
    Column("ETA", 11, _time_left, gap=2, grow=4),
)
