"""The command that records killed orphans: a client kills them, but only the agent writes history."""

from __future__ import annotations

from typing import Any

from gputui.agent.commands.answers import RefusedError, answer
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.redaction import redact_text
from gputui.core.safe_text import clean
from gputui.runs.repository import transaction
from gputui.store.commands import PendingCommand
from gputui.store.events import add_event
from gputui.store.runs import get_run

COMMAND_CHARACTERS = 200


def orphans_ended(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add an event for each process that ``gputui orphans --kill`` killed or could not kill."""
    processes = command.args.get("processes")
    if not isinstance(processes, list) or not all(isinstance(process, dict) for process in processes):
        raise RefusedError("the command does not name the processes that were ended")
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        for process in processes:
            run_id = str(process.get("run_id"))
            known = get_run(connection, run_id) is not None
            add_event(
                connection,
                "orphan_killed" if process.get("killed") else "orphan_unkillable",
                sentence(process, run_id, command.actor),
                now=now,
                key=str(process.get("pid")),
                severity="info" if process.get("killed") else "error",
                run_id=run_id if known else None,
                attempt=process.get("attempt") if known else None,
            )
        answer(supervisor, command, {"noted": len(processes)})


def sentence(process: dict[str, Any], run_id: str, actor: str) -> str:
    """The event's text, redacted and without terminal control characters."""
    words = clean(redact_text(str(process.get("command", "")))[:COMMAND_CHARACTERS])
    what = f"orphan {process.get('pid')} of {run_id} ({words})"
    return f"{actor} ended {what}" if process.get("killed") else f"{actor} could not end {what}; not even by SIGKILL"
