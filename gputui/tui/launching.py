"""The launch form: what was typed, and what it would come to. Reading profiles and checking is done in threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.charts.safe_text import clean
from gputui.config import Workspace
from gputui.runs.command import format_value
from gputui.runs.spec import RunSpec
from gputui.tui.editing import LineEdit
from gputui.tui.snapshot import Snapshot

if TYPE_CHECKING:
    # pydantic comes with these; they are imported where they are used, in a thread.
    from gputui.profiles.checks import CheckResult
    from gputui.profiles.loading import ProfileEntry

GPUS = "GPUs"
NAME = "name"


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the form. ``hint`` says what it takes; ``default`` is the profile's value as text."""

    key: str
    label: str
    default: str
    hint: str
    is_parameter: bool = True


@dataclass(frozen=True, slots=True)
class Form:
    """The profiles, the chosen one, its fields and what stands in them. In a field just come to (``is_fresh``) what
    is typed takes the place of what stands there; an editing key changes it instead."""

    entries: tuple[ProfileEntry, ...] = ()
    chosen: int = 0
    fields: tuple[Field, ...] = ()
    edits: Mapping[str, LineEdit] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    cursor: int = 0
    is_fresh: bool = True

    @property
    def entry(self) -> ProfileEntry | None:
        """The chosen profile."""
        return self.entries[self.chosen] if self.entries else None

    @property
    def current(self) -> Field | None:
        """The field under the cursor."""
        return self.fields[self.cursor] if self.fields else None

    def text(self, key: str) -> str:
        """What stands in a field."""
        return self.edits[key].text

    def is_changed(self, item: Field) -> bool:
        """Whether a field differs from the profile."""
        return self.text(item.key) != item.default

    def choose(self, number: int) -> Form:
        """Another profile, with its defaults; ``number`` wraps around."""
        if not self.entries:
            return self
        chosen = number % len(self.entries)
        items = _fields(self.entries[chosen])
        edits = {item.key: LineEdit.at_end(item.default) for item in items}
        return Form(self.entries, chosen, items, edits)

    def move(self, by: int) -> Form:
        """The cursor on another field."""
        if not self.fields:
            return self
        return replace(self, cursor=(self.cursor + by) % len(self.fields), is_fresh=True)

    def type(self, text: str) -> Form:
        """Text typed or pasted into the current field."""
        item = self.current
        if item is None:
            return self
        return self.edit((LineEdit() if self.is_fresh else self.edits[item.key]).insert(text))

    def edit(self, edit: LineEdit) -> Form:
        """The current field with another content, checked at once."""
        item = self.current
        if item is None:
            return self
        edits = {**self.edits, item.key: edit}
        problems = {key: text for key, text in self.problems.items() if key != item.key}
        problem = self._check(item, edit.text)
        if problem is not None:
            problems[item.key] = problem
        return replace(self, edits=edits, problems=problems, is_fresh=False)

    def overrides(self) -> dict[str, str]:
        """The parameters that differ from the profile, as typed."""
        return {item.key: self.text(item.key) for item in self.fields if item.is_parameter and self.is_changed(item)}

    def _check(self, item: Field, text: str) -> str | None:
        """What is wrong with a field by itself, in a few words."""
        from gputui.profiles.devices import SelectionError, parse_selection
        from gputui.profiles.params import ParameterError

        entry = self.entry
        if entry is None or entry.profile is None:
            return None
        try:
            if item.key == GPUS and not item.is_parameter:
                parse_selection(text)
            elif item.is_parameter:
                entry.profile.parameters[item.key].parse(text)
        except (ParameterError, SelectionError) as error:
            return clean(str(error).removeprefix(f"{item.key}: "))
        return None


def _fields(entry: ProfileEntry) -> tuple[Field, ...]:
    profile = entry.profile
    if profile is None:
        return ()
    selection = profile.form.gpus
    gpus = "all" if selection.is_all else ",".join(map(str, selection.devices)) or str(selection.count)
    if len(selection.devices) == 1 and isinstance(selection.devices[0], int):
        gpus += ","
    items = [
        Field(GPUS, "GPUs", gpus, "how many, which (0,1), or all", is_parameter=False),
        Field(NAME, "run's name", profile.name, "runs are called after it", is_parameter=False),
    ]
    for name, parameter in profile.parameters.items():
        hint = clean(parameter.help or parameter.expected)
        items.append(Field(name, clean(name), clean(format_value(parameter.default)), hint))
    return tuple(items)


# --- what it comes to -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What a form comes to: the specification and its command, or why there is none."""

    spec: RunSpec | None = None
    problems: tuple[str, ...] = ()
    command: str = ""
    description: tuple[str, ...] = ()
    checks: tuple[CheckResult, ...] = ()

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be launched, in a sentence."""
        if self.problems:
            return self.problems[0]
        failed = next((check for check in self.checks if check.status == "fail"), None)
        if failed is not None:
            return f"{failed.name}: {failed.detail}" + (f"; {failed.remedy}" if failed.remedy else "")
        return None if self.spec is not None else "There is no profile to launch."


def read_profiles(workspace: Workspace, cwd: Path) -> tuple[ProfileEntry, ...]:
    """Every profile by name, valid ones first. Slow the first time: pydantic is imported."""
    from gputui.profiles.loading import list_profiles

    entries = list_profiles(workspace, cwd)
    return tuple(sorted(entries, key=lambda entry: entry.profile is None))


def make_plan(form: Form, snapshot: Snapshot, workspace: Workspace, environ: Mapping[str, str] | None = None) -> Plan:
    """Resolve the form and look at everything that can be looked at without starting a process."""
    from gputui.profiles.describe import describe, preview_launch
    from gputui.profiles.gpu_checks import likely_gpus
    from gputui.profiles.preflight import quick_checks
    from gputui.profiles.resolve import ResolveError, resolve
    from gputui.profiles.situation import situation_of

    env = os.environ if environ is None else environ
    entry = form.entry
    if entry is None:
        return Plan()
    if entry.profile is None:
        return Plan(problems=tuple(clean(line) for line in str(entry.error).splitlines()))
    gpus_item = form.fields[0]
    situation = situation_of(snapshot.agent, snapshot.gpus)
    try:
        spec = resolve(
            entry.profile,
            overrides=form.overrides(),
            gpus_override=form.text(GPUS) if form.is_changed(gpus_item) else None,
            inventory=None if situation is None else situation.facts,
            environ=env,
        )
    except ResolveError as error:
        return Plan(problems=tuple(clean(line) for line in error.problems))
    gpus = () if situation is None else likely_gpus(spec.gpus, situation)
    launch = preview_launch(spec, runs=workspace.runs, gpus=gpus)
    lines = tuple(describe(spec, launch, situation))
    command = next(line.removeprefix("command").strip() for line in lines if line.startswith("command"))
    checks = tuple(quick_checks(spec, state=workspace.state, gpus=situation, environ=env))
    return Plan(spec, (), command, lines, checks)


def probe(plan: Plan, workspace: Workspace, environ: Mapping[str, str] | None = None) -> Plan:
    """The plan with what the training's interpreter says about itself; starts a process and may take seconds."""
    from gputui.profiles.probe import check_interpreter

    if plan.spec is None or plan.obstacle is not None:
        return plan
    env = os.environ if environ is None else environ
    slow = check_interpreter(plan.spec, env, simulated_gpus=workspace.scenario.exists())
    names = {result.name for result in slow}
    return replace(plan, checks=(*(check for check in plan.checks if check.name not in names), *slow))
