"""Dispatch of commands: one handler per verb, which answers with a result or raises RefusedError.
The handlers of runs are here.

The changes of a command and its answer are one transaction, so that the successor of a killed agent
finds the command either answered or not begun.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gputui.agent import housekeeping
from gputui.agent.commands import handlers
from gputui.agent.commands.handlers import RefusedError, UnansweredError, answer, find_run, refuse_id_as_name
from gputui.agent.error_barrier import roll_back
from gputui.agent.lifecycle.checkpoint_survey import attempts_to_resume, search_now, write_ledger
from gputui.agent.lifecycle.rebuild import catch_up
from gputui.agent.lifecycle.run_files import open_metrics
from gputui.agent.lifecycle.supervisor import Supervisor
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
from gputui.runs.identity import is_gone
from gputui.runs.redaction import redact_spec
from gputui.runs.spec import RunSpec, Scalar, SpecError, spec_of
from gputui.runs.submission import SPEC_FILE, read_ticket
from gputui.store import alerts, commands
from gputui.store.commands import PendingCommand, WithdrawnError
from gputui.store.database import is_locked
from gputui.store.hardware import clear
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from gputui.studies.rows import adopt_run, keep_cost

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

log = logging.getLogger(__name__)

# Hundreds of gigabytes of checkpoints are read in minutes; a file system that hangs never answers.
SEARCH_SECONDS = 900.0


def answer_all(supervisor: Supervisor) -> int:
    """Answer pending commands, oldest first, each in its own transaction; return the number
    answered. Raises sqlite3.OperationalError if the database is locked."""
    waiting = commands.pending(supervisor.context.connection)
    return sum(_answer_one(supervisor, command) for command in waiting)


def _answer_one(supervisor: Supervisor, command: PendingCommand) -> bool:
    """Handle a command; return whether it was answered. If its changes cannot be written, it is
    tried again, until its client ends or withdraws it."""
    number, verb, connection = command.command_id, command.verb, supervisor.context.connection
    refusal = None
    try:
        try:
            if is_gone(command.args.get("asker")):
                raise RefusedError("the client ended before the command was carried out")
            handler = HANDLERS.get(verb)
            if handler is None:
                text = f"this agent does not know {verb!r}; restart it with gputui agent stop"
                raise RefusedError(text)
            handler(supervisor, command)
        except (UnansweredError, WithdrawnError, sqlite3.OperationalError):
            raise
        except RefusedError as error:
            refusal = error
        except SpecError as error:
            refusal = RefusedError(f"{command.run_id} cannot be read by this gputui: {error}")
        except Exception as error:
            # A malformed command must not end this agent and all its successors.
            log.exception("command %d (%s) failed", number, verb)
            text = f"{verb} failed ({type(error).__name__}); the agent's log says more"
            refusal = RefusedError(text)
        if refusal is not None:
            roll_back(connection)
            result = None if refusal.kind is None else {"refusal": refusal.kind}
            reason, now = str(refusal), supervisor.context.now()
            commands.give_answer(connection, number, "refused", now=now, reason=reason, result=result)
    except (UnansweredError, WithdrawnError):
        return False
    except sqlite3.OperationalError as error:
        roll_back(connection)
        if is_locked(error):
            raise
        return False
    return True


def done(supervisor: Supervisor, command: PendingCommand, run_id: str, **more: Any) -> None:
    """Answer with the run's state and ``more``, in the transaction of its changes."""
    run = get_run(supervisor.context.connection, run_id)
    state = "removed" if run is None else str(run.state)
    answer(supervisor, command, {"id": run_id, "state": state, **more})


