"""The runs table and the events strip."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gputui.charts.bars import bar
from gputui.charts.cells import cell_width, clip_middle
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import ago, count, duration, index_ranges, metric_value, short_number
from gputui.recovery.cost import Cost, in_words
from gputui.store.queue import QueuePause
from gputui.tui.data.snapshot import RunRow, Snapshot
from gputui.tui.layout.columns import Column, Placed, fit_line, pad, place, row_line, selected, styled_rule
from gputui.tui.layout.run_words import outlook, run_colour, run_title, silent_seconds, tag_words
from gputui.tui.layout.sparklines import spark
from gputui.tui.layout.words import run_sign, run_state_text
from gputui.tui.pages.overview.run_order import order_named


@dataclass(frozen=True, slots=True)
class RunsState:
    """What the table adds to the snapshot: the row under the cursor, the first row shown, the filter, the order (see
    `run_order.ORDERS`), and the runs marked for a comparison."""

    cursor: str | None = None
    top: int = 0
    filter_text: str = ""
    order: str = "state"
    marked: frozenset[str] = frozenset()
    is_focused: bool = True


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a row says about a run from beyond it: indices of GPUs by UUID, places in the queue by run, the pause; the
    ended trials that a row summarises, by its run (`run_order.fold_trials`); whether there are keys to press, and
    whether this is a past moment."""

    now: float
    gpu_index: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    pause: QueuePause | None = None
    folded: Mapping[str, Sequence[RunRow]] = field(default_factory=dict)
    has_keys: bool = True
    is_past: bool = False


class _Shown(NamedTuple):
    row: RunRow
    around: Surroundings
    state: RunsState

    @property
    def is_current(self) -> bool:
        return self.row.run.run_id == self.state.cursor


def surroundings(snapshot: Snapshot, folded: Mapping[str, Sequence[RunRow]] | None = None) -> Surroundings:
    """What the rows of a snapshot say beyond their runs."""
    waiting = [row.run.run_id for row in snapshot.runs if row.run.state == "queued"]
    return Surroundings(
        snapshot.at,
        {gpu.uuid: gpu.index for gpu in snapshot.gpus},
        {run_id: number for number, run_id in enumerate(waiting, 1)},
        snapshot.machine.queue_pause,
        folded or {},
        is_past=snapshot.past is not None,
    )


def _none(state: RunsState, around: Surroundings) -> str:
    """Why there is no run to show."""
    if state.filter_text:
        return "No run matches the filter; esc clears it."
    if around.is_past:
        return "There was no run yet."
    if around.has_keys:
        return "No run yet. Press n to launch one from a profile."
    return "No run yet; gputui run PROFILE launches one."


def runs_lines(rows: Sequence[RunRow], state: RunsState, around: Surroundings, width: int, height: int) -> list[Line]:
    """A heading, then a row per run; ``rows`` are those that match the filter, in their order."""
    shown = rows[state.top : state.top + max(0, height - 1)]
    placed = place(_columns(rows, width), width)
    lines = [_heading(rows, len(shown), state, around, placed, width, height)]
    if not rows:
        return [*lines, fit_line([("  " + _none(state, around), "dim")], width)][:height]
    for row in shown:
        lines.append(_row(placed, _Shown(row, around, state), width))
    return lines[:height]


