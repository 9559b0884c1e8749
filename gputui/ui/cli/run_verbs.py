"""`gputui stop`, `restart` and `rm`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import PurePath
from typing import Any

import click

from gputui.runs.checkpoint_names import is_step_named, step_words
from gputui.runs.identity import ProcessIdentity, is_alive
from gputui.runs.spec import SpecError
from gputui.runs.submission import ticket_to_renew
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.ui.cli.context import Exit, Session, fail, json_option, print_json, say, verb
from gputui.ui.tui.data.progress import row_of
from gputui.ui.tui.layout.run_words import stop_words


def act(session: Session, verb: str, wanted: str, as_json: bool, **args: Any) -> None:
    """Send a command about a run to the agent and print the answer."""
    with closing(session.reader()) as connection:
        run_id = session.find_run(connection, wanted, only=True).run_id
    result = session.command(verb, run_id, **args)
    if as_json:
        print_json(result)
        return
    say(_answer(verb, run_id, result))
    if result.get("passed_over"):
        say(str(result["passed_over"]))


def _answer(verb: str, run_id: str, result: Mapping[str, Any]) -> str:
    """``net-1 queued from last.pt (step 30); gputui logs net-1 -f follows it``."""
    state, start = result.get("state", ""), ""
    if result.get("resume_from"):
        name, step = PurePath(str(result["resume_from"])).name, result.get("resume_step")
        start = f" from {name}"
        if isinstance(step, int) and not is_step_named(name):
            start += f" ({step_words(name, step)})"
    elif verb == "restart" and state == RunState.QUEUED:
        start = " from the start"
    follow = f"; gputui logs {run_id} -f follows it" if verb in ("resume", "restart") else ""
    return f"{result.get('id', run_id)} {state}{start}{follow}"


@verb("stop", changes=True)
@click.argument("run")
@click.option("--now", is_flag=True, help="Kill at once.")
@json_option
@click.pass_obj
def stop(session: Session, run: str, now: bool, as_json: bool) -> None:
    """Ask a run to end. It may finish its step and save a checkpoint; --now kills it at once."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run, only=True)
        newest = get_attempt(connection, view.run_id, view.attempt)
    act(session, "stop", view.run_id, as_json, now=now, meanwhile=_kill_command(view, newest, now=now))
    if as_json:
        return
    with closing(session.reader()) as connection:
        view = session.find_run(connection, view.run_id)
        row = row_of(connection, view)
    if view.stop is not None:
        say(stop_words(row, time.time())[0])


def _kill_command(run: Run, attempt: Attempt | None, *, now: bool) -> str:
    """The command that stops a run of this machine while nothing can be written; "" if none does."""
    if attempt is None or attempt.executor is None or run.target is not None:
        return ""
    shim = ProcessIdentity(*attempt.executor)
    return f"kill -{'USR2' if now else 'TERM'} {shim.pid} stops the run all the same" if is_alive(shim) else ""


def again_on_target(session: Session, run: Run, job: Mapping[str, str]) -> dict[str, str]:
    """The argument of a command that starts a run on a target again: with this shell's environment
    for the target's commands, and a job's options. Ends the command for an option that the run
    cannot have."""
    if run.target is None and job:
        fail(f"--{next(iter(job))} is for a run on a target, and {run.run_id} runs here", Exit.USAGE)
    if run.target is None or not run.state.is_over:
        return {}
    from gputui.profiles.targets import TargetOptionError, with_job_options

    try:
        with session.writing():
            return ticket_to_renew(session.workspace, run.run_id, lambda target: with_job_options(target, job))
    except SpecError as error:
        fail(str(error), Exit.REFUSED)
    except TargetOptionError as error:
        fail(str(error), Exit.USAGE)


@verb("restart", changes=True)
@click.argument("run")
@json_option
@click.pass_obj
def restart(session: Session, run: str, as_json: bool) -> None:
    """Begin a run again from the start, with the parameters as launched."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run, only=True)
    act(session, "restart", view.run_id, as_json, **again_on_target(session, view, {}))


@verb("rm", changes=True)
@click.argument("run")
@json_option
@click.pass_obj
def rm(session: Session, run: str, as_json: bool) -> None:
    """Remove a run that has ended: its history and its folder."""
    act(session, "rm", run, as_json)
