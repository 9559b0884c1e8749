"""The launch form as lines: the fields, the checks and the exact command."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from gputui.core.text import cell_width, clean, clip, fit
from gputui.core.units import count_of, gibibytes, index_ranges
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.profiles.situation import holder_of
from gputui.store.hardware import GpuView
from gputui.ui.tui.layout.columns import box, fit_line, fitting, rule, wrap
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.pages.launch.form import GPUS, MORE, RUN_GROUP, Field, Form
from gputui.ui.tui.pages.launch.plan import Plan

_MARKS = {"fail": ("✗", "bad"), "warn": ("▲", "warn"), "pass": ("✓", "good")}
_ALL_OF_IT = " … ^d shows all"

# Columns of the form, in cells.
_LABEL_MOST = 24
_VALUE_WIDTH, _VALUE_WIDTH_WIDE = 18, 36
_WIDE = 100

_WHOLE_HINTS = 110
"""From this width on hints fit behind the values."""


class LaunchView(Struct, frozen=True):
    """What the page shows below its head: the form, its plan (None while it is computed), this
    machine's GPUs and those that no run gets, and whether panels have frames."""

    form: Form
    plan: Plan | None
    gpus: Sequence[GpuView] = ()
    quarantined: Collection[str] = ()
    is_framed: bool = False


class _Row(NamedTuple):
    """One line of the form; ``field`` is its index, None for a heading or the line of GPUs."""

    field: int | None
    line: Line
    is_heading: bool = False


