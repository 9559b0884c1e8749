"""The launch form as lines: the fields, the checks and the exact command."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from gputui.core.text import cell_width, clip
from gputui.core.units import gibibytes
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.profiles.situation import holder_of
from gputui.store.hardware import GpuView
from gputui.ui.tui.layout.columns import between, fit_line, fitting, rule, wrap
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.layout.words import clock
from gputui.ui.tui.pages.launch.form import GPUS, MORE, RUN_GROUP, Field, Form
from gputui.ui.tui.pages.launch.plan import Plan

_FAILED, _WARNED = ("✗", "bad"), ("▲", "warn")
_SOURCES = {"here": "from ./profiles", "home": "from the home", "shipped": "comes with gputui", "file": "a file"}
_ALL_OF_IT = " … ^d shows all"

# Columns of the form, in cells.
_LABEL_MOST = 24
_VALUE_WIDTH, _VALUE_WIDTH_WIDE = 18, 36
_WIDE = 100

_HELP_MOST = 2
"""Most lines of the help of a field."""

_DESCRIBED_LEAST = 30
"""Least height of a page that has both the help of a field and the profile's description."""

_FIELDS_LEAST = 3
"""With fewer lines of fields than these, the description is left out."""


class LaunchView(Struct, frozen=True):
    """Everything that the launch page shows.

    Attributes:
        form: the profiles, and the fields of the chosen one.
        plan: the checks and the command of that form; None while they are computed.
        gpus: this machine's GPUs.
        quarantined: UUIDs of those that no run gets.
        now: UTC unix seconds.
        is_reading: whether the profiles are still being read.
        trail: the pages that lead here.
    """

    form: Form
    plan: Plan | None
    gpus: Sequence[GpuView]
    quarantined: Collection[str]
    now: float
    is_reading: bool
    trail: str = ""


class _Row(NamedTuple):
    """One line of the form; ``field`` is its index in the form, None for a heading or the line of GPUs."""

    field: int | None
    line: Line


def launch_lines(view: LaunchView, width: int, height: int) -> list[Line]:
    """The page in exactly ``height`` lines. The fields scroll; the checks and the command keep their lines."""
    form, plan = view.form, view.plan
    top = [_head(view, width)]
    if form.entry is None:
        text = (
            "Reading profiles…" if view.is_reading else "There is no profile; docs/profiles.md says how to write one."
        )
        return _full([*top, fit_line([(f"  {text}", "dim")], width)], [], width, height)
    help_lines = _help(form, width)
    foot = [*help_lines, *_checks(plan, width, height), *_command(plan, width, height)]
    # The list of profiles shows the description, too.
    description = [] if help_lines and height < _DESCRIBED_LEAST else _description(form, width)
    if height - len(top) - len(description) - len(foot) >= _FIELDS_LEAST:
        top += description
    room = max(1, height - len(top) - len(foot))
    return _full([*top, *_fields(view, width, room)], foot, width, height)


def _head(view: LaunchView, width: int) -> Line:
    form = view.form
    left: list[Span] = [(view.trail, "dim"), (" Launch  ", "title")]
    if form.entry is not None:
        left += [
            ("◂ ", "dim"), (form.entry.name, "accent"), (" ▸", "dim"),
            (f"   {form.chosen + 1} of {len(form.entries)}, {_SOURCES[form.entry.source]}", "dim"),
        ]  # fmt: skip
    return between(left, [(f" {clock(view.now)} ", "text")], width)


def _description(form: Form, width: int) -> list[Line]:
    entry = form.entry
    text = entry.profile.description if entry is not None and entry.profile is not None else ""
    return [fit_line([(" " + clip(text, width - 2), "dim")], width)] if text else []


def _fields(view: LaunchView, width: int, height: int) -> list[Line]:
    """The fields around the cursor, in at most ``height`` lines."""
    rows = _field_rows(view, width, height) if view.form.fields else []
    return _window(rows, view.form.cursor, width, height)


