"""The launch form as lines: the fields, the checks and the exact command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import cell_width, clean, clip
from gputui.core.units import count_of, gibibytes, index_ranges
from gputui.metrics.draw.parts import Line, Span
from gputui.runs.checks import CheckResult
from gputui.runs.gpu_conditions import condition_of
from gputui.store.hardware import GpuView
from gputui.ui.tui.layout.columns import Column, fill_height, fit_line, paragraph, rule, wrap
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.layout.lists import Listing
from gputui.ui.tui.pages.launch.form import MORE, RUN_GROUP, Field, Form
from gputui.ui.tui.pages.launch.plan import Plan
from gputui.ui.views.snapshot import MachineState

_STYLES = {"fail": "bad", "warn": "warn", "pass": "good"}
_ALL_OF_IT = " … ^d shows all"

# Columns of the form, in cells.
_LABEL_MOST = 24
_VALUE_WIDTH = 18
_VALUE_WIDTH_WIDE = 30
WHOLE_HINTS = 100
"""From this width on hints fit behind the values."""


class FormRoom(NamedTuple):
    """The room of the form.

    Attributes:
        has_headings: whether there is room for the headings of groups.
        is_whole: whether there is room for folded fields.
    """

    width: int
    has_headings: bool = True
    is_whole: bool = False


def form_listing(form: Form, key: str | None, room: FormRoom, *, is_fresh: bool) -> Listing[Field]:
    """The visible fields below headings. While ``is_fresh``, typing replaces that of ``key``."""
    fields = form.visible(key, is_whole=room.is_whole)
    groups: dict[str, list[Field]] = {}
    for field in fields:
        heading = ""
        if room.has_headings and field.group != RUN_GROUP:
            heading = field.group
        groups.setdefault(heading, []).append(field)
    label_width = min(_LABEL_MOST, max((cell_width(_label(form, field)) for field in fields), default=0))
    value_width = _VALUE_WIDTH if room.width < WHOLE_HINTS else _VALUE_WIDTH_WIDE

    def value(field: Field, width: int) -> list[Span]:
        is_current = field.key == key
        text = field.edit.text
        if is_current and field.key != MORE and not (text and is_fresh):
            return field.edit.spans(width)
        style = "text"
        if is_current and text:
            style = "input"
        elif field.is_changed:
            style = "accent"
        turns = " ←→" if is_current and field.choices else ""
        return [(clip(field.mask(text), width - len(turns)), style), (turns, "key")]

    def label(field: Field, width: int) -> list[Span]:
        style = "label" if field.key == key else "text"
        return [(_label(form, field), style)]

    columns = [
        Column("", label_width, label, gap=1),
        Column("", value_width, value),
        Column("", 10, lambda field, _: [_note(form, field)], grow=1),
    ]
    empty = "Its file has a mistake."
    return Listing(RUN_GROUP, columns, groups, lambda field: field.key, empty=empty)


def _label(form: Form, field: Field) -> str:
    if field.key != MORE:
        return field.label
    arrow = "▾" if form.is_open else "→"
    return f"{arrow} {count_of(sum(folded.is_folded for folded in form.fields), field.label)}"


def _note(form: Form, field: Field) -> Span:
    """A note about a field: its problem, the profile's value if it is changed, or a hint."""
    if field.problem:
        return f"✗ {field.problem}", "bad"
    if field.key == MORE and form.is_open:
        return "← folds them", "dim"
    if field.key == MORE:
        return ", ".join(folded.label for folded in form.fields if folded.is_folded), "dim"
    if field.is_changed:
        return f"was {field.mask(field.default) or 'empty'}", "dim"
    if field.last is not None:
        return f"last run {field.mask(field.last) or 'empty'} · {field.hint}", "dim"
    return field.hint, "dim"


def gpu_words(gpus: Sequence[GpuView], machine: MachineState) -> str:
    """The free GPUs, and who has the others: ``GPU 4: free, 80 GiB or more · GPUs 0–3: vit-1``."""
    groups: dict[str, list[GpuView]] = {"free": []}
    for gpu in gpus:
        groups.setdefault(_gpu_state(gpu, machine), []).append(gpu)
    parts = []
    for state, members in groups.items():
        if not members:
            continue
        noun = "GPU" if len(members) == 1 else "GPUs"
        text = f"{noun} {index_ranges([gpu.index for gpu in members])}: {state}"
        if state == "free":
            least = min((gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) for gpu in members)
            text += f", {gibibytes(least, 0)} GiB or more"
        parts.append(text)
    return " · ".join(parts)


def _gpu_state(gpu: GpuView, machine: MachineState) -> str:
    """``free``, who has a GPU, or what is wrong with it."""
    if gpu.uuid in machine.quarantined:
        return "in quarantine"
    if gpu.state != "ok":
        return {"stale": "silent", "error": "unreadable"}.get(gpu.state, gpu.state)
    if is_free(gpu) and gpu.uuid in machine.promised:
        return f"promised to {clean(machine.promised[gpu.uuid])}"
    if is_free(gpu):
        return "free"
    condition = condition_of(gpu)
    user = condition.broken or condition.occupied or condition.desktop or "no visible process"
    return ", ".join(gpu.run_ids) or clean(user).removeprefix("is used by ").removeprefix("is ")


def check_lines(plan: Plan | None, gpus: str, width: int, height: int) -> list[Line]:
    """Problems and warnings in full, the GPUs, then the passed checks: in full or by name."""
    if plan is None:
        return fill_height([rule("CHECKS", width, "checking…")], width, height)
    passed = [check for check in plan.checks if check.status == "pass" and check.name != "gpus"]
    wrong = [check for status in ("fail", "warn") for check in plan.checks if check.status == status]
    failures = len(plan.problems) + sum(check.status == "fail" for check in wrong)
    warnings = sum(check.status == "warn" for check in wrong)
    counts = [count_of(number, noun) for number, noun in ((failures, "problem"), (warnings, "warning")) if number]
    lines = [rule("CHECKS", width, ", ".join(counts) or "✓ all passed")]
    for problem in plan.problems:
        lines += paragraph((" ✗ ", "bad"), problem, "text", width)
    for check in wrong:
        lines += _checked(check, width, "text")
    for check in plan.checks:
        if check.name == "gpus" and check.status == "pass":
            lines += _checked(check, width, "text") + paragraph(("   ", "dim"), gpus, "dim", width)
    in_detail = [line for check in passed for line in _checked(check, width, "dim")]
    if len(lines) + len(in_detail) <= height:
        lines += in_detail
    else:
        names = ", ".join(check.name for check in passed)
        lines.append(fit_line([(" ✓ ", "good"), (names, "dim")], width))
    if len(lines) > height:
        lines = [*lines[: height - 1], fit_line([("   … more with ^d", "dim")], width)]
    return fill_height(lines, width, height)


def _checked(check: CheckResult, width: int, style: str) -> list[Line]:
    text = clean(check.line)
    return paragraph((f" {text[:2]}", _STYLES[check.status]), text[2:], style, width)


def command_lines(plan: Plan | None, width: int, room: int) -> list[Line]:
    """The exact command below a heading, cut to ``room`` lines."""
    parts: list[str] = []
    if plan is not None:
        parts = wrap(plan.command, width - 2)
    if len(parts) > room:
        last = clip(parts[room - 1], width - 1 - cell_width(_ALL_OF_IT), ellipsis="")
        parts = [*parts[: room - 1], last + _ALL_OF_IT]
    lines = [fit_line([(f" {part}", "text")], width) for part in parts or ["–"]]
    return [rule("COMMAND", width), *lines]
