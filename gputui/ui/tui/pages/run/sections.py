"""The sections beside a run's charts: parameters with checkpoints, ranks, timeline."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import NamedTuple

from msgspec import Struct

from gputui.core.text import cell_width, clean, clip_middle, fit
from gputui.core.units import UNKNOWN, age, bytes_text, count, count_of, duration, parameter, percent, rate
from gputui.machine.child import signal_name
from gputui.metrics.draw.parts import Line, Span
from gputui.metrics.progress import RankRow
from gputui.recovery.costs import in_words
from gputui.recovery.kinds import kind_title
from gputui.recovery.run_history import total_cost
from gputui.runs.checkpoint_names import is_step_named, step_words
from gputui.store.attempts import Attempt
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.data.run_details import launched_code
from gputui.ui.tui.layout.columns import Column, fit_columns, fit_line, head_line, paragraph, row_line, rule, wrap
from gputui.ui.tui.layout.gpu_words import WAITING_FRACTION, with_indices
from gputui.ui.tui.pages.run.head import fatal_failure, gpu_words
from gputui.ui.views.snapshot import Checkpoint, RunPage
from gputui.ui.views.words import SEVERITY_STYLES, dated_clock, sign_of

EVIDENCE_SHOWN = 3
_INDENT = 2

LEAST_LINES = 4
"""Least lines of a section beside others, with its title and its frame."""

_RULE_CELLS = 6
"""Cells of a heading beside its title and note."""

MOST_VALUES = 3
"""Values of a parameter over a run, of which more would not fit beside its name."""


class SideSection(Struct, frozen=True):
    """A section as lines.

    Attributes:
        foot: lines that stay below the others while they scroll.
        is_from_end: whether it is read from its end.
    """

    title: str
    lines: Sequence[Line]
    foot: Sequence[Line] = ()
    is_from_end: bool = False

    @property
    def height(self) -> int:
        """The lines that it needs."""
        return len(self.lines) + len(self.foot)


class SideView:
    """The scroll position of a section. Keys and the wheel scroll what was drawn last."""

    def __init__(self) -> None:
        self._offset = 0
        self._most = 0
        self._page = 1
        self._sign = 1

    def scroll(self, by: int) -> None:
        """Scroll by lines."""
        self._offset = min(max(0, self._offset + by * self._sign), self._most)

    def scroll_page(self, by: int) -> None:
        """Scroll by screenfuls."""
        self.scroll(by * self._page)

    def scroll_to(self, *, end: bool) -> None:
        """Scroll to the end, or to the beginning."""
        by = self._most if end else -self._most
        self.scroll(by)

    def visible(self, section: SideSection, width: int, height: int) -> list[Line]:
        """The lines in view; the number of others stands in place of the first or last one."""
        if height < 1:
            return []
        foot = list(section.foot)[: height - 1]
        room = height - len(foot)
        self._most = max(0, len(section.lines) - room)
        self._page = max(1, height - 2)
        self._offset = min(self._offset, self._most)
        self._sign = 1
        top = self._offset
        if section.is_from_end:
            self._sign = -1
            top = self._most - self._offset
        lines = list(section.lines[top : top + room])
        below = len(section.lines) - top - len(lines)
        if top and room > 2:
            lines[0] = fit_line([(f"  … {top + 1} above", "dim")], width)
        if below and room > 1:
            lines[-1] = fit_line([(f"  … {below + 1} more", "dim")], width)
        return [*lines, *foot]


def side_sections(
    page: RunPage, gpus: Sequence[GpuView], now: float, width: int, *, opened: Container[str], is_past: bool = False
) -> dict[str, SideSection]:
    """All sections by their names.

    Args:
        opened: the names of those that have all checkpoints, or the evidence of incidents.
        is_past: whether a past moment is shown.
    """
    parameters = parameter_lines(page, now, width)
    note = checkpoint_words(page, now, is_past=is_past)
    if cell_width(note) + len(" CHECKPOINTS ") + _RULE_CELLS > width:
        note = note.removeprefix("newest ")
    checkpoints = [rule("CHECKPOINTS", width, note)]
    if "params" in opened:
        parameters += [*checkpoints, *checkpoint_lines(page, now, width)]
        checkpoints = []
    story = timeline_lines(page, gpus, now, width, with_evidence="story" in opened)
    return {
        "params": SideSection("PARAMETERS", parameters, checkpoints),
        "ranks": SideSection("RANKS", ranks_lines(page.progress.ranks, page.rank_count, width)),
        "story": SideSection("TIMELINE", story, cost_lines(page, width), is_from_end=True),
    }


def share_lines(needs: Mapping[str, int], focus: str, height: int) -> dict[str, int]:
    """The lines of each section: three fifths for the focused one, the rest for the last.

    Args:
        needs: the lines that each section would take.
        focus: the focused section.
        height: the lines of all together.
    """
    order = sorted(needs, key=lambda name: name != focus)
    heights: dict[str, int] = {}
    for number, name in enumerate(order):
        rest = height - sum(heights.values())
        part = rest // (len(order) - number)
        if name == focus:
            part = height * 3 // 5
        heights[name] = min(needs[name], max(part, min(rest, LEAST_LINES)))
    for name in (*order[:1], *reversed(order[1:])):
        heights[name] += min(max(0, height - sum(heights.values())), needs[name] - heights[name])
    last = [*needs][-1]
    return heights | {last: heights[last] + max(0, height - sum(heights.values()))}


# --- parameters


def parameter_lines(page: RunPage, now: float, width: int) -> list[Line]:
    """Each parameter, those first that changed after the launch, with the reason; and the code."""
    decided = [(failure.decision, failure.incident) for failure in page.failures if failure.decision is not None]
    causes = {name: (decision, incident.kind) for decision, incident in decided for name in decision.params}
    every = [page.launched, *(attempt.params for attempt in page.attempts), page.run.params]
    rows = []
    for name in dict.fromkeys([*page.launched, *page.run.params]):
        values = [clean(parameter(value)) for value, _ in groupby(params.get(name, UNKNOWN) for params in every)]
        if len(values) == 1:
            rows.append((clean(name), values[0], "text", ""))
            continue
        text = " → ".join(values)
        if len(values) > MOST_VALUES:
            text = f"{values[0]} → {values[-1]} ({len(values) - 1}×)"
        reason = ""
        if name in causes:
            decision, kind = causes[name]
            if decision.params[name] == page.run.params.get(name):
                reason = clean(f"{kind_title(kind)} {dated_clock(decision.at, now)}")
        rows.append((clean(name), text, "warn", reason))
    rows.sort(key=lambda row: row[2] == "text")
    if (code := launched_code(page.run)) is not None:
        rows.append(("code", code, "text", ""))
    if not rows:
        return [fit_line([("  This profile has no parameters.", "dim")], width)]
    room = min(max(cell_width(name) for name, *_ in rows), max(8, width // 2)) + 2
    return [
        fit_line([(" " + fit(clip_middle(name, room - 2), room), "dim"), (value, style), (f"  {reason}", "dim")], width)
        for name, value, style, reason in rows
    ]


# --- checkpoints


def checkpoint_words(page: RunPage, now: float, *, is_past: bool = False) -> str:
    """``newest 8 000, 3 min ago, ✓`` of those that the run wrote itself, or why there is none."""
    checkpoints = page.checkpoints
    if checkpoints is None:
        return "unknown: its specification cannot be read"
    if checkpoints.is_elsewhere:
        return "on its target, not seen from here"
    if not checkpoints.is_known:
        return "reading…"
    newest = next((checkpoint for checkpoint in checkpoints.newest if _is_own(checkpoint, page.run)), None)
    if newest is None:
        if is_past:
            return "none of then is left"
        if page.run.state.is_over:
            return "none"
        return "none yet"
    sign = {None: "", True: ", ✓", False: ", ✗ damaged"}[newest.is_valid]
    name = _checkpoint_label(newest).removeprefix("step ")
    if newest.modified_at is None:
        return f"newest {name}{sign}"
    ago = f"{age(now - newest.modified_at)} ago".replace("now ago", "now")
    return f"newest {name}, {ago}{sign}"


def checkpoint_lines(page: RunPage, now: float, width: int) -> list[Line]:
    """The newest checkpoints: step or name, size, age and state."""
    checkpoints = page.checkpoints
    if checkpoints is None or not checkpoints.newest:
        return []
    resumed = {PurePath(attempt.resumed_from).name: attempt.number for attempt in page.attempts if attempt.resumed_from}
    names_width = min(max(cell_width(_checkpoint_label(checkpoint)) for checkpoint in checkpoints.newest), 28)

    def age_of(checkpoint: Checkpoint, width: int) -> list[Span]:
        if checkpoint.modified_at is None:
            return [(UNKNOWN, "text")]
        return [(age(now - checkpoint.modified_at), "text")]

    columns: list[Column[Checkpoint]] = [
        Column("", names_width, lambda checkpoint, _: [(_checkpoint_label(checkpoint), "text")]),
        Column("", 8, lambda checkpoint, _: [(bytes_text(checkpoint.size_bytes), "text")], ">"),
        Column("", 6, age_of, ">"),
        Column("", 8, lambda checkpoint, _: _state(checkpoint, page.run, resumed.get(checkpoint.name)), grow=1),
    ]
    fitted = fit_columns(columns, width - 1)
    lines: list[Line] = [[(" ", "text"), *row_line(fitted, checkpoint, width - 1)] for checkpoint in checkpoints.newest]
    hidden = checkpoints.count - len(checkpoints.newest)
    if hidden > 0:
        lines.append(fit_line([(f"  … {count(hidden)} older ones", "dim")], width))
    # The other run's name is whole only in lines of its own.
    for why in dict.fromkeys(checkpoint.refused for checkpoint in checkpoints.newest if checkpoint.is_contested):
        lines += paragraph((" ? ", "warn"), why, "dim", width)
    return lines


def _checkpoint_label(checkpoint: Checkpoint) -> str:
    """``step 8 000``; the name too where that does not have the step."""
    if checkpoint.step is None:
        return checkpoint.name
    # Two files that are overwritten in turns may have the same step.
    if is_step_named(checkpoint.name):
        return f"step {count(checkpoint.step)}"
    return f"{checkpoint.name} ~{count(checkpoint.step)}"


def _is_own(checkpoint: Checkpoint, run: Run) -> bool:
    """Return whether an attempt of the run wrote a checkpoint, and nobody wrote over it after the run's end."""
    return checkpoint.attempt is not None and not _is_later(checkpoint, run)


