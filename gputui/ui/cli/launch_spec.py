"""Resolve the command line to a run's specification, reporting every error at once."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.gpu_checks import GpuSituation
from gputui.profiles.params import split_assignments
from gputui.profiles.profile_file import SUFFIXES, Profile, ProfileNotFoundError, find, load
from gputui.profiles.resolve import GpuChoice, ResolveError, resolve
from gputui.profiles.situation import read_situation
from gputui.runs.checks import CheckResult
from gputui.runs.spec import RunSpec
from gputui.store.database import StoreError, open_reader
from gputui.ui.cli.context import SCRIPT_SUFFIXES, Exit, Session, options_of, refuse


def load_profile(session: Session, name: str) -> Profile:
    """The profile of a path or name. Raises ProfileNotFoundError, ProfileError."""
    return load(find(name, session.workspace, Path.cwd()))


def is_command(session: Session, argv: Sequence[str]) -> bool:
    """Return whether typed words begin with a script or program, or with what only a command could be meant by: a
    folder, a line of the shell. A profile's name, and a path that ends with .yaml, is a profile."""
    if not argv or argv[0].endswith(SUFFIXES):
        return False
    first = argv[0]
    if not first or "/" in first or "=" in first or first.endswith(SCRIPT_SUFFIXES) or re.search(r"\s", first):
        return True
    try:
        find(first, session.workspace, Path.cwd())
    except ProfileNotFoundError:
        return Path(first).exists() or shutil.which(first) is not None
    return False


def typed_profile(argv: Sequence[str], command: click.Command) -> Profile:
    """The profile of what was typed in this folder behind the options of a ``command``, which ends if
    there is none."""
    from gputui.profiles.init.command_profile import command_profile

    program = click.get_current_context().find_root().command
    return command_profile(argv, Path.cwd(), verbs_options=options_of(command), programs_options=options_of(program))


def resolve_spec(
    profile: Profile,
    changes: tuple[str, ...],
    gpus: str | None,
    situation: GpuSituation | None,
    target: Mapping[str, Any] | None = None,
    *,
    heeds_shell_gpus: bool = True,
) -> RunSpec:
    """The specification of a run.

    Args:
        changes: ``KEY=VALUE`` for parameters.
        gpus: what ``--gpus`` says; None for what the profile says.
        situation: the GPUs here; None if they do not matter, as on a target.
        target: where the run runs; None for here.
        heeds_shell_gpus: whether CUDA_VISIBLE_DEVICES of this shell counts.

    Raises:
        ParameterError: a value does not fit.
        ResolveError: it cannot run so, with one line per problem.
    """
    inventory: Sequence[GpuFacts] | None = None
    excluded: Collection[str] = ()
    if situation is not None:
        inventory = situation.facts
        excluded = situation.excluded
    choice = GpuChoice(gpus, inventory, excluded, heeds_shell_gpus)
    return resolve(profile, choice, overrides=split_assignments(changes), target=target)


def resolve_without_gpus(
    profile: Profile, changes: tuple[str, ...], gpus: str | None, situation: GpuSituation | None
) -> tuple[RunSpec, list[str]]:
    """As `resolve_spec`, but GPUs that this machine cannot provide do not end the command: they are
    requested all the same, with one line per problem."""
    try:
        return resolve_spec(profile, changes, gpus, situation), []
    except ResolveError as error:
        if not error.is_refusal:
            raise
        return resolve_spec(profile, changes, gpus, situation=None, heeds_shell_gpus=False), list(error.problems)


def gpu_situation(session: Session) -> GpuSituation | None:
    """The GPUs as the agent last saw them; None if no agent has read them."""
    try:
        with closing(open_reader(session.workspace.database)) as connection:
            return read_situation(connection, time.time())
    except StoreError:
        return None


def refuse_failed(results: Iterable[CheckResult]) -> None:
    """End the command if a check failed, with one line per failure."""
    failures = [f"{result.name}: {result.detail}; {result.remedy}" for result in results if result.status == "fail"]
    if failures:
        refuse(failures, Exit.REFUSED)
