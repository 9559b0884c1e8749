"""Commands to the agent: a client inserts a row, and the agent answers in place."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE
from gputui.store.rows import insert, json_mapping, records

ANSWER_SECONDS = 20.0  # the agent answers in one turn; a slow disk may take some seconds
# A resume reads whole checkpoints, which may have hundreds of gigabytes.
RESUME_SECONDS = 1800.0

RESUME = "resume"
"""The verb that continues a run that is over."""
NO_CHECKPOINT = "no_checkpoint"
"""A kind of refusal: no checkpoint can be resumed from, and waiting does not help."""


class WithdrawnError(Exception):
    """The client has withdrawn the command: it must not be carried out."""


class NotWithdrawnError(Exception):
    """A command that was not answered could not be withdrawn: it may still be carried out."""


CommandState = Literal["pending", "done", "refused"]

AgentVerb = Literal[
    "run", "stop", "restart", "resume", "rm", "label", "set_loss", "orphans_ended",
    "clear_gpu", "quarantine_gpu", "queue_pause", "queue_resume", "queue_move", "alert_ack", "alert_silence",
    "study", "study_pause", "study_resume", "study_stop", "study_extend", "study_enqueue", "study_prune", "study_keep",
]  # fmt: skip
"""What the agent can be asked for. A client of another version may ask for more."""


class CommandAnswer(Struct, frozen=True):
    """The answer to a command.

    Attributes:
        reason: A sentence, if it was refused.
        result: For example ``{id, state}``, or ``{refusal}`` with the kind of a refusal.
        answered_at: UTC unix seconds, None if the command was withdrawn.
    """

    command_id: int
    verb: str
    state: CommandState
    reason: str | None
    result: dict[str, Any] | None
    answered_at: float | None

    @property
    def refusal(self) -> str | None:
        """The kind of a refusal."""
        if self.state != "refused" or self.result is None:
            return None
        return self.result.get("refusal")


def submit(
    connection: sqlite3.Connection,
    verb: AgentVerb,
    run_id: str | None,
    args: Mapping[str, Any],
    actor: str,
    *,
    now: float,
) -> int:
    """Insert a command and return its id; `ring` wakes the agent. Raises sqlite3.Error."""
    texts = {"run_id": _storable(run_id), "args": json.dumps(dict(args)), "actor": _storable(actor)}
    return insert(connection, "commands", created_at=now, verb=verb, **texts)


def ring(doorbell: Path) -> None:
    """Wake the agent. Without the notification, it finds new commands a little later."""
    with contextlib.suppress(OSError):
        doorbell.touch(mode=PRIVATE_FILE_MODE)


def answer(connection: sqlite3.Connection, command_id: int) -> CommandAnswer | None:
    """The agent's answer, or None if there is none yet."""
    query = "SELECT * FROM commands WHERE command_id = ? AND state <> 'pending'"
    return next(iter(records(connection, CommandAnswer, query, command_id)), None)


def arguments(connection: sqlite3.Connection, command_id: int) -> dict[str, Any]:
    """The arguments of a command. Raises sqlite3.Error."""
    row = connection.execute("SELECT args FROM commands WHERE command_id = ?", (command_id,)).fetchone()
    if row is None:
        return {}
    return dict(json_mapping(row[0]))


def patience_seconds(verb: AgentVerb) -> float:
    """The time that a client waits for the answer to this verb."""
    if verb == RESUME:
        return RESUME_SECONDS
    return ANSWER_SECONDS


def wait_for_answer(
    connection: sqlite3.Connection,
    command_id: int,
    timeout_seconds: float,
    *,
    pause: Callable[[float], None] = time.sleep,
    is_in_vain: Callable[[], bool] = lambda: False,
) -> CommandAnswer | None:
    """Wait for the agent's answer.

    Args:
        pause: Waits for so many seconds.
        is_in_vain: Called once a second; if true, the agent will not answer.

    Returns:
        None without an answer in time: the command is withdrawn, so that the agent does not carry it out after the
        client has gone.

    Raises:
        NotWithdrawnError: The withdrawal cannot be written.
        sqlite3.Error: The store cannot be read.
    """
    checked_at = time.monotonic()
    deadline = checked_at + timeout_seconds
    while (command_answer := answer(connection, command_id)) is None:
        if time.monotonic() >= checked_at + 1.0:
            checked_at = time.monotonic()
            if is_in_vain():
                deadline = min(deadline, checked_at)
        if time.monotonic() >= deadline:
            try:
                if withdraw(connection, command_id):
                    return None
            except sqlite3.OperationalError as error:
                raise NotWithdrawnError(str(error)) from error
        pause(0.02)
    return command_answer


def withdraw(connection: sqlite3.Connection, command_id: int) -> bool:
    """Withdraw a command; False if it was answered already. Raises sqlite3.Error."""
    withdrawn = connection.execute(
        "UPDATE commands SET state = 'refused', reason = 'not answered in time' "
        "WHERE command_id = ? AND state = 'pending'",
        (command_id,),
    )
    return withdrawn.rowcount == 1


class PendingCommand(Struct, frozen=True):
    """A command as the agent reads it."""

    command_id: int
    verb: str
    run_id: str | None
    args: dict[str, Any]
    actor: str


def pending(connection: sqlite3.Connection) -> list[PendingCommand]:
    """The pending commands, oldest first."""
    query = "SELECT * FROM commands WHERE state = 'pending' ORDER BY command_id"
    return records(connection, PendingCommand, query)


def give_answer(
    connection: sqlite3.Connection,
    command_id: int,
    state: Literal["done", "refused"],
    *,
    now: float,
    reason: str | None = None,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Answer a command in the transaction of its changes. Raises WithdrawnError."""
    result_json = None
    if result is not None:
        result_json = json.dumps(dict(result))
    answered = connection.execute(
        "UPDATE commands SET state = ?, reason = ?, result = ?, answered_at = ? "
        "WHERE command_id = ? AND state = 'pending'",
        (state, _storable(reason), result_json, now, command_id),
    )
    if answered.rowcount != 1:
        raise WithdrawnError(f"command {command_id} was withdrawn")


def _storable(text: str | None) -> str | None:
    """The text with undecodable bytes of file names escaped, because SQLite stores valid UTF-8."""
    if text is None:
        return None
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
