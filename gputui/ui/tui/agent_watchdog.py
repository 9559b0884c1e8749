"""A thread that keeps an agent running while the screen is open. Starting one may take seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gputui.core.config import Workspace
from gputui.runs.agent_process import (
    AgentStoppedError,
    AgentUnreachableError,
    ensure_agent,
    read_identity,
    view_presence,
)
from gputui.runs.identity import is_stopped

LOOK_SECONDS = 1.0
"""How often the agent is looked for. The kernel would report only its end, and not SIGSTOP."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0

STARTING = "Starting the agent…"
GONE = "The agent is gone; starting it again…"


class AgentKeeper:
    """Starts an agent when none runs, with growing pauses between failures.

    ``tell`` is called from the keeper's thread with the sentence to show, None if all is well.
    """

    def __init__(self, workspace: Workspace, tell: Callable[[str | None], object]) -> None:
        self._workspace = workspace
        self._tell = tell
        self._stop = threading.Event()
        self._said: str | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="agent keeper", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread. The agent continues, and ends when nothing needs it."""
        self._stop.set()

    def _run(self) -> None:
        try:
            self._workspace.create()
            with view_presence(self._workspace):
                self._keep()
        except OSError as error:
            self._say(f"Cannot use {self._workspace.state}: {error.strerror}; choose another --home.")

    def _keep(self) -> None:
        pause, words = FIRST_PAUSE_SECONDS, STARTING
        while not self._stop.is_set():
            identity = read_identity(self._workspace)
            if identity is not None and identity.ready:
                pause, words = FIRST_PAUSE_SECONDS, GONE
                stopped = is_stopped(identity.process)
                self._say(AgentStoppedError(identity.process.pid).sentence if stopped else None)
                self._stop.wait(LOOK_SECONDS)
                continue
            self._say(words)
            try:
                ensure_agent(self._workspace, report=lambda doing: self._say(f"The agent is {doing} …"))
            except AgentStoppedError as error:
                self._say(error.sentence)
            except AgentUnreachableError as error:
                self._say(f"The agent does not start: {str(error).rstrip('.')}. Trying again in {pause:.0f} s.")
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _say(self, text: str | None) -> None:
        if text != self._said and not self._stop.is_set():
            self._said = text
            self._tell(text)
