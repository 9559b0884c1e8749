"""`gputui restart`."""

from __future__ import annotations

import click

from gputui.cli.context import Session
from gputui.cli.run_verbs import act


@click.command("restart")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, run: str, as_json: bool) -> None:
    """Begin a run again from the start, with the parameters as launched."""
    act(session, "restart", run, as_json)
