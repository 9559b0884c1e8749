"""The head of a run's page, and what its sections have in common."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.charts.cells import cell_width, clip_middle
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import ago, count, duration, index_ranges, metric_value, short_number
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.tui.data.snapshot import Past, RunPage, RunRow
from gputui.tui.layout.columns import fit_line, fitting, rule
from gputui.tui.layout.moments import right_end
from gputui.tui.layout.run_words import outlook, placement_words, run_title, tag_words
from gputui.tui.layout.words import run_sign, run_state_text

LEAST_NAME = 12
"""Cells that a run's name keeps in the head, whatever follows it."""


def run_head(page: RunPage, gpus: Sequence[GpuView], now: float, width: int, past: Past | None = None) -> Line:
    """``vit-b16-1 · running ↻2 · attempt 3 · GPU 6 · step 8 110/90 000 · 9 h 10 left · loss 1.902``."""
    run, progress = page.run, page.progress
    sign = run_sign(run.state)
    tail = [(" ", "text"), *right_end(now, past)]
    room = width - _size(tail)
    parts: list[list[Span]] = [[(" · ", "dim"), (f"{sign.glyph} {run_state_text(run)}", sign.style)]]
    if progress.step is not None:
        total = f"/{count(progress.total_steps)}" if progress.total_steps else ""
        parts.append([(" · ", "dim"), (f"step {count(progress.step)}{total}", "text")])
    # However long the name is, the state and the step follow it.
    name = clip_middle(run_title(run), max(LEAST_NAME, room - 1 - sum(map(_size, parts))))
    parts.insert(0, [(" " + name, "title")])
    words, style = outlook(RunRow(run, progress), now) if run.state != "failed" else (_failed_words(page, now), "text")
    parts.append([(" · ", "dim"), (words, style)] if words else [])
    if progress.loss is not None:
        # The head is painted with every snapshot, the curves less often: the newest value is here first.
        parts.append([(" · ", "dim"), (f"loss {metric_value(progress.loss)}", "text")])
    if run.target is None:
        parts.append([(" · ", "dim"), (gpu_words(run.gpus, gpus), "text")])
    elif words != (place := placement_words(run, now))[0]:
        parts.append([(" · ", "dim"), place])
    if progress.steps_per_second:
        parts.append([(" · ", "dim"), (f"{short_number(progress.steps_per_second)} steps/s", "text")])
    if run.attempt > 1:
        parts.append([(" · ", "dim"), (f"attempt {run.attempt}", "text")])
    return [*fitting(parts, room), *tail]


def labels_line(run: Run, width: int) -> Line | None:
    """The id of a renamed run, tags and note; None if it has none of them."""
    note = clean(run.note or "")
    parts = [(clean(run.run_id) if run.is_renamed else "", "dim"), (tag_words(run), "label"), (note, "text")]
    spans = [(f" {words} ", style) for words, style in parts if words]
    return fit_line(spans, width) if spans else None


def _failed_words(page: RunPage, now: float) -> str:
    """``after 19 s, 1 d ago``; why is in the banner below."""
    ended = page.run.ended_at
    if ended is None:
        return ""
    took = page.run.ended_seconds
    return f"after {duration(took)}, {ago(now - ended)}" if took else ago(now - ended)


def _size(spans: Sequence[Span]) -> int:
    return sum(cell_width(text) for text, _ in spans)


def gpu_words(uuids: Sequence[str], gpus: Sequence[GpuView]) -> str:
    """``GPU 0–3, 6`` or ``CPU``; a GPU that is no longer known is named by the beginning of its UUID."""
    if not uuids:
        return "CPU"
    known = {gpu.uuid: gpu.index for gpu in gpus}
    indices = index_ranges(sorted(known[uuid] for uuid in uuids if uuid in known))
    gone = [clean(uuid[:12]) for uuid in uuids if uuid not in known]
    return "GPU " + ", ".join([*([indices] if indices else []), *gone])


def heading(title: str, width: int, note: str = "", *, is_focused: bool = False) -> Line:
    """The heading of a section; that of the one that keys act on is marked."""
    return rule(title, width, note, style="tab" if is_focused else "title")


def from_top(lines: Sequence[Line], offset: int, width: int, height: int) -> list[Line]:
    """The lines from ``offset`` on; left-out lines at either end are counted, where a line is left to read."""
    if height < 1:
        return []
    if len(lines) <= height:
        return list(lines)
    offset = min(max(0, offset), len(lines) - height)
    shown = list(lines[offset : offset + height])
    if offset and height > 2:
        shown[0] = fit_line([(f"  … {offset + 1} above", "dim")], width)
    below = len(lines) - offset - height
    if below and height > 1:
        shown[-1] = fit_line([(f"  … {below + 1} more", "dim")], width)
    return shown


def most_offset(lines: int, height: int) -> int:
    """How far lines can be scrolled in so much room."""
    return max(0, lines - max(1, height))
