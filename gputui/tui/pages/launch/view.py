"""The launch form as lines: what, where, whether it can work, and the exact command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.charts.cells import cell_width, clip
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.units import gibibytes
from gputui.profiles.situation import holder_of
from gputui.store.hardware import GpuView
from gputui.tui.layout.columns import between, fit_line, fitting, rule, wrap
from gputui.tui.layout.gpu_words import is_free
from gputui.tui.layout.words import clock
from gputui.tui.pages.launch.form import GPUS, Field, Form
from gputui.tui.pages.launch.plan import Plan

_MARKS = {"pass": ("✓", "good"), "warn": ("▲", "warn"), "fail": ("✗", "bad"), "skip": ("–", "dim")}

VALUE_WIDTH = 18


@dataclass(frozen=True, slots=True)
class LaunchView:
    """Everything that the launch page shows."""

    form: Form
    plan: Plan | None
    gpus: Sequence[GpuView]
    now: float
    is_reading: bool


def launch_lines(view: LaunchView, width: int, height: int) -> list[Line]:
    """The page in exactly ``height`` lines: fields scroll, checks and the command stay."""
    form, plan = view.form, view.plan
    lines = [_head(view, width)]
    if form.entry is None:
        text = (
            "Reading profiles…" if view.is_reading else "There is no profile; docs/profiles.md says how to write one."
        )
        return _full([*lines, fit_line([(f"  {text}", "dim")], width)], height, width)
    lines += _description(form, width)
    foot = _checks(plan, width, height) + _command(plan, width, height)
    room = max(3, height - len(lines) - len(foot))
    return _full([*lines, *_fields(view, width, room), *foot], height, width, keep=len(foot))


def _head(view: LaunchView, width: int) -> Line:
    form = view.form
    left: list[Span] = [(" Launch  ", "title")]
    if form.entry is not None:
        where = {"here": "from ./profiles", "home": "from the home", "shipped": "comes with gputui", "file": "a file"}[
            form.entry.source
        ]
        left += [
            ("◂ ", "dim"), (form.entry.name, "accent"), (" ▸", "dim"),
            (f"   {form.chosen + 1} of {len(form.entries)}, {where}", "dim"),
        ]  # fmt: skip
    return between(left, [(f" {clock(view.now)} ", "text")], width)


def _description(form: Form, width: int) -> list[Line]:
    entry = form.entry
    text = entry.profile.description if entry is not None and entry.profile is not None else ""
    return [fit_line([(" " + clip(text, width - 2), "dim")], width)] if text else []


def _fields(view: LaunchView, width: int, height: int) -> list[Line]:
    """The fields around the cursor."""
    form = view.form
    if not form.fields:
        return []
    gpu_line = _gpu_line(view.gpus, width)
    rows: list[tuple[int, Line]] = [(-1, rule("WHERE AND WHAT", width, _help_in_heading(form, width)))]
    for number, item in enumerate(form.fields):
        rows.append((number, _field_line(form, item, number == form.cursor, width)))
        if item.key == GPUS and gpu_line is not None:
            rows.append((-1, gpu_line))
    if len(rows) <= height:
        return [line for _, line in rows]
    place = next(index for index, (number, _) in enumerate(rows) if number == form.cursor)
    top = min(max(0, place - height // 2), len(rows) - height)
    shown = [line for _, line in rows[top : top + height]]
    if top + height < len(rows) and place < top + height - 1:
        shown[-1] = fit_line([(f"   … {len(rows) - top - height + 1} more below", "dim")], width)
    return shown


def _widths(form: Form, width: int) -> tuple[int, int]:
    """Cells of the labels and of the values."""
    labels = min(24, max(cell_width(each.label) for each in form.fields))
    return labels, min(VALUE_WIDTH if width < 100 else 36, max(8, width // 4))


def _note(form: Form, item: Field) -> Span:
    """What stands behind a field's value: what is wrong with it, what it was, or what it may be."""
    problem = form.problems.get(item.key)
    if problem is not None:
        return (f"✗ {problem}", "bad")
    if form.is_changed(item):
        return (f"was {item.shown(item.default) or 'empty'}", "dim")
    last = f"last run {item.last or 'empty'} · " if item.last is not None else ""
    return (f"{last}{item.hint}", "dim")


