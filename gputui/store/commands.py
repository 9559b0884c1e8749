"""Asking the agent for something: a command is a row, and the agent answers it in place."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gputui.config import PRIVATE_FILE_MODE


class WithdrawnError(Exception):
    """The client has withdrawn the command: nothing of it may be done any more."""


class NotWithdrawnError(Exception):
    """A command without an answer in time could not be withdrawn either: it may still be carried out."""


# A disk may be full for a moment only.
WITHDRAWING_SECONDS = 10.0
ANSWER_SECONDS = 20.0
# Before a run is resumed, checkpoints are read whole: that may be hundreds of gigabytes.
RESUME_SECONDS = 1800.0

CommandState = Literal["pending", "done", "refused"]


RESUME = "resume"
"""The verb that continues a run which is over."""
NO_CHECKPOINT = "no_checkpoint"
"""A kind of refusal: nothing that was saved can be resumed from, and waiting does not help."""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What became of a command, ``answered_at`` in UTC unix seconds, None if it was withdrawn. ``reason`` is a
    sentence when it was refused; ``result`` e.g. ``{id, state}``, of a refusal ``{refusal}`` with its kind, if it has
    one."""

    command_id: int
    verb: str
    state: CommandState
    reason: str | None
    result: dict[str, Any] | None
    answered_at: float | None

    @property
    def refusal(self) -> str | None:
        """The kind of a refusal."""
        return None if self.state != "refused" or self.result is None else self.result.get("refusal")


def submit(
    connection: sqlite3.Connection,
    verb: str,
    run_id: str | None,
    args: Mapping[str, Any],
    actor: str,
    *,
    now: float,
    doorbell: Path | None = None,
) -> int:
    """Write a command row and ring the agent. Returns the command's id. Raises sqlite3.Error."""
    cursor = connection.execute(
        "INSERT INTO commands (created_at, verb, run_id, args, actor) VALUES (?, ?, ?, ?, ?)",
        (now, verb, None if run_id is None else _storable(run_id), json.dumps(dict(args)), _storable(actor)),
    )
    if doorbell is not None:
        # The row counts; a bell that cannot be rung only delays it.
        with contextlib.suppress(OSError):
            doorbell.touch(mode=PRIVATE_FILE_MODE)
    return int(cursor.lastrowid or 0)


def answer(connection: sqlite3.Connection, command_id: int) -> CommandAnswer | None:
    """The agent's answer, or None while there is none."""
    row = connection.execute(
        "SELECT verb, state, reason, result, answered_at FROM commands WHERE command_id = ? AND state <> 'pending'",
        (command_id,),
    ).fetchone()
    if row is None:
        return None
    return CommandAnswer(command_id, row[0], row[1], row[2], json.loads(row[3]) if row[3] else None, row[4])


def arguments(connection: sqlite3.Connection, command_id: int) -> dict[str, Any]:
    """What was asked for. Raises sqlite3.Error."""
    row = connection.execute("SELECT args FROM commands WHERE command_id = ?", (command_id,)).fetchone()
    return {} if row is None else _arguments(row[0])


def patience_seconds(verb: str) -> float:
    """How long whoever asks for this waits for its answer."""
    return RESUME_SECONDS if verb == RESUME else ANSWER_SECONDS


def wait_for_answer(
    connection: sqlite3.Connection,
    command_id: int,
    timeout_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    is_in_vain: Callable[[], bool] = lambda: False,
) -> CommandAnswer | None:
    """The agent's answer, or None when none came in time or ``is_in_vain``, which is asked once a second; the command
    is withdrawn then, so that the agent cannot act on it long after the asker has gone. Raises NotWithdrawnError if
    that cannot be written, sqlite3.Error."""
    deadline = clock() + timeout_seconds
    asked_at = clock()
    while (found := answer(connection, command_id)) is None:
        if clock() >= asked_at + 1.0:
            asked_at = clock()
            deadline = min(deadline, asked_at) if is_in_vain() else deadline
        if clock() >= deadline:
            try:
                if withdraw(connection, command_id):
                    return None
            except sqlite3.OperationalError as error:
                if clock() >= deadline + WITHDRAWING_SECONDS:
                    raise NotWithdrawnError(str(error)) from error
        pause(0.02)
    return found


def withdraw(connection: sqlite3.Connection, command_id: int) -> bool:
    """Refuse a command in the agent's place; whether it still waited. Raises sqlite3.Error."""
    withdrawn = connection.execute(
        "UPDATE commands SET state = 'refused', reason = 'not answered in time' "
        "WHERE command_id = ? AND state = 'pending'",
        (command_id,),
    )
    return withdrawn.rowcount == 1


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command as the agent reads it."""

    command_id: int
    verb: str
    run_id: str | None
    args: dict[str, Any]
    actor: str


def pending(connection: sqlite3.Connection) -> list[PendingCommand]:
    """What waits for the agent, oldest first."""
    # As bytes: one row whose text is no UTF-8 must not hide the others.
    rows = connection.execute(
        "SELECT command_id, cast(verb AS BLOB), cast(run_id AS BLOB), cast(args AS BLOB), cast(actor AS BLOB) "
        "FROM commands WHERE state = 'pending' ORDER BY command_id"
    ).fetchall()
    found = []
    for command_id, *values in rows:
        verb, run_id, args, actor = (None if value is None else value.decode("utf-8", "replace") for value in values)
        found.append(PendingCommand(command_id, verb or "", run_id, _arguments(args or ""), actor or ""))
    return found


def give_answer(
    connection: sqlite3.Connection,
    command_id: int,
    state: Literal["done", "refused"],
    *,
    now: float,
    reason: str | None = None,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Answer a command in place; only the agent does. What a command does is done in the transaction of its answer, so
    that either both are or none is. Raises WithdrawnError if the command waits no more."""
    answered = connection.execute(
        "UPDATE commands SET state = ?, reason = ?, result = ?, answered_at = ? "
        "WHERE command_id = ? AND state = 'pending'",
        (
            state,
            None if reason is None else _storable(reason),
            None if result is None else json.dumps(dict(result)),
            now,
            command_id,
        ),
    )
    if answered.rowcount != 1:
        raise WithdrawnError(f"command {command_id} was withdrawn")


def _storable(text: str) -> str:
    """A name in it may be one that is not UTF-8, which the store cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
