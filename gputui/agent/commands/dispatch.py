"""Answering commands: one function per verb, each either done with a result or refused with a sentence.

What a command does to the database and its answer are one transaction: an agent that is killed in between is followed
by one that finds the command either answered or not begun.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gputui.agent.commands import (
    alert_commands,
    label_commands,
    orphan_commands,
    queue_commands,
    study_commands,
)
from gputui.agent.commands.refusal import RefusedError, UnansweredError
from gputui.agent.error_barrier import roll_back
from gputui.agent.lifecycle.checkpoint_survey import course_elsewhere, search_of
from gputui.agent.lifecycle.checkpoint_survey import write as write_ledger
from gputui.agent.lifecycle.removal import put_away
from gputui.agent.lifecycle.run_files import open_metrics
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.charts.units import bytes_text
from gputui.config import PRIVATE_DIR_MODE
from gputui.recovery.checkpoint_search import (
    CheckpointChoice,
    CheckpointSearch,
    NotUsableError,
    for_person,
    passed_over,
)
from gputui.redaction import REDACTED, redact_params
from gputui.runs import next_attempt, repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.identity import is_gone
from gputui.runs.redaction import redact_spec
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec, Scalar, SpecError, spec_of
from gputui.runs.submission import SPEC_FILE, read_ticket
from gputui.store import alerts, checkpoints, commands
from gputui.store.commands import PendingCommand, WithdrawnError
from gputui.store.database import is_locked
from gputui.store.events import add_event
from gputui.store.hardware import clear
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from gputui.studies.rows import adopt_run, keep_cost

log = logging.getLogger(__name__)

# Checkpoints are read whole: hundreds of gigabytes take minutes, a file system that does not answer for ever.
SEARCH_SECONDS = 900.0
# A disk may be full for a moment only.
WRITES_TRIED = 3


def answer_all(supervisor: Supervisor) -> int:
    """Answer what waits, oldest first, each command alone. Returns how many were answered. Raises
    sqlite3.OperationalError where the database is locked, for the others would wait as long."""
    waiting = commands.pending(supervisor.context.connection)
    answered = sum(_answer_one(supervisor, command) for command in waiting)
    asked = {command.command_id for command in waiting}
    supervisor.searches = {key: search for key, search in supervisor.searches.items() if key in asked}
    supervisor.failed_writes = {key: count for key, count in supervisor.failed_writes.items() if key in asked}
    return answered


def _answer_one(supervisor: Supervisor, command: PendingCommand) -> bool:
    """Whether the command was answered. One that cannot be written is tried a few times and then refused, so that it is
    not done long after the client was refused."""
    failures = supervisor.failed_writes.get(command.command_id, 0)
    try:
        if failures >= WRITES_TRIED:
            raise RefusedError("the database cannot be written; see whether its disk is full")
        if is_gone(command.args.get("asker")):
            raise RefusedError("the client ended before the command was carried out")
        _carry_out(supervisor, command)
    except (UnansweredError, WithdrawnError):
        return False
    except sqlite3.OperationalError as error:
        return _could_not_write(supervisor, command, error)
    except RefusedError as error:
        return _refuse(supervisor, command, str(error), error.kind)
    except SpecError as error:
        return _refuse(supervisor, command, f"{command.run_id} cannot be read by this gputui: {error}; update gputui")
    except Exception as error:
        # A command that cannot be understood must not end this agent, and the next, and the one after.
        log.exception("command %d (%s) failed", command.command_id, command.verb)
        return _refuse(
            supervisor, command, f"{command.verb} failed ({type(error).__name__}); the agent's log says more"
        )
    return True


def _carry_out(supervisor: Supervisor, command: PendingCommand) -> None:
    handler = HANDLERS.get(command.verb)
    if handler is None:
        raise RefusedError(f"this agent does not know {command.verb!r}; restart it with gputui agent stop")
    handler(supervisor, command)


def _refuse(supervisor: Supervisor, command: PendingCommand, reason: str, kind: str | None = None) -> bool:
    roll_back(supervisor.context.connection)
    try:
        commands.give_answer(
            supervisor.context.connection,
            command.command_id,
            "refused",
            now=supervisor.context.now(),
            reason=reason,
            result=None if kind is None else {"refusal": kind},
        )
    except WithdrawnError:
        return False
    except sqlite3.OperationalError as error:
        return _could_not_write(supervisor, command, error)
    except Exception:
        # Those that wait behind it are answered all the same.
        log.exception("command %d (%s) cannot be refused", command.command_id, command.verb)
        return False
    return True


def _could_not_write(supervisor: Supervisor, command: PendingCommand, error: sqlite3.OperationalError) -> bool:
    roll_back(supervisor.context.connection)
    failures = supervisor.failed_writes.get(command.command_id, 0) + 1
    supervisor.failed_writes[command.command_id] = failures
    if failures == 1:
        log.warning("command %d (%s) cannot be written: %s", command.command_id, command.verb, error)
    if is_locked(error):
        raise error
    return False


def done(supervisor: Supervisor, command: PendingCommand, run_id: str, **more: Any) -> None:
    """Answer with the run's state, and ``more``. Belongs into the transaction of what was done."""
    found = get_run(supervisor.context.connection, run_id)
    result: dict[str, Any] = {"id": run_id, "state": "removed" if found is None else str(found.state), **more}
    commands.give_answer(
        supervisor.context.connection, command.command_id, "done", now=supervisor.context.now(), result=result
    )


