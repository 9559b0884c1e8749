"""From what was typed to a run's specification, with every error said at once."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import click

from gputui.charts.safe_text import clean
from gputui.cli.context import EXIT_REFUSED, EXIT_USAGE, Session
from gputui.gpu.model import GpuFacts
from gputui.profiles.loading import Profile, ProfileNotFoundError, find, load
from gputui.profiles.params import ParameterError, split_assignments
from gputui.profiles.problems import ProfileError
from gputui.profiles.resolve import ResolveError, resolve
from gputui.recovery.policy import PolicyError, parse_policy
from gputui.runs.spec import RunSpec
from gputui.store.database import StoreError, open_reader


def load_profile(session: Session, wanted: str) -> Profile:
    """The profile that a path or a name means; ends the command with one line per problem."""
    try:
        return load(find(wanted, session.workspace, Path.cwd()))
    except (ProfileNotFoundError, ProfileError) as error:
        refuse(str(error).splitlines(), EXIT_USAGE)


def resolve_spec(
    profile: Profile, changes: tuple[str, ...], gpus: str | None, inventory: list[GpuFacts] | None
) -> RunSpec:
    """The specification; ends the command with one line per problem."""
    try:
        spec = resolve(profile, overrides=split_assignments(changes), gpus_override=gpus, inventory=inventory)
        parse_policy(spec.recovery)
    except ParameterError as error:
        refuse(list(error.problems), EXIT_USAGE)
    except ResolveError as error:
        refuse(list(error.problems), EXIT_REFUSED if error.is_refusal else EXIT_USAGE)
    except PolicyError as error:
        refuse([f"{profile.path}: recovery: {error}"], EXIT_USAGE)
    return spec


def known_gpus(session: Session) -> list[GpuFacts] | None:
    """The GPUs that the agent saw last, or None where none has looked yet."""
    try:
        with closing(open_reader(session.workspace.database)) as connection:
            return gpus_in(connection)
    except StoreError:
        return None


def gpus_in(connection: sqlite3.Connection) -> list[GpuFacts] | None:
    """The inventory in the store, or None before the first look."""
    looked = connection.execute("SELECT source IS NOT NULL OR gpu_problem IS NOT NULL FROM agent").fetchone()
    if looked is None or not looked[0]:
        return None
    rows = connection.execute("SELECT facts FROM gpus WHERE present ORDER BY position").fetchall()
    return [GpuFacts(**json.loads(row[0])) for row in rows]


def asks_for_gpus(profile: Profile, gpus: str | None) -> bool:
    """Whether the machine's GPUs must be known before the run can be made."""
    return (gpus if gpus is not None else profile.form.gpus) not in (0, "0")


def refuse(problems: list[str], code: int) -> NoReturn:
    """Say each problem in a line of its own, and end."""
    for problem in problems:
        click.echo(f"gputui: {clean(problem)}", err=True)
    sys.exit(code)
