"""`gputui rm`."""

from __future__ import annotations

import click

from gputui.cli.context import Session
from gputui.cli.run_verbs import act


@click.command("rm")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, run: str, as_json: bool) -> None:
    """Forget a run that is over: its history and its folder."""
    act(session, "rm", run, as_json)