def _is_later(checkpoint: Checkpoint, run: Run) -> bool:
    """Return whether a checkpoint was written after the run's end."""
    written_at = checkpoint.modified_at
    ended_at = run.ended_at
    return written_at is not None and ended_at is not None and written_at > ended_at


def _state(checkpoint: Checkpoint, run: Run, resumed_by: int | None) -> list[Span]:
    """Whether a checkpoint can be used, the attempt that wrote it and the one that resumed from it."""
    notes = ""
    if _is_own(checkpoint, run):
        notes = f", attempt {checkpoint.attempt}"
    if resumed_by is not None:
        notes += f"  ← attempt {resumed_by} resumed from it"
    return [_validity(checkpoint, run), (notes, "dim")]


def _validity(checkpoint: Checkpoint, run: Run) -> Span:
    if checkpoint.is_contested:
        return ("? not resumed from", "warn")
    if checkpoint.refused:
        return (f"✗ {checkpoint.refused}", "dim")
    if _is_later(checkpoint, run):
        return ("· written after the run's end", "dim")
    if checkpoint.is_gone:
        return ("· rotated away since", "dim")
    if checkpoint.is_valid:
        return ("✓ valid", "good")
    if checkpoint.is_valid is not None:
        return (f"✗ {checkpoint.why}", "bad")
    if checkpoint.why:
        return (f"· {checkpoint.why}", "dim")
    return ("· not checked", "dim")