def run(supervisor: Supervisor, command: PendingCommand) -> None:
    """Queue a new run."""
    context = supervisor.context
    try:
        ticket, spec = read_ticket(context.workspace, str(command.args.get("ticket") or ""))
    except SpecError as error:
        raise RefusedError(str(error)) from error
    refuse_impossible_gpus(supervisor, spec)
    name = repository.fitting_name(str(command.args.get("name") or spec.name))
    refuse_id_as_name(supervisor, name)
    folder = None
    try:
        folders = {entry.name for entry in context.workspace.runs.iterdir()}
        run_id, sequence = repository.next_run_id(context.connection, name, folders)
        made = context.workspace.run_dir(run_id)
        made.mkdir(mode=PRIVATE_DIR_MODE)
        folder = made
        (folder / SPEC_FILE).hardlink_to(ticket)
        enter_run(supervisor, command, spec, run_id, sequence, name)
    except Exception as error:
        # The command was refused or withdrawn, or is tried again with a new folder.
        if folder is not None:
            shutil.rmtree(folder)
        if isinstance(error, OSError):
            text = f"cannot make the run's folder: {error}; free some disk space"
            raise RefusedError(text) from error
        raise
    ticket.unlink(missing_ok=True)
    supervisor.needs_schedule = True


def enter_run(
    supervisor: Supervisor, command: PendingCommand, spec: RunSpec, run_id: str, sequence: int, name: str
) -> None:
    """Insert the rows of a new run, and answer. Raises sqlite3.Error with nothing changed."""
    context, trial = supervisor.context, spec.trial or 0
    with repository.transaction(context.connection) as connection:
        repository.insert_run(
            connection,
            run_id=run_id,
            sequence=sequence,
            name=name,
            spec=redact_spec(spec),
            params=redact_params(spec.params),
            now=context.now(),
            actor=command.actor,
        )
        study_id, number = spec.study_id, command.command_id
        if study_id is not None and not adopt_run(connection, study_id, trial, number, run_id):
            raise RefusedError(f"the study {study_id} does not want this trial any more")
        open_metrics(context.ingest, run_id, spec, context.workspace.run_dir(run_id))
        context.note("launched", f"launched by {command.actor}", run_id)
        done(supervisor, command, run_id)


def refuse_impossible_gpus(supervisor: Supervisor, spec: RunSpec) -> None:
    """Refuse a request for GPUs that this machine can never satisfy. Raises RefusedError."""
    named, needed = spec.gpus.uuids, spec.gpus.memory_bytes or 0
    wanted, inventory = len(named) or spec.gpus.count, supervisor.context.recorder.inventory
    is_here = supervisor.context.executors.of(spec.target).places_gpus
    if not wanted or inventory is None or not is_here:
        return
    gpus = [gpu for gpu in inventory.gpus if not named or gpu.uuid in named]
    large = [gpu for gpu in gpus if (gpu.memory_total_bytes or needed) >= needed]
    if wanted > len(large):
        asked = f"{wanted} GPU{'s' if wanted > 1 else ''}"
        asked += f" with {bytes_text(needed)}" if needed else ""
        have = inventory.problem or f"this machine has {len(large)} such; gputui gpus lists all"
        raise RefusedError(f"the run asks for {asked}: {have}; choose with --gpus")


def stop(supervisor: Supervisor, command: PendingCommand) -> None:
    """Stop a run: gracefully, or at once with ``now``. A study gives its ``reason``."""
    target = find_run(supervisor, command)
    if target.state.is_over:
        raise RefusedError(f"{target.run_id} is {target.state} already")
    at_once = bool(command.args.get("now"))
    _stop(supervisor, command, target, "stop", at_once, command.args.get("reason"))


def _stop(
    supervisor: Supervisor, command: PendingCommand, target: Run, intent: str, at_once: bool, reason: str | None = None
) -> None:
    """Ask a run to end, and answer."""
    supervisor.stop(
        target,
        intent=intent,
        actor=command.actor,
        at_once=at_once,
        reason=reason,
        note=lambda: done(supervisor, command, target.run_id),
    )


