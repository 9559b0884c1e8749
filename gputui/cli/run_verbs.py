"""`gputui stop`, `restart` and `rm`: the agent is asked to act on one run."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from gputui.cli.context import Session, print_json, say


def act(session: Session, verb: str, wanted: str, as_json: bool, **args: Any) -> None:
    """Resolve the run, send the command, print what became of it."""
    with closing(session.reader()) as connection:
        run_id = session.find_run(connection, wanted).run_id
    result = session.command(verb, run_id, **args)
    if as_json:
        print_json(result)
    else:
        say(f"{result.get('id', run_id)} {result.get('state', '')}")


@click.command("stop")
@click.argument("run")
@click.option("--now", is_flag=True, help="Kill at once.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def stop(session: Session, run: str, now: bool, as_json: bool) -> None:
    """Ask a run to end. It may finish its step and save a checkpoint; --now kills it at once."""
    act(session, "stop", run, as_json, now=now)


@click.command("restart")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def restart(session: Session, run: str, as_json: bool) -> None:
    """Begin a run again from the start, with the parameters as launched."""
    act(session, "restart", run, as_json)


@click.command("rm")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def rm(session: Session, run: str, as_json: bool) -> None:
    """Forget a run that is over: its history and its folder."""
    act(session, "rm", run, as_json)
