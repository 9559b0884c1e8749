"""`gputui profiles`."""

from __future__ import annotations

from pathlib import Path

import click

from gputui.cli.context import Session, print_json, say
from gputui.cli.table import columns


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
    rows = [
        (entry.name, entry.source, str(entry.error).splitlines()[0] if entry.error else description(entry.profile))
        for entry in entries
    ]
    for line in columns(("PROFILE", "FROM", ""), rows):
        say(line)


def description(profile: object) -> str:
    form = getattr(profile, "form", None)
    return str(getattr(form, "description", None) or "")
