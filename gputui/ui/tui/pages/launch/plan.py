"""The plan of a launch form: what would start, and when. Called in threads: it reads files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.runs.checks import CheckResult
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.stored_spec import known_spec
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.gpu_use import known_peaks
from gputui.store.runs import Run
from gputui.ui.tui.pages.launch.form import GPUS, PRIORITY, Form, Prefill, priority_of
from gputui.ui.views.snapshot import Snapshot

if TYPE_CHECKING:
    # pydantic comes with these; they are imported where they are used, in a thread.
    from gputui.machine.gpu_model import GpuFacts
    from gputui.profiles.gpu_checks import GpuSituation
    from gputui.profiles.profile_file import Profile, ProfileEntry


class Plan(Struct, frozen=True):
    """What the form would start.

    Attributes:
        spec: the specification; None with problems in the form.
        problems: a sentence each.
        command: the command that would be started.
        description: command, environment and GPUs in lines.
        checks: the results so far.
        is_whole: whether all checks were made.
    """

    spec: RunSpec | None = None
    problems: tuple[str, ...] = ()
    command: str = ""
    description: tuple[str, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    is_whole: bool = True

    @property
    def blocked_by(self) -> str | None:
        """The reason why it cannot be launched, as a sentence; None if it can."""
        failed = [clean(check.line)[2:] for check in self.checks if check.status == "fail"]
        return next(iter((*self.problems, *failed)), None)


def read_profiles(workspace: Workspace, cwd: Path, files: Sequence[str] = ()) -> list[ProfileEntry]:
    """All named profiles, those of ``cwd`` and the existing ``files``, valid ones first. The first call is slow."""
    from gputui.core.yaml_forms.problems import shown_path
    from gputui.profiles.profile_file import list_profiles, profiles_in, read_entry

    profiles = list_profiles(workspace, cwd)
    names = {entry.name for entry in profiles}
    entries = {entry.path.resolve(): entry for entry in profiles}
    for entry in profiles_in(cwd):
        if entry.name in names:
            entry = replace(entry, name=entry.path.name)
        entries.setdefault(entry.path.resolve(), entry)
    for path in map(Path, files):
        if path.resolve() not in entries and path.is_file():
            entries[path.resolve()] = read_entry(shown_path(path), path, "file")
    return sorted(entries.values(), key=lambda entry: entry.profile is None)


def find_profile(prefill: Prefill, workspace: Workspace, cwd: Path) -> ProfileEntry | None:
    """The profile to launch, by its file or its name, or that of a command; None if it is gone.
    Raises DraftError for a command that cannot be run."""
    argv, folder = _command_of(prefill, workspace, cwd)
    if argv:
        from gputui.profiles.init.command_profile import command_profile
        from gputui.profiles.profile_file import ProfileEntry

        profile = command_profile(argv, folder)
        return ProfileEntry(profile.name, folder, "typed", profile, error=None)
    if prefill.path is None:
        entries = read_profiles(workspace, cwd)
        return next((entry for entry in entries if entry.name == prefill.profile), None)
    path = Path(prefill.path).resolve()
    entries = read_profiles(workspace, cwd, (prefill.path,))
    return next((entry for entry in entries if entry.path.resolve() == path), None)


def _command_of(prefill: Prefill, workspace: Workspace, cwd: Path) -> tuple[tuple[str, ...], Path]:
    """The words of a command and where they were typed: now, or for the run that is copied, whose private specification
    has its secrets, too. No words for a profile."""
    if prefill.run_id is None or prefill.path is not None:
        return prefill.command, cwd
    try:
        spec = read_spec(workspace.run_dir(prefill.run_id) / SPEC_FILE)
    except SpecError:
        return (), cwd
    return spec.typed, Path(spec.workdir)


def read_target_names(workspace: Workspace) -> tuple[str, ...]:
    """The names of the home's targets; none if their file is invalid, as `target list` says."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.targets import load_targets

    try:
        return tuple(load_targets(workspace.targets))
    except (ProfileError, OSError):
        return ()


