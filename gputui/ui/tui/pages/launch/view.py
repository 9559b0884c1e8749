"""The launch form as lines: the fields, the checks and the exact command."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gputui.core.text import cell_width, clip
from gputui.core.units import count_of, gibibytes, index_ranges
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.profiles.situation import holder_of
from gputui.runs.checks import CheckResult
from gputui.store.hardware import GpuView
from gputui.ui.tui.layout.columns import Column, filled, fit_line, paragraph, rule, wrap
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.layout.lists import Listing, ListSection
from gputui.ui.tui.pages.launch.form import MORE, RUN_GROUP, Field, Form
from gputui.ui.tui.pages.launch.plan import Plan, check_line

_STYLES = {"fail": "bad", "warn": "warn", "pass": "good"}
_ALL_OF_IT = " … ^d shows all"

# Columns of the form, in cells.
_LABEL_MOST = 24
_VALUE_WIDTH, _VALUE_WIDTH_WIDE = 18, 30
WHOLE_HINTS = 100
"""From this width on hints fit behind the values."""


def form_listing(form: Form, key: str | None, width: int, *, is_fresh: bool, has_headings: bool) -> Listing[Field]:
    """The visible fields, under the headings of their groups if there is room. Typing replaces the content of the field
    ``key`` under the cursor while it ``is_fresh``."""
    shown = form.shown(key)
    sections = [ListSection("", shown)]
    if has_headings:
        sections = [
            ListSection("" if group == RUN_GROUP else group, [each for each in shown if each.group == group])
            for group in dict.fromkeys(each.group for each in shown)
        ]
    labels = min(_LABEL_MOST, max((cell_width(_label(form, field)) for field in shown), default=0))

    def value(field: Field, width: int) -> list[Span]:
        is_current, text = field.key == key, form.text(field.key)
        if is_current and field.key != MORE and not (text and is_fresh):
            return form.edits[field.key].spans(width)
        style = "input" if is_current and text else "accent" if form.is_changed(field) else "text"
        unit = f" {field.unit}" if field.unit and text else ""
        turns = " ←→" if is_current and field.choices else ""
        shown = clip(_short(field.shown(text)), width - cell_width(unit) - len(turns))
        return [(shown, style), (unit, "dim"), (turns, "key")]

    columns = [
        Column("", labels, lambda field, _: [(_label(form, field), "label" if field.key == key else "text")], gap=1),
        Column("", _VALUE_WIDTH if width < WHOLE_HINTS else _VALUE_WIDTH_WIDE, value),
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


def gpu_words(gpus: Sequence[GpuView], quarantined: Collection[str]) -> str:
    """The free GPUs, and the occupants of the others: ``free: 4, 6 with 80 GiB or more · GPUs 0–3: vit-1``."""
    free = [gpu for gpu in gpus if gpu.state == "ok" and is_free(gpu) and gpu.uuid not in quarantined]
    words = f"free: {index_ranges([gpu.index for gpu in free]) or 'none'}"
    if free:
        least = min((gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) for gpu in free)
        words += f" with {gibibytes(least, 0)} GiB or more"
    held: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu not in free:
            state = {"stale": "silent", "error": "unreadable"}.get(gpu.state, gpu.state)
            unseen = "in quarantine" if gpu.uuid in quarantined else "no visible process"
            held.setdefault((holder_of(gpu) or unseen) if state == "ok" else state, []).append(gpu.index)
    names = (f"GPU{'s' * (len(indices) > 1)} {index_ranges(indices)}" for indices in held.values())
    return " · ".join([words, *(f"{name}: {holder}" for name, holder in zip(names, held, strict=True))])


def check_lines(plan: Plan | None, gpus: str, width: int, height: int) -> list[Line]:
    """Problems and warnings in full, the GPUs, then the passed checks: with details, or in one line."""
    if plan is None:
        return filled([rule("CHECKS", width, "checking…")], width, height)
    graded = {status: [check for check in plan.checks if check.status == status] for status in _STYLES}
    count = len(plan.problems) + len(graded["fail"]) + len(graded["warn"])
    worst = count_of(count, "problem" if plan.blocked_by else "warning") if count else "✓ all passed"
    lines = [rule("CHECKS", width, worst)]
    for problem in plan.problems:
        lines += paragraph((" ✗ ", "bad"), problem, "text", width)
    of_gpus = [check for check in graded["pass"] if check.name == "gpus"]
    for check in (*graded["fail"], *graded["warn"], *of_gpus):
        lines += _checked(check, width, "text")
    if of_gpus and gpus:
        lines += paragraph(("   ", "dim"), gpus, "dim", width)
    passed = [check for check in graded["pass"] if check not in of_gpus]
    in_detail = [line for check in passed for line in _checked(check, width, "dim")]
    names: list[Span] = [(" ✓ ", "good"), (", ".join(check.name for check in passed), "dim")]
    lines += in_detail if len(lines) + len(in_detail) <= height else [fit_line(names, width)]
    if len(lines) > height:
        lines = [*lines[: height - 1], fit_line([("   … more with ^d", "dim")], width)]
    return filled(lines, width, height)


def _checked(check: CheckResult, width: int, style: str) -> list[Line]:
    text = check_line(check)
    return paragraph((f" {text[:2]}", _STYLES[check.status]), text[2:], style, width)


def command_lines(plan: Plan | None, width: int, room: int) -> list[Line]:
    """The exact command below a heading, cut to ``room`` lines."""
    parts = wrap(plan.command, width - 2) if plan is not None else []
    if len(parts) > room:
        last = clip(parts[room - 1], width - 1 - cell_width(_ALL_OF_IT), ellipsis="")
        parts = [*parts[: room - 1], last + _ALL_OF_IT]
    return [rule("COMMAND", width), *(fit_line([(f" {part}", "text")], width) for part in parts or ["–"])]
