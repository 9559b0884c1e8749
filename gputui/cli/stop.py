"""`gputui stop`."""

from __future__ import annotations

import click

from gputui.cli.context import Session
from gputui.cli.run_verbs import act


@click.command("stop")
@click.argument("run")
@click.option("--now", is_flag=True, help="Kill at once.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, run: str, now: bool, as_json: bool) -> None:
    """Ask a run to end. It may finish its step and save a checkpoint; --now kills it at once."""
    act(session, "stop", run, as_json, now=now)
