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

WHOLE_HINTS = 100
"""From this width on hints fit behind the values."""

# Columns of the form, in cells.
_LABEL_MOST = 24
_VALUE_WIDTH = 18
_VALUE_WIDTH_WIDE = 30
_NOTE_WIDTH = 10

_CHECK_STYLES = {"fail": "bad", "warn": "warn", "pass": "good"}
_GPU_STATE_WORDS = {"stale": "silent", "error": "unreadable"}
_CUT_MARK = " … ^d shows all"


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
    """The visible fields below headings.

    Args:
        key: the field under the cursor.
        is_fresh: whether typing replaces the value of that field.
    """
    fields = form.visible(key, is_whole=room.is_whole)
    groups: dict[str, list[Field]] = {}
    for field in fields:
        heading = ""
        if room.has_headings and field.group != RUN_GROUP:
            heading = field.group
        groups.setdefault(heading, []).append(field)
    longest = max((cell_width(_label(form, field)) for field in fields), default=0)
    value_width = _VALUE_WIDTH if room.width < WHOLE_HINTS else _VALUE_WIDTH_WIDE

    def label(field: Field, width: int) -> list[Span]:
        style = "label" if field.key == key else "text"
        return [(_label(form, field), style)]

    def value(field: Field, width: int) -> list[Span]:
        if field.key == key:
            return _current_value(field, width, is_fresh=is_fresh)
        style = "accent" if field.is_changed else "text"
        return [(clip(field.mask(field.edit.text), width), style)]

    columns = [
        Column("", min(_LABEL_MOST, longest), label, gap=1),
        Column("", value_width, value),
        Column("", _NOTE_WIDTH, lambda field, _: [_note(form, field)], grow=1),
    ]
    return Listing(RUN_GROUP, columns, groups, lambda field: field.key, empty="Its file has a mistake.")


def _current_value(field: Field, width: int, *, is_fresh: bool) -> list[Span]:
    """The value of the field under the cursor: marked as a whole while typing replaces it, else with a text cursor."""
    text = field.edit.text
    is_replaced = is_fresh and bool(text)
    if field.key != MORE and not is_replaced:
        return field.edit.spans(width)
    style = "text"
    if text:
        style = "input"
    elif field.is_changed:
        style = "accent"
    arrows = " ←→" if field.choices else ""
    return [(clip(field.mask(text), width - len(arrows)), style), (arrows, "key")]


def _label(form: Form, field: Field) -> str:
    if field.key != MORE:
        return field.label
    arrow = "▾" if form.is_open else "→"
    folded_count = sum(folded.is_folded for folded in form.fields)
    return f"{arrow} {count_of(folded_count, field.label)}"


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
    free: list[GpuView] = []
    others: dict[str, list[GpuView]] = {}
    for gpu in gpus:
        state = _gpu_state(gpu, machine)
        if state == "free":
            free.append(gpu)
        else:
            others.setdefault(state, []).append(gpu)
    parts = [f"{_numbered(members)}: {state}" for state, members in others.items()]
    if free:
        least = min((gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) for gpu in free)
        parts.insert(0, f"{_numbered(free)}: free, {gibibytes(least, 0)} GiB or more")
    return " · ".join(parts)


def _numbered(gpus: Sequence[GpuView]) -> str:
    """``GPU 4``, ``GPUs 0–3``."""
    noun = "GPU" if len(gpus) == 1 else "GPUs"
    return f"{noun} {index_ranges([gpu.index for gpu in gpus])}"


def _gpu_state(gpu: GpuView, machine: MachineState) -> str:
    """``free``, who has a GPU, or what is wrong with it."""
    if gpu.uuid in machine.quarantined:
        return "in quarantine"
    if gpu.state != "ok":
        return _GPU_STATE_WORDS.get(gpu.state, gpu.state)
    if is_free(gpu):
        run_id = machine.promised.get(gpu.uuid)
        return "free" if run_id is None else f"promised to {clean(run_id)}"
    if gpu.run_ids:
        return ", ".join(gpu.run_ids)
    condition = condition_of(gpu)
    user = condition.broken or condition.occupied or condition.desktop or "no visible process"
    return clean(user).removeprefix("is used by ").removeprefix("is ")


def check_lines(plan: Plan | None, gpus: str, width: int, height: int) -> list[Line]:
    """Problems and warnings in full, the GPUs, then the passed checks: in full or by name.

    Args:
        plan: the newest plan; None while the first is made.
        gpus: what `gpu_words` says.
    """
    if plan is None:
        return fill_height([rule("CHECKS", width, "checking…")], width, height)
    lines = _open_checks(plan, width)
    passed = []
    for check in plan.checks:
        if check.status == "pass" and check.name == "gpus":
            lines += _checked(check, width, "text")
            lines += paragraph(("   ", "dim"), gpus, "dim", width)
        elif check.status == "pass":
            passed.append(check)
    in_detail = [line for check in passed for line in _checked(check, width, "dim")]
    if len(lines) + len(in_detail) <= height:
        lines += in_detail
    else:
        names = ", ".join(check.name for check in passed)
        lines.append(fit_line([(" ✓ ", "good"), (names, "dim")], width))
    if len(lines) > height:
        lines[height - 1 :] = [fit_line([("   … more with ^d", "dim")], width)]
    return fill_height(lines, width, height)


def _open_checks(plan: Plan, width: int) -> list[Line]:
    """The heading with the number of problems and warnings, and each in full."""
    failed = [check for check in plan.checks if check.status == "fail"]
    warned = [check for check in plan.checks if check.status == "warn"]
    counts = []
    if plan.problems or failed:
        counts.append(count_of(len(plan.problems) + len(failed), "problem"))
    if warned:
        counts.append(count_of(len(warned), "warning"))
    lines = [rule("CHECKS", width, ", ".join(counts) or "✓ all passed")]
    for problem in plan.problems:
        lines += paragraph((" ✗ ", "bad"), problem, "text", width)
    for check in (*failed, *warned):
        lines += _checked(check, width, "text")
    return lines


def _checked(check: CheckResult, width: int, style: str) -> list[Line]:
    """The lines of a check, its sign in its own colour."""
    text = clean(check.line)
    return paragraph((f" {text[:2]}", _CHECK_STYLES[check.status]), text[2:], style, width)


def command_lines(plan: Plan | None, width: int, room: int) -> list[Line]:
    """The exact command below a heading, cut to ``room`` lines."""
    texts = ["–"]
    if plan is not None:
        texts = wrap(plan.command, width - 2) or texts
    if len(texts) > room:
        cut = clip(texts[room - 1], width - 1 - cell_width(_CUT_MARK), ellipsis="")
        texts[room - 1 :] = [cut + _CUT_MARK]
    return [rule("COMMAND", width), *(fit_line([(f" {text}", "text")], width) for text in texts)]
