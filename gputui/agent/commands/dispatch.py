"""Dispatch of commands: one handler per verb, which answers with a result or raises RefusedError.

The changes of a command and its answer are one transaction, so that the successor of a killed agent finds the command
either answered or not begun.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.agent.commands import (
    alert_commands,
    handlers,
    study_commands,
)
from gputui.agent.commands.handlers import RefusedError, UnansweredError, answer, find_run, refuse_id_as_name
from gputui.agent.error_barrier import roll_back
from gputui.agent.lifecycle.active_run import Adopting
from gputui.agent.lifecycle.checkpoint_survey import attempts_to_resume, search_of
from gputui.agent.lifecycle.checkpoint_survey import write as write_ledger
from gputui.agent.lifecycle.rebuild import catch_up
from gputui.agent.lifecycle.removal import move_to_removed
from gputui.agent.lifecycle.run_files import open_metrics
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.agent.lock import why_unwritable
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import REDACTED, redact_params
from gputui.core.units import bytes_text
from gputui.recovery.checkpoints.search import (
    CheckpointChoice,
    CheckpointSearch,
    NotUsableError,
    for_person,
    passed_over,
)
from gputui.runs import repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.identity import is_elsewhere, is_gone
from gputui.runs.redaction import redact_spec
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec, Scalar, SpecError, spec_of
from gputui.runs.submission import SPEC_FILE, read_ticket
from gputui.store import alerts, commands
from gputui.store.commands import PendingCommand, WithdrawnError
from gputui.store.database import is_locked
from gputui.store.events import add_event
from gputui.store.hardware import clear
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from gputui.studies.rows import adopt_run, keep_cost

log = logging.getLogger(__name__)

# Hundreds of gigabytes of checkpoints are read in minutes; a file system that hangs never answers.
SEARCH_SECONDS = 900.0
# A disk may be full for a moment.
WRITES_TRIED = 3


def answer_all(supervisor: Supervisor) -> int:
    """Answer pending commands, oldest first, each in its own transaction; return the number answered. Raises
    sqlite3.OperationalError if the database is locked."""
    waiting = commands.pending(supervisor.context.connection)
    answered = sum(_answer_one(supervisor, command) for command in waiting)
    pending = {command.command_id for command in waiting}
    supervisor.searches = {key: search for key, search in supervisor.searches.items() if key in pending}
    supervisor.failed_writes = {key: count for key, count in supervisor.failed_writes.items() if key in pending}
    return answered


def _answer_one(supervisor: Supervisor, command: PendingCommand) -> bool:
    """Handle a command; return whether it was answered. If its changes cannot be written, it is tried a few times and
    then refused, so that it is not carried out long after the client gave up."""
    failures = supervisor.failed_writes.get(command.command_id, 0)
    try:
        if failures >= WRITES_TRIED:
            raise RefusedError(f"the database cannot be written; {why_unwritable()}")
        if is_gone(command.args.get("asker")):
            raise RefusedError("the client ended before the command was carried out")
        handler = HANDLERS.get(command.verb)
        if handler is None:
            raise RefusedError(f"this agent does not know {command.verb!r}; restart it with gputui agent stop")
        handler(supervisor, command)
    except (UnansweredError, WithdrawnError):
        return False
    except sqlite3.OperationalError as error:
        return _could_not_write(supervisor, command, error)
    except RefusedError as error:
        return _refuse(supervisor, command, str(error), error.kind)
    except SpecError as error:
        return _refuse(supervisor, command, f"{command.run_id} cannot be read by this gputui: {error}; update gputui")
    except Exception as error:
        # A malformed command must not end this agent and all its successors.
        log.exception("command %d (%s) failed", command.command_id, command.verb)
        return _refuse(
            supervisor, command, f"{command.verb} failed ({type(error).__name__}); the agent's log says more"
        )
    return True


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
        # The commands after it must still be answered.
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
    """Answer with the run's state and ``more``, in the transaction of its changes."""
    run = get_run(supervisor.context.connection, run_id)
    answer(supervisor, command, {"id": run_id, "state": "removed" if run is None else str(run.state), **more})