def _heading(
    rows: Sequence[RunRow],
    shown: int,
    state: RunsState,
    around: Surroundings,
    placed: Placed[_Shown],
    width: int,
    height: int,
) -> Line:
    """``RUNS ── STATE ── PROGRESS ── … queue paused ── 1–5 of 40``: the columns' heads in the rule, as far as the notes
    leave room for them; of the notes what matters most comes first and stays longest."""
    order = order_named(state.order).words
    title = " ".join(
        part for part in ("RUNS", order, f"/{clean(state.filter_text)}" if state.filter_text else "") if part
    )
    notes: list[Span] = []
    if around.pause is not None:
        since = (
            duration(max(0.0, around.now - around.pause.at) // 60 * 60) if around.now - around.pause.at >= 60 else ""
        )
        passed = f" {since} ago" if since else ""
        how = "P opens it" if around.has_keys else "gputui queue resume opens it"
        notes.append((f"queue paused by {clean(around.pause.actor)}{passed}, {how}", "warn"))
    current = next((row for row in rows if row.run.run_id == state.cursor), None)
    if current is not None and current.cost is not None and not any(c.head == "LOST" for c, _ in placed):
        words = in_words(current.cost)
        if words and not current.run.state.is_over:
            notes.append((f"failures cost {words}", "dim"))
    if state.marked:
        notes.append((f"{len(state.marked)} marked", "accent"))
    if len(rows) > height - 1 and shown:
        notes.append((f"{state.top + 1}–{state.top + shown} of {len(rows)}", "dim"))
    line = styled_rule(title, width, notes)
    return line if not rows else _with_heads(line, placed, cell_width(f" {title} "))


def _with_heads(line: Line, placed: Placed[_Shown], start: int) -> Line:
    """Put the columns' heads into the part of a rule that is nothing but a stroke, each above its column."""
    heads: list[Span] = []
    at = 0
    rule = next(number for number, (_, style) in enumerate(line) if style == "rule")
    end = start + cell_width(line[rule][0])
    for column, room in placed:
        left = at if column is placed[0][0] else at + column.gap
        at = left + room
        head = f" {column.head} "
        # Aligned with the cell below, whichever side that is on.
        begin = left + room - len(column.head) - 1 if column.align == ">" else left - 1
        if column.head and begin >= start and begin + len(head) < end:
            heads += [("─" * (begin - start), "rule"), (head, "head")]
            start = begin + len(head)
    return [*line[:rule], *heads, ("─" * (end - start), "rule"), *line[rule + 1 :]]


def _row(placed: Placed[_Shown], shown: _Shown, width: int) -> Line:
    """A run that trains shows all its columns; of any other the outlook takes the room of what it does not have, and
    the state what it needs."""
    run, progress = shown.row.run, shown.row.progress
    is_selected = shown.is_current and shown.state.is_focused
    if run.run_id in shown.around.folded:
        line = _study_row(placed, shown, width)
        return selected(line) if is_selected else line
    if run.state == "running":
        line = row_line(placed, shown, width)
        return selected(line) if is_selected else line
    is_reached = progress.step is not None and (run.state.is_over or run.state == "stopping")
    count_of_cells = next(number for number, (c, _) in enumerate(placed) if c.head == "STEP") + 1 if is_reached else 3
    cost = f" · failures cost {words}" if shown.row.cost is not None and (words := in_words(shown.row.cost)) else ""
    head = tuple((tuple(column.cell(shown, room)), room, column) for column, room in placed[:count_of_cells])
    tags, note = tag_words(run), clean(run.note or "")
    tail = (
        (_queue_words(shown), "label"),
        (f"{tags} · " if tags else "", "label"),
        outlook(shown.row, shown.around.now),
        (cost, "dim"),
        (f" · {note}" if note else "", "dim"),
    )
    line = [*_short_row(head, tail, width)]
    return selected(line) if is_selected else line


def _study_row(placed: Placed[_Shown], shown: _Shown, width: int) -> Line:
    """The ended trials of a study: how many there are, how they ended, and when the last one did."""
    trials = shown.around.folded[shown.row.run.run_id]
    style = "cursor" if shown.is_current and shown.state.is_focused else "text"
    cells: list[list[Span]] = [
        [*_pointer(shown), ("□", "dim")],
        [(clip_middle(clean(shown.row.run.study_id or ""), placed[1][1]), style)],
        [("study", "dim")],
    ]
    head = tuple((tuple(cell), room, column) for cell, (column, room) in zip(cells, placed, strict=False))
    states = Counter(trial.run.state for trial in trials)
    parts = [f"{count(number)} {run_sign(state).word}" for state, number in states.most_common()]
    last = max((trial.run.ended_at for trial in trials if trial.run.ended_at is not None), default=None)
    words = f"{count(len(trials))} trials: {', '.join(parts)}" + (
        "" if last is None else f" · {ago(shown.around.now - last)}"
    )
    return [*_short_row(head, ((words, "dim"),), width)]


@lru_cache(1024)
def _short_row(
    head: tuple[tuple[tuple[Span, ...], int, Column[_Shown]], ...], tail: tuple[Span, ...], width: int
) -> tuple[Span, ...]:
    """A row of a few cells, each with its room and its column, and what follows them; the last cell takes what it
    needs. Most rows of a long table say the same for hours."""
    line: Line = []
    for number, (spans, room, column) in enumerate(head, 1):
        if number == len(head):
            room = max(room, sum(cell_width(text) for text, _ in spans))
        cell = pad(spans, room, column.align)
        line += [(" " * column.gap, "text"), *cell] if number > 1 else cell
    return tuple(fit_line([*line, ("  ", "text"), *tail], width))


def _queue_words(shown: _Shown) -> str:
    place = shown.around.places.get(shown.row.run.run_id)
    if place is None:
        return ""
    priority = shown.row.run.priority
    return f"#{place} " + (f"priority {priority} " if priority else "") + "· "


def lost_words(cost: Cost) -> str:
    """What failures cost a run in a few cells: ``421 steps 3 min``."""
    steps = "" if cost.lost_steps is None else f"{count(cost.lost_steps)} steps"
    time = "" if cost.lost_seconds is None else duration(cost.lost_seconds)
    return " ".join(part for part in (steps, time) if part)


def _sign(shown: _Shown, width: int) -> list[Span]:
    sign = run_sign(shown.row.run.state)
    return [*_pointer(shown), (sign.glyph, sign.style)]


def _pointer(shown: _Shown) -> list[Span]:
    is_marked = shown.row.run.run_id in shown.state.marked
    if shown.is_current:
        pointer = "◈" if is_marked else "▸" if shown.state.is_focused else "›"
    else:
        pointer = "◆" if is_marked else " "
    return [(pointer, "cursor" if shown.state.is_focused or is_marked else "dim")]


def _name(shown: _Shown, width: int) -> list[Span]:
    return [
        (
            clip_middle(run_title(shown.row.run), width),
            "cursor" if shown.is_current and shown.state.is_focused else "text",
        )
    ]


def _state(shown: _Shown, width: int) -> list[Span]:
    run = shown.row.run
    return [(run_state_text(run), run_sign(run.state).style)]


def _step(shown: _Shown, width: int) -> list[Span]:
    progress = shown.row.progress
    if progress.step is None:
        return []
    step, is_over = count(progress.step), shown.row.run.state.is_over
    totals = (
        [f"/{count(progress.total_steps)}", f"/{short_number(progress.total_steps)}"] if progress.total_steps else []
    )
    total = next((text for text in totals if not is_over and cell_width(step + text) <= width), "")
    return [(step, "text"), (total, "dim")]


def _done(shown: _Shown, width: int) -> list[Span]:
    """How much of the steps is done, as a bar on its track and in percent."""
    progress = shown.row.progress
    if progress.step is None or not progress.total_steps:
        return []
    share = min(1.0, progress.step / progress.total_steps)
    filled = bar(share, width - 5).rstrip(" ")
    style = "dim" if shown.row.run.state.is_over else "bar"
    return [(filled, style), ("░" * (width - 5 - len(filled)), "track"), (f"{math.floor(share * 100):>4}%", "text")]


def _loss(shown: _Shown, width: int) -> list[Span]:
    progress = shown.row.progress
    if progress.loss is None:
        return []
    is_finite = progress.loss == progress.loss and abs(progress.loss) != float("inf")
    return [(_number_in(progress.loss, width), "text" if is_finite else "bad")]


def _number_in(value: float, room: int) -> str:
    """As many digits as fit: a number that is cut would say something else."""
    texts = [metric_value(value), *(f"{value:.{digits}g}" for digits in (3, 2, 1)), f"{value:.0e}".replace("e-0", "e-")]
    return next((text for text in texts if cell_width(text) <= room), texts[-1])


def _curve(shown: _Shown, width: int) -> list[Span]:
    return [(spark(shown.row.progress.losses, width), f"series.{run_colour(shown.row.run)}")]


def _remark(shown: _Shown, width: int) -> list[Span]:
    words, style = outlook(shown.row, shown.around.now)
    return [(words.removesuffix(" left"), style)]


def _gpus(shown: _Shown, width: int) -> list[Span]:
    indices = sorted(index for uuid in shown.row.run.gpus if (index := shown.around.gpu_index.get(uuid)) is not None)
    return [(index_ranges(indices), "text")] if indices else []


def _pace(shown: _Shown, width: int) -> list[Span]:
    pace = shown.row.progress.steps_per_second
    return [] if pace is None or silent_seconds(shown.row, shown.around.now) else [(short_number(pace), "text")]


def _lost(shown: _Shown, width: int) -> list[Span]:
    words = "" if shown.row.cost is None else lost_words(shown.row.cost)
    return [(words, "warn")] if words else []


def _ran(shown: _Shown, width: int) -> list[Span]:
    ran = shown.row.run.trained_seconds(shown.around.now)
    if ran is None:
        return []
    return [(duration(ran if ran < 60 else ran // 60 * 60), "text")]


def _labels(shown: _Shown, width: int) -> list[Span]:
    tags, note = tag_words(shown.row.run), clean(shown.row.run.note or "")
    return [(tags, "label"), (f" {note}" if tags else note, "dim")]


def _profile(shown: _Shown, width: int) -> list[Span]:
    return [(clean(shown.row.run.profile), "dim")]


_LEAST_NAME = 13


def _columns(rows: Sequence[RunRow], width: int) -> tuple[Column[_Shown], ...]:
    """The columns for these rows: a sixth of the width may go to names that are long."""
    widest = max((cell_width(run_title(row.run)) for row in rows), default=0)
    name = min(max(_LEAST_NAME, widest), max(_LEAST_NAME, width // 6))
    has_labels = any(row.run.tags or row.run.note for row in rows)
    others = (*_OTHERS[:-1], _LABELS, _OTHERS[-1]) if has_labels else _OTHERS
    return (_SIGN, Column("run", name, _name, gap=1, grow=2, most=max(30, min(widest, 60))), *others)


_SIGN: Column[_Shown] = Column("", 2, _sign)
_LABELS: Column[_Shown] = Column("TAGS", 14, _labels, importance=6, gap=2, grow=2, most=40)
_OTHERS: tuple[Column[_Shown], ...] = (
    Column("STATE", 10, _state, gap=1, grow=1, most=13),
    Column("PROGRESS", 10, _done, importance=2, gap=1, grow=1, most=20),
    Column("STEP", 13, _step, ">", gap=1),
    Column("LOSS", 7, _loss, ">", importance=1, gap=2),
    Column("", 7, _curve, importance=3, gap=1, grow=1, most=24),
    Column("STEP/S", 6, _pace, ">", importance=4, gap=2),
    Column("GPUS", 5, _gpus, importance=5, gap=2, grow=1, most=16),
    Column("LOST", 21, _lost, importance=6, gap=2),
    Column("TIME", 9, _ran, ">", importance=7, gap=2),
    Column("PROFILE", 12, _profile, importance=8, gap=2, most=24),
    Column("ETA", 12, _remark, gap=2, grow=4),
)