# --- ranks


def ranks_lines(ranks: Mapping[int, RankRow], rank_count: int, width: int) -> list[Line]:
    """A row per rank of the attempt, slow ones first, without the columns that no rank reports."""
    if not ranks:
        return [fit_line([("  No rank has reported a step.", "dim")], width)]
    silent = [RankRow(rank) for rank in range(rank_count) if rank not in ranks]
    rows = sorted([*ranks.values(), *silent], key=lambda rank: (not rank.is_slow, rank.rank))
    hidden = set()
    if not any(row.memory_bytes for row in rows):
        hidden.add("PEAK")
    if sum(row.samples_per_second is not None for row in rows) < min(len(ranks), 2):
        hidden.add("SAMPLES/S")
    fitted = fit_columns([column for column in _RANK_COLUMNS if column.head not in hidden], width - 1)
    lines: list[Line] = [[(" ", "text"), *head_line(fitted, width - 1)]]
    return [*lines, *([(" ", "text"), *row_line(fitted, rank, width - 1)] for rank in rows)]


def _work(rank: RankRow, width: int) -> list[Span]:
    """The part of a step not spent waiting: in lock-step all ranks have the same step time."""
    seconds = rank.own_seconds
    if seconds is None:
        return [(UNKNOWN, "text")]
    if seconds < 9.995:
        return [(f"{seconds * 1000:.0f} ms", "text")]
    return [(duration(seconds), "text")]


