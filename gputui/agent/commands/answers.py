"""Answers to commands: done with a result, refused with a reason, or later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.store import commands
from gputui.store.commands import PendingCommand
from gputui.store.runs import Run, get_run


class RefusedError(Exception):
    """The command cannot be carried out; the message says why and what to do. Nothing was changed. ``kind`` is for
    clients that are programs (`gputui.store.commands`)."""

    def __init__(self, text: str, kind: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind


class UnansweredError(Exception):
    """The answer is not ready: the command stays pending, and its handler is called again."""


def answer(supervisor: Supervisor, command: PendingCommand, result: Mapping[str, Any]) -> None:
    """Answer that the command is done, in the transaction of its changes."""
    now = supervisor.context.now()
    commands.give_answer(supervisor.context.connection, command.command_id, "done", now=now, result=dict(result))


def refuse_id_as_name(supervisor: Supervisor, name: str) -> None:
    """Raise RefusedError if a run has the id ``name``: ids and names are one space, so that a command acts on the run
    that a person meant."""
    if get_run(supervisor.context.connection, name) is not None:
        raise RefusedError(f"another run has the id {name!r}; choose another name, as with run --name")


def find_run(supervisor: Supervisor, command: PendingCommand) -> Run:
    """The run that the command names. Raises RefusedError if it does not exist."""
    run = None if command.run_id is None else get_run(supervisor.context.connection, command.run_id)
    if run is None:
        raise RefusedError(f"no run {command.run_id!r}; gputui ps lists them")
    return run
