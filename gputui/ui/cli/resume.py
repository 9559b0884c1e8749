"""`gputui resume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gputui.core.redaction import redact_params
from gputui.runs.executors import Executors
from gputui.runs.spec import Scalar, known_spec
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.ui.cli.context import Exit, Session, fail, json_option, verb
from gputui.ui.cli.run_verbs import act, again_on_target

_FORCE = "--force resumes it as it is"


@verb("resume", changes=True)
@click.argument("run")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a parameter.")
@click.option("--from", "named", metavar="PATH", help="The checkpoint to resume from, of any run.")
@click.option("--time", "time_limit", metavar="TIME", help="Of a run on a target: the job's limit, such as 8h.")
@click.option("--wait", is_flag=True, help="Wait until it ends; the exit code is its outcome.")
@click.option("--force", is_flag=True, help="Also a complete run, or a trial that its study has ended.")
@json_option
@click.pass_obj
def command(
    session: Session,
    run: str,
    changes: tuple[str, ...],
    named: str | None,
    time_limit: str | None,
    wait: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Continue a run that is over from the newest checkpoint of its training that validates."""
    if named == "":
        fail("--from is empty; it takes the path of a checkpoint", Exit.USAGE)
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run, only=True)
        if not (changes or named or force):
            _refuse_complete(view)
        rows = checkpoints.of_run(connection, view.run_id)
    spec = known_spec(view)
    path = None if named is None else named_path(named, rows, None if spec is None else spec.target)
    job = {} if time_limit is None else {"time": time_limit}
    given: dict[str, Any] = {"set": _changed_params(view, changes), **again_on_target(session, view, job)}
    if path is not None:
        given["from"] = path
    if not wait:
        act(session, "resume", view.run_id, as_json, **given)
        return
    from gputui.ui.cli.wait import wait_until_over

    session.command("resume", view.run_id, **given)
    raise SystemExit(wait_until_over(session, view.run_id, as_json))


def _refuse_complete(run: Run) -> None:
    """End the command for a run whose resume would do nothing, or not count."""
    if run.state is RunState.SUCCEEDED:
        fail(f"{run.run_id} is complete; --set changes what it trains to, {_FORCE}", Exit.REFUSED)
    if run.study_id is not None and run.state.is_over:
        fail(f"{run.run_id} is a trial that its study has ended and will not count; {_FORCE}", Exit.REFUSED)


def named_path(named: str, rows: Sequence[CheckpointRow], target: Mapping[str, Any] | None = None) -> str:
    """The path of a checkpoint given by path, or by its name among the run's own ``rows``. On some
    targets it cannot be looked for."""
    if not Executors().of(target).sees_checkpoints(target or {}):
        if not named.startswith("/"):
            fail("--from takes an absolute path on the run's target, where its checkpoints are", Exit.USAGE)
        return named
    path = Path(named).expanduser().absolute()
    own = [row.path for row in rows if row.name == named]
    return own[0] if len(own) == 1 and not path.exists() else str(path)


def _changed_params(run: Run, changes: tuple[str, ...]) -> dict[str, Scalar]:
    from gputui.profiles.params import Parameter, ParameterError, apply, split_assignments

    try:
        texts = split_assignments(changes)
        values = apply({name: Parameter(name, value) for name, value in run.params.items()}, texts)
    except ParameterError as error:
        fail(str(error).replace("\n", "; "), Exit.USAGE)
    wanted = {name: values[name] for name in texts}
    # Commands are stored, and a secret must not be.
    if redact_params(wanted) != wanted:
        fail("a secret is not stored, so that a resume cannot change it; launch the run again", Exit.USAGE)
    return wanted
