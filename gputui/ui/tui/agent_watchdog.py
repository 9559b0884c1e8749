"""A thread that keeps an agent running while the screen is open. Starting one may take seconds."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from gputui.core.config import Workspace
from gputui.runs.agent_process import (
    AgentStoppedError,
    AgentUnreachableError,
    ensure_agent,
    read_identity,
    view_presence,
)
from gputui.runs.identity import ProcessIdentity, is_stopped, open_pidfd

LOOK_SECONDS = 10.0
"""The kernel reports an agent's end at once. This often the watchdog checks that it is still this home's agent."""

STOPPED_LOOK_SECONDS = 1.0
"""How often the watchdog checks for SIGSTOP, which the kernel reports only to the parent."""

BLIND_LOOK_SECONDS = 1.0
"""How often the watchdog checks without a pidfd: no descriptor left, or pidfd_open not allowed or unknown."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0

STARTING = "Starting the agent…"
GONE = "The agent is gone; starting it again…"


class AgentKeeper:
    """Waits for the end of the agent, and starts one if none runs, with growing pauses between failures.

    ``tell`` is called from the keeper's thread with the sentence to show, None if all is well.
    """

    def __init__(self, workspace: Workspace, tell: Callable[[str | None], object]) -> None:
        self._workspace = workspace
        self._tell = tell
        self._stop = threading.Event()
        self._stopped, self._stopper = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="agent keeper", daemon=True)
        self._said: str | None = None
        self._was_alive = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. The agent continues, and ends when nothing needs it."""
        if not self._stop.is_set():
            self._stop.set()
            os.close(self._stopper)

    def _run(self) -> None:
        try:
            self._workspace.create()
            with view_presence(self._workspace):
                self._keep()
        except OSError as error:
            self._say(f"Cannot use {self._workspace.state}: {error.strerror}; choose another --home.")
        finally:
            os.close(self._stopped)

    def _keep(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            identity = read_identity(self._workspace)
            if identity is not None and identity.ready:
                self._was_alive = True
                pause = FIRST_PAUSE_SECONDS
                self._wait_for_end(identity.process)
                continue
            self._say(GONE if self._was_alive else STARTING)
            try:
                ensure_agent(self._workspace, report=lambda doing: self._say(f"The agent is {doing} …"))
            except AgentStoppedError as error:
                self._say(error.sentence)
            except AgentUnreachableError as error:
                self._say(f"The agent does not start: {str(error).rstrip('.')}. Trying again in {pause:.0f} s.")
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _wait_for_end(self, agent: ProcessIdentity) -> None:
        """Wait until the process ends, the keeper is stopped, or `LOOK_SECONDS` have passed; meanwhile report a stopped
        process."""
        try:
            process = open_pidfd(agent.pid)
        except ProcessLookupError:
            return
        if process is None:
            self._say_stopped(agent)
            self._stop.wait(BLIND_LOOK_SECONDS)
            return
        try:
            # select takes no descriptor above 1023.
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.register(self._stopped, select.POLLIN)
            until = time.monotonic() + LOOK_SECONDS
            while (left := until - time.monotonic()) > 0.0:
                self._say_stopped(agent)
                if poll.poll(min(left, STOPPED_LOOK_SECONDS) * 1000):
                    break
        finally:
            os.close(process)

    def _say_stopped(self, agent: ProcessIdentity) -> None:
        self._say(AgentStoppedError(agent.pid).sentence if is_stopped(agent) else None)

    def _say(self, text: str | None) -> None:
        if text != self._said and not self._stop.is_set():
            self._said = text
            self._tell(text)
