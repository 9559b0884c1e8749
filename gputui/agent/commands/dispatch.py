"""Dispatch of commands: one handler per verb, which returns a result or raises RefusedError.

The changes of a command and its answer are one transaction, so that the successor of a killed agent
finds the command either answered or not begun.
"""

from __future__ import annotations

import logging
import sqlite3

from gputui.agent.commands import operation, runs, studies
from gputui.agent.commands.request import CommandRequest, Handler, RefusedError, UnansweredError
from gputui.agent.error_barrier import roll_back
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.runs.identity import is_gone
from gputui.runs.repository import transaction
from gputui.store import commands
from gputui.store.commands import PendingCommand, WithdrawnError
from gputui.store.database import is_locked

log = logging.getLogger(__name__)

HANDLERS: dict[str, Handler] = {
    "run": runs.launch,
    "stop": runs.stop,
    "restart": runs.restart,
    "resume": runs.resume,
    "rm": runs.remove,
    "label": runs.label,
    "set_loss": runs.set_loss,
    "orphans_ended": runs.note_ended_orphans,
    "clear_gpu": operation.clear_gpu,
    "quarantine_gpu": operation.quarantine_gpu,
    "queue_pause": operation.pause_queue,
    "queue_resume": operation.resume_queue,
    "queue_move": operation.move_in_queue,
    "alert_ack": operation.acknowledge,
    "alert_silence": operation.silence,
    "study": studies.begin,
    "study_pause": studies.pause,
    "study_resume": studies.resume,
    "study_stop": studies.stop,
    "study_extend": studies.extend,
    "study_enqueue": studies.enqueue_trial,
    "study_prune": studies.prune_trial,
    "study_keep": studies.keep_trial,
}


def answer_all(supervisor: Supervisor) -> int:
    """Answer pending commands, oldest first, each in its own transaction; return the number
    answered. Raises sqlite3.OperationalError if the database is locked."""
    waiting = commands.pending(supervisor.context.connection)
    count = sum(_answer_one(supervisor, command) for command in waiting)
    supervisor.needs_schedule |= bool(count)
    return count


def _answer_one(supervisor: Supervisor, command: PendingCommand) -> bool:
    """Handle a command; return whether it was answered. If its changes cannot be written, it is
    tried again, until its client ends or withdraws it."""
    try:
        try:
            carry_out(supervisor, command)
        except (UnansweredError, WithdrawnError, sqlite3.OperationalError):
            raise
        except RefusedError as error:
            _refuse(supervisor, command, str(error), error.kind)
        except Exception as error:
            # A malformed command must not end this agent and all its successors.
            log.exception("command %d (%s) failed", command.command_id, command.verb)
            text = f"{command.verb} failed ({type(error).__name__}); the agent's log says more"
            _refuse(supervisor, command, text)
    except (UnansweredError, WithdrawnError):
        return False
    except sqlite3.OperationalError as error:
        roll_back(supervisor.context.connection)
        if is_locked(error):
            raise
        return False
    return True


def carry_out(supervisor: Supervisor, command: PendingCommand) -> None:
    """Carry out a command and answer it. Raises RefusedError, UnansweredError, WithdrawnError,
    sqlite3.Error, or whatever its handler does not foresee, with nothing changed."""
    context = supervisor.context
    request = CommandRequest(supervisor, command)
    handler = HANDLERS.get(command.verb)
    if handler is None:
        raise RefusedError(f"this agent does not know {command.verb!r}; restart it with gputui agent stop")
    try:
        with transaction(context.connection) as connection:
            if is_gone(command.args.get("asker")):
                raise RefusedError("the client ended before the command was carried out")
            result = handler(request)
            commands.give_answer(connection, command.command_id, "done", now=context.now(), result=result)
    except Exception:
        request.undo.close()
        raise
    for act in request.afterwards:
        act()


def _refuse(supervisor: Supervisor, command: PendingCommand, reason: str, kind: str | None = None) -> None:
    context = supervisor.context
    result = None if kind is None else {"refusal": kind}
    commands.give_answer(
        context.connection, command.command_id, "refused", now=context.now(), reason=reason, result=result
    )
