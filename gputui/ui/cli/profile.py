"""`gputui profile list`; `export` is in `profile_export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gputui.ui.cli import profile_export
from gputui.ui.cli.context import Session, json_option, print_json, print_table

if TYPE_CHECKING:
    from gputui.profiles.loading import ProfileEntry


@click.group("profile")
def command() -> None:
    """Descriptions of what a run starts."""


command.add_command(profile_export.command)


@command.command("list")
@json_option
@click.pass_obj
def list_(session: Session, as_json: bool) -> None:
    """List the profiles here, in the home, and those that ship with gputui."""
    from gputui.profiles.loading import list_profiles

    entries = list_profiles(session.workspace, Path.cwd())
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "path": str(entry.path),
                    "source": entry.source,
                    "error": None if entry.error is None else str(entry.error).splitlines()[0],
                }
                for entry in entries
            ]
        )
        return
    rows = [(entry.name, entry.source, _remark(entry)) for entry in entries]
    print_table(("PROFILE", "FROM", ""), rows)


def _remark(entry: ProfileEntry) -> str:
    """The description of a profile, or its first mistake."""
    if entry.error is not None:
        return str(entry.error).splitlines()[0]
    return (entry.profile.form.description if entry.profile is not None else None) or ""