def launch_lines(view: LaunchView, width: int, height: int) -> list[Line]:
    """The page in exactly ``height`` lines: the fields, which scroll, then checks and command."""
    form, plan = view.form, view.plan
    framed = view.is_framed
    inner = width - 2 * framed
    help_lines = _help(form, inner)
    command = _command(plan, inner, max(2, height // 5))
    left = height - 3 * framed - len(command) - len(help_lines)
    rows = _field_rows(view, inner)
    # The fields have their lines first; the checks have the rest.
    room = min(len(rows), left - max(3, height // 4))
    if room < len(rows):
        rows = [rows[0], *(row for row in rows if not row.is_heading)]
    fields = [*_window(rows, form.cursor, inner, max(1, room)), *help_lines]
    checks = _checks(plan, inner, height - 3 * framed - len(command) - len(fields))
    panels = (fields, checks, command)
    return [line for panel in panels for line in (box(panel, width) if framed else panel)][:height]


def _field_rows(view: LaunchView, width: int) -> list[_Row]:
    """All visible fields under the headings of their groups."""
    form = view.form
    group = RUN_GROUP
    rows = [_Row(None, rule(RUN_GROUP, width), is_heading=True)]
    for number in form.shown:
        field = form.fields[number]
        if field.group != group:
            rows.append(_Row(None, rule(field.group, width), is_heading=True))
        group = field.group
        line = _fold_line if field.key == MORE else _field_line
        rows.append(_Row(number, line(form, field, number == form.cursor, width)))
        if field.key == GPUS and form.target is None and view.gpus:
            rows.append(_Row(None, _gpu_line(view.gpus, view.quarantined, width)))
    return rows


def _window(rows: Sequence[_Row], cursor: int, width: int, height: int) -> list[Line]:
    """The heading and the rows around that of the cursor; the last line counts the fields below."""
    if len(rows) <= height:
        return [row.line for row in rows]
    room = height - 1
    place = next((index for index, row in enumerate(rows) if row.field == cursor), 1)
    top = min(max(1, place - room // 2), len(rows) - room)
    lines = [rows[0].line, *(row.line for row in rows[top : top + room])]
    below = len(rows) - top - room
    if below and place < top + room - 1:
        lines[-1] = fit_line([(f"   … {below + 1} more below", "dim")], width)
    return lines


def _widths(form: Form, width: int) -> tuple[int, int]:
    """Cells of the labels and of the values."""
    labels = min(_LABEL_MOST, max((cell_width(form.fields[number].label) for number in form.shown), default=0))
    return labels, min(_VALUE_WIDTH if width < _WIDE else _VALUE_WIDTH_WIDE, max(8, width // 4))


def _field_line(form: Form, field: Field, is_current: bool, width: int) -> Line:
    labels, values = _widths(form, width)
    label = fit(field.label, labels)
    spans: list[Span] = [("▸ " if is_current else "  ", "cursor"), (f"{label}  ", "label" if is_current else "text")]
    text = form.text(field.key)
    if is_current and not (text and form.is_fresh):
        spans += form.edits[field.key].spans(values)
    else:
        style = "selected" if is_current else "accent" if form.is_changed(field) else "text"
        unit = f" {field.unit}" if field.unit and text else ""
        shown = clip(_short(field.shown(text)), values - cell_width(unit))
        spans += [(shown, style), (unit, "dim"), (" " * (values - cell_width(shown) - cell_width(unit)), "text")]
    spans.append((" ←→" if is_current and field.choices else "", "key"))
    if (problem := form.problems.get(field.key)) is not None:
        spans.append((f"  ✗ {problem}", "bad"))
    elif form.is_changed(field):
        spans.append((f"  was {_short(field.shown(field.default)) or 'empty'}", "dim"))
    else:
        last = "" if field.last is None else f"last run {_short(field.shown(field.last)) or 'empty'} · "
        spans.append((f"  {last}{field.hint}", "dim"))
    return fit_line(spans, width)


def _short(text: str) -> str:
    """A text with many digits as a number of six."""
    try:
        return f"{float(text):.6g}" if "." in text and len(text) > 9 else text
    except ValueError:
        return text


def _fold_line(form: Form, field: Field, is_current: bool, width: int) -> Line:
    """The line that unfolds the folded fields: ``→ 14 more parameters  grad_clip, seed, …``."""
    folded = [each.label for each in form.fields if each.key in form.folded]
    return fit_line(
        [
            ("▸ " if is_current else "  ", "cursor"),
            ("▾ " if form.is_open else "→ ", "key" if is_current else "dim"),
            (f"{len(folded)} {field.label}", "label" if is_current else "text"),
            (f"  {'← folds them' if form.is_open else ', '.join(folded)}", "dim"),
        ],
        width,
    )


def _help(form: Form, width: int) -> list[Line]:
    """The hint of the current field, where hints may not fit behind the values."""
    field = form.current
    text = f"{field.label}: {field.hint}" if field is not None and field.hint else ""
    return [fit_line([(f"  {text}", "dim")], width)] if width < _WHOLE_HINTS else []


def _gpu_line(gpus: Sequence[GpuView], quarantined: Collection[str], width: int) -> Line:
    """The free GPUs, and the occupants of the others."""
    free = [gpu for gpu in gpus if gpu.state == "ok" and is_free(gpu) and gpu.uuid not in quarantined]
    parts: list[list[Span]] = [[("    free: ", "dim"), (index_ranges([gpu.index for gpu in free]) or "none", "good")]]
    if free:
        least = min((gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) for gpu in free)
        parts.append([(f" with {gibibytes(least, 0)} GiB or more", "dim")])
    held: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu not in free:
            state = {"stale": "silent", "error": "unreadable"}.get(gpu.state, gpu.state)
            unseen = "in quarantine" if gpu.uuid in quarantined else "no visible process"
            held.setdefault((holder_of(gpu) or unseen) if state == "ok" else state, []).append(gpu.index)
    for holder, indices in held.items():
        names = f"GPU{'s' * (len(indices) > 1)} {index_ranges(indices)}"
        parts.append([(" · ", "dim"), (names, "text"), (f": {holder}", "dim")])
    return fitting(parts, width)


def _checks(plan: Plan | None, width: int, height: int) -> list[Line]:
    """Problems and warnings in full, then the passed checks: with details, or in one line."""
    blank = fit_line([], width)
    if plan is None:
        lines = [rule("CHECKS", width, "checking…")]
        return [*lines[:height], *[blank] * (height - len(lines))]
    texts = [("fail", problem) for problem in plan.problems]
    for status in ("fail", "warn"):
        for check in plan.checks:
            if check.status == status:
                remedy = f"; {check.remedy}" if check.remedy else ""
                texts.append((status, f"{check.name}: {check.detail}{remedy}"))
    passed = [check for check in plan.checks if check.status == "pass"]
    worst = count_of(len(texts), "problem" if plan.blocked_by else "warning") if texts else "✓ all passed"
    lines = [rule("CHECKS", width, worst)]
    for status, text in texts:
        lines += _marked(status, text, width)
    in_detail = [line for check in passed for line in _marked("pass", f"{check.name}: {check.detail}", width)]
    names = _marked("pass", ", ".join(check.name for check in passed), width)[:1] if passed else []
    lines += in_detail if len(lines) + len(in_detail) <= height else names
    if len(lines) > height:
        lines = [*lines[: height - 1], fit_line([("   … more with ^d", "dim")], width)]
    return [*lines, *[blank] * (height - len(lines))]


def _marked(status: str, text: str, width: int) -> list[Line]:
    """A text over as many lines as it needs, with a mark before the first."""
    sign, style = _MARKS[status]
    shown = "dim" if status == "pass" else "text"
    return [
        fit_line([(f" {' ' if number else sign} ", style), (part, shown)], width)
        for number, part in enumerate(wrap(clean(text), width - 4))
    ]


def _command(plan: Plan | None, width: int, room: int) -> list[Line]:
    """The exact command below a heading, cut to ``room`` lines."""
    parts = wrap(plan.command, width - 2) if plan is not None else []
    if len(parts) > room:
        last = clip(parts[room - 1], width - 1 - cell_width(_ALL_OF_IT), ellipsis="")
        parts = [*parts[: room - 1], last + _ALL_OF_IT]
    return [rule("COMMAND", width), *(fit_line([(f" {part}", "text")], width) for part in parts or ["–"])]