def survey_lines(form: Form, workspace: Workspace) -> Iterator[str]:
    """The state of a form's target, line by line. Each line may take until its own deadline."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.preflight import survey_target
    from gputui.profiles.targets import TargetNotFoundError, find_target

    profile = None
    targets = {}
    if form.entry is not None and form.entry.profile is not None:
        profile = form.entry.profile
        targets = profile.form.targets
    try:
        target = find_target(form.target or "", targets, workspace)
    except (TargetNotFoundError, ProfileError) as error:
        yield from str(error).splitlines()
        return
    yield from (clean(check.line) for check in survey_target(target, profile))


def profile_path(run: Run) -> str | None:
    """The file of the profile that a run was launched from; None if it is not recorded."""
    if (spec := known_spec(run)) is None:
        return None
    return spec.profile_path


def make_plan(form: Form, snapshot: Snapshot, workspace: Workspace) -> Plan:
    """Resolve the form, and do all checks that need neither a process nor a network."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.resolve import ResolveError
    from gputui.profiles.targets import TargetNotFoundError

    assert form.entry is not None
    if form.problems:
        return Plan(problems=tuple(form.problems))
    if form.entry.profile is None:
        return Plan(problems=_sentences(form.entry.error))
    try:
        return _resolve(form, form.entry.profile, snapshot, workspace)
    except (ResolveError, TargetNotFoundError, ProfileError) as error:
        return Plan(problems=_sentences(error))


def _sentences(error: Exception | None) -> tuple[str, ...]:
    return tuple(clean(line) for line in str(error).splitlines())


def _resolve(form: Form, profile: Profile, snapshot: Snapshot, workspace: Workspace) -> Plan:
    """The plan of a valid form. Raises ResolveError, TargetNotFoundError or ProfileError."""
    from gputui.profiles.resolve import GpuChoice, resolve
    from gputui.profiles.targets import find_target

    target = None
    if form.target is not None:
        target = find_target(form.target, profile.form.targets, workspace)
    situation = snapshot.situation
    inventory: Sequence[GpuFacts] | None = None
    excluded: Collection[str] = ()
    if situation is not None:
        excluded = situation.excluded
        if target is None:
            inventory = situation.facts
    gpus = next((field.edit.text for field in form.fields if field.key == GPUS and field.is_changed), None)
    choice = GpuChoice(gpus, inventory, excluded)
    spec = resolve(profile, choice, overrides=form.overrides(), environ=os.environ, target=target)
    spec = replace(spec, priority=priority_of(form.text(PRIORITY)))
    if target is None:
        return _plan_here(spec, situation, workspace)
    return _plan_elsewhere(spec, workspace)


def _plan_here(spec: RunSpec, situation: GpuSituation | None, workspace: Workspace) -> Plan:
    """A start on this machine; the interpreter is yet to be asked."""
    from gputui.profiles.describe import command_line, describe, preview_launch
    from gputui.profiles.gpu_checks import likely_gpus
    from gputui.profiles.preflight import quick_checks

    gpus: Sequence[GpuFacts] = ()
    if situation is not None:
        gpus = likely_gpus(spec, situation)
    launch = preview_launch(spec, runs=workspace.runs, gpus=gpus)
    past = known_peaks(workspace.database, spec.name)
    return Plan(
        spec,
        command=command_line(spec, launch),
        description=tuple(describe(spec, launch, situation)),
        checks=tuple(quick_checks(spec, state=workspace.state, gpus=situation, past=past)),
        is_whole=False,
    )


def _plan_elsewhere(spec: RunSpec, workspace: Workspace) -> Plan:
    """A start on a target, which is asked only when a person wants it."""
    from gputui.profiles.describe import command_line, preview_launch, target_preview
    from gputui.profiles.preflight import check_elsewhere
    from gputui.runs.command import without_gpus

    launch = without_gpus(preview_launch(spec, runs=workspace.runs))
    return Plan(
        spec,
        command=command_line(spec, launch),
        description=tuple(target_preview(spec, workspace.runs)),
        checks=tuple(check_elsewhere(spec, workspace.state)),
    )


def probe(plan: Plan, workspace: Workspace) -> Plan:
    """Add the checks of the training's interpreter. Starts a process and may take seconds."""
    from gputui.profiles.interpreter_checks import check_interpreter

    assert plan.spec is not None
    slow = check_interpreter(plan.spec, os.environ, simulated_gpus=workspace.scenario.exists())
    names = {result.name for result in slow}
    checks = (*(check for check in plan.checks if check.name not in names), *slow)
    return replace(plan, checks=checks, is_whole=True)