def _data_wait(rank: RankRow, width: int) -> list[Span]:
    share = rank.waiting_fraction
    if share is None:
        return [(UNKNOWN, "text")]
    style = "warn" if share >= WAITING_FRACTION else "text"
    return [(percent(min(share, 1.0) * 100), style)]


def _rank_note(rank: RankRow, width: int) -> list[Span]:
    if rank.is_slow:
        return [(f"▲ slow, {rank.slowdown:.1f}× the median", "warn")]
    if rank.step is None and rank.at is None:
        return [("prints no metrics", "dim")]
    return []


_RANK_COLUMNS: tuple[Column[RankRow], ...] = (
    Column("RANK", 4, lambda rank, _: [(f"r{rank.rank}", "text")]),
    Column("STEP", 9, lambda rank, _: [(count(rank.step), "text")], ">", gap=1),
    Column("WORK", 7, _work, ">"),
    Column("SAMPLES/S", 9, lambda rank, _: [(rate(rank.samples_per_second), "text")], ">", importance=1),
    Column("DATA", 4, _data_wait, ">"),
    Column("PEAK", 9, lambda rank, _: [(bytes_text(rank.memory_bytes), "text")], ">", importance=2),
    Column("", 6, _rank_note, grow=1),
)


# --- the timeline


class _Entry(NamedTuple):
    """One entry of the timeline.

    Attributes:
        at: UTC unix seconds.
        details: what stands below the text.
    """

    at: float
    style: str
    text: str
    details: Sequence[Span] = ()


def timeline_lines(
    page: RunPage, gpus: Sequence[GpuView], now: float, width: int, *, with_evidence: bool = False
) -> list[Line]:
    """Attempts, incidents, decisions and costs in order of time, each with its day if not today."""
    entries = sorted(_entries(page, gpus, with_evidence=with_evidence), key=lambda entry: entry.at)
    stamps = [dated_clock(entry.at, now) for entry in entries]
    margin = max(map(cell_width, stamps)) + 2
    lines: list[Line] = []
    for stamp, entry in zip(stamps, entries, strict=True):
        before = f"{stamp:>{margin - 1}} "
        for part in wrap(entry.text, width - margin):
            lines.append(fit_line([(before, "dim"), (part, entry.style)], width))
            before = " " * margin
        for detail, style in entry.details:
            indent = margin
            for part in wrap(detail, width - margin - _INDENT):
                lines.append(fit_line([(" " * indent + part, style)], width))
                indent = margin + _INDENT
    return lines


