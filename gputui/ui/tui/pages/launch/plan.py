"""The plan of a launch form: specification, command and checks. Called in threads, because it reads files."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
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
from gputui.ui.tui.data.run_details import launched_params
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.pages.launch.form import GPUS, PRIORITY, Form, priority_of

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
        if failed is not None:
            return f"{failed.name}: {failed.detail}" + (f"; {failed.remedy}" if failed.remedy else "")
        return None if self.spec is not None else "There is no profile to launch."


def read_profiles(workspace: Workspace, cwd: Path, files: Sequence[str] = ()) -> tuple[ProfileEntry, ...]:
    """All named profiles and the existing ``files``, valid ones first. The first call is slow: it imports pydantic."""
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


def read_target_names(workspace: Workspace) -> tuple[str, ...]:
    """The names of the home's targets; none if their file is invalid, which `gputui target list` reports."""
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

    entry = form.entry
    profile = None if entry is None else entry.profile
    own = {} if profile is None else profile.form.targets
    try:
        target = find_target(form.target or "", own, workspace)
    except (TargetNotFoundError, ProfileError) as error:
        yield from str(error).splitlines()
        return
    for result in survey(target, profile):
        yield check_line(result)


def check_line(check: CheckResult) -> str:
    """A check with its mark and, unless it passed, the remedy."""
    mark = {"pass": "✓", "warn": "▲", "fail": "✗", "skip": "–"}[check.status]
    remedy = f"; {check.remedy}" if check.remedy and check.status in ("warn", "fail") else ""
    return clean(f"{mark} {check.name}: {check.detail}{remedy}")


def is_same_file(path: Path, other: str) -> bool:
    """Whether two paths lead to the same file."""
    return path.resolve() == Path(other).resolve()


def profile_path(run: Run) -> str | None:
    """The file of the profile that a run was launched from; None if it is not recorded."""
    spec = known_spec(run)
    return None if spec is None else spec.profile_path


def make_plan(form: Form, snapshot: Snapshot, workspace: Workspace, environ: Mapping[str, str] | None = None) -> Plan:
    """Resolve the form, and do all checks that start no process."""
    from gputui.profiles.describe import command_line, describe, preview_launch
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
    if form.target is not None:
        return _plan_elsewhere(form, entry.profile, workspace, env)
    gpus_item = form.fields[0]
    situation = situation_of(snapshot.agent, snapshot.gpus, snapshot.machine.quarantined, snapshot.alerts.last)
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
    spec = replace(spec, priority=priority_of(form.text(PRIORITY)) or 0)
    gpus = () if situation is None else likely_gpus(spec.gpus, situation)
    launch = preview_launch(spec, runs=workspace.runs, gpus=gpus)
    lines = tuple(describe(spec, launch, situation))
    command = command_line(spec, launch)
    past = _earlier_peaks(workspace, spec)
    checks = tuple(quick_checks(spec, state=workspace.state, gpus=situation, past=past, environ=env))
    return Plan(spec, (), command, lines, checks)


def _plan_elsewhere(form: Form, profile: Profile, workspace: Workspace, env: Mapping[str, str]) -> Plan:
    """The plan of a run on a target, without contact to it: nothing waits for a network."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.describe import command_line, preview_launch
    from gputui.profiles.preflight import check_elsewhere
    from gputui.profiles.resolve import ResolveError, resolve
    from gputui.profiles.targets import TargetNotFoundError, find_target
    from gputui.runs.command import without_gpus
    from gputui.runs.executors import Executors

    gpus = form.text(GPUS) if form.is_changed(form.fields[0]) else None
    try:
        target = find_target(form.target or "", profile.form.targets, workspace)
        spec = resolve(profile, overrides=form.overrides(), gpus_override=gpus, environ=env, target=target)
    except (ResolveError, TargetNotFoundError, ProfileError) as error:
        return Plan(problems=tuple(clean(line) for line in str(error).splitlines()))
    spec = replace(spec, priority=priority_of(form.text(PRIORITY)) or 0)
    launch = without_gpus(preview_launch(spec, runs=workspace.runs))
    shown = redact_launch(launch, Redactor(secrets_of(spec)))
    lines = Executors().of(target).preview(spec, shown).splitlines()
    checks = tuple(check_elsewhere(spec, workspace.state))
    return Plan(spec, (), command_line(spec, launch), tuple(clean(line) for line in lines), checks)


def _earlier_peaks(workspace: Workspace, spec: RunSpec) -> list[PastPeak]:
    """Peaks of memory in earlier runs; none if the database cannot be read."""
    try:
        with closing(open_reader(workspace.database)) as connection:
            return past_peaks(connection, spec.name)
    except (StoreError, sqlite3.Error):
        return []


def first_choice(entries: Sequence[ProfileEntry], runs: Sequence[Run], gpu_count: int) -> int:
    """The index of the profile that a form begins with: the one launched last, else the first that this machine has
    enough GPUs for."""
    names = {entry.name: number for number, entry in enumerate(entries)}
    launched = [run for run in runs if run.profile in names]
    if launched:
        return names[max(launched, key=lambda run: run.sequence).profile]
    return next((number for number, entry in enumerate(entries) if _asks_for(entry) <= gpu_count), 0)


def _asks_for(entry: ProfileEntry) -> float:
    """The least number of GPUs that a profile needs."""
    if entry.profile is None:
        return float("inf")
    gpus = entry.profile.form.gpus
    return 1 if gpus.is_all else gpus.count or len(gpus.devices)


def last_params(runs: Sequence[Run]) -> dict[str, Mapping[str, object]]:
    """The launch parameters of the newest run of each profile, by profile. A study chose those of its trials."""
    newest: dict[str, Run] = {}
    for run in runs:
        if run.study_id is None and (run.profile not in newest or run.sequence > newest[run.profile].sequence):
            newest[run.profile] = run
    return {name: launched_params(run) for name, run in newest.items()}


def launched_gpu_count(run: Run) -> int | None:
    """How many GPUs a run was launched with; None if its specification cannot be read."""
    spec = known_spec(run)
    return None if spec is None else spec.gpus.count


def probe(plan: Plan, workspace: Workspace, environ: Mapping[str, str] | None = None) -> Plan:
    """Add the checks of the training's interpreter. Starts a process and may take seconds."""
    from gputui.profiles.interpreter_checks import check_interpreter

    if plan.spec is None or plan.spec.target is not None or plan.blocked_by is not None:
        return plan
    env = os.environ if environ is None else environ
    slow = check_interpreter(plan.spec, env, simulated_gpus=workspace.scenario.exists())
    names = {result.name for result in slow}
    return replace(plan, checks=(*(check for check in plan.checks if check.name not in names), *slow))
