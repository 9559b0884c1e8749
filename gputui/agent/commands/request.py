"""A command while it is carried out, and how it is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.submission import read_ticket
from gputui.store.commands import PendingCommand
from gputui.store.runs import Run, get_run

Result = Mapping[str, Any]
"""The answer to a command that was carried out, for the client."""


class RefusedError(Exception):
    """The command cannot be carried out; the message says why and what to do. Nothing was changed.

    ``kind`` is for clients that are programs (`gputui.store.commands`).
    """

    def __init__(self, text: str, kind: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind


class UnansweredError(Exception):
    """The answer is not ready: the command stays pending, and its handler is called again."""


@dataclass(slots=True)
class CommandRequest:
    """A command for its handler, whose changes are stored together with the answer in one transaction.

    Attributes:
        undo: takes back changes outside of the store if that fails.
        afterwards: done once the changes are stored.
    """

    supervisor: Supervisor
    command: PendingCommand
    undo: ExitStack = field(default_factory=ExitStack)
    afterwards: list[Callable[[], object]] = field(default_factory=list)

    @property
    def context(self) -> AgentContext:
        return self.supervisor.context

    @property
    def connection(self) -> sqlite3.Connection:
        return self.supervisor.context.connection

    @property
    def args(self) -> dict[str, Any]:
        return self.command.args

    @property
    def actor(self) -> str:
        return self.command.actor

    def run(self) -> Run:
        """The run that the command names. Raises RefusedError if it does not exist."""
        run = get_run(self.connection, self.command.run_id or "")
        if run is None:
            raise RefusedError(f"no run {self.command.run_id!r}; gputui ps lists them")
        return run

    def ticket(self) -> tuple[Path, RunSpec]:
        """The file with the private specification that the command names, and its content. Raises
        RefusedError if it cannot be read."""
        try:
            return read_ticket(self.context.workspace, str(self.args.get("ticket") or ""))
        except SpecError as error:
            raise RefusedError(str(error)) from error

    def refuse_id_as_name(self, name: str) -> None:
        """Raise RefusedError if a run has the id ``name``: ids and names are one space, so that a
        command acts on the run that a person meant."""
        if get_run(self.connection, name) is not None:
            text = f"another run has the id {name!r}; choose another name, as with run --name"
            raise RefusedError(text)


Handler = Callable[[CommandRequest], Result]