def _field_rows(view: LaunchView, width: int, height: int) -> list[_Row]:
    """All visible fields under the headings of their groups; without headings if ``height`` lines do not hold them."""
    form = view.form
    gpu_line = _gpu_line(view.gpus, view.quarantined, width) if form.target is None else None
    groups = {form.fields[number].group for number in form.shown}
    has_headings = len(form.shown) + len(groups) + (gpu_line is not None) <= height
    group = RUN_GROUP
    rows = [_Row(None, rule(RUN_GROUP, width))]
    for number in form.shown:
        item = form.fields[number]
        if has_headings and item.group != group:
            rows.append(_Row(None, rule(item.group, width)))
        group = item.group
        line = _fold_line if item.key == MORE else _field_line
        rows.append(_Row(number, line(form, item, number == form.cursor, width)))
        if item.key == GPUS and gpu_line is not None:
            rows.append(_Row(None, gpu_line))
    return rows


def _window(rows: Sequence[_Row], cursor: int, width: int, height: int) -> list[Line]:
    """``height`` rows around that of the cursor; the last line counts the fields below."""
    if len(rows) <= height:
        return [row.line for row in rows]
    place = next(index for index, row in enumerate(rows) if row.field == cursor)
    top = min(max(0, place - height // 2), len(rows) - height)
    end = top + height
    lines = [row.line for row in rows[top:end]]
    if end < len(rows) and place < end - 1:
        below = sum(row.field is not None for row in rows[end - 1 :])
        lines[-1] = fit_line([(f"   … {below} more below", "dim")], width)
    return lines


def _widths(form: Form, width: int) -> tuple[int, int]:
    """Cells of the labels and of the values."""
    labels = min(_LABEL_MOST, max(cell_width(form.fields[number].label) for number in form.shown))
    return labels, min(_VALUE_WIDTH if width < _WIDE else _VALUE_WIDTH_WIDE, max(8, width // 4))


def _note(form: Form, item: Field) -> Span:
    """The text behind a field's value: its problem, else the profile's value if changed, else its hint."""
    problem = form.problems.get(item.key)
    if problem is not None:
        return (f"✗ {problem}", "bad")
    if form.is_changed(item):
        return (f"was {item.shown(item.default) or 'empty'}", "dim")
    last = f"last run {item.last or 'empty'} · " if item.last is not None else ""
    return (f"{last}{item.hint}", "dim")


def _fold_line(form: Form, item: Field, is_current: bool, width: int) -> Line:
    """The line that unfolds the folded fields: ``→ 14 more parameters  grad_clip, seed, …``."""
    folded = [each for each in form.fields if each.key in form.folded]
    words = f"{len(folded)} {item.label}"
    names = "← folds them" if form.is_open else ", ".join(each.label for each in folded)
    return fit_line(
        [
            ("▸ " if is_current else "  ", "cursor"),
            ("▾ " if form.is_open else "→ ", "key" if is_current else "dim"),
            (words, "label" if is_current else "text"),
            (f"  {clip(names, max(0, width - cell_width(words) - 8))}", "dim"),
        ],
        width,
    )


def _help(form: Form, width: int) -> list[Line]:
    """The hint of the current field, in as many lines as the longest of those hints needs that do not fit behind their
    values, so that nothing moves with the cursor."""
    if not form.fields:
        return []
    room = width - sum(_widths(form, width)) - 6
    cut = [item.hint for item in form.fields if item.key != MORE and cell_width(item.hint) > room]
    if not cut:
        return []
    item = form.fields[form.cursor]
    label = f"{item.label}: "
    count = min(_HELP_MOST, max(len(wrap(hint, width - 4 - _LABEL_MOST)) for hint in cut))
    parts = wrap(label + item.hint, width - 4)[:count] if item.key != MORE and item.hint else []
    shown: list[Line] = []
    for number, part in enumerate(parts):
        head, rest = (label, part.removeprefix(label)) if number == 0 else ("", part)
        shown.append(fit_line([("  ", "text"), (head, "label"), (rest, "text")], width))
    return [*shown, *[fit_line([], width)] * (count - len(shown))]


def _field_line(form: Form, item: Field, is_current: bool, width: int) -> Line:
    label_width, value_width = _widths(form, width)
    spans: list[Span] = [
        ("▸ " if is_current else "  ", "cursor"),
        (clip(item.label, label_width) + " " * (label_width - cell_width(clip(item.label, label_width))) + "  ",
         "label" if is_current else "text"),
    ]  # fmt: skip
    text = form.text(item.key)
    if is_current and not (text and form.is_fresh):
        spans += form.edits[item.key].spans(value_width)
    else:
        style = "selected" if is_current else "accent" if form.is_changed(item) else "text"
        unit = f" {item.unit}" if item.unit and text else ""
        shown = clip(item.shown(text), value_width - cell_width(unit))
        room = value_width - cell_width(shown) - cell_width(unit)
        spans += [(shown, style), (unit, "dim"), (" " * room, "text")]
    turns: Span = (" ←→" if is_current and item.choices else "", "key")
    note, style = _note(form, item)
    return fit_line([*spans, turns, (f"  {note}", style)], width)


def _gpu_line(gpus: Sequence[GpuView], quarantined: Collection[str], width: int) -> Line | None:
    """The free GPUs, and the occupants of the others."""
    if not gpus:
        return None
    free = [gpu for gpu in gpus if gpu.state == "ok" and is_free(gpu) and gpu.uuid not in quarantined]
    parts: list[list[Span]] = [[("    free ", "dim"), (" ".join(str(gpu.index) for gpu in free) or "none", "good")]]
    if free:
        least = min((gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) for gpu in free)
        parts.append([(f" with {gibibytes(least, 0)} GiB or more", "dim")])
    held: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu not in free:
            state = {"stale": "silent", "error": "unreadable"}.get(gpu.state, gpu.state)
            unseen = "in quarantine" if gpu.uuid in quarantined else "no visible process"
            holder = (holder_of(gpu) or unseen) if state == "ok" else state
            held.setdefault(holder, []).append(gpu.index)
    for holder, indices in held.items():
        parts.append([(" · ", "dim"), (" ".join(map(str, indices)), "text"), (f" {holder}", "dim")])
    return fitting(parts, width)


def _checks(plan: Plan | None, width: int, height: int) -> list[Line]:
    """Problems, failed checks and warnings in full; passed checks as names in one line."""
    lines = [rule("CHECKS", width)]
    if plan is None:
        return [*lines, fit_line([("  checking…", "dim")], width)]
    for problem in plan.problems:
        lines += _marked(_FAILED, problem, width)
    for status, mark in (("fail", _FAILED), ("warn", _WARNED)):
        for check in plan.checks:
            if check.status == status:
                remedy = f"; {check.remedy}" if check.remedy else ""
                lines += _marked(mark, f"{check.name}: {check.detail}{remedy}", width)
    room = max(2, height // 4)
    if len(lines) > room:
        lines = [*lines[: room - 1], fit_line([("   … more with ^d", "dim")], width)]
    passed = [check.name for check in plan.checks if check.status == "pass"]
    if passed:
        lines.append(fit_line([(" ✓ ", "good"), (", ".join(passed), "dim")], width))
    return lines


def _marked(mark: Span, text: str, width: int) -> list[Line]:
    """A text over as many lines as it needs, with a mark before the first."""
    sign, style = mark
    return [
        fit_line([(f" {' ' if number else sign} ", style), (part, "text")], width)
        for number, part in enumerate(wrap(text, width - 4))
    ]


def _command(plan: Plan | None, width: int, height: int) -> list[Line]:
    """The exact command, cut to the room."""
    lines = [rule("COMMAND", width)]
    if plan is None or not plan.command:
        return [*lines, fit_line([("  –", "dim")], width)]
    parts = wrap(plan.command, width - 2)
    room = max(2, height // 5)
    if len(parts) > room:
        last = clip(parts[room - 1], width - 1 - cell_width(_ALL_OF_IT), ellipsis="")
        parts = [*parts[: room - 1], last + _ALL_OF_IT]
    return [*lines, *(fit_line([(f" {part}", "text")], width) for part in parts)]


def _full(top: Sequence[Line], foot: Sequence[Line], width: int, height: int) -> list[Line]:
    """Exactly ``height`` lines, ``foot`` at the bottom: ``top`` is padded or cut."""
    foot = foot[:height]
    room = height - len(foot)
    blanks = [fit_line([], width)] * (room - len(top))
    return [*top[:room], *blanks, *foot]