def run(supervisor: Supervisor, command: PendingCommand) -> None:
    """Queue a new run."""
    try:
        ticket, spec = read_ticket(supervisor.context.workspace, str(command.args.get("ticket") or ""))
    except SpecError as error:
        raise RefusedError(str(error)) from error
    refuse_impossible_gpus(supervisor, spec)
    name = repository.fitting_name(str(command.args.get("name") or spec.name))
    try:
        folders = {entry.name for entry in supervisor.context.workspace.runs.iterdir()}
        run_id, sequence = repository.next_run_id(supervisor.context.connection, name, folders)
        folder = supervisor.context.workspace.run_dir(run_id)
        folder.mkdir(mode=PRIVATE_DIR_MODE)
    except OSError as error:
        raise _no_folder(error) from error
    try:
        try:
            (folder / SPEC_FILE).hardlink_to(ticket)
        except OSError as error:
            raise _no_folder(error) from error
        enter_run(supervisor, command, spec, run_id=run_id, sequence=sequence, name=name, folder=folder)
    except Exception:
        # Refused, withdrawn, or tried again under a new folder.
        shutil.rmtree(folder)
        raise
    ticket.unlink(missing_ok=True)
    supervisor.needs_schedule = True


def _no_folder(error: OSError) -> RefusedError:
    return RefusedError(f"cannot make the run's folder: {error}; free some disk space")


def enter_run(
    supervisor: Supervisor,
    command: PendingCommand,
    spec: RunSpec,
    *,
    run_id: str,
    sequence: int,
    name: str,
    folder: Path,
) -> None:
    """The rows of a new run, and the answer. Raises sqlite3.Error with nothing changed."""
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        repository.insert_run(
            connection,
            run_id=run_id,
            sequence=sequence,
            name=name,
            spec=redact_spec(spec),
            params=redact_params(spec.params),
            now=now,
            actor=command.actor,
        )
        if spec.study_id is not None and not adopt_run(
            connection, spec.study_id, spec.trial or 0, command.command_id, run_id
        ):
            raise RefusedError(f"the study {spec.study_id} does not want this trial any more")
        open_metrics(supervisor.context.ingest, run_id, spec, folder)
        add_event(connection, "launched", f"launched by {command.actor}", now=now, run_id=run_id)
        done(supervisor, command, run_id)


def stop(supervisor: Supervisor, command: PendingCommand) -> None:
    """Stop a run: checkpoint and leave, or at once with ``now``. A study gives its ``reason``."""
    target = find(supervisor, command)
    if target.state.is_over:
        raise RefusedError(f"{target.run_id} is {target.state} already")
    supervisor.stop(
        target,
        intent="stop",
        actor=command.actor,
        now_at_once=bool(command.args.get("now")),
        reason=command.args.get("reason"),
        note=lambda: done(supervisor, command, target.run_id),
    )