def _entries(page: RunPage, gpus: Sequence[GpuView], *, with_evidence: bool) -> list[_Entry]:
    """What happened to a run, in no order."""
    run = page.run
    sinks: list[Span] = []
    if page.sinks:
        sinks.append((f"→ sinks: {', '.join(page.sinks)}", "dim"))
    entries = [
        _Entry(run.created_at, "dim", "queued", sinks),
        *(_start_of(attempt, gpus, run.target) for attempt in page.attempts),
        *(_end_of(attempt, attempt.ended_at) for attempt in page.attempts if attempt.ended_at is not None),
        *_failures(page, gpus, with_evidence=with_evidence),
    ]
    for event in page.data_events:
        style = SEVERITY_STYLES[event.severity]
        if event.severity == "info":
            style = "dim"
        entries.append(_Entry(event.at, style, clean(event.message)))
    if run.ended_at is not None:
        sign = sign_of(run)
        text = f"{sign.glyph} {sign.word}"
        # The reason of a failed run is in the banner.
        if run.state != "failed" and (reason := clean(run.reported_reason or "")):
            text += f": {reason}"
        entries.append(_Entry(run.ended_at, sign.style, text))
    return entries


def cost_lines(page: RunPage, width: int) -> list[Line]:
    """The total cost of the run's failures; nothing if there were none."""
    together = total_cost(page.failures)
    if together is None or not in_words(together):
        return []
    cost = in_words(together)
    if together.unknown:
        cost = f"at least {cost}"
    text = f"{count_of(together.incidents, 'incident')} cost {cost}"
    return [fit_line([(" " + part, "warn")], width) for part in wrap(text, width - 2)]


def _failures(page: RunPage, gpus: Sequence[GpuView], *, with_evidence: bool) -> Iterator[_Entry]:
    fatal = fatal_failure(page)
    for failure in page.failures:
        incident = failure.incident
        decision = failure.decision
        details: list[Span] = []
        if with_evidence:
            evidence = incident.evidence[:EVIDENCE_SHOWN]
            details += [(f"· {clean(with_indices(str(fact), gpus))}", "dim") for fact in evidence]
        text = clean(with_indices(incident.summary, gpus))
        if failure is fatal:
            # The banner has its cause and the decision.
            text = kind_title(incident.kind)
        elif decision is not None:
            reaction = clean(with_indices(decision.reason or decision.verdict, gpus))
            details.append((f"→ {reaction}", "text"))
        if failure.cost is not None and (cost := in_words(failure.cost)):
            details.append((f"cost {cost}", "dim"))
        yield _Entry(incident.at, "warn", text, details)


def _start_of(attempt: Attempt, gpus: Sequence[GpuView], target: str | None) -> _Entry:
    """``attempt 2 resumed from step 8 000 on GPU 6``."""
    where = gpu_words(attempt.gpus, gpus) if target is None else clean(target)
    at = attempt.created_at if attempt.started_at is None else attempt.started_at
    if attempt.resumed_from is not None:
        name = PurePath(attempt.resumed_from).name
        checkpoint = clean(name)
        if attempt.resumed_step is not None:
            checkpoint = step_words(name, attempt.resumed_step)
        return _Entry(at, "text", f"attempt {attempt.number} resumed from {checkpoint} on {where}")
    if attempt.number > 1:
        return _Entry(at, "text", f"attempt {attempt.number} started on {where}")
    return _Entry(at, "text", f"started on {where}")


def _end_of(attempt: Attempt, ended_at: float) -> _Entry:
    """``attempt 2 exited with code 1 after 2 h 10 at step 8 110``."""
    if attempt.state == "stopped":
        text = "was stopped"
    elif attempt.exit_signal is not None:
        text = f"was ended by {signal_name(attempt.exit_signal)}"
    elif attempt.exit_code == 0:
        text = "exited normally"
    elif attempt.exit_code is not None:
        text = f"exited with code {attempt.exit_code}"
    else:
        text = "ended"
    seconds = attempt.ran_seconds(ended_at)
    if seconds is not None:
        text += f" after {duration(seconds)}"
    if attempt.last_step is not None:
        text += f" at step {count(attempt.last_step)}"
    return _Entry(ended_at, "dim", f"attempt {attempt.number} {text}")
