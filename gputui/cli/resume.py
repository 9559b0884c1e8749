"""`gputui resume`."""

from __future__ import annotations

from contextlib import closing

import click

from gputui.cli.acting import act
from gputui.cli.context import EXIT_USAGE, Session, fail
from gputui.redaction import redact_params
from gputui.runs.spec import Scalar


@click.command("resume")
@click.argument("run")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a parameter.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, run: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Continue a run that is over from its newest checkpoint that validates."""
    from gputui.profiles.params import Parameter, ParameterError, apply, split_assignments

    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
    try:
        texts = split_assignments(changes)
        values = apply({name: Parameter(name, value) for name, value in view.params.items()}, texts)
        wanted: dict[str, Scalar] = {name: values[name] for name in texts}
        # What a command says is stored; a secret must not be.
        if redact_params(wanted) != wanted:
            fail("a secret is not stored, so that a resume cannot change it; launch the run again", EXIT_USAGE)
    except ParameterError as error:
        fail(str(error).replace("\n", "; "), EXIT_USAGE)
    act(session, "resume", view.run_id, as_json, set=wanted)