def _help_in_heading(form: Form, width: int) -> str:
    """What the field in focus may be, where there is no room for it behind the value; what is wrong with it stands
    among the checks."""
    item = form.fields[form.cursor]
    is_cut = cell_width(_note(form, item)[0]) > width - sum(_widths(form, width)) - 6
    return clip(item.hint, width - 24) if is_cut and item.key not in form.problems else ""


def _field_line(form: Form, item: Field, is_current: bool, width: int) -> Line:
    label_width, value_width = _widths(form, width)
    spans: list[Span] = [
        ("▸ " if is_current else "  ", "cursor"),
        (clip(item.label, label_width) + " " * (label_width - cell_width(clip(item.label, label_width))) + "  ",
         "label" if is_current else "text"),
    ]  # fmt: skip
    changed = form.is_changed(item)
    if is_current and form.is_fresh and form.text(item.key):
        text = clip(item.shown(form.text(item.key)), value_width)
        spans += [(text, "selected"), (" " * (value_width - cell_width(text)), "text")]
    elif is_current:
        spans += form.edits[item.key].spans(value_width)
    else:
        text = clip(item.shown(form.text(item.key)), value_width)
        spans.append((text + " " * (value_width - cell_width(text)), "accent" if changed else "text"))
    note, style = _note(form, item)
    return fit_line([*spans, (f"  {note}", style)], width)


def _gpu_line(gpus: Sequence[GpuView], width: int) -> Line | None:
    """Which GPUs are free and who has the others."""
    if not gpus:
        return None
    free = [gpu for gpu in gpus if gpu.state == "ok" and is_free(gpu)]
    parts: list[list[Span]] = [[("    free ", "dim"), (" ".join(str(gpu.index) for gpu in free) or "none", "good")]]
    if free:
        least = min((gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) for gpu in free)
        parts.append([(f" with {gibibytes(least, 0)} GiB or more", "dim")])
    held: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu not in free:
            state = {"stale": "silent", "error": "unreadable"}.get(gpu.state, gpu.state)
            holder = holder_of(gpu) or "no visible process" if state == "ok" else state
            held.setdefault(holder, []).append(gpu.index)
    for holder, indices in held.items():
        parts.append([(" · ", "dim"), (" ".join(map(str, indices)), "text"), (f" {holder}", "dim")])
    return fitting(parts, width)


def _checks(plan: Plan | None, width: int, height: int) -> list[Line]:
    """What is wrong in full; what is well in one line."""
    lines = [rule("CHECKS", width)]
    if plan is None:
        return [*lines, fit_line([("  checking…", "dim")], width)]
    room = max(2, height // 4)
    for problem in plan.problems:
        lines += [fit_line([(" ✗ " if not n else "   ", "bad"), (part, "text")], width)
                  for n, part in enumerate(wrap(problem, width - 4))]  # fmt: skip
    for status in ("fail", "warn"):
        for check in plan.checks:
            if check.status == status:
                mark, style = _MARKS[status]
                remedy = f"; {check.remedy}" if check.remedy else ""
                words = wrap(f"{check.name}: {check.detail}{remedy}", width - 4)
                lines += [fit_line([(f" {mark} " if not n else "   ", style), (part, "text")], width)
                          for n, part in enumerate(words)]  # fmt: skip
    if len(lines) > room:
        lines = [*lines[: room - 1], fit_line([("   … more with ^d", "dim")], width)]
    well = [check.name for check in plan.checks if check.status == "pass"]
    if well:
        lines.append(fit_line([(" ✓ ", "good"), (", ".join(well), "dim")], width))
    return lines


def _command(plan: Plan | None, width: int, height: int) -> list[Line]:
    """The exact command, as much of it as there is room for."""
    lines = [rule("COMMAND", width)]
    if plan is None or not plan.command:
        return [*lines, fit_line([("  –", "dim")], width)]
    parts = wrap(plan.command, width - 2)
    room = max(2, height // 5)
    if len(parts) > room:
        parts = [*parts[: room - 1], clip(parts[room - 1], width - 12) + " … ^d shows all"]
    return [*lines, *(fit_line([(f" {part}", "text")], width) for part in parts)]


def _full(lines: list[Line], height: int, width: int, keep: int = 0) -> list[Line]:
    """Exactly ``height`` lines; the last ``keep`` stand at the bottom."""
    missing = height - len(lines)
    if missing < 0:
        return lines[:height]
    cut = len(lines) - keep
    return [*lines[:cut], *([fit_line([], width)] * missing), *lines[cut:]]
