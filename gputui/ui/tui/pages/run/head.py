"""The head of a run's page, and helpers of its sections."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import ago, count, duration, index_ranges, metric_value, short_number
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.data.snapshot import Past, RunPage, RunRow
from gputui.ui.tui.layout.columns import fit_line, fitting, rule
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.layout.run_words import outlook, placement_words, run_title, tag_words
from gputui.ui.tui.layout.words import run_sign, run_state_text

LEAST_NAME = 12
"""Least cells of a run's name in the head."""


def run_head(page: RunPage, gpus: Sequence[GpuView], now: float, width: int, past: Past | None = None) -> Line:
    """``vit-b16-1 · running ↻2 · attempt 3 · GPU 6 · step 8 110/90 000 · 9 h 10 left · loss 1.902``."""
    run, progress = page.run, page.progress
    sign = run_sign(run.state)
    tail = [(" ", "text"), *right_end(now, past)]
    room = width - _size(tail)
    parts: list[list[Span]] = [[(" · ", "dim"), (f"{sign.glyph} {run_state_text(run)}", sign.style)]]
    step_at = len(parts) + 1
    shorter_steps: tuple[str, ...] = ()
    if progress.step is not None:
        total = f"/{count(progress.total_steps)}" if progress.total_steps else ""
        parts.append([(" · ", "dim"), (f"step {count(progress.step)}{total}", "text")])
        if progress.total_steps:
            short = f"{count(progress.step)}/{short_number(progress.total_steps)}"
            shorter_steps = (f"step {short}", short)
    # A long name is clipped so that state and step stay in sight.
    name = clip_middle(run_title(run), max(LEAST_NAME, room - 1 - sum(map(_size, parts))))
    parts.insert(0, [(" " + name, "title")])
    words, style = outlook(RunRow(run, progress), now) if run.state != "failed" else (_failed_words(page, now), "text")
    parts.append([(" · ", "dim"), (words, style)] if words else [])
    place: list[Span] = []
    if run.target is None:
        place = [(" · ", "dim"), (gpu_words(run.gpus, gpus), "text")]
    # Where it runs is worth more than the whole number of steps.
    for text in shorter_steps:
        if room < sum(map(_size, [*parts, place])):
            parts[step_at] = [(" · ", "dim"), (text, "text")]
    if progress.loss is not None:
        # The head is painted with every snapshot, the curves less often.
        loss: list[Span] = [(" · ", "dim"), (f"loss {metric_value(progress.loss)}", "text")]
        if sum(map(_size, [*parts, loss, place])) <= room:
            parts.append(loss)
    if run.target is None:
        parts.append(place)
    elif words != (elsewhere := placement_words(run, now))[0]:
        parts.append([(" · ", "dim"), elsewhere])
    if progress.steps_per_second:
        parts.append([(" · ", "dim"), (f"{short_number(progress.steps_per_second)} steps/s", "text")])
    if run.attempt > 1:
        parts.append([(" · ", "dim"), (f"attempt {run.attempt}", "text")])
    return [*fitting(parts, room), *tail]


def labels_line(run: Run, width: int) -> Line | None:
    """The id of a renamed run, its tags and its note; None if it has none of them."""
    note = clean(run.note or "")
    parts = [(clean(run.run_id) if run.is_renamed else "", "dim"), (tag_words(run), "label"), (note, "text")]
    spans = [(f" {words} ", style) for words, style in parts if words]
    return fit_line(spans, width) if spans else None


def _failed_words(page: RunPage, now: float) -> str:
    """``after 19 s, 1 d ago``; the banner below has the reason."""
    ended = page.run.ended_at
    if ended is None:
        return ""
    took = page.run.ended_seconds
    return f"after {duration(took)}, {ago(now - ended)}" if took else ago(now - ended)


def _size(spans: Sequence[Span]) -> int:
    return sum(cell_width(text) for text, _ in spans)


def gpu_words(uuids: Sequence[str], gpus: Sequence[GpuView]) -> str:
    """``GPU 0–3, 6`` or ``CPU``; an unknown GPU is named by the beginning of its UUID."""
    if not uuids:
        return "CPU"
    known = {gpu.uuid: gpu.index for gpu in gpus}
    indices = index_ranges(sorted(known[uuid] for uuid in uuids if uuid in known))
    gone = [clean(uuid[:12]) for uuid in uuids if uuid not in known]
    return "GPU " + ", ".join([*([indices] if indices else []), *gone])


def heading(title: str, width: int, note: str = "", *, is_focused: bool = False) -> Line:
    """The heading of a section, marked if the section is focused."""
    return rule(title, width, note, style="tab" if is_focused else "title")


def from_top(lines: Sequence[Line], offset: int, width: int, height: int) -> list[Line]:
    """The lines from ``offset`` on; left-out lines at both ends are counted if there is room for it."""
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
    """The largest offset of ``lines`` lines in ``height``."""
    return max(0, lines - max(1, height))