def restart(supervisor: Supervisor, command: PendingCommand) -> None:
    """Begin again from the start with the parameters as launched; a run that is active is stopped first."""
    target = find(supervisor, command)
    if target.state.has_attempt:
        supervisor.stop(
            target,
            intent="restart",
            actor=command.actor,
            now_at_once=False,
            note=lambda: done(supervisor, command, target.run_id),
        )
    elif target.state.is_over:
        requeue(supervisor, target, params=dict(spec_of(target).params), resume_from=None, command=command)
    else:
        raise RefusedError(f"{target.run_id} is {target.state} and will start by itself; gputui stop ends that")


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Go on from the newest checkpoint of the run's course that validates, or from the one that ``from`` names, with
    parameters changed by ``set``."""
    target = find(supervisor, command)
    if not target.state.is_over:
        raise RefusedError(f"{target.run_id} is {target.state}; only an ended run can be resumed")
    folder = checkpoint_directory(spec_of(target), supervisor.context.workspace.run_dir(target.run_id))
    if spec_of(target).checkpoints is None or folder is None:
        raise RefusedError(f"{target.run_id} has no checkpoints in its profile; gputui restart begins it again")
    changes = command.args.get("set") or {}
    unknown = [name for name in changes if name not in target.params]
    if unknown:
        raise RefusedError(f"{target.run_id} has no parameter {unknown[0]!r}; it has {', '.join(target.params)}")
    if redact_params(changes) != changes or any(REDACTED in str(value) for value in changes.values()):
        raise RefusedError("a secret is not stored, so that a resume cannot change it; launch the run again")
    found = supervisor.searches.get(command.command_id)
    if found is None:
        search = search_of(
            supervisor.context.connection,
            supervisor.context.workspace,
            target,
            supervisor.context.now(),
            executors=supervisor.context.executors,
        )
        if search is None:
            # Only its target sees them: it chooses when the attempt begins.
            named = command.args.get("from")
            from_there = None if named is None else str(named)
            context = supervisor.context
            if named is None and not course_elsewhere(
                context.connection, context.workspace, replace(target, resume_from=None)
            ):
                raise RefusedError(
                    f"no attempt of {target.run_id} has begun; gputui restart begins it", commands.NO_CHECKPOINT
                )
            requeue(
                supervisor, target, params={**target.params, **changes}, resume_from=from_there, command=command
            )  # fmt: skip
            return
        path = None if command.args.get("from") is None else Path(str(command.args["from"]))
        name = f"reading checkpoints in {folder if path is None else path.parent}"
        job = supervisor.context.jobs.start(name, partial(for_person, search, path), deadline_seconds=SEARCH_SECONDS)
        found = supervisor.searches[command.command_id] = (search, job)
    search, job = found
    if not job.is_over:
        raise UnansweredError
    try:
        choice = job.result()
    except NotUsableError as error:
        raise RefusedError(str(error), None if error.may_pass else commands.NO_CHECKPOINT) from error
    except OSError as error:
        raise RefusedError(f"{folder}: {error.strerror or error}; see whether its file system answers") from error
    if not choice.usable:
        with transaction(supervisor.context.connection) as connection:
            write_ledger(connection, search, choice.rows, supervisor.context.now())
        kind = commands.NO_CHECKPOINT if choice.unreadable is None else None
        raise RefusedError(none_usable(target.run_id, folder, choice), kind)
    requeue(
        supervisor,
        target,
        params={**target.params, **changes},
        resume_from=str(choice.usable[0].path),
        command=command,
        found=(search, choice),
    )


def none_usable(run_id: str, folder: Path, choice: CheckpointChoice) -> str:
    """Why a run cannot be resumed, and what to do instead."""
    if choice.unreadable is not None:
        return (
            f"the checkpoints of {run_id} cannot be read now: {choice.unreadable}; "
            f"gputui restart {run_id} begins the run again without them"
        )
    why = f" ({skips})" if (skips := passed_over(choice.refused)) else ""
    return (
        f"no valid checkpoint of this training in {folder}{why}; "
        f"gputui resume {run_id} --from PATH resumes from one that you choose, gputui restart {run_id} begins it again"
    )


def remove(supervisor: Supervisor, command: PendingCommand) -> None:
    """Forget a run that is over: at once for everybody who looks; what it takes up is deleted in the background."""
    target = find(supervisor, command)
    if not target.state.is_over:
        raise RefusedError(f"{target.run_id} is {target.state}; stop it first")
    active = supervisor.runs.get(target.run_id)
    if active is not None and active.releasing:
        raise RefusedError(f"{target.run_id} has just ended and its GPUs' memory is not back yet; try again soon")
    try:
        away = put_away(supervisor.context.workspace, target.run_id)
    except OSError as error:
        raise RefusedError(f"cannot remove {supervisor.context.workspace.run_dir(target.run_id)}: {error}") from error
    try:
        with transaction(supervisor.context.connection) as connection:
            repository.release_leases(connection, target.run_id)
            keep_cost(connection, target.run_id)
            checkpoints.forget_run(connection, target.run_id)
            connection.execute("DELETE FROM runs WHERE run_id = ?", (target.run_id,))
            connection.execute("DELETE FROM events WHERE run_id = ?", (target.run_id,))
            alerts.forget_run(connection, target.run_id)
            done(supervisor, command, target.run_id)
    except Exception:
        # What is not removed keeps its folder.
        if away is not None:
            away.restore()
        raise
    supervisor.context.ingest.forget(target.run_id)
    if away is not None:
        supervisor.removal.delete_folder(away)


def clear_gpu(supervisor: Supervisor, command: PendingCommand) -> None:
    """Let runs have a GPU again that failed."""
    uuid = str(command.args.get("uuid") or "")
    with transaction(supervisor.context.connection) as connection:
        if not clear(connection, uuid):
            raise RefusedError(f"{uuid} is not in quarantine; gputui gpus shows those that are")
        now = supervisor.context.now()
        add_event(connection, "gpu_cleared", f"{uuid} was cleared by {command.actor}", now=now, key=uuid)
        commands.give_answer(connection, command.command_id, "done", now=now, result={"uuid": uuid})
    supervisor.needs_schedule = True


HANDLERS: dict[str, Callable[[Supervisor, PendingCommand], None]] = {
    "run": run,
    "stop": stop,
    "restart": restart,
    "resume": resume,
    "rm": remove,
    "label": label_commands.label,
    "clear_gpu": clear_gpu,
    "queue_pause": queue_commands.pause,
    "queue_resume": queue_commands.resume,
    "queue_move": queue_commands.move,
    "orphans_ended": orphan_commands.orphans_ended,
    "alert_ack": alert_commands.acknowledge,
    "alert_silence": alert_commands.silence,
    "study": study_commands.begin,
    "study_pause": study_commands.pause,
    "study_resume": study_commands.resume,
    "study_stop": study_commands.stop,
    "study_extend": study_commands.extend,
    "study_enqueue": study_commands.enqueue,
}


def find(supervisor: Supervisor, command: PendingCommand) -> Run:
    found = None if command.run_id is None else get_run(supervisor.context.connection, command.run_id)
    if found is None:
        raise RefusedError(f"no run {command.run_id!r}; gputui ps lists them")
    return found


def requeue(
    supervisor: Supervisor,
    target: Run,
    *,
    params: dict[str, Scalar],
    resume_from: str | None,
    command: PendingCommand,
    found: tuple[CheckpointSearch, CheckpointChoice] | None = None,
) -> None:
    """Queue a run that is over. ``found`` is the ledger in which ``resume_from`` was found; a run that is resumed
    without it continues from what its target finds."""
    now = supervisor.context.now()
    skipped = ""
    with transaction(supervisor.context.connection) as connection:
        if found is not None:
            search, choice = found
            write_ledger(connection, search, choice.rows, now)
            skipped = f"; {skips}" if (skips := passed_over(choice.refused)) else ""
        repository.set_next_attempt(connection, target.run_id, params=params, resume_from=resume_from, not_before=None)
        next_attempt.take_away(connection, target.run_id)
        if command.verb != commands.RESUME:
            # With the parameters as launched; one that is resumed keeps those that were made for fewer GPUs.
            repository.set_gpu_count(connection, target.run_id, None)
        repository.move(connection, target, RunState.QUEUED, cause=command.verb, actor=command.actor, now=now)
        newest = "the newest valid checkpoint on its target" if command.verb == commands.RESUME else "the start"
        where = newest if resume_from is None else Path(resume_from).name
        add_event(
            connection,
            "requeued",
            f"{command.verb} by {command.actor} from {where}{skipped}",
            now=now,
            key=command.verb,
            run_id=target.run_id,
        )
        step = None if found is None else found[1].usable[0].step
        done(supervisor, command, target.run_id, resume_from=resume_from, resume_step=step)
    supervisor.needs_schedule = True


def refuse_impossible_gpus(supervisor: Supervisor, spec: RunSpec) -> None:
    """Refuse at once what waiting could never help."""
    wanted = len(spec.gpus.uuids) or spec.gpus.count
    inventory = supervisor.context.recorder.inventory
    if not wanted or inventory is None or not supervisor.context.executors.of(spec.target).places_gpus:
        return
    known = {gpu.uuid for gpu in inventory.gpus}
    missing = [uuid for uuid in spec.gpus.uuids if uuid not in known]
    if missing:
        raise RefusedError(f"there is no GPU {missing[0]} here; gputui gpus lists them")
    if wanted > len(known):
        have = f"this machine has {len(known)}" if known else inventory.problem or "this machine has none"
        raise RefusedError(f"the run asks for {wanted} GPU{'s' if wanted > 1 else ''}: {have}; choose with --gpus")
    needed = spec.gpus.memory_bytes
    asked_for = [gpu for gpu in inventory.gpus if not spec.gpus.uuids or gpu.uuid in spec.gpus.uuids]
    large = [gpu for gpu in asked_for if gpu.memory_total_bytes is None or gpu.memory_total_bytes >= (needed or 0)]
    if wanted > len(large):
        noun = "a GPU" if wanted == 1 else f"{wanted} GPUs"
        most = max((gpu.memory_total_bytes or 0 for gpu in asked_for), default=0)
        have = f"{len(large)} of {len(asked_for)} here are so large, and the largest has {bytes_text(most)}"
        raise RefusedError(f"the run asks for {noun} with {bytes_text(needed)}: {have}; see gpus: of the profile")