def run(supervisor: Supervisor, command: PendingCommand) -> None:
    """Queue a new run."""
    try:
        ticket, spec = read_ticket(supervisor.context.workspace, str(command.args.get("ticket") or ""))
    except SpecError as error:
        raise RefusedError(str(error)) from error
    refuse_impossible_gpus(supervisor, spec)
    name = repository.fitting_name(str(command.args.get("name") or spec.name))
    refuse_id_as_name(supervisor, name)
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
        # The command was refused or withdrawn, or is tried again with a new folder.
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
    """Insert the rows of a new run, and answer. Raises sqlite3.Error with nothing changed."""
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
    """Stop a run: gracefully, or at once with ``now``. A study gives its ``reason``."""
    target = find_run(supervisor, command)
    if target.state.is_over:
        raise RefusedError(f"{target.run_id} is {target.state} already")
    _refuse_elsewhere(supervisor, target)
    supervisor.stop(
        target,
        intent="stop",
        actor=command.actor,
        at_once=bool(command.args.get("now")),
        reason=command.args.get("reason"),
        note=lambda: done(supervisor, command, target.run_id),
    )


def _refuse_elsewhere(supervisor: Supervisor, target: Run) -> None:
    """Raise RefusedError for a run that this agent cannot signal."""
    live = supervisor.runs.attempt(target.run_id)
    process = None if live is None else live.executor.identity
    if process is not None and is_elsewhere(process):
        raise RefusedError(
            f"{target.run_id} runs in another PID namespace, as in a container; kill -TERM {process.pid} there stops it"
        )