def restart(supervisor: Supervisor, command: PendingCommand) -> None:
    """Restart a run from scratch with the parameters as launched; an active run is stopped
    first."""
    target = find_run(supervisor, command)
    if target.state.has_attempt:
        _stop(supervisor, command, target, "restart", at_once=False)
    elif target.state.is_over:
        requeue(supervisor, target, command, dict(spec_of(target).params), None)
    else:
        why = "will start by itself; gputui stop ends that"
        raise RefusedError(f"{target.run_id} is {target.state} and {why}")


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume a run from its newest valid checkpoint, or from the one in ``from``, with parameters
    changed by ``set``."""
    context, target = supervisor.context, find_run(supervisor, command)
    run_id = target.run_id
    if not target.state.is_over:
        raise RefusedError(f"{run_id} is {target.state}; only an ended run can be resumed")
    folder = checkpoint_directory(spec_of(target), context.workspace.run_dir(run_id))
    if spec_of(target).checkpoints is None or folder is None:
        why = "has no checkpoints in its profile; gputui restart begins it again"
        raise RefusedError(f"{run_id} {why}")
    changes = command.args.get("set") or {}
    unknown = [name for name in changes if name not in target.params]
    if unknown:
        known = ", ".join(target.params)
        raise RefusedError(f"{run_id} has no parameter {unknown[0]!r}; it has {known}")
    values = [str(value) for value in changes.values()]
    if redact_params(changes) != changes or any(REDACTED in value for value in values):
        why = "a secret is not stored, so that a resume cannot change it; launch the run again"
        raise RefusedError(why)
    params, named = {**target.params, **changes}, command.args.get("from")
    search = search_now(context, target)
    if search is None:
        # Only its target sees the checkpoints and chooses at the start, unless one is named.
        anew = replace(target, resume_from=None)
        if named is None and not attempts_to_resume(context.connection, context.workspace, anew):
            text = f"no attempt of {run_id} has begun; gputui restart begins it"
            raise RefusedError(text, commands.NO_CHECKPOINT)
        requeue(supervisor, target, command, params, None if named is None else str(named))
        return
    path = None if named is None else Path(str(named))
    name = f"command {command.command_id}: reading checkpoints of {run_id}"
    job = context.jobs.ask(name, partial(_searched, search, path), deadline_seconds=SEARCH_SECONDS)
    if job is None:
        raise UnansweredError
    try:
        search, choice = job.result()
    except NotUsableError as error:
        kind = None if error.may_pass else commands.NO_CHECKPOINT
        raise RefusedError(str(error), kind) from error
    except OSError as error:
        why = f"{error.strerror or error}; see whether its file system answers"
        raise RefusedError(f"{folder}: {why}") from error
    if not choice.usable:
        with repository.transaction(context.connection) as connection:
            write_ledger(connection, search, choice.rows)
        kind = commands.NO_CHECKPOINT if choice.unreadable is None else None
        raise RefusedError(none_usable(run_id, folder, choice), kind)
    best = str(choice.usable[0].path)
    requeue(supervisor, target, command, params, best, (search, choice))


def _searched(search: CheckpointSearch, path: Path | None) -> tuple[CheckpointSearch, CheckpointChoice]:
    return search, for_person(search, path)


def none_usable(run_id: str, folder: Path, choice: CheckpointChoice) -> str:
    """Why a run cannot be resumed, and what to do instead."""
    again = f"gputui restart {run_id} begins it again"
    if choice.unreadable is not None:
        return f"the checkpoints of {run_id} cannot be read now: {choice.unreadable}; {again}"
    why = f" ({skips})" if (skips := passed_over(choice.refused)) else ""
    named = f"gputui resume {run_id} --from PATH resumes from one that you choose"
    return f"no valid checkpoint of this training in {folder}{why}; {named}, {again}"


def requeue(
    supervisor: Supervisor,
    target: Run,
    command: PendingCommand,
    params: dict[str, Scalar],
    resume_from: str | None,
    found: tuple[CheckpointSearch, CheckpointChoice] | None = None,
) -> None:
    """Queue a run that is over. ``found`` is the ledger that contains ``resume_from``; a run that
    is resumed without it continues from the checkpoint that its target finds."""
    context, run_id, verb = supervisor.context, target.run_id, command.verb
    actor, now, skips, step = command.actor, context.now(), "", None
    with repository.transaction(context.connection) as connection:
        if found is not None:
            search, choice = found
            write_ledger(connection, search, choice.rows)
            skips, step = passed_over(choice.refused), choice.usable[0].step
        repository.set_next_attempt(connection, run_id, params=params, resume_from=resume_from, not_before=None)
        repository.drop_next_attempt(connection, run_id)
        where = "the newest valid checkpoint on its target"
        if verb != commands.RESUME:
            where = "the start"
            # A resumed run keeps its reduced number of GPUs: its parameters were adapted to it.
            repository.set_gpu_count(connection, run_id, None)
        if resume_from is not None:
            where = Path(resume_from).name
        repository.move(connection, target, RunState.QUEUED, cause=verb, actor=actor, now=now)
        text = f"{verb} by {actor} from {where}{f'; {skips}' if skips else ''}"
        context.note("requeued", text, run_id, key=verb)
        done(supervisor, command, run_id, resume_from=resume_from, resume_step=step, passed_over=skips or None)
    supervisor.needs_schedule = True


def remove(supervisor: Supervisor, command: PendingCommand) -> None:
    """Remove a run that is over. It disappears at once; its data are deleted in the background."""
    context, target = supervisor.context, find_run(supervisor, command)
    run_id, folder = target.run_id, context.workspace.run_dir(target.run_id)
    if target.state.is_over and catch_up(context, target):
        supervisor.to_adopt.add(run_id)
        target = find_run(supervisor, command)
    if not target.state.is_over:
        raise RefusedError(f"{run_id} is {target.state}; stop it first")
    if any(entry.run_id == run_id for entry in supervisor.release.entries):
        why = "has just ended and its GPUs' memory is not back yet; try again soon"
        raise RefusedError(f"{run_id} {why}")
    try:
        moved = housekeeping.move_to_removed(context.workspace, run_id)
    except OSError as error:
        raise RefusedError(f"cannot remove {folder}: {error}") from error
    try:
        with repository.transaction(context.connection) as connection:
            repository.release_leases(connection, run_id)
            keep_cost(connection, run_id)
            connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
            connection.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
            alerts.forget_run(connection, run_id)
            done(supervisor, command, run_id)
    except Exception:
        # A run that is not removed keeps its folder.
        if moved is not None:
            moved.rename(folder)
        raise
    context.ingest.forget(run_id)
    context.janitor.has_lines = True
    if moved is not None:
        housekeeping.delete_folder(context, moved)


def clear_gpu(supervisor: Supervisor, command: PendingCommand) -> None:
    """End the quarantine of a GPU."""
    uuid = str(command.args.get("uuid") or "")
    with repository.transaction(supervisor.context.connection) as connection:
        if not clear(connection, uuid):
            raise RefusedError(f"{uuid} is not in quarantine; gputui gpus shows those that are")
        text = f"{uuid} was cleared by {command.actor}"
        supervisor.context.note("gpu_cleared", text, key=uuid)
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
    "alert_ack": handlers.acknowledge,
    "alert_silence": handlers.silence,
    "study": handlers.begin_study,
    "study_pause": handlers.pause_study,
    "study_resume": handlers.resume_study,
    "study_stop": handlers.stop_study,
    "study_extend": handlers.extend_study,
    "study_enqueue": handlers.enqueue_trial,
    "study_prune": handlers.prune_trial,
    "study_keep": handlers.keep_trial,
}


class Doorbell:
    """File notifications that wake the agent when a client has written a command: ``ring`` is
    called from another thread when an entry of ``folder`` changes. Without them (no inotify watch
    or thread is left) the loop polls."""

    def __init__(self, folder: Path, ring: Callable[[], None]) -> None:
        self._folder = folder
        self._ring = ring
        self._observer: BaseObserver | None = None

    @property
    def is_heard(self) -> bool:
        """Whether notifications work."""
        return self._observer is not None

    def start(self) -> None:
        """Start to listen. A failure is logged and leaves `is_heard` False."""
        from watchdog import events
        from watchdog.observers.inotify import InotifyObserver

        handler = events.FileSystemEventHandler()
        handler.on_any_event = lambda _event: self._ring()  # type: ignore[assignment, method-assign]
        kinds: list[Any] = [events.FileCreatedEvent, events.FileModifiedEvent]
        # A touched file; watchdog 6 called it modified.
        kinds.append(getattr(events, "FileAttribEvent", events.FileModifiedEvent))
        # Harmless: watchdog warns about folders that come and go quickly.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        observer = InotifyObserver()
        try:
            observer.schedule(handler, str(self._folder), event_filter=kinds)
            observer.start()
            self._observer = observer
        except (OSError, RuntimeError) as error:
            log.warning("commands are looked for instead of listened for: %s", error)

    def stop(self) -> None:
        """Stop the threads, if there are any."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join()
