"""The launch form as lines: the fields, the checks and the exact command."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gputui.core.text import cell_width, clean, clip
from gputui.core.units import count_of, gibibytes, index_ranges
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.profiles.situation import holder_of
from gputui.store.hardware import GpuView
from gputui.ui.tui.layout.columns import Column, fit_line, fitting, rule, wrap
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.layout.lists import Listing, ListSection
from gputui.ui.tui.pages.launch.form import MORE, RUN_GROUP, Field, Form
from gputui.ui.tui.pages.launch.plan import Plan

_MARKS = {"fail": ("✗", "bad"), "warn": ("▲", "warn"), "pass": ("✓", "good")}
_ALL_OF_IT = " … ^d shows all"

# Columns of the form, in cells.
_LABEL_MOST = 24
_VALUE_WIDTH, _VALUE_WIDTH_WIDE = 18, 30
WHOLE_HINTS = 100
"""From this width on hints fit behind the values."""


class FormCursor(NamedTuple):
    """The key of the field under the cursor; typing replaces its content while it ``is_fresh``."""

    key: str | None
    is_fresh: bool


def form_listing(form: Form, cursor: FormCursor, width: int, *, has_headings: bool) -> Listing[Field]:
    """The visible fields, under the headings of their groups if there is room."""
    shown = form.shown(cursor.key)
    sections = [ListSection("", shown)]
    if has_headings:
        sections = [
            ListSection("" if group == RUN_GROUP else group, [each for each in shown if each.group == group])
            for group in dict.fromkeys(each.group for each in shown)
        ]
    labels = min(_LABEL_MOST, max((cell_width(_label(form, field)) for field in shown), default=0))
    values = _VALUE_WIDTH if width < WHOLE_HINTS else _VALUE_WIDTH_WIDE

    def label(field: Field, width: int) -> list[Span]:
        return [(_label(form, field), "label" if field.key == cursor.key else "text")]

    def value(field: Field, width: int) -> list[Span]:
        is_current, text = field.key == cursor.key, form.text(field.key)
        if is_current and field.key != MORE and not (text and cursor.is_fresh):
            return form.edits[field.key].spans(width)
        style = "input" if is_current and text else "accent" if form.is_changed(field) else "text"
        unit = f" {field.unit}" if field.unit and text else ""
        turns = " ←→" if is_current and field.choices else ""
        shown = clip(_short(field.shown(text)), width - cell_width(unit) - len(turns))
        return [(shown, style), (unit, "dim"), (turns, "key")]

    columns = [
        Column("", labels, label, gap=1),
        Column("", values, value),
        Column("", 10, lambda field, _: [_note(form, field)], grow=1),
    ]
    return Listing(RUN_GROUP, columns, sections, lambda field: field.key, empty="Its file has a mistake.")


def _label(form: Form, field: Field) -> str:
    if field.key != MORE:
        return field.label
    return f"{'▾' if form.is_open else '→'} {count_of(len(form.folded), field.label)}"


def _note(form: Form, field: Field) -> Span:
    """What is wrong with a field, else the profile's value if it is changed, else the last one and the hint."""
    if (problem := form.problems.get(field.key)) is not None:
        return f"✗ {problem}", "bad"
    if field.key == MORE:
        folded = ", ".join(each.label for each in form.fields if each.key in form.folded)
        return "← folds them" if form.is_open else folded, "dim"
    if form.is_changed(field):
        return f"was {_short(field.shown(field.default)) or 'empty'}", "dim"
    last = "" if field.last is None else f"last run {_short(field.shown(field.last)) or 'empty'} · "
    return f"{last}{field.hint}", "dim"


def help_line(field: Field | None, width: int) -> Line:
    """The hint of a field, where it may not fit behind the value."""
    return fit_line([(f"  {field.label}: {field.hint}" if field is not None and field.hint else "", "dim")], width)


def _short(text: str) -> str:
    """A text with many digits as a number of six."""
    try:
        return f"{float(text):.6g}" if "." in text and len(text) > 9 else text
    except ValueError:
        return text


def gpu_line(gpus: Sequence[GpuView], quarantined: Collection[str], width: int) -> Line:
    """The free GPUs, and the occupants of the others."""
    free = [gpu for gpu in gpus if gpu.state == "ok" and is_free(gpu) and gpu.uuid not in quarantined]
    parts: list[list[Span]] = [[("   free: ", "dim"), (index_ranges([gpu.index for gpu in free]) or "none", "good")]]
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


def check_lines(plan: Plan | None, free: Sequence[Line], width: int, height: int) -> list[Line]:
    """The ``free`` GPUs, problems and warnings in full, then the passed checks: with details, or in one line."""
    blank = fit_line([], width)
    if plan is None:
        lines = [rule("CHECKS", width, "checking…"), *free]
        return [*lines[:height], *[blank] * (height - len(lines))]
    texts = [("fail", problem) for problem in plan.problems]
    for status in ("fail", "warn"):
        for check in plan.checks:
            if check.status == status:
                remedy = f"; {check.remedy}" if check.remedy else ""
                texts.append((status, f"{check.name}: {check.detail}{remedy}"))
    passed = [check for check in plan.checks if check.status == "pass"]
    worst = count_of(len(texts), "problem" if plan.blocked_by else "warning") if texts else "✓ all passed"
    lines = [rule("CHECKS", width, worst), *free]
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


def command_lines(plan: Plan | None, width: int, room: int) -> list[Line]:
    """The exact command below a heading, cut to ``room`` lines."""
    parts = wrap(plan.command, width - 2) if plan is not None else []
    if len(parts) > room:
        last = clip(parts[room - 1], width - 1 - cell_width(_ALL_OF_IT), ellipsis="")
        parts = [*parts[: room - 1], last + _ALL_OF_IT]
    return [rule("COMMAND", width), *(fit_line([(f" {part}", "text")], width) for part in parts or ["–"])]