def restart(supervisor: Supervisor, command: PendingCommand) -> None:
    """Restart a run from scratch with the parameters as launched; an active run is stopped first."""
    target = find_run(supervisor, command)
    if target.state.has_attempt:
        _refuse_elsewhere(supervisor, target)
        supervisor.stop(
            target,
            intent="restart",
            actor=command.actor,
            at_once=False,
            note=lambda: done(supervisor, command, target.run_id),
        )
    elif target.state.is_over:
        requeue(supervisor, target, params=dict(spec_of(target).params), resume_from=None, command=command)
    else:
        raise RefusedError(f"{target.run_id} is {target.state} and will start by itself; gputui stop ends that")


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume a run from its newest valid checkpoint, or from the one in ``from``, with parameters changed by
    ``set``."""
    target = find_run(supervisor, command)
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
    started = supervisor.searches.get(command.command_id)
    if started is None:
        search = search_of(
            supervisor.context.connection,
            supervisor.context.workspace,
            target,
            supervisor.context.now(),
            executors=supervisor.context.executors,
        )
        if search is None:
            _resume_on_target(supervisor, command, target, {**target.params, **changes})
            return
        path = None if command.args.get("from") is None else Path(str(command.args["from"]))
        name = f"reading checkpoints in {folder if path is None else path.parent}"
        job = supervisor.context.jobs.start(name, partial(for_person, search, path), deadline_seconds=SEARCH_SECONDS)
        started = supervisor.searches[command.command_id] = (search, job)
    search, job = started
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
            write_ledger(connection, search, choice.rows)
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


def _resume_on_target(supervisor: Supervisor, command: PendingCommand, target: Run, params: dict[str, Scalar]) -> None:
    """Resume a run whose checkpoints only its target sees: unless one is named, the target chooses at the start."""
    named = command.args.get("from")
    context, anew = supervisor.context, replace(target, resume_from=None)
    if named is None and not attempts_to_resume(context.connection, context.workspace, anew):
        raise RefusedError(f"no attempt of {target.run_id} has begun; gputui restart begins it", commands.NO_CHECKPOINT)
    path = None if named is None else str(named)
    requeue(supervisor, target, params=params, resume_from=path, command=command)


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
    """Remove a run that is over. It disappears at once; its data are deleted in the background."""
    target = find_run(supervisor, command)
    if target.state.is_over and catch_up(supervisor.context, target):
        supervisor.runs.of(target.run_id).phase = Adopting()
        target = find_run(supervisor, command)
    if not target.state.is_over:
        raise RefusedError(f"{target.run_id} is {target.state}; stop it first")
    active = supervisor.runs.get(target.run_id)
    if active is not None and active.releasing:
        raise RefusedError(f"{target.run_id} has just ended and its GPUs' memory is not back yet; try again soon")
    try:
        moved = move_to_removed(supervisor.context.workspace, target.run_id)
    except OSError as error:
        raise RefusedError(f"cannot remove {supervisor.context.workspace.run_dir(target.run_id)}: {error}") from error
    try:
        with transaction(supervisor.context.connection) as connection:
            repository.release_leases(connection, target.run_id)
            keep_cost(connection, target.run_id)
            connection.execute("DELETE FROM runs WHERE run_id = ?", (target.run_id,))
            connection.execute("DELETE FROM events WHERE run_id = ?", (target.run_id,))
            alerts.forget_run(connection, target.run_id)
            done(supervisor, command, target.run_id)
    except Exception:
        # A run that is not removed keeps its folder.
        if moved is not None:
            moved.restore()
        raise
    supervisor.context.ingest.forget(target.run_id)
    supervisor.context.janitor.has_lines = True
    if moved is not None:
        supervisor.removal.delete_folder(moved)


def clear_gpu(supervisor: Supervisor, command: PendingCommand) -> None:
    """End the quarantine of a GPU."""
    uuid = str(command.args.get("uuid") or "")
    with transaction(supervisor.context.connection) as connection:
        if not clear(connection, uuid):
            raise RefusedError(f"{uuid} is not in quarantine; gputui gpus shows those that are")
        now = supervisor.context.now()
        add_event(connection, "gpu_cleared", f"{uuid} was cleared by {command.actor}", now=now, key=uuid)
        answer(supervisor, command, {"uuid": uuid})
    supervisor.needs_schedule = True


HANDLERS: dict[str, Callable[[Supervisor, PendingCommand], None]] = {
    "run": run,
    "stop": stop,
    "restart": restart,
    "resume": resume,
    "rm": remove,
    "label": handlers.label,
    "clear_gpu": clear_gpu,
    "queue_pause": handlers.pause,
    "queue_resume": handlers.resume,
    "queue_move": handlers.move,
    "orphans_ended": handlers.orphans_ended,
    "alert_ack": alert_commands.acknowledge,
    "alert_silence": alert_commands.silence,
    "study": study_commands.begin,
    "study_pause": study_commands.pause,
    "study_resume": study_commands.resume,
    "study_stop": study_commands.stop,
    "study_extend": study_commands.extend,
    "study_enqueue": study_commands.enqueue,
    "study_prune": study_commands.prune,
    "study_keep": study_commands.keep,
}


def requeue(
    supervisor: Supervisor,
    target: Run,
    *,
    params: dict[str, Scalar],
    resume_from: str | None,
    command: PendingCommand,
    found: tuple[CheckpointSearch, CheckpointChoice] | None = None,
) -> None:
    """Queue a run that is over. ``found`` is the ledger that contains ``resume_from``; a run that is resumed without it
    continues from the checkpoint that its target finds."""
    now = supervisor.context.now()
    skipped = ""
    with transaction(supervisor.context.connection) as connection:
        if found is not None:
            search, choice = found
            write_ledger(connection, search, choice.rows)
            skipped = f"; {skips}" if (skips := passed_over(choice.refused)) else ""
        repository.set_next_attempt(connection, target.run_id, params=params, resume_from=resume_from, not_before=None)
        repository.drop_next_attempt(connection, target.run_id)
        if command.verb != commands.RESUME:
            # A resumed run keeps its reduced number of GPUs, because its parameters were adapted to it.
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
    """Refuse a request for GPUs that this machine can never satisfy. Raises RefusedError."""
    wanted = len(spec.gpus.uuids) or spec.gpus.count
    inventory = supervisor.context.recorder.inventory
    if not wanted or inventory is None or not supervisor.context.executors.of(spec.target).places_gpus:
        return
    listed = {gpu.uuid for gpu in inventory.gpus}
    missing = [uuid for uuid in spec.gpus.uuids if uuid not in listed]
    if missing:
        raise RefusedError(f"there is no GPU {missing[0]} here; gputui gpus lists them")
    if wanted > len(listed):
        have = f"this machine has {len(listed)}" if listed else inventory.problem or "this machine has none"
        raise RefusedError(f"the run asks for {wanted} GPU{'s' if wanted > 1 else ''}: {have}; choose with --gpus")
    needed = spec.gpus.memory_bytes
    asked_for = [gpu for gpu in inventory.gpus if not spec.gpus.uuids or gpu.uuid in spec.gpus.uuids]
    large = [gpu for gpu in asked_for if gpu.memory_total_bytes is None or gpu.memory_total_bytes >= (needed or 0)]
    if wanted > len(large):
        noun = "a GPU" if wanted == 1 else f"{wanted} GPUs"
        most = max((gpu.memory_total_bytes or 0 for gpu in asked_for), default=0)
        have = f"{len(large)} of {len(asked_for)} here are so large, and the largest has {bytes_text(most)}"
        raise RefusedError(f"the run asks for {noun} with {bytes_text(needed)}: {have}; see gpus: of the profile")
