"""`gputui stop`, `restart` and `rm`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import PurePath
from typing import Any

import click

from gputui.metrics.progress import progress_now
from gputui.runs.checkpoint_names import is_step_named, step_words
from gputui.runs.identity import ProcessIdentity, is_alive
from gputui.runs.spec import SpecError
from gputui.runs.submission import ticket_to_renew
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.commands import AgentVerb
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.ui.cli.context import CommandRefusedError, Exit, Session, fail, verb
from gputui.ui.cli.selection import Answer, RunChoice, for_each, is_no_rehearsal, several_runs
from gputui.ui.views.run_words import stop_words
from gputui.ui.views.snapshot import RunRow


def answer_of(session: Session, agent_verb: AgentVerb, run: Run, **args: Any) -> Answer:
    """Send a command about a run to the agent. Raises CommandRefusedError."""
    result = session.ask(agent_verb, run.run_id, **args)
    passed_over = result.get("passed_over")
    lines = [_answer(agent_verb, run.run_id, result)]
    if passed_over:
        lines.append(str(passed_over))
    return Answer(result, lines)


def _answer(agent_verb: AgentVerb, run_id: str, result: Mapping[str, Any]) -> str:
    """``net-1 queued from last.pt (step 30); gputui logs net-1 -f follows it``."""
    state = result.get("state", "")
    start = ""
    if result.get("resume_from"):
        name = PurePath(str(result["resume_from"])).name
        step = result.get("resume_step")
        start = f" from {name}"
        if isinstance(step, int) and not is_step_named(name):
            start += f" ({step_words(name, step)})"
    elif agent_verb == "restart" and state == RunState.QUEUED:
        start = ", to begin again at step 0"
    line = f"{result.get('id', run_id)} {state}{start}"
    if agent_verb in ("resume", "restart"):
        line += f"; gputui logs {run_id} -f follows it"
    return line


@verb("stop", changes=is_no_rehearsal, has_json=True)
@click.option("--now", is_flag=True, help="Kill at once.")
@several_runs()
def stop(session: Session, now: bool, choice: RunChoice) -> None:
    """Ask runs to end. They may finish their step and save a checkpoint; --now kills them at once."""

    def stop_one(run: Run) -> Answer:
        with closing(session.reader()) as connection:
            newest = get_attempt(connection, run.run_id, run.attempt)
        shape, lines = answer_of(session, "stop", run, now=now, meanwhile=_kill_command(run, newest, now=now))
        with closing(session.reader()) as connection:
            fresh = session.find_run(connection, run.run_id)
            row = RunRow(fresh, progress_now(connection, fresh))
        if row.run.stop is not None:
            lines = [*lines, stop_words(row, time.time())[0]]
        return Answer(shape, lines)

    for_each(session, choice, "stop", stop_one)


def _kill_command(run: Run, attempt: Attempt | None, *, now: bool) -> str:
    """The command that stops a run of this machine while nothing can be written; "" if none does."""
    if attempt is None or attempt.executor is None or run.target is not None:
        return ""
    shim = ProcessIdentity(*attempt.executor)
    if is_alive(shim):
        signal = "USR2" if now else "TERM"
        return f"kill -{signal} {shim.pid} stops the run all the same"
    return ""


def again_on_target(session: Session, run: Run, job: Mapping[str, str]) -> dict[str, str]:
    """The arguments of a command that starts a run again: empty unless it is on a target.

    There, they hold this shell's environment for the target's commands, and the job's options. Ends the command for an
    option that the run cannot have. Raises CommandRefusedError.
    """
    if run.target is None and job:
        fail(f"--{next(iter(job))} is for a run on a target, and {run.run_id} runs here", Exit.USAGE)
    if run.target is None or not run.state.is_over:
        return {}
    from gputui.profiles.targets import with_job_options

    try:
        with session.writing():
            return ticket_to_renew(session.workspace, run.run_id, lambda target: with_job_options(target, job))
    except SpecError as error:
        raise CommandRefusedError(str(error)) from error


@verb("restart", changes=is_no_rehearsal, has_json=True)
@several_runs()
def restart(session: Session, choice: RunChoice) -> None:
    """Begin runs again from the start, with the parameters as launched.

    An active one is stopped first, if it is named and not chosen.
    """
    variant = "restart" if choice.only else "restart by name"
    for_each(
        session,
        choice,
        variant,
        lambda run: answer_of(session, "restart", run, **again_on_target(session, run, {})),
    )


@verb("rm", changes=is_no_rehearsal, has_json=True)
@several_runs()
def rm(session: Session, choice: RunChoice) -> None:
    """Remove runs that have ended: their history and their folders."""
    for_each(session, choice, "rm", lambda run: answer_of(session, "rm", run))
