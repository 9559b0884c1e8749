"""The plan of a launch form: specification, command and checks. Called in threads: it reads files."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.redaction import Redactor
from gputui.core.text import clean
from gputui.runs.redaction import redact_launch, secrets_of
from gputui.runs.spec import RunSpec, known_spec
from gputui.store.database import StoreError, open_reader
from gputui.store.gpu_use import PastPeak, past_peaks
from gputui.store.runs import Run
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.pages.launch.form import GPUS, PRIORITY, Form, Prefill, priority_of

if TYPE_CHECKING:
    # pydantic comes with these; they are imported where they are used, in a thread.
    from gputui.profiles.profile_file import Profile, ProfileEntry
    from gputui.runs.checks import CheckResult


class Plan(Struct, frozen=True):
    """The specification and its command, or why there is none."""

    spec: RunSpec | None = None
    problems: tuple[str, ...] = ()
    command: str = ""
    description: tuple[str, ...] = ()
    checks: tuple[CheckResult, ...] = ()

    @property
    def blocked_by(self) -> str | None:
        """Why it cannot be launched, as a sentence; None if it can."""
        if self.problems:
            return self.problems[0]
        failed = next((check for check in self.checks if check.status == "fail"), None)
        if failed is None:
            return None
        return f"{failed.name}: {failed.detail}" + (f"; {failed.remedy}" if failed.remedy else "")


def read_profiles(workspace: Workspace, cwd: Path, files: Sequence[str] = ()) -> tuple[ProfileEntry, ...]:
    """All named profiles and the existing ``files``, valid ones first. The first call is slow."""
    from gputui.core.yaml_forms.problems import ProfileError, shown_path
    from gputui.profiles.profile_file import ProfileEntry, list_profiles, load

    entries = list_profiles(workspace, cwd)
    known = {entry.path.resolve() for entry in entries}
    for file in dict.fromkeys(files):
        path = Path(file)
        if path.resolve() in known or not path.is_file():
            continue
        known.add(path.resolve())
        try:
            entries.append(ProfileEntry(shown_path(path), path, "file", load(path), None))
        except ProfileError as error:
            entries.append(ProfileEntry(shown_path(path), path, "file", None, error))
    return tuple(sorted(entries, key=lambda entry: entry.profile is None))


def find_profile(prefill: Prefill, workspace: Workspace, cwd: Path) -> ProfileEntry | None:
    """The profile to launch, by its file or its name; None if it is gone."""
    entries = read_profiles(workspace, cwd, () if prefill.path is None else (prefill.path,))
    if prefill.path is None:
        return next((entry for entry in entries if entry.name == prefill.profile), None)
    wanted = Path(prefill.path).resolve()
    return next((entry for entry in entries if entry.path.resolve() == wanted), None)


def read_target_names(workspace: Workspace) -> tuple[str, ...]:
    """The names of the home's targets; none if their file is invalid, which `target list` reports."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.targets import load_targets

    try:
        return tuple(load_targets(workspace.targets))
    except (ProfileError, OSError):
        return ()


def survey_lines(form: Form, workspace: Workspace) -> Iterator[str]:
    """The state of a form's target, line by line. Each line may take until its own deadline."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.targets import TargetNotFoundError, find_target, survey

    profile = None if form.entry is None else form.entry.profile
    try:
        target = find_target(form.target or "", {} if profile is None else profile.form.targets, workspace)
    except (TargetNotFoundError, ProfileError) as error:
        yield from str(error).splitlines()
        return
    yield from map(check_line, survey(target, profile))


def check_line(check: CheckResult) -> str:
    """A check with its mark and, unless it passed, the remedy."""
    mark = {"pass": "✓", "warn": "▲", "fail": "✗", "skip": "–"}[check.status]
    remedy = f"; {check.remedy}" if check.remedy and check.status in ("warn", "fail") else ""
    return clean(f"{mark} {check.name}: {check.detail}{remedy}")


def profile_path(run: Run) -> str | None:
    """The file of the profile that a run was launched from; None if it is not recorded."""
    spec = known_spec(run)
    return None if spec is None else spec.profile_path


def launched_gpu_count(run: Run) -> int | None:
    """How many GPUs a run was launched with; None if its specification cannot be read."""
    spec = known_spec(run)
    return None if spec is None else spec.gpus.count


def make_plan(form: Form, snapshot: Snapshot, workspace: Workspace) -> Plan:
    """Resolve the form, and do all checks that need neither a process nor a network."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.resolve import ResolveError
    from gputui.profiles.targets import TargetNotFoundError

    assert form.entry is not None
    if form.entry.profile is None:
        return _refused(form.entry.error)
    try:
        return _resolved(form, form.entry.profile, snapshot, workspace)
    except (ResolveError, TargetNotFoundError, ProfileError) as error:
        return _refused(error)


def _refused(error: Exception | None) -> Plan:
    return Plan(problems=tuple(clean(line) for line in str(error).splitlines()))


def _resolved(form: Form, profile: Profile, snapshot: Snapshot, workspace: Workspace) -> Plan:
    from gputui.profiles.describe import command_line, describe, preview_launch
    from gputui.profiles.gpu_checks import likely_gpus
    from gputui.profiles.preflight import check_elsewhere, quick_checks
    from gputui.profiles.resolve import resolve
    from gputui.profiles.situation import situation_of
    from gputui.profiles.targets import find_target
    from gputui.runs.command import without_gpus
    from gputui.runs.executors import Executors

    target = None if form.target is None else find_target(form.target, profile.form.targets, workspace)
    situation = situation_of(snapshot.agent, snapshot.gpus, snapshot.machine.quarantined, snapshot.alerts.last)
    gpus_field = form.fields[0]
    spec = resolve(
        profile,
        overrides=form.overrides(),
        gpus_override=form.text(GPUS) if form.is_changed(gpus_field) else None,
        inventory=None if situation is None or target is not None else situation.facts,
        environ=os.environ,
        target=target,
    )
    spec = replace(spec, priority=priority_of(form.text(PRIORITY)) or 0)
    if target is not None:
        launch = without_gpus(preview_launch(spec, runs=workspace.runs))
        shown = redact_launch(launch, Redactor(secrets_of(spec)))
        lines = tuple(map(clean, Executors().of(target).preview(spec, shown).splitlines()))
        return Plan(spec, (), command_line(spec, launch), lines, tuple(check_elsewhere(spec, workspace.state)))
    gpus = () if situation is None else likely_gpus(spec.gpus, situation)
    launch = preview_launch(spec, runs=workspace.runs, gpus=gpus)
    past = _earlier_peaks(workspace, spec)
    checks = quick_checks(spec, state=workspace.state, gpus=situation, past=past, environ=os.environ)
    return Plan(spec, (), command_line(spec, launch), tuple(describe(spec, launch, situation)), tuple(checks))


def _earlier_peaks(workspace: Workspace, spec: RunSpec) -> list[PastPeak]:
    """Peaks of memory in earlier runs; none if the database cannot be read."""
    try:
        with closing(open_reader(workspace.database)) as connection:
            return past_peaks(connection, spec.name)
    except (StoreError, sqlite3.Error):
        return []


def probe(plan: Plan, workspace: Workspace) -> Plan:
    """Add the checks of the training's interpreter. Starts a process and may take seconds."""
    from gputui.profiles.interpreter_checks import check_interpreter

    if plan.spec is None or plan.spec.target is not None:
        return plan
    slow = check_interpreter(plan.spec, os.environ, simulated_gpus=workspace.scenario.exists())
    names = {result.name for result in slow}
    return replace(plan, checks=(*(check for check in plan.checks if check.name not in names), *slow))
