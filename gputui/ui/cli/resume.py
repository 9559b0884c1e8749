"""`gputui resume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gputui.core.redaction import redact_params
from gputui.runs.executors import Executors
from gputui.runs.selection import resume_variant
from gputui.runs.spec import Scalar
from gputui.runs.stored_spec import known_spec
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.ui.cli.context import CommandRefusedError, Exit, Session, fail, verb
from gputui.ui.cli.run_verbs import again_on_target, answer_of
from gputui.ui.cli.selection import Answer, RunChoice, for_each, is_no_rehearsal, several_runs

_FORCE = "--force resumes it as it is"


@verb("resume", changes=is_no_rehearsal, has_json=True)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a parameter.")
@click.option("--from", "checkpoint", metavar="PATH", help="The checkpoint to resume from, of any run.")
@click.option("--time", "time_limit", metavar="TIME", help="Of a run on a target: the job's limit, such as 8h.")
@click.option("--wait", is_flag=True, help="Wait until it ends; the exit code is its outcome.")
@click.option("--force", is_flag=True, help="Also a complete run, or a trial that its study has ended.")
@several_runs()
def command(
    session: Session,
    changes: tuple[str, ...],
    checkpoint: str | None,
    time_limit: str | None,
    wait: bool,
    force: bool,
    choice: RunChoice,
) -> None:
    """Continue runs that are over from the newest checkpoint of their training that validates.

    --set, --from, --time and --wait are for one run.
    """
    if checkpoint == "":
        fail("--from is empty; it takes the path of a checkpoint", Exit.USAGE)
    of_one = {"--set": changes, "--from": checkpoint, "--time": time_limit, "--wait": wait}
    if options := [option for option, value in of_one.items() if value]:
        choice.single(options)

    is_unchanged = not (changes or checkpoint or force)
    job = {}
    if time_limit is not None:
        job["time"] = time_limit

    def resume_one(run: Run) -> Answer:
        if is_unchanged:
            _refuse_ended(run)
        args: dict[str, Any] = {"set": _changed_params(run, changes), **again_on_target(session, run, job)}
        if checkpoint is not None:
            args["from"] = _checkpoint_of(session, run, checkpoint)
        answer = answer_of(session, "resume", run, **args)
        if wait:
            from gputui.ui.cli.wait import wait_until_over

            raise SystemExit(wait_until_over(session, run.run_id, choice.as_json))
        return answer

    variant = resume_variant(names_checkpoint=checkpoint is not None, is_forced=bool(changes) or force)
    for_each(session, choice, variant, resume_one)


def _refuse_ended(run: Run) -> None:
    """Refuse a run that a person hardly means to continue as it is. Raises CommandRefusedError."""
    if run.state is RunState.SUCCEEDED:
        raise CommandRefusedError(f"{run.run_id} is complete; --set changes what it trains to, {_FORCE}")
    if run.study_id is not None and run.state.is_over:
        raise CommandRefusedError(f"{run.run_id} is a trial that its study has ended and will not count; {_FORCE}")


def _changed_params(run: Run, changes: tuple[str, ...]) -> dict[str, Scalar]:
    from gputui.profiles.params import Parameter, apply, split_assignments

    texts = split_assignments(changes)
    values = apply({name: Parameter(name, value) for name, value in run.params.items()}, texts)
    changed = {name: values[name] for name in texts}
    # Commands are stored, and a secret must not be.
    if redact_params(changed) != changed:
        fail("a secret is not stored, so that a resume cannot change it; launch the run again", Exit.USAGE)
    return changed


def _checkpoint_of(session: Session, run: Run, checkpoint: str) -> str:
    """The path of a checkpoint that was given for a run."""
    with closing(session.reader()) as connection:
        rows = checkpoints.of_run(connection, run.run_id)
    spec = known_spec(run)
    target = None if spec is None else spec.target
    return checkpoint_path(checkpoint, rows, target)


def checkpoint_path(checkpoint: str, rows: Sequence[CheckpointRow], target: Mapping[str, Any] | None = None) -> str:
    """The path of a checkpoint given by path, or by its name among the run's own ``rows``. On some
    targets it cannot be looked for."""
    if not Executors().of(target).sees_checkpoints(target or {}):
        if not checkpoint.startswith("/"):
            fail("--from takes an absolute path on the run's target, where its checkpoints are", Exit.USAGE)
        return checkpoint
    path = Path(checkpoint).expanduser().absolute()
    paths = [row.path for row in rows if row.name == checkpoint]
    if len(paths) == 1 and not path.exists():
        return paths[0]
    return str(path)
