"""`gputui profiles`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gputui.cli.context import Session, print_json, say
from gputui.cli.table import columns

if TYPE_CHECKING:
    from gputui.profiles.loading import ProfileEntry


@click.command("profiles")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, as_json: bool) -> None:
    """The profiles that a name can mean: here, in the home, and those that come with gputui."""
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
    rows = [(entry.name, entry.source, remark(entry)) for entry in entries]
    for line in columns(("PROFILE", "FROM", ""), rows):
        say(line)


def remark(entry: ProfileEntry) -> str:
    """What a profile says of itself, or what is wrong with it."""
    if entry.error is not None:
        return str(entry.error).splitlines()[0]
    return (entry.profile.form.description if entry.profile is not None else None) or ""
