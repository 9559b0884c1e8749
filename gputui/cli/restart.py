"""`gputui restart`."""

from __future__ import annotations

import click

from gputui.cli.acting import act
from gputui.cli.context import Session


@click.command("restart")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, run: str, as_json: bool) -> None:
    """Begin a run again from the start, with the parameters as launched."""
    act(session, "restart", run, as_json)
