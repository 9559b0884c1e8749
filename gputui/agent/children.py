"""Processes that work for the agent and outlive it, for sinks and studies: started, adopted,
restarted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from gputui.machine.child import signal_name
from gputui.runs.identity import Holder, holder, is_alive

_REPORT_BYTES = 4096
STEADY_SECONDS = 600.0
"""A process that lives this long has worked; its end starts a new count of failures."""


@dataclass(slots=True)
class Child:
    """The process of one task: a module of gputui, which takes the lock file ``lock`` and ends when
    the task is done.

    ``delays`` are the seconds before a restart, by the number of consecutive ``failures``. Times
    are monotonic: ``began_at`` is the last start or adoption, ``next_start`` the earliest next one.
    ``adopted`` is the holder of the lock if another agent started it.
    """

    module: str
    arguments: Sequence[str]
    lock: Path
    log: Path
    delays: Sequence[float]
    failures: int = 0
    began_at: float = 0.0
    next_start: float = 0.0
    adopted: Holder | None = None
    process: subprocess.Popen[bytes] | None = None
    _report: int | None = None

    @property
    def is_running(self) -> bool:
        """True if it was started or adopted, and its end was not noticed yet."""
        return self.process is not None or self.adopted is not None

    def turn(self, now: float) -> str | None:
        """Follow the process, or start one that is due. Return the problem of one that has just
        failed."""
        if self.is_running:
            if now - self.began_at >= STEADY_SECONDS:
                self.failures = 0
            if self._lives():
                return None
            problem = self._outcome()
            if problem is None:
                self.failures = 0
        elif now >= self.next_start:
            self.began_at = now
            try:
                self._begin()
                return None
            except OSError as error:
                problem = f"cannot be started: {error.strerror or error}"
        else:
            return None
        self.next_start = now + self.delays[min(self.failures, len(self.delays) - 1)]
        self.failures += problem is not None
        return problem

    def release(self) -> None:
        """Close the handles of a process that continues after this agent."""
        if self._report is not None:
            os.close(self._report)
            self._report = None
        if self.process is not None and self.process.poll() is None:
            # Otherwise Popen warns about a child that is still running.
            self.process.returncode = 0
        self.process = self.adopted = None

    def _lives(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        return self.adopted is not None and is_alive(self.adopted.identity)

    def _outcome(self) -> str | None:
        """The problem of the process that has ended; None if it succeeded, or was not started by
        this agent."""
        code = 0
        if self.process is not None:
            code = self.process.returncode
        report = ""
        if self._report is not None:
            with suppress(OSError):
                report = os.read(self._report, _REPORT_BYTES).decode("utf-8", "replace").strip()
        self.release()
        if code == 0:
            return None
        if report:
            return report
        if code < 0:
            return f"its process was ended by {signal_name(-code)}"
        return f"its process ended with code {code}"

    def _begin(self) -> None:
        """Adopt the process that holds the lock, or start one in a new session, so that it outlives this
        agent.

        It reports a failure to the descriptor in ``--tell``; its output goes to the log. Raises OSError.
        """
        running = holder(self.lock)
        if running is not None and is_alive(running.identity):
            self.adopted = running
            return
        self.log.parent.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        report, its_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with os.fdopen(os.open(self.log, flags, PRIVATE_FILE_MODE), "wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", self.module, *self.arguments, "--tell", str(its_end)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd="/",
                    pass_fds=(its_end,),
                )
            self._report = report
        except OSError:
            os.close(report)
            raise
        finally:
            os.close(its_end)
